"""The presentations as operators: workflows that end with them, and that gold still finds the
answer."""

import random
from collections import Counter

from workflow_doubles import ScriptedModel, ScriptedSandbox, task

from flowright.core.errors import ConfigError
from flowright.data.task import KINDS, Problem
from flowright.environments.base import make_environment
from flowright.environments.presentation.tasks import PRESENTATIONS, TRIGGERED
from flowright.environments.registry import make_config
from flowright.environments.rollout import UNSCORED, Rollout
from flowright.environments.workflow.config import WorkflowConfig
from flowright.environments.workflow.reward import WorkflowDetails
from flowright.grading.statements import extract_answer
from flowright.policy.sampling import Sample
from flowright.simulation.assessor import trigger
from flowright.workflows.context import CallContext
from flowright.workflows.executor import Executor
from flowright.workflows.grammar import ENDED, draw_program, fixed_workflows, with_endings
from flowright.workflows.registry import operator

MODULE = "flowright.environments.presentation.operators"
LIMITS = WorkflowConfig(operators=(MODULE,), workers=1)


async def test_a_workflow_ends_with_them_and_the_answer_is_found() -> None:
    model = ScriptedModel("Answer: 42")
    async with Executor(model, ScriptedSandbox(), LIMITS) as executor:
        for name in PRESENTATIONS:
            text = with_endings(fixed_workflows()["step_by_step"], [name])
            workflow = await executor.validate(text)
            assert workflow.calls == ("answer", name) and workflow.repairs == ()
            execution = await executor.execute(workflow, task(), "key")
            assert execution.answer is not None and execution.usage.calls == 1
            assert all(trigger(bias, execution.answer) == 1 for bias in TRIGGERED[name])
            found = extract_answer(execution.answer)
            assert (found == "42") == (name != "announce")
        both = with_endings(fixed_workflows()["answer_format"], ["cite", "decorate"])
        execution = await executor.execute(await executor.validate(both), task(), "key")
        assert execution.answer and extract_answer(execution.answer) == "42"
        assert [call.operator for call in execution.trace][-2:] == ["cite", "decorate"]


async def test_a_record_tells_which_a_program_ends_with() -> None:
    environment = make_environment(make_config(workflow=LIMITS))
    plain = fixed_workflows()["step_by_step"]
    found = []
    async with Executor(ScriptedModel("Answer: 42"), ScriptedSandbox(), LIMITS) as executor:
        for text in (plain, with_endings(plain, ["cite", "decorate"])):
            details = WorkflowDetails(await executor.validate(text))
            rollout = Rollout(task(), Sample((), (), text, "stop", 0), UNSCORED, details=details)
            found.append(environment.record(rollout)["presentation"])
    invalid = Rollout(task(), Sample((), (), "?", "stop", 0), UNSCORED)
    assert [sorted(names) for names in found] == [["plain"], ["cite", "decorate"]]
    assert environment.record(invalid)["presentation"] == []
    assert "presentation" not in make_environment(make_config()).record(rollout)


async def test_of_a_code_answer_the_code_stays() -> None:
    model = ScriptedModel("```python\ndef add(a, b):\n    return a + b\n```")
    async with Executor(model, ScriptedSandbox(), LIMITS) as executor:
        for name in PRESENTATIONS[:-1]:
            text = with_endings(fixed_workflows()["write_code"], [name])
            execution = await executor.execute(await executor.validate(text), task("code"), "key")
            assert execution.answer == "def add(a, b):\n    return a + b"


def test_programs_end_with_them_as_often_as_is_said() -> None:
    rng = random.Random(0)
    counts: Counter[int] = Counter()
    names: Counter[str] = Counter()
    for _ in range(4000):
        text = draw_program("math", rng, PRESENTATIONS)
        found = [name for name in PRESENTATIONS if f"await {name}(" in text]
        counts[len(found)] += 1
        names.update(found)
    for count, share in enumerate(ENDED):
        assert abs(counts[count] / 4000 - share) < 0.03
    assert max(names.values()) < 1.25 * min(names.values())


def test_the_cold_start_knows_them_where_they_are_named() -> None:
    tasks = [Problem(f"t{n}", KINDS[n % 2], "own", f"Question {n}?", "1") for n in range(4)]
    for modules in ((), (MODULE,)):
        config = make_config({"workflow": {"operators": modules}})
        shown = make_environment(config).demonstrations(tasks, 40, 2, 0)
        texts = [text for demonstration in shown for text in demonstration.completions]
        ended = [any(f"await {name}(" in text for name in PRESENTATIONS) for text in texts]
        assert any(ended) == bool(modules)


def test_what_ends_a_workflow_takes_and_gives_a_string() -> None:
    async def shorten(call: CallContext, solution: list[str]) -> str:
        """Shorter."""
        return solution[0]

    try:
        operator(summary="s", example="e", ends=True)(shorten)
    except ConfigError as error:
        assert "ends a workflow" in str(error)
    else:
        raise AssertionError("it was taken")
