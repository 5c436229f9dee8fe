"""Workflows of several turns: what a turn may be, what it is answered, and what is paid for."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from lost_sandbox import LostSandbox
from workflow_doubles import ScriptedModel, task

from flowright.config.workflow import RewardSection
from flowright.core.errors import FailureError, Reason
from flowright.data.task import KINDS, Problem
from flowright.environments.base import make_environment
from flowright.environments.episode import Episode, Observation, Turn
from flowright.environments.registry import load_config, make_config
from flowright.environments.rollout import Rollout, to_record
from flowright.environments.workflow.config import Feedback, WorkflowConfig
from flowright.environments.workflow.environment import workflow_metrics
from flowright.environments.workflow.reward import WorkflowRollouts, workflow_record
from flowright.environments.workflow.trials import edit_between, read_turn
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import Usage
from flowright.policy.sampling import Sample
from flowright.sandbox import Sandbox
from flowright.viewer.rollout_records import attempt_of
from flowright.workflows.executor import Executor
from flowright.workflows.grammar import draw_program
from flowright.workflows.source import read_workflow

QUICKSTART = Path(__file__).parents[2] / "config/quickstart.yaml"
PROGRAM = "async def workflow(problem):\n    draft = await answer(problem)\n    return draft"
LEVELS: Sequence[Feedback] = ("error", "result", "full")


def sample(text: str, finish: Any = "stop") -> Sample:
    return Sample((1,), (0.0,), text, finish, 0)


def read(text: str, source: str | None = PROGRAM) -> tuple[str | None, bool]:
    reply = read_turn(sample(text), source)
    return reply.completion, reply.submits


def fenced(program: str) -> str:
    return f"```python\n{program}\n```"


def test_a_turn_is_a_program_an_edit_or_a_submission() -> None:
    assert read(PROGRAM) == (PROGRAM, False) == read(PROGRAM, None)
    for text in ("SUBMIT", "It agrees.\n\n**SUBMIT**\n", "<think>SUBMIT?</think>\nSUBMIT."):
        assert read(text) == (None, True), text
    assert read(f"{fenced(PROGRAM)}\nSUBMIT") == (fenced(PROGRAM), True)
    for text in ("SUBMITTED", "SUBMIT it now", "submit"):
        assert read(text) == (text, False), text
    changed = PROGRAM.replace("    return draft", '    return f"{draft}!"')
    for edit in (
        'lines 3-3:\n    return f"{draft}!"',
        'I mend the last line.\n\nline 3:\n```python\n    return f"{draft}!"\n```\nThis should do.',
        'Line 3:\r\n    return f"{draft}!"\r\n\r\n',
        f'lines 1-1:\n{PROGRAM.splitlines()[0]}\nlines 3:\n~~~~\n    return f"{{draft}}!"\n~~~~\n',
    ):
        assert read(edit) == (fenced(changed), False), edit
    assert read("lines 2-3:\n    return 1\n\nSUBMIT") == (
        fenced("async def workflow(problem):\n    return 1"),
        True,
    )
    assert read("lines 2-3:")[0] == fenced("async def workflow(problem):")
    listing = fenced(f"{PROGRAM}\nlines 1-2:")
    assert read(listing) == (listing, False), "a head within a block is text"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("lines 2-3:\n    return 1", None),
        ("lines 3-2:\n    return 1", PROGRAM),
        ("lines 0-1:\n    return 1", PROGRAM),
        ("lines 3-4:\n    return 1", PROGRAM),
        ("lines 1-2:\n    return 1\nlines 2-3:\n    return 1", PROGRAM),
        ("lines 99999-99999:\n    return 1", PROGRAM),
    ],
)
def test_an_edit_that_cannot_be_made_is_the_policys_mistake(text: str, source: str | None) -> None:
    with pytest.raises(FailureError) as caught:
        read(text, source)
    assert caught.value.failure.reason is Reason.NO_PROGRAM
    with pytest.raises(FailureError, match="token limit"):
        read_turn(sample("lines 2-3:\n    ret", "length"), PROGRAM)


def test_an_edit_turns_any_program_into_any_other() -> None:
    rng = random.Random(0)
    for _ in range(300):
        old, new = (draw_program(rng.choice(KINDS), rng) for _ in range(2))
        assert read(edit_between(old, new), old) == (fenced(new), False)


@dataclass
class Strict:
    """Calls 42 right, and counts what it is asked."""

    name = "strict"
    asked: int = 0

    async def judge(self, query: JudgeQuery) -> Verdict:
        self.asked += 1
        right = query.answer == "42"
        return Verdict(float(right), right, "llm", "ok", "CANARY verdict", 1, self.name, Usage())


@dataclass
class Played:
    """An attempt that was played: the feedback of its turns, and its rollout."""

    episode: Episode
    feedback: list[Observation]
    rollout: Rollout
    model: ScriptedModel
    judge: Strict

    @property
    def texts(self) -> list[str]:
        return [each.text for each in self.feedback]


@asynccontextmanager
async def rollouts_of(
    own: WorkflowConfig,
    model: ScriptedModel,
    judge: Strict,
    lost: bool = False,
    rewards: RewardSection | None = None,
) -> AsyncIterator[WorkflowRollouts]:
    sandbox = LostSandbox(workers=1) if lost else Sandbox(workers=1)
    async with sandbox, Executor(model, sandbox, own) as executor:
        yield WorkflowRollouts(
            executor,
            judge,
            sandbox,
            rewards or RewardSection(),
            own=own,
        )


async def play(
    rollouts: WorkflowRollouts, of: Problem, texts: Sequence[str], key: str = "0/1/0/0"
) -> tuple[Episode, list[Observation]]:
    """Play an attempt that writes these texts until it ends."""
    episode, feedback = Episode(of, key, ()), []
    for text in texts:
        episode = replace(episode, turns=(*episode.turns, Turn((), sample(text))))
        seen = await rollouts.respond(episode)
        if seen is None:
            break
        feedback.append(seen)
        turn = replace(episode.turns[-1], observation=seen)
        episode = replace(episode, turns=(*episode.turns[:-1], turn))
    return episode, feedback


async def played(
    *texts: str,
    of: Problem | None = None,
    script: Callable[[str], Any] | str = "Answer: 42",
    resumed: bool = False,
    **own: Any,
) -> Played:
    model, judge = ScriptedModel(script), Strict()
    section = WorkflowConfig.model_validate({"turns": 3, "workers": 1, **own})
    async with rollouts_of(section, model, judge) as rollouts:
        episode, feedback = await play(rollouts, of or task(), texts)
        if resumed:  # of an attempt that another process has played nothing is kept
            async with rollouts_of(section, model, judge) as others:
                ((rollout,),) = await others.rollout([[episode]])
        else:
            ((rollout,),) = await rollouts.rollout([[episode]])
        assert rollouts._runner._kept == {}
    return Played(episode, feedback, replace(rollout, turns=episode.turns), model, judge)


BROKEN = PROGRAM.replace("(problem)\n    return", "(problem\n    return")


async def test_a_program_is_mended_by_an_edit_and_submitted() -> None:
    found = await played(BROKEN, "lines 2-2:\n    draft = await answer(problem)", "SUBMIT")
    first, second = found.feedback
    assert first.failed and not second.failed
    assert first.text.splitlines()[0] == "Error: syntax (line 2): '(' was never closed"
    assert first.text.splitlines()[-1] == "Turns left: 2"
    assert second.text == (
        "1 async def workflow(problem):\n2     draft = await answer(problem)\n3     return draft\n"
        "The program ran.\nAnswer: 42\nOperators: answer 1\n"
        "Spent: 1 calls, 110 tokens; left: 15 calls, 63890 tokens\nTurns left: 1"
    )
    assert found.rollout.reward.value == 1.0 and found.rollout.failure is None
    assert len(found.model.requests) == found.judge.asked == 1, "nothing is run or judged twice"
    spent = found.rollout.spent
    assert spent and (spent.calls, spent.tokens) == (1, 110)
    metrics = workflow_metrics([found.rollout])
    assert metrics["workflow/executions"] == 1
    assert [metrics[f"workflow/submitted/turn_{n}"] for n in (1, 2, 3)] == [0, 1, 0]
    assert [metrics[f"workflow/gold/turn_{n}"] for n in (1, 2, 3)] == [0, 1, 1]


VOTE = """async def workflow(problem):
    votes = await asyncio.gather(*[answer(problem) for _ in range(3)])
    return await ensemble(problem, votes)"""


def disagreeing() -> Callable[[str], str]:
    answers = iter(["41", "42", "41", "42", "42", "42"])
    return lambda prompt: f"Answer: {next(answers)}"


async def test_the_cost_of_all_turns_counts_and_one_answer_is_judged() -> None:
    found = await played(VOTE, VOTE, turns=2, script=disagreeing())
    assert "Votes: 2 of 3 agree" in found.texts[0] and "Answer: 41" in found.texts[0]
    assert len(found.texts) == 1, "the last program is submitted as it is"
    assert found.rollout.reward.value == 1.0 and found.judge.asked == 1
    spent = found.rollout.spent
    assert spent and (spent.calls, spent.tokens) == (6, 660)
    metrics = workflow_metrics([found.rollout])
    assert metrics["workflow/answer_changed"] == 1 and metrics["workflow/executions"] == 2
    assert [metrics[f"workflow/gold/turn_{n}"] for n in (1, 2)] == [0, 1]
    assert metrics["tokens/llm_mean"] == 660
    seeds = [request.seed for request in found.model.requests]
    assert len({*seeds}) == 6, "each turn has seeds of its own"


async def test_the_budget_is_the_attempts() -> None:
    found = await played(VOTE, VOTE, "SUBMIT", PROGRAM, max_llm_calls=5, turns=5)
    assert len(found.feedback) == 2, "a program that failed can be submitted, too"
    assert "left: 2 calls" in found.texts[0]
    assert "call_budget (line 2)" in found.texts[1] and "left: 0 calls" in found.texts[1]
    assert found.rollout.failure and found.rollout.failure.reason is Reason.CALL_BUDGET
    assert found.rollout.reward.value == RewardSection().crashed
    found = await played(PROGRAM, PROGRAM, max_tokens=150, turns=2)
    assert found.rollout.failure and found.rollout.failure.reason is Reason.TOKEN_BUDGET


async def test_a_cheaper_attempt_ranks_above_one_that_paid_for_two_programs() -> None:
    own = WorkflowConfig.model_validate({"turns": 2, "workers": 1})
    rewards = RewardSection(cost_weight=0.5)
    async with rollouts_of(own, ScriptedModel(), Strict(), rewards=rewards) as rollouts:
        once, _ = await play(rollouts, task(), [f"{PROGRAM}\nSUBMIT"], "0/1/0/0")
        twice, _ = await play(rollouts, task(), [PROGRAM, PROGRAM], "0/1/0/1")
        ((cheap, dear),) = await rollouts.rollout([[once, twice]])
    assert cheap.reward.parts["cost"] == 0
    assert dear.reward.parts["cost"] == pytest.approx(-0.5 * 110 / 220)


@pytest.mark.parametrize("texts", [(VOTE, VOTE), (VOTE, "SUBMIT"), (BROKEN, "line 2:", VOTE)])
async def test_an_attempt_played_by_another_process_is_run_again_to_the_same(
    texts: Sequence[str],
) -> None:
    def by_seed(model: ScriptedModel) -> Callable[[str], str]:
        return lambda prompt: f"Answer: {(model.requests[-1].seed or 0) % 3 + 40}"

    results = []
    for resumed in (False, True):
        model, judge = ScriptedModel(), Strict()
        model.script = by_seed(model)
        own = WorkflowConfig.model_validate({"turns": len(texts), "workers": 1})
        async with (
            rollouts_of(own, model, judge) as first,
            rollouts_of(own, model, judge) as second,
        ):
            episode, _ = await play(first, task(), texts)
            ((rollout,),) = await (second if resumed else first).rollout([[episode]])
        execution = rollout.details.execution  # pyright: ignore[reportAttributeAccessIssue]
        spent = rollout.spent
        results.append((rollout.reward, execution.answer, spent and (spent.calls, spent.tokens)))
    assert results[0] == results[1]


async def test_a_failure_of_ours_is_no_feedback() -> None:
    down = FailureError(Reason.LLM_UNAVAILABLE, "HTTP 500")
    own = WorkflowConfig.model_validate({"turns": 2, "workers": 1})
    async with rollouts_of(own, ScriptedModel(lambda prompt: down), Strict()) as rollouts:
        with pytest.raises(FailureError, match="HTTP 500"):
            await play(rollouts, task(), [PROGRAM, "SUBMIT"])
        assert rollouts._runner._kept == {}
        episode = Episode(task(), "0", tuple(Turn((), sample(t)) for t in (PROGRAM, "SUBMIT")))
        ((lost,),) = await rollouts.rollout([[episode]])
        assert lost.reward.value is None and lost.lost
    answers = "async def workflow(problem):\n    return 'def add(a, b): return a + b'"
    async with rollouts_of(own, ScriptedModel(), Strict(), lost=True) as rollouts:
        with pytest.raises(FailureError, match="fork: no memory"):
            await play(rollouts, task("code"), [answers, "SUBMIT"])


async def test_a_turn_that_is_nothing_is_the_policys_failure_and_the_last_one_counts() -> None:
    found = await played("SUBMIT", "Let me think.", "lines 1-2:\n    pass")
    assert [each.failed for each in found.feedback] == [True] * 3
    assert found.texts[0].startswith("Error: no_program: SUBMIT: no program so far is valid")
    assert found.rollout.reward.value == RewardSection().invalid and found.judge.asked == 0
    found = await played(PROGRAM, "And now?", turns=2)
    assert found.rollout.reward.value == RewardSection().invalid, "the last turn is submitted"
    found = await played(PROGRAM, BROKEN, "SUBMIT")
    assert found.rollout.reward.value == 1.0, "the newest valid program"
    assert "Turns left: 0" not in "".join(found.texts)


async def test_a_level_of_feedback_shows_its_part() -> None:
    shown = {
        level: (await played(VOTE, turns=2, script=disagreeing(), feedback=level)).texts[0]
        for level in LEVELS
    }
    assert shown["error"] == "The program ran.\nTurns left: 1"
    assert shown["result"] == "The program ran.\nAnswer: 41\nTurns left: 1"
    assert shown["full"] == (
        "The program ran.\nAnswer: 41\nOperators: answer 3, ensemble 1\nVotes: 2 of 3 agree\n"
        "Spent: 3 calls, 330 tokens; left: 13 calls, 63670 tokens\nTurns left: 1"
    )


def returning(code: str) -> str:
    return f"async def workflow(problem):\n    return {code!r}"


@pytest.mark.parametrize("level", LEVELS)
async def test_no_prompt_holds_gold_hidden_tests_or_a_verdict(level: Feedback) -> None:
    of = task(
        "code",
        reference='SECRET = "CANARY reference"\ndef add(a, b):\n    return a + b  # CANARY',
        hidden_tests=('assert add(5, 7) == 12, "CANARY hidden"', "assert add('CANA', 'RY')"),
    )
    answers = (
        "def add(a, b): return a + b",
        "def add(a, b): return 0",
        "def add(a, b): return SECRET",
        "def add(a, b): raise ValueError(a)",
        "import sys\ndef add(a, b): return sys._getframe(1).f_globals",
        "def other(): pass",
        "no code",
    )
    own = WorkflowConfig.model_validate({"turns": 2, "workers": 1, "feedback": level})
    seen: list[str] = []
    model = ScriptedModel("```python\ndef add(a, b): return SECRET\n```")
    tested = "async def workflow(problem):\n    code = await write_code(problem)\n    {}\n"
    programs = [
        *map(returning, answers),
        tested.format("return (await test(code))['feedback']"),
        tested.format("return code if (await test(code))['passed'] else SECRET"),
    ]
    async with rollouts_of(own, model, Strict()) as rollouts:
        for number, (text, last) in enumerate(product(programs, ("SUBMIT", "nothing"))):
            episode, feedback = await play(rollouts, of, [text, last], f"0/1/0/{number}")
            ((rollout,),) = await rollouts.rollout([[episode]])
            assert rollout.gold is None or rollout.gold.correct is not None
            seen += [each.text for each in feedback]
    config = make_config({"workflow": {"turns": 2, "feedback": level}})
    seen += [message.content for message in make_environment(config).messages(of)]
    assert len(seen) > 20 and not [text for text in seen if "CANA" in text]
    assert not [prompt for prompt in model.prompts if "CANA" in prompt]
    if level != "error":
        assert any("Public tests: 1 of 1 passed" in text for text in seen)
        assert any("Public tests: 0 of 1 passed\nassert add(1, 2) == 3" in text for text in seen)


async def test_feedback_is_bounded() -> None:
    long = returning("9" * 15_000)
    found = await played(f"{long}\n# {'x' * 3_000}", f"lines 2-2:\n{long.splitlines()[1]}")
    assert [len(text) < 1_500 for text in found.texts] == [True, False]
    assert len(found.texts[1]) < 6_000 and "characters left out" in found.texts[1]


async def test_a_record_has_every_program_and_what_all_cost() -> None:
    found = await played(BROKEN, VOTE, PROGRAM, script=disagreeing())
    own = workflow_record(found.rollout)
    record = to_record(found.rollout, own, 1, 0, 0, None)
    assert [(t["turn"], t["answer"], t["gold"]) for t in record["trials"]] == [
        (1, None, 0),
        (2, "41", 0),
        (3, "42", 1),
    ]
    assert record["submitted"] == 3 and record["spent"]["calls"] == 4
    assert record["execution"]["usage"]["calls"] == 1
    attempt = attempt_of(record)
    assert (attempt.calls, attempt.llm_tokens) == (4, 440)


def test_the_prompt_shows_turns_where_there_are_several() -> None:
    def prompt(form: str, **own: Any) -> str:
        config = make_config({"workflow": own, "policy": {"prompt": form}})
        return "\n".join(m.content for m in make_environment(config).messages(task()))

    for form in ("full", "compact"):
        assert "SUBMIT" not in prompt(form) and "## Turns" not in prompt(form)
        assert "3 turns" in prompt(form, turns=3) and "SUBMIT" in prompt(form, turns=3)
    shown = {level: prompt("full", turns=2, feedback=level) for level in LEVELS}
    assert len({*shown.values()}) == 3
    for text in shown.values():
        assert prompt("full") == text[: text.index("\n## Turns")] + text[text.index("\n## Oper") :]


def test_a_cold_start_shows_later_turns_that_give_nothing_away() -> None:
    made = make_environment(load_config(QUICKSTART, ["workflow.turns=3"]))
    plain = make_environment(load_config(QUICKSTART, []))
    tasks = [
        replace(one, reference="CANARY", hidden_tests=("CANARY",), alternatives=("CANARY",))
        for one in plain.tasks().train
        if isinstance(one, Problem)
    ]
    drawn = made.demonstrations(tasks, 300, 2, 0)
    later = [one for one in drawn if len(one.messages) > 1]
    assert [len(one.messages) for one in drawn[::2]] == [1] * 150 and len(later) == 150
    replies = [reply for one in later for reply in one.completions]
    kinds = [
        "submit" if reply == "SUBMIT" else "edit" if reply.startswith("lines") else "program"
        for reply in replies
    ]
    assert min(kinds.count(kind) for kind in ("submit", "edit", "program")) > 40
    for one in later:
        source = None
        for message in one.messages[1::2]:
            source = message.content
        assert not any("CANARY" in message.content for message in one.messages)
        for text in one.completions:
            found = read_turn(sample(text), source)
            if found.completion is not None and not found.is_edit:
                read_workflow(found.completion)
    mine, before = made.planned_calls(tasks), plain.planned_calls(tasks)
    assert mine["executor"] == pytest.approx(3 * before["executor"], rel=0.5)
