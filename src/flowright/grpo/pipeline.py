"""The source of a run's batches, and the one that samples and rolls them out ahead of the learner.

A batch is sampled (on the device), then rolled out (waiting for large models most of the time),
then trained on. With ``pipeline.max_staleness`` s, batch b is sampled as soon as b - 1 - s updates
are done, and is rolled out while the learner is still busy with those before it. So batch numbers
alone fix which policy samples which batch, never who was faster; with s = 0 everything happens in
turn. With ``pipeline.order: ready`` a step trains on the groups that end first, of whatever batch
(:mod:`flowright.grpo.order`). The trainer samples and updates one after the other, so that the
device has one user; with ``pipeline.in_flight_tokens`` servers sample while it updates, and get the
new weights meanwhile.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, Literal

from flowright.config.root import Config
from flowright.core.errors import RunPaused
from flowright.data.mixture import Mixture, tasks_hash
from flowright.data.task import Task
from flowright.environments.base import Environment
from flowright.environments.episode import Episode
from flowright.environments.rollout import Rollout
from flowright.grpo.advantages import (
    GroupAdvantages,
    group_advantages,
    with_turn_credit,
)
from flowright.grpo.batch import (
    Batch,
    Group,
    Logprobs,
    Requested,
    TurnPlace,
    by_episode,
    penalised,
    requested,
    trained_groups,
    unscored_share,
    whole,
    whole_groups,
)
from flowright.grpo.episodes import Player, rolled_out
from flowright.grpo.learner import Learner
from flowright.grpo.order import GroupPlace, Order, first_ended
from flowright.grpo.problems import BatchTask, Fitting, problems_of, shown_prompts
from flowright.grpo.ranks import ONE, Ranks
from flowright.grpo.step_record import (
    batch_metrics,
    episode_metrics,
    rollout_records,
    sample_texts,
    version_lag,
)
from flowright.grpo.teacher import Teacher
from flowright.llm.counters import metrics_since
from flowright.policy.model_thread import on_model_thread
from flowright.policy.sampling import Prompt, Sampling, TokenTexts

SEED_STRIDE = 1_000_003
"""Distance between the sampling seeds of runs: more than any run has steps."""

ROUND_STRIDE = 1 << 40
"""Distance between the sampling seeds of a step's rounds: more than those of all runs span."""


@dataclass(frozen=True, slots=True)
class WaitingSamples:
    """A problem's episodes that wait for the learner, as :meth:`Episode.state` gives them.
    ``asked`` (a name in checkpoints) is a hash of their prompts and sampling settings: a resumed
    run drops samples of others."""

    task_id: str
    asked: str
    episodes: Sequence[Mapping[str, Any]]

    @property
    def oldest(self) -> int:
        """The oldest policy that wrote a turn."""
        return min(t["sample"]["version"] for e in self.episodes for t in e["turns"])


Pending = Mapping[int, Sequence[WaitingSamples | None]]
"""Samples that wait for the learner: by batch, for each problem, None for one trained on."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """The samples that wait for the learner, and the environment's memory: of one rank; or of all
    in a checkpoint, and then a list of their memories, with a hash of the problems trained on.
    ``outdated``: samples were dropped, of a format without hashes of their prompts."""

    pending: Pending = field(default_factory=dict)
    remembered: Any = None
    tasks_hash: str | None = None
    outdated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Started:
    """A sampled batch or one of its groups; ``running`` gives it rolled out, and when rollouts
    began and ended."""

    number: int
    problems_P: Sequence[BatchTask]
    episodes_P_G: Sequence[Sequence[Episode]]
    running: asyncio.Task[tuple[Batch, float, float]]

    @property
    def places(self) -> list[GroupPlace]:
        return [(self.number, problem.place) for problem in self.problems_P]

    @property
    def oldest(self) -> int:
        """The oldest policy that wrote a turn."""
        turns = (t for group in self.episodes_P_G for e in group for t in e.turns)
        return min(turn.sample.version for turn in turns)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The groups that a step trains on, and the records of them.

    ``metrics`` are computed once the rollouts have passed their checks. ``requested``: the whole
    that the groups are a part of, None: themselves. Where a policy is sampled: the ``rollouts``,
    their ``records``, ``texts`` for loggers by name, ``seconds`` by metric, and ``logprobs`` to be
    filled by the learner, None where records keep none.
    """

    groups: Sequence[Group]
    metrics: Callable[[], Mapping[str, float]]
    requested: Requested | None = None
    rollouts: Sequence[Rollout] = ()
    records: Sequence[dict[str, Any]] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    logprobs: dict[TurnPlace, list[float]] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


Enter = Callable[[Literal["sample", "rollout"], int], None]
"""Called with the stage of a step that begins."""


class BatchSource:
    """Source of a run's batches. The methods here suffice for one that uses no servers and keeps
    nothing between steps."""

    def __init__(self, environment: Environment, tasks: Sequence[Task]) -> None:
        self.environment = environment
        self.tasks_hash = tasks_hash(tasks)
        self.aliases = environment.aliases
        """Further names of a step's metrics, and the metrics that they stand for."""

    async def take(self, step: int, learner: Learner, enter: Enter) -> StepBatch:
        """Return this step's batch, all ranks' groups on every rank; the first step is 1."""
        raise NotImplementedError

    async def refresh(self, version: int) -> Mapping[str, float]:
        """Sample from the learner's weights of this moment from now on, as ``version``; return the
        metrics of the sampler's proof. Raises RunError where the sampler fails."""
        return {}

    def requests(self) -> dict[str, float]:
        """Return the requests to servers since the last call, as metrics ``servers/*``."""
        return {}

    async def state(self, step: int) -> SourceState:
        """Return this rank's state after ``step``, for a checkpoint."""
        return SourceState()

    def restore(self, state: SourceState) -> list[str]:
        """Take up all ranks' states of a checkpoint; return a line for each thing that is lost."""
        return []

    async def aclose(self) -> None:
        """Stop what still runs."""


class Pipeline(BatchSource):
    """Samples and rolls out this rank's share of a run's batches. ``encode`` makes a task's own
    prompt, ``fitting`` those of its scaffolds. ``texts``: the texts of tokens, where records keep
    log-probabilities. ``teacher``: that of a distillation, which scores samples while they are
    rolled out. ``order``: of groups that are taken as they end."""

    def __init__(
        self,
        config: Config,
        player: Player,
        encode: Callable[[Task], Prompt],
        fitting: Fitting,
        tasks: Sequence[Task],
        ranks: Ranks = ONE,
        texts: TokenTexts | None = None,
        teacher: Teacher | None = None,
        order: Order | None = None,
    ) -> None:
        super().__init__(player.environment, tasks)
        self._config = config
        self._ranks = ranks
        self._player = player
        self._sampler = player.sampler
        self._encode = encode
        self._fitting = fitting
        self._texts = texts
        self._teacher = teacher
        self._mixture = Mixture(tasks, config.seed)
        self._spare = Mixture(tasks, f"{config.seed}/resampled")
        self._order = order
        self._sampling: dict[int, asyncio.Task[None]] = {}  # by batch, in flight
        self._begun: set[int] = set()  # batches of which groups may wait
        self._started: list[_Started] = []
        self._taken: tuple[int, list[_Started]] = (0, [])  # by the step in progress
        self._kept: dict[int, dict[int, list[Episode]]] = {}  # of a resumed run: by batch and place
        self._trained: set[GroupPlace] = set()  # of a resumed run's batches
        self._dropped = 0  # samples that restore() dropped, until a step reports them
        self._seconds: dict[str, float] = {}  # of the step in progress, by metric

    async def take(self, step: int, learner: Learner, enter: Enter) -> StepBatch:
        """Sample and roll out until the step has its batch, and turn rewards into the groups that
        train. Raises RunPaused where the rollouts of any rank do."""
        grpo, environment = self._config.grpo, self.environment
        batch = await self._roll_out(step, learner, enter)
        check_teacher_failures(step, batch, grpo.max_unscored)
        advantages_P = self._advantages(batch)
        if grpo.has_teacher:
            advantages_P = [found.times(grpo.teacher.reward_weight) for found in advantages_P]
        filters, rewarded = grpo.overlong == "filter", grpo.needs_rewards
        groups = trained_groups(
            batch, advantages_P, filters, grpo.trains_all, rewarded, grpo.turns.mask_failed
        )
        return StepBatch(
            groups,
            partial(self._metrics, batch, advantages_P, groups, step),
            requested(batch, groups, grpo.prompts_per_step, rewarded),
            batch.rollouts,
            rollout_records(
                environment, batch, advantages_P, step, self._texts, grpo.turns.mask_failed
            ),
            sample_texts(environment, batch.rollouts),
            None if self._texts is None else {},
            self._seconds,
        )

    def _advantages(self, batch: Batch) -> list[GroupAdvantages]:
        """Advantages of all groups, of their turns with ``grpo.turns.credit``."""
        grpo = self._config.grpo
        advantages_P = group_advantages(
            batch.task_rewards_P_G,
            grpo.advantage_scale,
            batch.penalties_P_G,
            batch.divergences_P_G if grpo.trains_all else None,
        )
        if grpo.turns.credit == "outcome":
            return advantages_P
        return [
            with_turn_credit(*group, grpo)
            for group in zip(
                advantages_P,
                batch.task_rewards_P_G,
                batch.episodes_P_G,
                batch.penalties_P_G,
                strict=True,
            )
        ]

    async def _roll_out(self, step: int, learner: Learner, enter: Enter) -> Batch:
        """The step's batch with its rewards, and further rounds where groups have no signal."""
        grpo = self._config.grpo
        self._seconds = {"time/sample": 0.0, "time/wait_for_llm": 0.0}
        batch = await self._joined(self._rolled_out(step, enter), learner)
        for number in range(1, grpo.resample_rounds + 1):
            signals = [found.signal for found in self._advantages(batch)]
            missing = grpo.prompts_per_step - signals.count("ok")
            if missing <= 0 or unscored_share(batch.rollouts) > grpo.max_unscored:
                break
            more = self._another_round(step, number, missing)
            batch = batch.followed_by(await self._joined(more, learner))
        return batch

    async def _joined(self, share: Awaitable[Batch], learner: Learner) -> Batch:
        """All ranks' shares of a batch, each with its penalties. Where one rank has to pause, all
        do."""
        mine, problems = Batch([], [], [], []), ()
        try:
            mine = await share
        except RunPaused as error:
            problems = error.problems
        # An empty share, too: all ranks run the model or none does.
        grpo, nats_S = self._config.grpo, None
        if grpo.kl_in == "reward" and grpo.kl_coefficient:
            groups = whole_groups(mine)
            found = await on_model_thread(learner.divergences, groups)
            nats_S = [sum(nats) for nats in by_episode(groups, found).values()]
        longest = self._config.policy.written_tokens(self.environment.max_turns)
        mine = penalised(mine, grpo, longest, nats_S)
        shares = await self._ranks.all_gather((mine, problems))
        for _, problems in shares:
            if problems:
                raise RunPaused(*problems)
        return whole([batch for batch, _ in shares])

    def _metrics(
        self,
        batch: Batch,
        advantages_P: Sequence[GroupAdvantages],
        groups: Sequence[Group],
        step: int,
    ) -> dict[str, float]:
        metrics = self.environment.summarise(batch.rollouts)
        metrics |= batch_metrics(batch, advantages_P, step)
        if self.environment.max_turns > 1:
            metrics |= episode_metrics(batch, groups, advantages_P)
        if self._config.grpo.resample_rounds:
            more = len(batch.rollouts_P_G) - self._config.grpo.prompts_per_step
            metrics["reward/resampled_groups"] = float(more)
        if batch.teacher_P_G:
            metrics["teacher/failed"] = len(batch.teacher_failures) / len(batch.rollouts)
        if self._config.pipeline.in_flight_tokens:
            metrics["tokens/version_lag"] = version_lag(batch, step)
        if self._dropped:
            metrics["pipeline/dropped_on_resume"] = float(self._dropped)
            self._dropped = 0
        return metrics

    async def refresh(self, version: int) -> Mapping[str, float]:
        await self._sampler.refresh(version)
        return self._sampler.metrics

    def requests(self) -> dict[str, float]:
        of_teacher = self._teacher.counters if self._teacher else ()
        owners = [*self.environment.counters(), *self._sampler.counters, *of_teacher]
        return metrics_since(owners)

    async def _run_ahead(self, step: int) -> None:
        """Sample what may be sampled before the update of ``step``, and begin its rollouts; in
        flight, wait for none but the step's."""
        _, taken = self._taken
        self._started = [one for one in self._started if one not in taken]
        self._taken = (step, [])
        last = min(step + self._ahead, self._config.grpo.steps)
        wanted = {*range(step, last + 1), *(self._kept if self._order else ())}
        began, in_flight = time.perf_counter(), self._config.pipeline.in_flight_tokens > 0
        for number in sorted(wanted - self._begun - self._sampling.keys()):
            self._sampling[number] = asyncio.create_task(self._start(number))
            if not in_flight:
                await self._sampling.pop(number)
        if step in self._sampling:
            await self._sampling.pop(step)
        self._seconds["time/sample"] += time.perf_counter() - began

    async def _start(self, number: int) -> None:
        """Sample a batch and begin its rollouts."""
        share_P = self._share(self._tasks(number), number)
        problems_P = [p for p in share_P if (number, p.place) not in self._trained]
        kept = self._kept.pop(number, {})
        missing = [problem for problem in problems_P if problem.place not in kept]
        drawn = iter(await self._sample(missing, self._seed(number), str(number)))
        episodes_P_G = [kept.get(problem.place) or next(drawn) for problem in problems_P]
        self._begun.add(number)
        for some in self._units(len(problems_P)):
            self._begin(number, problems_P[some], episodes_P_G[some])

    def _units(self, groups: int) -> list[slice]:
        """Return the parts of a batch that are rolled out, and taken, by themselves."""
        return [slice(n, n + 1) for n in range(groups)] if self._order else [slice(None)]

    async def _rolled_out(self, step: int, enter: Enter) -> Batch:
        """This rank's share of a step's batch, once its last attempt is done."""
        enter("sample", step)
        await self._run_ahead(step)
        enter("rollout", step)
        waited_from = time.perf_counter()
        taken = await self._next(step)
        self._taken = (step, taken)
        done = [await one.running for one in taken]
        ended = max((end for *_, end in done), default=waited_from)
        self._seconds["time/wait_for_llm"] += max(0.0, ended - waited_from)
        self._seconds["time/wait_for_learner"] = max(0.0, waited_from - ended)
        self._seconds["time/rollout"] = ended - min((begin for _, begin, _ in done), default=ended)
        return reduce(Batch.followed_by, (batch for batch, *_ in done), Batch([], [], [], []))

    async def _next(self, step: int) -> list[_Started]:
        """Return this rank's part of a step: its batch, or the groups that end first."""
        if self._order is None:
            return [one for one in self._started if one.number == step]
        size = len(self._ranks.mine(range(self._config.grpo.prompts_per_step)))
        recorded = await self._ranks.broadcast(self._order.recorded(step))
        repeated = [one for one in self._started if recorded.issuperset(one.places)]
        if len(repeated) == size:
            taken = repeated
        else:
            behind = (self._config.pipeline.max_staleness or 0) + 1
            due = [max(step, one.oldest + behind) for one in self._started]
            running = [one.running for one in self._started]
            taken = [self._started[n] for n in await first_ended(running, due, step, size)]
        shares = await self._ranks.all_gather([place for one in taken for place in one.places])
        if self._ranks.is_first:
            self._order.keep(step, [place for share in shares for place in share])
        return taken

    async def _another_round(self, step: int, number: int, groups: int) -> Batch:
        """This rank's share of ``groups`` more groups for a step, from problems kept for this,
        sampled by the policy as it is now. ``number``: that of the round, from 1."""
        size, rounds = self._config.grpo.prompts_per_step, self._config.grpo.resample_rounds
        tasks_P = self._spare.batch((step - 1) * rounds + number - 1, size)[:groups]
        problems_P = self._share(tasks_P, step)
        seed, key = self._seed(step) + number * ROUND_STRIDE, f"{step}/round-{number}"
        began = time.perf_counter()
        episodes_P_G = await self._sample(problems_P, seed, key)
        sampled = time.perf_counter()
        self._seconds["time/sample"] += sampled - began
        batch = await self._rollout(problems_P, episodes_P_G)
        waited = time.perf_counter() - sampled
        self._seconds["time/wait_for_llm"] += waited
        self._seconds["time/rollout"] += waited
        return batch

    async def state(self, step: int) -> SourceState:
        """Samples that are trained on after ``step``, since a later policy would draw others; and
        what the environment remembers but for those, which are rolled out again. Waits for
        what is sampled in flight, as no checkpoint holds its versions; where that fails, the step
        that needs it raises the error."""
        await asyncio.gather(*self._sampling.values(), return_exceptions=True)
        at, taken = self._taken
        later = [one for one in self._started if at > step or one not in taken]
        waiting = {place: found for one in later for place, found in self._waiting(one)}
        first = step + 1 + self._ahead - (self._config.pipeline.max_staleness or 0)
        places = self._ranks.mine(range(self._config.grpo.prompts_per_step))
        pending = {
            number: [waiting.get((number, place)) for place in places]
            for number in sorted(self._begun)
            if number >= first
        }
        keys = [f"{self._key(str(number), place)}/" for number, place in waiting]
        return SourceState(pending, await self.environment.memory(keys))

    def restore(self, state: SourceState) -> list[str]:
        """Take up this rank's share of the samples that still fit: same place, prompt and sampling,
        and a policy that is new enough. The others are drawn anew. Each rank gets its own memory
        back if there are as many as then, else the first rank's (the others' work is repeated)."""
        lines = [self._take_up(number, some) for number, some in state.pending.items()]
        shares = state.remembered
        if shares:
            mine = shares[self._ranks.rank] if len(shares) == self._ranks.size else shares[0]
            if mine is not None:
                self.environment.remember(mine)
        return [line for line in lines if line]

    def _take_up(self, number: int, pending_P: Sequence[WaitingSamples | None]) -> str:
        problems_P = self._problems(list(enumerate(self._tasks(number))), number)
        waiting_P = {place: waiting for place, waiting in enumerate(pending_P) if waiting}
        if self._order:
            self._trained |= {(number, place) for place in {*range(len(pending_P))} - {*waiting_P}}
        failed_P = {p: sum(e["failure"] is not None for e in w.episodes)
                    for p, w in waiting_P.items()}  # fmt: skip
        most = self._config.grpo.max_unscored * sum(len(w.episodes) for w in waiting_P.values())
        pauses = sum(failed_P.values()) > most  # as the run did, unless those are played again
        fit = {
            place: problem.restored(waiting.episodes, self._key(str(number), place))
            for place, problem in enumerate(problems_P)
            if (waiting := waiting_P.get(place)) is not None
            and (waiting.task_id, waiting.asked) == (problem.task.id, self._fingerprint(problem))
            and len(waiting.episodes) == self._config.grpo.group_size
            and waiting.oldest >= number - 1 - self._ahead
            and not (pauses and failed_P[place])
        }
        mine = self._ranks.mine(range(len(problems_P)))
        self._kept[number] = {place: fit[place] for place in mine if place in fit}
        lost = [waiting for place, waiting in waiting_P.items() if place not in fit]
        if not lost:
            return ""
        count = sum(len(waiting.episodes) for waiting in lost)
        self._dropped += count
        names = ", ".join(waiting.task_id for waiting in lost[:3])
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        return (
            f"dropped {count} samples that waited for step {number} ({names}{more}): other "
            "problems, prompts or sampling now, or answers that failed; they are drawn anew"
        )

    async def aclose(self) -> None:
        tasks: list[asyncio.Task[Any]] = [*self._sampling.values()]
        tasks += [started.running for started in self._started]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _ahead(self) -> int:
        """Steps that a batch is sampled before the step of its number."""
        staleness = self._config.pipeline.max_staleness or 0
        return min(1, staleness) if self._order else staleness

    def _tasks(self, step: int) -> list[Task]:
        return self._mixture.batch(step - 1, self._config.grpo.prompts_per_step)

    def _fingerprint(self, problem: BatchTask) -> str:
        policy = self._config.policy
        how = (policy.temperature, policy.top_p, policy.max_new_tokens)
        if self.environment.max_turns > 1:
            longest = self.environment.max_episode_tokens, policy.max_observation_tokens
            how = (*how, self.environment.max_turns, *longest)
        digest = hashlib.sha256(str(how).encode())
        for form in problem.forms:
            for token_ids in (form.prompt.token_ids, *(shown.token_ids for shown in form.shown)):
                digest.update(f" {list(token_ids)}".encode())
        return digest.hexdigest()

    def _problems(self, places: Sequence[tuple[int, Task]], step: int) -> list[BatchTask]:
        grpo, bare_P = self._config.grpo, problems_of(self.environment, self._encode, places)
        show = partial(shown_prompts, self.environment, self._fitting, step=step, steps=grpo.steps)
        return [problem.scaffolded(show, grpo.group_size) for problem in bare_P]

    def _share(self, tasks_P: Sequence[Task], step: int) -> list[BatchTask]:
        return self._problems(self._ranks.mine(list(enumerate(tasks_P))), step)

    def _seed(self, step: int) -> int:
        return self._config.seed * SEED_STRIDE + step

    def _key(self, key: str, place: int) -> str:
        return f"{self._config.seed}/{key}/{place}"

    async def _sample(
        self, problems_P: Sequence[BatchTask], seed: int, key: str
    ) -> list[list[Episode]]:
        policy, part = self._config.policy, self._config.pipeline.in_flight_tokens
        sampling = Sampling(
            policy.temperature, policy.top_p, policy.max_new_tokens, seed, part_tokens=part
        )
        if not problems_P:  # fewer than there are ranks
            return []
        size = self._config.grpo.group_size
        shares_P = [problem.attempts_per_form(size) for problem in problems_P]
        keys_P = [self._key(key, problem.place) for problem in problems_P]
        return await self._player.play(problems_P, shares_P, sampling, keys_P)

    def _begin(
        self, number: int, problems_P: Sequence[BatchTask], episodes_P_G: list[list[Episode]]
    ) -> None:
        async def run() -> tuple[Batch, float, float]:
            began = time.perf_counter()
            batch = await self._rollout(problems_P, episodes_P_G)
            return batch, began, time.perf_counter()

        running = asyncio.create_task(run())
        self._started.append(_Started(number, problems_P, episodes_P_G, running))

    def _waiting(self, batch: _Started) -> Iterator[tuple[GroupPlace, WaitingSamples]]:
        for problem, some in zip(batch.problems_P, batch.episodes_P_G, strict=True):
            states = [episode.state() for episode in some]
            asked = self._fingerprint(problem)
            yield (batch.number, problem.place), WaitingSamples(problem.task.id, asked, states)

    async def _rollout(
        self, problems_P: Sequence[BatchTask], episodes_P_G: list[list[Episode]]
    ) -> Batch:
        pairs = list(zip(problems_P, episodes_P_G, strict=True))
        prompts_P_G = [problem.prompts(len(some)) for problem, some in pairs]
        shown_P_G = [problem.shown(len(some)) for problem, some in pairs]
        sampled = Batch(prompts_P_G, shown_P_G, episodes_P_G, [])
        teaching = asyncio.create_task(self._teacher_logprobs(sampled))
        try:
            rollouts_P_G = await rolled_out(self.environment, episodes_P_G)
            teacher_P_G = await teaching
        finally:
            teaching.cancel()
        rollouts_P_G = [
            problem.with_cut_prompts(self.environment, some)
            for problem, some in zip(problems_P, rollouts_P_G, strict=True)
        ]
        return replace(sampled, rollouts_P_G=rollouts_P_G, teacher_P_G=teacher_P_G)

    async def _teacher_logprobs(self, sampled: Batch) -> list[list[Logprobs | str]]:
        """The teacher's log-probabilities of all samples behind the prompts that they train on."""
        if self._teacher is None:
            return []
        began = time.perf_counter()
        groups = whole_groups(sampled)
        found = by_episode(groups, await self._teacher.score(groups))
        took = time.perf_counter() - began
        self._seconds["time/teacher"] = self._seconds.get("time/teacher", 0.0) + took
        return [
            [_joined_scores(found[p, g]) for g in range(len(group))]
            for p, group in enumerate(sampled.episodes_P_G)
        ]


def _joined_scores(parts: Sequence[Logprobs | str]) -> Logprobs | str:
    """Join the teacher's scores of an episode's samples; one failure is all of it."""
    scores: list[float] = []
    for part in parts:
        if isinstance(part, str):
            return part
        scores += part
    return scores


def check_teacher_failures(step: int, batch: Batch, limit: float) -> None:
    """Raise RunPaused where the teacher failed on more than ``limit`` of the samples."""
    failed = batch.teacher_failures
    if len(failed) > limit * len(batch.rollouts):
        raise RunPaused(
            f"step {step}: the teacher did not score {len(failed)} of {len(batch.rollouts)} "
            f"samples (limit {limit:.0%}), so nothing was trained on; mend the cause and --resume",
            *(f"  {reason[:200]}" for reason in sorted(set(failed))[:5]),
        )
