"""A judge out of order, over HTTP: the environment's answers attempt by attempt against a run whose
judge is sound. Each score is the same or none; no criterion is "not met" for a failure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from criteria_doubles import CriteriaModel, blocks_of, reply_to, rubric, says
from llm_standin import Seen, StandIn, good, problem
from lost_sandbox import LostSandbox

from flowright.config.judge import JudgeSection
from flowright.config.llm import SimulatedSection
from flowright.core.errors import Reason
from flowright.data.task import Task
from flowright.environments.base import make_environment
from flowright.environments.episode import Episode
from flowright.environments.instructions.environment import InstructionsEnvironment
from flowright.environments.instructions.reward import InstructionGrade
from flowright.environments.instructions.tasks import WORDS, task_of
from flowright.environments.registry import make_config
from flowright.environments.rollout import Rollout
from flowright.judging.rubrics.criteria_judge import criteria_judge
from flowright.judging.rubrics.rewards import RubricReward
from flowright.llm.chat import ChatReply, ChatRequest
from flowright.policy.sampling import Sample
from flowright.simulation.process import SimulatedServer

FAULTS: Mapping[str, Mapping[str, float]] = {
    "sound": {},
    "out_of_order": {"empty": 0.13, "error_500": 0.05},
    "broken": {"empty": 0.4, "error_500": 0.05},
    "dead": {"error_500": 1.0},
}
"""Of the embedded judge, by the name of the model that has them."""
KINDS: Mapping[str, Mapping[str, object]] = {
    "rubric": {"reward": "rubric"},
    "rubric, each": {"reward": "rubric", "criteria_calls": "each"},
    "verif": {"reward": "verif"},
    "verif, brackets": {"reward": "verif", "reply": "brackets"},
}
TASKS, ATTEMPTS = 8, 4
SECTION = JudgeSection(max_attempts=4)
NO_SANDBOX = LostSandbox(workers=1)  # never entered


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file of models with an embedded server for each of FAULTS."""
    with ExitStack() as stack:
        entries = {}
        for name, faults in FAULTS.items():
            section = SimulatedSection.model_validate({"faults": faults})
            server = stack.enter_context(SimulatedServer((), section))
            entries[name] = server.entry().model_dump(mode="json", exclude_none=True)
        file = tmp_path_factory.mktemp("judges") / "models.yaml"
        file.write_text(json.dumps({"models": entries}))  # which is YAML, too
        yield file


def environment_of(file: Path, kind: str, judge: Mapping[str, object]) -> InstructionsEnvironment:
    config = make_config(
        {
            "environment": "instructions",
            "instructions": {"known_rule": {"train": TASKS, "held_out": 2}, **KINDS[kind]},
            "judge": judge,
            "llm": {"file": file, "backoff_seconds": 0.001, "attempts": 2},
        }
    )
    made = make_environment(config)
    assert isinstance(made, InstructionsEnvironment)
    return made


def groups_of(tasks: Sequence[Task]) -> list[list[Episode]]:
    """Some of the words that each task asks for, and an answer that says none."""
    groups = []
    for task in tasks:
        words = [word for word in WORDS if word in task.question]
        answers = [", ".join(words[:n]) or "Nothing at all." for n in range(ATTEMPTS)]
        groups.append(
            [
                Episode.single(task, Sample((1,), (0.0,), text, "stop", 0), f"1/{task.id}/{n}")
                for n, text in enumerate(answers)
            ]
        )
    return groups


async def rolled(
    file: Path, kind: str, model: str, **judge: object
) -> tuple[list[Rollout], dict[str, float], float]:
    """The rollouts, their metrics, and how many requests the judge was sent."""
    made = environment_of(file, kind, {"model": model, **judge})
    tasks = made.tasks().train
    async with made.open(tasks):
        groups = await made.rollout(groups_of(tasks))
        rollouts = [rollout for group in groups for rollout in group]
        sent = sum(counters.role("judge")["calls"] for counters in made.counters())
        return rollouts, made.summarise(rollouts), sent


def grade(rollout: Rollout) -> InstructionGrade:
    assert isinstance(rollout.details, InstructionGrade)
    return rollout.details


def assert_equal_or_unscored(found: Sequence[Rollout], right: Sequence[Rollout]) -> int:
    """How many have no score."""
    unscored = 0
    for one, other in zip(found, right, strict=True):
        for part, known in zip(grade(one).parts, grade(other).parts, strict=True):
            assert part.met in (None, known.met) and part.text == known.text
        assert not grade(one).floored
        if one.reward.value is None:
            unscored += 1
            assert one.failure is not None and one.failure.reason is Reason.JUDGE_FAILED
        else:
            assert one.reward.value == other.reward.value and one.failure is None
    return unscored


@pytest.mark.parametrize("kind", KINDS)
async def test_a_judge_out_of_order_changes_no_score(kind: str, models: Path) -> None:
    """Empty 13 % of the time and 500 5 %; then so much worse, with one attempt at a question, that
    many answers are lost; then dead: no answer is scored, and none earns less for it."""
    sound, _, asked = await rolled(models, kind, "sound")
    assert {r.reward.value for r in sound} >= {0.0, 1.0} and asked > 0
    faulty, metrics, sent = await rolled(models, kind, "out_of_order")
    assert assert_equal_or_unscored(faulty, sound) <= 1
    assert metrics["rollout/unscored"] <= 1 / len(sound)
    assert sent > asked
    attempts = [rollout.verdict.attempts for rollout in faulty if rollout.verdict]
    assert sum(attempts) == sent, "every question that was asked again is in its verdict"
    broken, metrics, _ = await rolled(models, kind, "broken", max_attempts=1)
    lost = assert_equal_or_unscored(broken, sound)
    assert 0 < lost < len(sound) and metrics["rollout/unscored"] == lost / len(sound)
    dead, metrics, _ = await rolled(models, kind, "dead", max_attempts=2)
    assert assert_equal_or_unscored(dead, sound) == len(sound)
    assert metrics["rollout/unscored"] == 1.0 and "reward/mean" not in metrics


async def test_a_judge_that_comes_back_scores_as_before(tmp_path: Path) -> None:
    """Down for longer than a request's deadline: what was asked then has no score."""
    row = rubric(says("fig", 3), says("plum", -1))
    task = task_of(row, "fruit", "f:1")
    group = [
        Episode.single(task, Sample((1,), (0.0,), text, "stop", 0), f"1/{n}")
        for n, text in enumerate(("fig", "fig, plum", "pear"))
    ]
    is_up = True

    def served(seen: Seen) -> object:
        if not is_up:
            return problem(503, "starting")
        asked = seen.json
        return good(reply_to(asked["messages"][-1]["content"], asked.get("response_format")))

    async with StandIn(choose=served) as server:
        entry = {"base_url": server.url, "model_name": "standin-7b"}
        file = tmp_path / "models.yaml"
        file.write_text(json.dumps({"models": {"fruit": entry}}))
        made = environment_of(file, "rubric", {"model": "fruit", "deadline_seconds": 0.5})
        values = []
        async with made.open([task]):
            for state in (True, False, True):
                is_up = state
                (rollouts,) = await made.rollout([group])
                values.append([rollout.reward.value for rollout in rollouts])
    scores = [1.0, pytest.approx(2 / 3), 0.0]
    assert values == [scores, [None] * 3, scores]


TRUTH = '"reason": "As it reads.", "criterion_1": true, "criterion_2": false, "criterion_3": true'
ODD = {
    "one is missing": '{"reason": "", "criterion_1": true, "criterion_3": true}',
    "twice, otherwise": f'{{{TRUTH}, "criterion_1": false}}',
    "two verdicts": f'{{{TRUTH}}}\n{{"reason": "", "criterion_1": false, "criterion_2": true}}',
    "others": f'{{{TRUTH}, "criterion_4": false, "criterion_0": false}}',
    "only others": '{"reason": "", "criterion_7": false}',
    "neither": '{"reason": "", "criterion_1": null, "criterion_2": "maybe", "criterion_3": true}',
    "lines": "Criterion 1: false\nCriterion 1: true\nCriterion 2: false\nCriterion 3: true",
    "prose": "Criterion 1 is not easy to judge, criterion 2 is false friends, and 3 fails nobody.",
    "Chinese lines": "标准1：不满足\n标准2：满足\n标准3：不满足",
    "Chinese prose": "回答没有问题，因此第一条和第三条标准满足，第二条不满足。",
    "Chinese refusal": "对不起，我无法评价这个回答。",
}
"""First replies about an answer that meets the first and the third of three criteria."""


@dataclass
class OddFirst:
    """Says that first, and after it what is so; with ``keeps`` never another thing of an answer
    that names fruit."""

    first: str
    keeps: bool = False
    name: str = "odd"
    sound: CriteriaModel = field(default_factory=CriteriaModel)

    async def chat(self, request: ChatRequest, deadline: float | None = None) -> ChatReply:
        reply = await self.sound.chat(request, deadline)
        is_first = len(self.sound.requests) == 1
        answer = blocks_of(request.messages[-1].content)["FINAL ANSWER"]
        if is_first or (self.keeps and "fig" in answer):
            return replace(reply, text=self.first)
        return reply


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
async def test_odd_replies_are_asked_about_again_and_never_a_no(text: str) -> None:
    row = rubric(says("fig", 3), says("plum", 2), says("pear", 1))
    met = (True, False, True)
    odd = OddFirst(text)
    grade = await RubricReward(criteria_judge(odd, SECTION), NO_SANDBOX).grade(
        row, "fig, pear", "k"
    )
    assert (grade.value, grade.met) == (pytest.approx(4 / 6), met)
    assert sum(verdict.attempts for verdict in grade.verdicts) == len(odd.sound.requests)
    if text == ODD["one is missing"]:
        return  # asked about the second alone, it would call that the first
    kept = OddFirst(text, keeps=True)
    grade = await RubricReward(criteria_judge(kept, SECTION), NO_SANDBOX).grade(
        row, "fig, pear", "k"
    )
    assert all(said in (None, so) for said, so in zip(grade.met, met, strict=True))
    assert grade.floored == (None in grade.met), "it is of this answer alone"
