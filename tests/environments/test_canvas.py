"""FlowSteer's canvas: its grammar, its edits, the programs it becomes, feedback and rewards."""

import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_policy import same
from toy_run import TASKS, Killed, Outcome, Wrapped, configured, train
from workflow_doubles import ScriptedModel, task

from flowright.config.workflow import RewardSection, WorkflowSection
from flowright.core.errors import Reason
from flowright.data.task import Kind, Problem, Task
from flowright.environments.base import EnvironmentStatus, TaskSets, make_environment
from flowright.environments.canvas.actions import (
    OPERATORS,
    Action,
    ActionError,
    read_action,
    read_prompt,
)
from flowright.environments.canvas.environment import CanvasEnvironment, draw_turn
from flowright.environments.canvas.graph import CHECKERS, Canvas, program_of
from flowright.environments.canvas.prompt import finish_problem, hint_for
from flowright.environments.canvas.reward import (
    CanvasDetails,
    CanvasRollouts,
    final_canvas,
    structure_score,
    with_flowsteer_reward,
)
from flowright.environments.episode import Episode, Observation, Turn
from flowright.environments.registry import make_config
from flowright.environments.rollout import Reward, Rollout
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import Usage
from flowright.llm.counters import Counters
from flowright.policy.sampling import Sample
from flowright.runs.run_files import read_rollouts
from flowright.sandbox import Sandbox
from flowright.workflows.executor import Execution, Executor

ADD = "<action>add</action><operator>{}</operator><prompt>Do it well.</prompt>"
FINISH = "<action>finish</action>"


def structure(kind: str, fields: str) -> str:
    return f"<action>add</action><structure>{kind}</structure>{fields}<prompt>Go on.</prompt>"


PARALLEL = structure("parallel", "<operators>AnswerGenerate, AnswerGenerate, Custom</operators>")
LOOP = structure("loop", "<operators>Review, Revise</operators><count>2</count>")


def conditional(check: str, true: str, false: str) -> str:
    fields = f"<condition>{check}</condition><true>{true}</true><false>{false}</false>"
    return structure("conditional", fields)


def canvas_of(*turns: str) -> Canvas:
    canvas = Canvas()
    for text in turns:
        canvas.act(text)
    return canvas


async def run(canvas: Canvas, model: ScriptedModel, kind: Kind = "math") -> Execution:
    program = program_of(canvas, kind == "code")
    async with (
        Sandbox(workers=1) as sandbox,
        Executor(model, sandbox, WorkflowSection(workers=1)) as executor,
    ):
        workflow = await executor.validate(program)
        assert workflow.repairs == ()
        return await executor.execute(workflow, task(kind), "0/1/0")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<action>add</action><operator>Plan</operator>", Action("add", operators=("Plan",))),
        ("[action]add[/action][operator]plan[/operator]", Action("add", operators=("Plan",))),
        (
            "<think>Verify?</think>\n<ACTION> Add </ACTION>\n<operator>Custom</operator>"
            "<position>2</position> <prompt>Be <b>brief</b> [now].</prompt>",
            Action("add", operators=("Custom",), position=2, prompt="Be <b>brief</b> [now]."),
        ),
        (
            "<action>add</action><structure>parallel</structure>"
            "<operators>Custom, Programmer; AnswerGenerate</operators>",
            Action("add", "parallel", ("Custom", "Programmer", "AnswerGenerate")),
        ),
        (
            "<action>add</action><structure>conditional</structure><condition>Review</condition>"
            "<true>done</true><false>Revise</false>",
            Action("add", "conditional", ("Review", "done", "Revise")),
        ),
        (
            "<action>add</action><structure>conditional</structure><condition>Test</condition>"
            "<true>Format</true>",
            Action("add", "conditional", ("Test", "Format", "done")),
        ),
        (
            "<action>add</action><structure>loop</structure><operators>Custom</operators>",
            Action("add", "loop", ("Custom",), 3),
        ),
        (
            "<action>add</action><structure>loop</structure><operators>Review Revise</operators>"
            f"<count>{'9' * 5000}</count>",
            Action("add", "loop", ("Review", "Revise"), 10),
        ),
        (
            "<action>add</action><structure>loop</structure><operators>Plan</operators>"
            "<count>0</count>",
            Action("add", "loop", ("Plan",), 1),
        ),
        ("<action>delete</action><target>node_3</target>", Action("delete", target="node_3")),
        (
            "<action>modify</action><target>node_2</target><operator>MdEnsemble</operator>",
            Action("modify", operators=("ScEnsemble",), target="node_2"),
        ),
        (
            "<action>set_prompt</action><target>node_2</target><prompt>Use <operator></prompt>",
            Action("set_prompt", target="node_2", prompt="Use <operator>"),
        ),
        ("<action>finish</action>", Action("finish")),
        ("<action>finish</action><answer> 42 </answer>", Action("finish", answer="42")),
        ("I am ready to finish now.", Action("finish")),
        ("Next I want a programmer here.", Action("add", operators=("Programmer",))),
        ("CustomCodeGenerate it is", Action("add", operators=("Programmer",))),
        (
            "<action>add</action><operator>Plan</operator>\n"
            "<action>finish</action><answer>7</answer>",
            Action("add", operators=("Plan",)),
        ),
        (
            "```\n<action>finish</action>\n```\n<action>delete</action><target>node_1</target>",
            Action("delete", target="node_1"),
        ),
    ],
)
def test_a_turn_is_read(text: str, action: Action) -> None:
    assert read_action(text) == action


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "nothing behind"),
        ("a te\u017ft and a chec\u212a", "no action"),
        ("<act\u0131on>finish</action>", "no action"),
        ("<think>I will finish", "thinking"),
        ("Let me see.", "no action"),
        ("Plan or Verify next", "several operators"),
        ("<action>add</action>", "<operator> is missing"),
        ("<action>add</action><operator>Check</operator>", "no operator 'Check'"),
        ("<action>add</action><structure>tree</structure>", "parallel, conditional or loop"),
        ("<action>set_prompt</action><target>node_1</target>", "<prompt> is missing"),
        ("<action>set_prompt</action><prompt>long enough</prompt>", "<target> is missing"),
        ("<action>add</action><operator>Plan</operator><prompt>abc</prompt>", "5 to 1000"),
        (
            "<action>add</action><structure>parallel</structure><operators>Plan</operators>",
            "at least two",
        ),
        (
            "<action>add</action><structure>conditional</structure><condition>Test</condition>"
            "<true>done</true>",
            "needs an operator",
        ),
    ],
)
def test_what_is_no_action_is_refused(text: str, why: str) -> None:
    with pytest.raises(ActionError, match=why):
        read_action(text)


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("Solve it with care.", "Solve it with care."),
        ("<prompt>Solve it.</prompt> and more", "Solve it."),
        ("<think>hm</think>Use integers.", "Use integers."),
        ("<action>set_prompt</action><operator>Plan</operator>Use primes.", "Use primes."),
    ],
)
def test_any_text_is_a_prompt_where_one_is_awaited(text: str, prompt: str) -> None:
    assert read_prompt(text) == prompt
    canvas = canvas_of("<action>add</action><operator>Plan</operator>")
    assert canvas.awaited and not canvas.nodes
    canvas.act(text)
    assert [(n.operator, n.prompt) for n in canvas.nodes] == [("Plan", prompt)]


def test_each_operator_of_a_structure_is_asked_for_in_turn() -> None:
    canvas = canvas_of(PARALLEL.partition("<prompt>")[0])
    assert [waiting.node for waiting in canvas.awaited] == [f"node_1_p{n}" for n in range(3)]
    with pytest.raises(ActionError, match="5 to 1000"):
        canvas.act("no")
    for n in range(3):
        canvas.act(f"prompt number {n}")
    assert not canvas.awaited
    assert [node.prompt for node in canvas.operators] == [f"prompt number {n}" for n in range(3)]


def test_the_text_of_a_canvas() -> None:
    canvas = canvas_of(
        ADD.format("Plan"), PARALLEL, conditional("Verify", "done", "Revise"), LOOP, FINISH
    )
    assert str(canvas) == (
        "Plan -> [AnswerGenerate, AnswerGenerate, Custom] -> Verify ? done : Revise"
        " -> (Review -> Revise) * 2"
    )
    assert canvas.is_finished
    assert [node.id for node in canvas.operators] == [
        "node_1", "node_2_p0", "node_2_p1", "node_2_p2", "node_3_cond", "node_3_false",
        "node_4_l0", "node_4_l1",
    ]  # fmt: skip


def test_positions_and_edits() -> None:
    canvas = canvas_of(ADD.format("Custom"), ADD.format("Format"))
    canvas.act("<action>add</action><operator>Plan</operator><position>0</position>")
    canvas.act("Make a plan.")
    canvas.act("<action>modify</action><target>node_1</target><operator>Programmer</operator>")
    assert str(canvas) == "Plan -> Custom -> Format", "a change waits for its prompt"
    canvas.act("Compute it.")
    canvas.act(
        "<action>add</action><operator>Review</operator><position>99</position>"
        "<prompt>Look twice.</prompt>"
    )
    assert str(canvas) == "Plan -> Programmer -> Format -> Review"
    for text, why in (
        ("<action>delete</action><target>node_9</target>", "no node"),
        ("<action>modify</action><target>node_9</target><operator>Plan</operator>", "no node"),
        ("<action>add</action><structure>loop</structure><operators>" + "Plan " * 12
         + "</operators>", "at most 15"),
    ):  # fmt: skip
        before = canvas.state()
        with pytest.raises(ActionError, match=why):
            canvas.act(text)
        assert canvas.state() == before


# Defects of FlowSteer that are not here; where each stands in its code: frontier facts of 2026.


def test_an_id_never_comes_twice() -> None:
    """workflow_graph.py:188: ids are made from the number of nodes, and collide after a delete."""
    canvas = canvas_of(LOOP, LOOP, "<action>delete</action><target>node_1</target>", LOOP)
    ids = [node.id for node in canvas.operators]
    assert ids == ["node_2_l0", "node_2_l1", "node_3_l0", "node_3_l1"]
    canvas.act("<action>set_prompt</action><target>node_3_l0</target><prompt>third</prompt>")
    assert [node.prompt for node in canvas.operators] == ["Go on.", "Go on.", "third", "Go on."]


@pytest.mark.parametrize("operator", OPERATORS)
async def test_every_operators_prompt_reaches_the_model(operator: str) -> None:
    """vllm_workflow_generator.py:2268: prompts of four operators are never passed on."""
    mark = "Beware of the platypus."
    canvas = canvas_of(
        PARALLEL, f"<action>add</action><operator>{operator}</operator><prompt>{mark}</prompt>"
    )
    replies = iter(["red", "blue", "green"])
    model = ScriptedModel(lambda prompt: next(replies, "Answer: 42. It is wrong."))
    execution = await run(canvas, model, "math")
    assert execution.failure is None
    assert sum(mark in prompt for prompt in model.prompts) >= 1


async def test_prompts_of_tests_and_programs_reach_the_model_for_code() -> None:
    wish = "<action>add</action><operator>{}</operator><prompt>{}</prompt>"
    canvas = canvas_of(wish.format("Programmer", "Add twice."), wish.format("Test", "Mend it."))
    model = ScriptedModel("```python\ndef add(a, b):\n    return a - b\n```")
    await run(canvas, model, "code")
    assert ["Add twice." in text for text in model.prompts] == [True, False, False, False]
    assert ["Mend it." in text for text in model.prompts] == [False, True, True, True]


@pytest.mark.parametrize("approves", [True, False])
async def test_the_true_branch_runs_where_the_check_succeeds(approves: bool) -> None:
    """vllm_workflow_generator.py:1846: it runs where the check failed."""
    canvas = canvas_of(ADD.format("Custom"), conditional("Verify", "Format", "Revise"))
    verdict = "The solution is correct." if approves else "That is incorrect."
    model = ScriptedModel(lambda text: verdict if "Review the solution" in text else "Answer: 42")
    execution = await run(canvas, model)
    called = [call.operator for call in execution.trace]
    assert called == ["generate", "review", "format" if approves else "revise"]


async def test_another_operator_succeeds_as_a_check_by_its_result() -> None:
    canvas = canvas_of(conditional("Programmer", "done", "AnswerGenerate"))
    failing = ScriptedModel(lambda text: "no code" if "Write a Python" in text else "Answer: 42")
    execution = await run(canvas, failing)
    assert [call.operator for call in execution.trace] == ["programmer", "answer"]
    assert execution.answer == "42"


async def test_a_loop_repeats() -> None:
    """vllm_workflow_generator.py:1402: neighbours that are equal are dropped."""
    body = structure("loop", "<operators>AnswerGenerate</operators><count>3</count>")
    model = ScriptedModel("Answer: 42")
    execution = await run(canvas_of(body), model)
    assert [call.operator for call in execution.trace] == ["answer"] * 3
    assert ["Earlier result" in text for text in model.prompts] == [False, True, True]


@pytest.mark.parametrize(("kind", "called"), [("math", "review"), ("code", "test")])
async def test_a_test_is_never_dropped(kind: Kind, called: str) -> None:
    """vllm_workflow_generator.py:1413: it is dropped for maths."""
    model = ScriptedModel("Answer: def add(a, b): return a + b")
    for text in (ADD.format("Test"), structure("parallel", "<operators>Test, Plan</operators>")):
        execution = await run(canvas_of(ADD.format("Custom"), text), model, kind)
        assert called in [call.operator for call in execution.trace]


async def test_what_stands_behind_an_aggregate_counts() -> None:
    """vllm_workflow_generator.py:2116: anything behind it is discarded."""
    canvas = canvas_of(PARALLEL, ADD.format("Aggregate"), ADD.format("Format"))
    model = ScriptedModel(lambda text: "Answer: 43" if "Reformat" in text else "Answer: 42")
    assert (await run(canvas, model)).answer == "43"


async def test_numbers_with_a_majority_are_aggregated_without_a_call() -> None:
    replies = iter(["Answer: 7", "Answer: 7", "8"])
    execution = await run(
        canvas_of(PARALLEL, ADD.format("Aggregate")), ScriptedModel(lambda text: next(replies))
    )
    assert execution.answer == "7" and execution.usage.calls == 3


async def test_an_answer_of_ones_own_counts_and_calls_nothing() -> None:
    """train_interactive.py:1631: it is ignored in training, and counts in evaluations."""
    model = ScriptedModel()
    canvas = canvas_of(ADD.format("Custom"), f"{FINISH}<answer>forty-two</answer>")
    execution = await run(canvas, model)
    assert execution.answer == "forty-two" and not model.prompts


def test_a_canvas_is_full_rather_than_cut() -> None:
    """vllm_workflow_generator.py:1394: of more than 15 parts the rest is cut in silence."""
    canvas = canvas_of(*[ADD.format("Custom")] * 15)
    with pytest.raises(ActionError, match="at most 15"):
        canvas.act(ADD.format("Format"))
    assert program_of(canvas, False).count("await generate") == 15


async def test_a_prompt_cannot_leave_its_string() -> None:
    text = "' + \" ``` <think> \\ \n{problem} [THINK] \u25c1think\u25b7 \udc80 \x00 x"
    canvas = canvas_of("<action>add</action><operator>Custom</operator>")
    canvas.act("lone \udc80 surrogate")
    assert Canvas.restore(canvas.state()).nodes[0].prompt == "lone ? surrogate"
    canvas.nodes[0].prompt = text
    model = ScriptedModel()
    assert (await run(canvas, model)).failure is None
    (asked,) = model.prompts
    assert "' + \" ``` <think> \\ \n{problem} [THINK] \u25c1think\u25b7 \ufffd \x00 x" in asked


async def test_random_canvases_run() -> None:
    rng = random.Random(7)
    async with (
        Sandbox(workers=1) as sandbox,
        Executor(
            ScriptedModel("Answer: 42. It is correct."),
            sandbox,
            WorkflowSection(workers=1, max_llm_calls=400),
        ) as executor,
    ):
        for number in range(15):
            canvas = Canvas()
            while not canvas.is_finished:
                canvas.act(draw_turn(canvas, rng))
            workflow = await executor.validate(program_of(canvas, False))
            execution = await executor.execute(workflow, task(), f"0/{number}/0")
            assert execution.failure is None or execution.failure.reason is Reason.NO_ANSWER


# The environment.


def environment(**keys: Any) -> CanvasEnvironment:
    found = make_environment(make_config(environment="canvas", canvas=keys, **_SIMULATED))
    assert isinstance(found, CanvasEnvironment)
    return found


_SIMULATED = {"aflow_executor_model": "simulated"}


async def play(played: CanvasEnvironment, of: Problem, *texts: str) -> Episode:
    """Play given turns as the trainer does."""
    turns: list[Turn] = []
    for text in texts:
        turns.append(Turn((), Sample((1,), (0.0,), text, "stop", 0)))
        answer = await played.respond(Episode(of, "0/1/0", tuple(turns)))
        turns[-1] = Turn((), turns[-1].sample, answer)
        if answer is None:
            break
    return Episode(of, "0/1/0", tuple(turns))


def observations(episode: Episode) -> list[Observation]:
    return [turn.observation for turn in episode.turns if turn.observation is not None]


async def test_the_feedback_of_a_turn() -> None:
    episode = await play(
        environment(), task(), "hm", "<action>add</action><operator>Plan</operator>", "Plan it.",
        LOOP, FINISH,
    )  # fmt: skip
    seen = observations(episode)
    assert [one.failed for one in seen] == [True, False, False, False]
    assert seen[0].text.startswith("Status: failed\nError: no action")
    assert seen[1].text.startswith("Status: awaiting a prompt") and "prompt of Plan" in seen[1].text
    assert seen[3].text == (
        "Status: accepted\nAdded (Review -> Revise) * 2 as node_2.\n"
        "Canvas: Plan -> (Review -> Revise) * 2\nNodes: node_1, node_2 (_l0, _l1)\n"
        "Count: 3 operators, 3 kinds, loop\nRound: 4 of 20"
    )
    assert seen[3].state == "Plan -> (Review -> Revise) * 2 0"
    assert final_canvas(episode).is_finished


async def test_an_answer_is_a_function_of_the_turns() -> None:
    rng, played = random.Random(3), environment()
    for _ in range(10):
        canvas, texts = Canvas(), list[str]()
        while not canvas.is_finished and len(texts) < 19:
            texts.append(draw_turn(canvas, rng))
            canvas.act(texts[-1])
        first, again = [await play(played, task(), *texts) for _ in range(2)]
        assert first == again
        assert final_canvas(first).state() == canvas.state()
        stored = json.loads(json.dumps(first.state()))
        for turn, kept in zip(first.turns, stored["turns"], strict=True):
            if turn.observation is not None:
                memory = kept["observation"]["memory"]
                assert Canvas.restore(memory) == Canvas.restore(turn.observation.memory)


async def test_an_empty_canvas_cannot_finish_and_the_rule_is_an_option() -> None:
    episode = await play(environment(), task(), FINISH, ADD.format("Custom"), FINISH)
    assert [one.failed for one in observations(episode)] == [True, False]
    episode = await play(environment(finish_rule="flowsteer"), task(), ADD.format("Plan"), FINISH)
    assert "not finished: fewer than 5" in observations(episode)[-1].text
    assert not final_canvas(episode).is_finished


def test_the_finish_rule() -> None:
    whole = [ADD.format(name) for name in ("Plan", "Programmer", "Verify")]
    many = canvas_of(*whole, ADD.format("Format"), ADD.format("Format"))
    assert "no parallel" in finish_problem(many, task())
    loop = structure("loop", "<operators>Plan, Plan</operators>")
    plans = canvas_of(*[ADD.format("Plan")] * 3, loop)
    assert "solves" in finish_problem(plans, task())
    assert "no check" in finish_problem(canvas_of(*whole[:2], PARALLEL), task())
    assert finish_problem(canvas_of(*whole, loop), task()) == ""
    assert "no Test" in finish_problem(canvas_of(*whole, loop), task("code"))
    long = canvas_of(*whole, loop)
    long.result = "x" * 61
    assert "no Format" in finish_problem(long, task())


async def test_words_of_a_problem_or_an_answer_switch_nothing() -> None:
    """workflow_env.py:1526, 2488: a result with "error" fails, "choose" disables Programmer."""
    of, played = task(question="Choose the best: a. one b. two"), environment(run_each_edit=True)
    async with (
        Sandbox(workers=1) as sandbox,
        Executor(ScriptedModel("Answer: error"), sandbox, WorkflowSection(workers=1)) as executor,
    ):
        played._executor = executor
        texts = ADD.format("AnswerGenerate"), ADD.format("Programmer")
        seen = observations(await play(played, of, *texts))
    assert [one.failed for one in seen] == [False, False]
    assert "Result: error" in seen[0].text


async def test_hints_only_where_they_are_wanted() -> None:
    texts = (ADD.format("Plan"), ADD.format("Programmer"), ADD.format("Verify"))
    for option, shown in (("state", 0), ("hint", 3)):
        seen = observations(await play(environment(feedback=option), task(), *texts))
        assert sum("[NEXT]" in one.text for one in seen) == shown
    assert hint_for(canvas_of(ADD.format("Plan")), task("code")).startswith("[NEXT]=ADD:Programmer")


async def test_gold_and_hidden_tests_are_in_no_text() -> None:
    canary, shown = "CANARY_GOLD", "SHOWN_PUBLIC"
    of = task(
        "code",
        reference=f"def add(a, b):\n    return a + b  # {canary}",
        public_tests=(f"assert add(1, 2) == 3, '{shown}'",),
        hidden_tests=(f"assert add(5, 7) == 12, '{canary}'",),
    )
    wrong = "```python\ndef add(a, b):\n    return a - b\n```"
    model = ScriptedModel(wrong)
    for form in ("full", "compact"):
        played = make_environment(
            make_config(
                environment="canvas",
                policy={"prompt": form},
                canvas={"feedback": "hint", "run_each_edit": True},
                **_SIMULATED,
            )
        )
        assert isinstance(played, CanvasEnvironment)
        async with (
            Sandbox(workers=1) as sandbox,
            Executor(model, sandbox, WorkflowSection(workers=1)) as executor,
        ):
            played._executor = executor
            episode = await play(
                played, of, ADD.format("Programmer"), ADD.format("Test"), ADD.format("Revise")
            )
        texts = [message.content for message in (*played.messages(of), *episode.messages())]
        assert canary not in "\n".join([*texts, *model.prompts])
    assert shown in "\n".join(model.prompts)


async def test_edits_are_run_where_wanted_and_their_calls_count() -> None:
    played = environment(run_each_edit=True)
    assert not played.answers_at_once and environment().answers_at_once
    model = ScriptedModel("Answer: 42")
    async with (
        Sandbox(workers=1) as sandbox,
        Executor(model, sandbox, WorkflowSection(workers=1)) as executor,
    ):
        played._executor = executor
        adds = "<action>add</action><operator>AnswerGenerate</operator>"
        episode = await play(played, task(), adds, "Solve it.", ADD.format("Format"), FINISH)
        rollouts = CanvasRollouts(executor, Strict(), sandbox, RewardSection(cost_weight=0.1))
        ((rollout,),) = await rollouts.rollout([[episode]])
    seen = observations(episode)
    assert ["Result: 42" in one.text for one in seen] == [False, True, True]
    assert rollout.spent is not None and rollout.spent.calls == 1 + 2 + 2 == len(model.prompts)
    assert rollout.spent.tokens == 5 * 110


class Strict:
    """Judges by equality."""

    name = "strict"

    async def judge(self, query: JudgeQuery) -> Verdict:
        right = query.answer == "42"
        return Verdict(float(right), right, "llm", "ok", "", 1, self.name, Usage(1, 10, 5))


async def rolled(*texts: str, answers: str = "Answer: 42") -> Rollout:
    return await rolled_out(await play(environment(), task(), *texts), answers)


async def rolled_out(episode: Episode, answers: str = "Answer: 42") -> Rollout:
    async with (
        Sandbox(workers=1) as sandbox,
        Executor(ScriptedModel(answers), sandbox, WorkflowSection(workers=1)) as executor,
    ):
        rollouts = CanvasRollouts(executor, Strict(), sandbox, RewardSection())
        ((rollout,),) = await rollouts.rollout([[episode]])
        return rollout


@pytest.mark.parametrize(
    ("texts", "reply", "judge", "flowsteer"),
    [
        # A right answer of one operator: the judge's 1; by the formula -1 + 0, correctness gated.
        ([ADD.format("AnswerGenerate"), FINISH], "Answer: 42", 1.0, -1.0),
        # A check and a Format: -1 + .2 + .2.
        ([ADD.format("AnswerGenerate"), ADD.format("Verify"), ADD.format("Format"), FINISH],
         "Answer: 42", 1.0, -0.6),
        # A loop is a structure, too: -1 + .2 + .4.
        ([ADD.format("AnswerGenerate"), LOOP, FINISH], "Answer: 42", 1.0, -0.4),
        # Six operators, a check, a Format, a structure: -1 + 1 + 1, and -1 + 1 + 0 if wrong.
        ([PARALLEL, LOOP, ADD.format("Format"), FINISH], "Answer: 42", 1.0, 1.0),
        ([PARALLEL, LOOP, ADD.format("Format"), FINISH], "Answer: 41", 0.0, 0.0),
        # No answer: crashed; by the formula its structure alone.
        ([ADD.format("Plan"), FINISH], "Answer: 42", -0.1, -1.0),
        # Nothing on the canvas.
        (["hm"], "Answer: 42", -0.2, -1.0),
        # Turns ran out: the canvas runs as it is.
        ([ADD.format("AnswerGenerate"), "<action>add</action><operator>Plan</operator>"],
         "Answer: 42", 1.0, -1.0),
    ],
)  # fmt: skip
async def test_both_rewards(texts: list[str], reply: str, judge: float, flowsteer: float) -> None:
    rollout = await rolled(*texts, answers=reply)
    assert rollout.reward.value == pytest.approx(judge)
    other = with_flowsteer_reward(rollout).reward
    assert other.value == pytest.approx(flowsteer)
    assert sum(other.parts.values()) == pytest.approx(flowsteer)


async def test_a_replay_and_a_baseline_are_played_as_they_are() -> None:
    texts = ["hm", FINISH, ADD.format("AnswerGenerate"), LOOP, f"{FINISH}<answer>7</answer>"]
    played = await play(environment(finish_rule="flowsteer"), task(), *texts, ADD.format("Format"))
    assert str(final_canvas(played)) == "AnswerGenerate -> (Review -> Revise) * 2 -> Format"
    bare = [Turn((), Sample((), (), turn.sample.text, "stop", 0)) for turn in played.turns]
    again = Episode(task(), "0/1/0", tuple(bare))
    assert final_canvas(again).state() == final_canvas(played).state()
    first, second = await rolled_out(played), await rolled_out(again)
    assert first.reward == second.reward
    program = "async def workflow(problem):\n    return '42'"
    fixed = Episode.single(task(), Sample((), (), program, "stop", -1), "0/1/0")
    assert (await rolled_out(fixed)).reward.value == 1.0
    written = Episode.single(task(), Sample((1,), (0.0,), program, "stop", 0), "0/1/0")
    rollout = await rolled_out(written)
    assert rollout.failure is not None and rollout.failure.reason is Reason.NO_PROGRAM


def test_an_unscored_attempt_stays_unscored() -> None:
    sample = Sample((1,), (0.0,), FINISH, "stop", 0)
    details = CanvasDetails(canvas=canvas_of(PARALLEL, LOOP, ADD.format("Format")))
    assert structure_score(details.canvas) == 1.0
    lost = Rollout(task(), sample, Reward(None), details=details)
    assert with_flowsteer_reward(lost).reward.value is None


def test_all_operators_of_the_prompt_exist() -> None:
    system = environment().messages(task())[0].content
    assert all(name in system for name in OPERATORS)
    assert set(OPERATORS) >= CHECKERS


def test_hostile_turns_are_read_in_time() -> None:
    for text in (
        "<prompt>" * 100_000,
        "<action>add</action><operator>" * 50_000,
        "```\n" * 200_000,
        "```\n<action>\n" * 100_000,
        "[" * 500_000,
        "<action>add</action><structure>loop</structure><operators>" + "Plan " * 100_000
        + "</operators>",
    ):  # fmt: skip
        canvas = Canvas()
        with pytest.raises(ActionError):
            canvas.act(text)
        assert canvas.state() == Canvas().state()


TURNS = (
    ADD.format("AnswerGenerate"), ADD.format("Verify"), ADD.format("Format"), PARALLEL, LOOP,
    FINISH, FINISH, "hm", "<action>add</action><operator>Plan</operator>",
    "<action>delete</action><target>node_1</target>",
)  # fmt: skip


def acting(group: list[Sample]) -> list[Sample]:
    """Give the tokens of a random policy the texts of turns."""
    return [replace(each, text=TURNS[sum(each.token_ids) % len(TURNS)]) for each in group]


class Doubled(CanvasEnvironment):
    """Asks a scripted model and a strict judge."""

    def tasks(self) -> TaskSets:
        return TaskSets(TASKS, TASKS)

    @asynccontextmanager
    async def open(self, tasks: Sequence[Task]) -> AsyncIterator[None]:
        async with (
            Sandbox(workers=1) as self._sandbox,
            Executor(
                ScriptedModel("Answer: 42. It is correct."),
                self._sandbox,
                WorkflowSection(workers=1),
            ) as self._executor,
        ):
            self._rollouts = CanvasRollouts(
                self._executor, Strict(), self._sandbox, self.config.reward
            )
            yield

    def counters(self) -> Sequence[Counters]:
        return ()

    def status(self) -> EnvironmentStatus:
        return EnvironmentStatus(sandbox=self._sandbox.status)

    def state(self, without: Sequence[str] = ()) -> None:
        return None


@pytest.mark.parametrize("runs", [False, True])
async def test_a_run_trains_and_resumes_bit_for_bit(tmp_path: Path, runs: bool) -> None:
    config = make_config(
        {
            **configured({"steps": 3}).model_dump(exclude_unset=True),
            "environment": "canvas",
            "canvas": {"max_rounds": 4, "run_each_edit": runs},
            "policy": {
                "prompt": "compact",
                "max_new_tokens": 6,
                "max_prompt_tokens": 300,
                "max_observation_tokens": 60,
            },
        }
    )

    async def trained(run: str, **keys: Any) -> Outcome:
        environment: Any = Doubled(config)
        async with environment.open(()):
            return await train(tmp_path / run, environment, config, **keys)

    def kill(version: int) -> None:
        if version == 2:
            raise Killed

    played: Any = {"sampler": lambda local: Wrapped(local, change=acting)}
    whole = await trained("whole", **played)
    killed = {"sampler": lambda local: Wrapped(local, change=acting, refreshed=kill)}
    await trained("run", **killed, raises=Killed)
    resumed = await trained("run", **played, resume=True)
    assert resumed.metrics == whole.metrics
    assert same(resumed.weights, whole.weights)
    rows = [row for row in whole.metrics if "canvas/operators" in row and "turns/mean" in row]
    assert len(rows) == 3
    assert all(row["tokens/trained_as_sampled"] == 1.0 for row in rows)
    assert all(row["rollout/unscored"] == 0.0 for row in rows)
    assert any(row["policy/grad_norm"] > 0 for row in rows)
    record = next(iter(read_rollouts(tmp_path / "whole", 1)))
    assert {"text", "nodes", "is_finished"} <= set(record["canvas"])
