"""Programs written for AFlow's operators: they load and run, or fail with a reason."""

import textwrap

import pytest
from workflow_doubles import FAILED, PASSED, ScriptedModel, ScriptedSandbox, printed, task

from flowright.config.workflow import WorkflowSection
from flowright.core.errors import FailureError, Reason
from flowright.data.task import Problem
from flowright.workflows.executor import Execution, Executor
from flowright.workflows.source import read_workflow

HEAD = """\
from typing import Literal
import workspace.GSM8K.workflows.template.operator as operator
import workspace.GSM8K.workflows.round_9.prompt as prompt_custom
from scripts.async_llm import create_llm_instance
from metagpt.utils.cost_manager import CostManager

DatasetType = Literal["HumanEval", "GSM8K"]

class Workflow:
    def __init__(
        self,
        name: str,
        llm_config,
        dataset: DatasetType,
    ) -> None:
        self.name = name
        self.dataset = dataset
        self.llm = create_llm_instance(llm_config)
        self.llm.cost_manager = CostManager()
"""


def aflow(made: str, body: str, parameters: str = "problem: str") -> str:
    """A workflow in AFlow's form: the operators that ``__init__`` makes, the body of
    ``__call__``."""
    lines = [f"self.{name.lower()} = operator.{name}(self.llm)" for name in made.split()]
    return (
        HEAD
        + textwrap.indent("\n".join(lines), " " * 8)
        + f"\n\n    async def __call__(self, {parameters}):\n"
        + textwrap.indent(textwrap.dedent(body), " " * 8)
    )


async def play(
    text: str,
    model: ScriptedModel | None = None,
    sandbox: ScriptedSandbox | None = None,
    of: Problem | None = None,
) -> Execution:
    """Validated, so type-checked, then executed."""
    parts = (model or ScriptedModel(), sandbox or ScriptedSandbox())
    async with Executor(*parts, WorkflowSection(workers=1)) as executor:
        return await executor.execute(await executor.validate(text), of or task(), "key")


VOTE = aflow(
    "Custom ScEnsemble",
    """\
    solutions = []
    for _ in range(3):
        solution = await self.custom(input=problem, instruction="Solve it: ")
        solutions.append(solution["response"])
    final = await self.scensemble(solutions=solutions, problem=problem)
    return final["response"], self.llm.cost_manager.total_cost
    """,
)


async def test_a_published_form_runs_and_answers_without_its_cost() -> None:
    model = ScriptedModel("42")
    execution = await play(VOTE, model)
    assert (execution.answer, execution.failure) == ("42", None)
    assert [call.operator for call in execution.trace] == ["generate"] * 3 + ["ensemble"]
    assert "Solve it:" in model.prompts[0] and "six times seven" in model.prompts[0]


def test_a_translation_is_a_named_repair_that_keeps_the_lines() -> None:
    workflow = read_workflow(VOTE)
    assert "aflow_translated" in workflow.repairs and workflow.source == VOTE.rstrip("\n")
    assert workflow.calls == ("generate", "ensemble")
    lines = workflow.source.split("\n")
    line = 1 + next(n for n, text in enumerate(lines) if "self.scensemble(" in text)
    assert "self.scensemble(" in workflow.program.split("\n")[line - 1]
    assert workflow.source_line(line) == line


@pytest.mark.parametrize(
    ("made", "body", "answer", "operators"),
    [
        ("AnswerGenerate", "return (await self.answergenerate(input=problem))['answer'], 0", "42",
         ["answer"]),
        ("Programmer", "r = await self.programmer(problem=problem, analysis='None')\n"
         "return r['output'], self.llm.get_usage_summary()['total_cost']", "7", ["programmer"]),
        ("MdEnsemble", "r = await self.mdensemble(solutions=['4', '4'], problem=problem)\n"
         "return r['solution'], 0.0", "4", ["ensemble"]),
        ("Review Revise", "r = await self.review(problem=problem, solution='41')\n"
         "assert r['review_result'] is False\n"
         "fixed = await self.revise(problem=problem, solution='41', feedback=r['feedback'])\n"
         "return fixed['solution'], 0.0", "42", ["review", "revise"]),
        ("Format", "r = await self.format(problem=problem, solution='it is 42')\n"
         "return r['response'], 0.0", "42", ["format"]),
        ("Custom", "return await self.llm('Six times seven?'), 0.0", "Answer: 42", ["generate"]),
    ],
)  # fmt: skip
async def test_operators_have_the_results_that_aflow_gives_them(
    made: str, body: str, answer: str, operators: list[str]
) -> None:
    def script(prompt: str) -> str:
        return "Incorrect: it is 42." if "Review the solution" in prompt else "Answer: 42"

    execution = await play(
        aflow(made, body), ScriptedModel(script), ScriptedSandbox([printed("7")])
    )
    assert execution.failure is None and execution.answer == answer
    assert [call.operator for call in execution.trace] == operators


async def test_the_test_operator_tests_and_revises_until_the_public_tests_pass() -> None:
    text = aflow(
        "CustomCodeGenerate Test",
        """\
        code = await self.customcodegenerate(
            problem=problem, entry_point=entry_point, instruction="Write it."
        )
        outcome = await self.test(
            problem=problem, solution=code["response"], entry_point=entry_point
        )
        return outcome["solution"] if outcome["result"] else "", 0.0
        """,
        "problem: str, entry_point: str",
    )
    code = "```python\ndef add(a, b):\n    return a + b\n```"
    execution = await play(
        text, ScriptedModel(code), ScriptedSandbox(reports=[FAILED, PASSED]), task("code")
    )
    assert execution.failure is None and "return a + b" in (execution.answer or "")
    assert [c.operator for c in execution.trace] == ["write_code", "test", "revise", "test"]


PROMPTED = aflow(
    "Custom",
    """\
    r = await self.custom(input=problem, instruction=prompt_custom.SOLVE)
    return r["response"], 0.0
    """,
)


async def test_prompts_are_found_when_their_file_stands_in_front() -> None:
    model = ScriptedModel("42")
    execution = await play(f'SOLVE = """Solve with care."""\n{PROMPTED}', model)
    assert execution.answer == "42" and "Solve with care." in model.prompts[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PROMPTED, "prompt_custom.SOLVE stands in another file"),
        (aflow("Custom ToolCall", "return '', 0"), "operator.ToolCall stands in another file"),
        ("from scripts.utils import sanitize\n"
         + aflow("Custom", "return sanitize(problem), 0"), "sanitize stands in another file"),
    ],
)  # fmt: skip
def test_what_stands_in_another_file_is_unsupported(text: str, told: str) -> None:
    with pytest.raises(FailureError) as caught:
        read_workflow(text)
    failure = caught.value.failure
    assert failure.reason is Reason.UNSUPPORTED and told in failure.message
    name = told.split()[0]
    assert failure.line is not None and name in text.split("\n")[failure.line - 1]


def test_classes_of_the_programs_own_are_not_translated() -> None:
    own = """\
class Custom:
    async def __call__(self, problem):
        return await answer(problem)

async def workflow(problem):
    return await Custom()(problem)
"""
    assert "aflow_translated" not in read_workflow(own).repairs


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("class Workflow:", "class SolveGraph:"),
        ("import workspace.GSM8K.workflows.template.operator as operator\n", "import operator\n"),
        ("import workspace.GSM8K.workflows.template.operator as operator\n", ""),
        ("from scripts.async_llm import create_llm_instance\n",
         "from evoagentx.models.model_utils import create_llm_instance\n"),
        ('DatasetType = Literal["HumanEval", "GSM8K"]', "from scripts.a import DatasetType"),
        ('DatasetType = Literal["HumanEval", "GSM8K"]', ""),
        ("dataset: DatasetType,", "benchmark: Benchmark,\n        dataset=None,"),
        ("operator.Custom(self.llm)", "operator.Custom(self.llm, eval_log=[])"),
        ('return final["response"], self.llm.cost_manager.total_cost', "return final"),
        ('return final["response"], ', 'return final["response"], {}, '),
        ("    solutions = []", "    solutions = []\n        logger.info('three tries')"),
    ],
)  # fmt: skip
async def test_forms_that_other_projects_gave_it(before: str, after: str) -> None:
    changed = VOTE.replace(before, after)
    assert changed != VOTE
    imports = "from evoagentx.benchmark import Benchmark\nfrom scripts.logs import logger\n"
    execution = await play(imports + changed, ScriptedModel("42"))
    assert (execution.answer, execution.failure) == ("42", None)


@pytest.mark.parametrize(
    ("said", "result"),
    [("Correct. Nothing is wrong.", "True"), ("INCORRECT: 42 is right.", "False"), ("Hm.", "True")],
)
async def test_a_review_is_read_by_its_first_verdict(said: str, result: str) -> None:
    text = aflow(
        "Review", "return (await self.review(problem=problem, solution='1'))['review_result'], 0"
    )
    assert (await play(text, ScriptedModel(said))).answer == result
