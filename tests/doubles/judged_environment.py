"""An environment whose attempts end, and are judged, in a chosen order; by the name
`judged_environment:Judged`."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from flowright.config.root import Config
from flowright.data.task import Problem, Task
from flowright.environments.base import Environment, TaskSets, make_environment
from flowright.environments.episode import Episode
from flowright.environments.registry import make_config
from flowright.environments.rollout import Reward, Rollout
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.judging.wrappers import Cached
from flowright.llm.chat import Usage
from flowright.policy.sampling import Sample

TASKS = [Problem(f"t{i}", "math", "made", f"What is {i % 6}?", "y") for i in range(8)]
"""Tasks of six problems: two of them stand twice."""
ANSWERS = ("yes", "no", "Yes", "yet")


class Drawn:
    """A judge that draws its verdict and the length of its reply by the query's key."""

    name = "drawn"

    async def judge(self, query: JudgeQuery) -> Verdict:
        drawn = sha256(query.key.encode()).digest()
        score = float(drawn[0] & 1)
        usage = Usage(1, 10, drawn[1])
        return Verdict(score, score > 0, "llm", "ok", "", 1, self.name, usage)


class Judged(Environment):
    """An answer is the parity of a completion's length. Attempts end in their order, or from the
    last to the first where ``judge.model`` is ``backwards``. ``judge.cache_size`` 0: no cache."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        size = config.judge.cache_size
        self._caches = [Cached(Drawn(), size, "")] if size else []

    def tasks(self) -> TaskSets:
        return TaskSets(TASKS, TASKS)

    def query(self, rollout: Rollout, key: str) -> JudgeQuery:
        return _query(rollout.task, rollout.sample, key)

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        flat = [episode for group in groups for episode in group]
        done: dict[str, Rollout] = {}
        judge = self._caches[0] if self._caches else Drawn()
        for each in reversed(flat) if self.config.judge.model == "backwards" else flat:
            verdict = await judge.judge(_query(each.task, each.sample, each.key))
            value = verdict.score or 0.0
            reward = Reward(value, {"correctness": value})
            done[each.key] = Rollout(each.task, each.sample, reward, verdict=verdict)
        return [[done[episode.key] for episode in group] for group in groups]

    def state(self, without: Sequence[str] = ()) -> Any:
        return [cache.state(without) for cache in self._caches]

    def restore(self, state: Any) -> None:
        for cache, known in zip(self._caches, state, strict=True):
            cache.restore(known)


def _query(task: Task, sample: Sample, key: str) -> JudgeQuery:
    return JudgeQuery(task.problem, str(len(sample.text) % 2), "", key=key)


def judged(order: str = "forwards", cache_size: int = 1000) -> Environment:
    judge = {"model": order, "cache_size": cache_size}
    return make_environment(make_config(environment="judged_environment:Judged", judge=judge))


def groups_of(step: int) -> list[list[Episode]]:
    """The same four attempts at each task."""
    return [
        [
            Episode.single(task, Sample((1,), (0.0,), text, "stop", 0), f"0/{step}/{place}/{n}")
            for n, text in enumerate(ANSWERS)
        ]
        for place, task in enumerate(TASKS)
    ]
