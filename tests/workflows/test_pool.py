"""Models that programs choose from: what is dealt, what a name means, what a call costs."""

import random
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from workflow_doubles import ScriptedModel, ScriptedSandbox, said, task

from flowright.app.replaying import called_models
from flowright.config.llm import PriceSection
from flowright.config.workflow import ExecutorSection, RewardSection, WorkflowSection
from flowright.core.errors import Blame, ConfigError, FailureError, Reason
from flowright.environments.registry import make_config
from flowright.environments.rollout import UNSCORED, Rollout, Spent, reward_of
from flowright.environments.workflow.baselines import cascade_baselines
from flowright.environments.workflow.demonstrations import MIXED, with_models
from flowright.environments.workflow.display import WorkflowDisplay
from flowright.environments.workflow.environment import WorkflowEnvironment
from flowright.environments.workflow.servers import make_pool
from flowright.llm.chat import ChatReply
from flowright.llm.wire import decode_reply
from flowright.policy.sampling import Sample
from flowright.sandbox import TestReport, TestResult
from flowright.workflows.executor import Executor
from flowright.workflows.grammar import SHAPES, cascade
from flowright.workflows.operators import OPERATORS
from flowright.workflows.pool import ModelPool, add_model_parameter
from flowright.workflows.prompt import build_messages
from flowright.workflows.registry import Operators

NAMES = ("small", "large", "other")
NOTES = {"small": "cheap", "large": "", "other": ""}
PRICES = {
    "small": PriceSection(input=0.1, output=0.4),
    "large": PriceSection(input=2, output=8),
    "other": None,
}


def pool(**settings: Any) -> ModelPool:
    return ModelPool(ExecutorSection(models=NAMES, **settings), NOTES, prices=PRICES)


@asynccontextmanager
async def executor(
    models: Mapping[str, ScriptedModel], dealt: ModelPool
) -> AsyncIterator[Executor]:
    limits = WorkflowSection(workers=1)
    async with Executor(models, ScriptedSandbox(), limits, dealt.section, dealt) as made:
        yield made


def scripted() -> dict[str, ScriptedModel]:
    return {
        name: ScriptedModel(lambda request, name=name: said(f"Answer: {name}")) for name in NAMES
    }


PROGRAM = """
async def workflow(problem):
    first = await answer(problem)
    second = await answer(problem, model="{label}")
    return first + " " + second
"""


async def test_a_call_asks_the_model_that_it_names() -> None:
    async with executor(scripted(), pool()) as made:
        workflow = await made.validate(PROGRAM.format(label="large"))
        execution = await made.execute(workflow, task("qa"), "0/1/0/0")
    assert execution.answer == "small large", "the first one is the default"
    assert [call.model for call in execution.trace] == ["small", "large"]
    assert execution.trace[1].arguments["model"] == "large"


@pytest.mark.parametrize(
    ("replies", "answer", "asked"),
    [
        ({"small": ["7", "7"]}, "7", ["small", "small"]),
        ({"small": ["7", "8"], "large": ["9"]}, "9", ["small", "small", "large"]),
    ],
)
async def test_a_cascade_goes_on_where_two_answers_differ(
    replies: dict[str, list[str]], answer: str, asked: list[str]
) -> None:
    left = {name: iter(some) for name, some in replies.items()}
    models = {
        name: ScriptedModel(lambda request, name=name: said(f"Answer: {next(left[name])}"))
        for name in NAMES
    }
    priced = pool()
    assert priced.by_price == ("small", "large") and pool(shuffle=True).by_price == ()
    (baseline,) = cascade_baselines(priced.by_price)
    assert cascade_baselines(("small",)) == []
    async with executor(models, priced) as made:
        workflow = await made.validate(baseline.completion)
        execution = await made.execute(workflow, task("math"), "0/1/0/0")
    assert (execution.failure, execution.answer) == (None, answer)
    assert [call.model for call in execution.trace] == asked
    counts = ", ".join(f"{name} {asked.count(name)}" for name in dict.fromkeys(asked))
    assert called_models(asdict(execution)) == counts


@pytest.mark.parametrize("passed", [True, False])
async def test_a_cascade_goes_on_where_tests_fail(passed: bool) -> None:
    report = TestReport(passed, (TestResult("assert add(1, 2) == 3", passed, ""),), "ok")
    models = {
        name: ScriptedModel(f"```python\ndef add(a, b):\n    return '{name}'\n```")
        for name in NAMES
    }
    limits, priced = WorkflowSection(workers=1), pool()
    sandbox = ScriptedSandbox(reports=[report])
    async with Executor(models, sandbox, limits, priced.section, priced) as made:
        workflow = await made.validate(cascade(priced.by_price))
        execution = await made.execute(workflow, task("code"), "0/1/0/0")
    assert execution.answer is not None and ("small" if passed else "large") in execution.answer


async def test_a_model_that_was_not_dealt_fails_the_program() -> None:
    async with executor(scripted(), pool()) as made:
        workflow = await made.validate(PROGRAM.format(label="huge"))
        execution = await made.execute(workflow, task("qa"), "0/1/0/0")
    assert execution.failure is not None and execution.failure.reason is Reason.BAD_ARGUMENT
    assert "no model 'huge'; there are small, large, other" in execution.failure.message


async def test_a_model_whose_server_fails_is_no_fault_of_the_program() -> None:
    def unreachable(prompt: str) -> ChatReply:
        raise FailureError(Reason.LLM_UNAVAILABLE, "no route to host")

    models = scripted() | {"large": ScriptedModel(unreachable)}
    async with executor(models, pool()) as made:
        workflow = await made.validate(PROGRAM.format(label="large"))
        execution = await made.execute(workflow, task("qa"), "0/1/0/0")
    assert execution.failure is not None and execution.failure.blame is Blame.INFRASTRUCTURE
    assert reward_of(execution.failure, None, RewardSection()).value is None
    shown = WorkflowDisplay().blocks({"execution": asdict(execution)})
    assert "small, " in str(shown) and "large, " in str(shown), "a rollout's page names models"


async def test_numbers_stand_for_names() -> None:
    async with executor(scripted(), pool(names="index")) as made:
        workflow = await made.validate(PROGRAM.format(label="3"))
        execution = await made.execute(workflow, task("qa"), "0/1/0/0")
    assert execution.answer == "small other"
    shown = build_messages(task("qa"), dealt=pool(names="index").deal("x"))[0].content
    assert "- 1 (0.1 in, 0.4 out): cheap\n- 2 (2 in, 8 out)\n- 3\n" in shown
    assert "other" not in shown[shown.index("## Models") :].split("## Language")[0]


def test_a_shuffled_pool_deals_each_problem_a_part_of_it_and_the_same_again() -> None:
    dealt = {n: pool(shuffle=True).deal(str(n)) for n in range(200)}
    assert all(2 <= len({one.name for one in some}) == len(some) for some in dealt.values())
    assert {len(some) for some in dealt.values()} == {2, 3}
    assert {some[0].name for some in dealt.values()} == {*NAMES}
    assert all(pool(shuffle=True).deal(str(n)) == some for n, some in dealt.items())


def test_the_prompt_names_the_models_and_the_operators_take_one() -> None:
    full = build_messages(task("qa"), dealt=pool().deal("x"))[0].content
    assert "in price (per million tokens).\n\n- small (0.1 in, 0.4 out): cheap\n" in full
    assert "answer(problem: str, model: str = '')" in full
    compact = build_messages(task("qa"), "compact", dealt=pool().deal("x"))[0].content
    assert "model=small x1: cheap|large x20|other" in compact
    unpriced = ModelPool(ExecutorSection(models=NAMES), NOTES | {"small": "two\nlines"}).deal("x")
    assert (
        "model=small: two lines|large|other\n"
        in build_messages(task("qa"), "compact", dealt=unpriced)[0].content
    )
    assert "model" not in build_messages(task("qa"), "compact")[0].content


def test_each_problem_has_one_of_the_budgets_and_its_prompt_names_it() -> None:
    section = RewardSection(cost_weight=0.2, budget=(300, 2000))
    settings = {"reward": section, "seed": 3}
    environment = WorkflowEnvironment(make_config(**settings))
    tasks = [task("qa", id=str(n)) for n in range(40)]
    budgets = [section.budget_of(one.id, 3) for one in tasks]
    assert {*budgets} == {300, 2000}
    for one, budget in zip(tasks, budgets, strict=True):
        shown = environment.messages(one)[0].content
        assert f"than many.\n- Spend at most {budget:g} tokens: the further" in shown
    spent = [
        Rollout(one, Sample((), (), "", "stop", 0), UNSCORED, spent=Spent(1, 400, 0.0))
        for one in tasks
    ]
    kept = environment.budget_metrics(spent)["budget/kept"]
    assert kept == pytest.approx(budgets.count(2000) / len(tasks))
    compact = build_messages(tasks[0], "compact", dealt=pool().deal("x"), budget=0.0012)
    assert "other budget=0.0012\n" in compact[0].content
    full = build_messages(tasks[0], dealt=pool().deal("x"), budget=0.0012)
    assert "at most 0.0012 in the money of the prices above" in full[0].content
    assert RewardSection().budget_of("x", 0) is None
    with pytest.raises(ValidationError, match="counts by cost_weight"):
        RewardSection(budget=(1.0,))
    with pytest.raises(ValidationError, match="a canvas's prompt names none"):
        make_config(**settings, environment="canvas")


def test_demonstrations_name_several_models_in_some_programs() -> None:
    rng, dealt = random.Random(0), pool().deal("x")
    program = SHAPES["answer_review_revise"].program()
    named = [re.findall(r'model="(\w+)"', with_models(program, dealt, rng)) for _ in range(400)]
    assert {len(names) for names in named} == {3}
    assert {name for names in named for name in names} == {*NAMES}
    mixed = sum(len({*names}) > 1 for names in named) / len(named)
    assert mixed == pytest.approx(MIXED * 8 / 9, abs=0.07), "three draws of three agree in a ninth"


def test_money_is_counted_by_the_million_and_cached_tokens_apart() -> None:
    price = PriceSection(input=2.0, output=8.0, cached=0.5)
    assert price.of(1_000_000, 500_000, 400_000) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.5 * 8)
    assert PriceSection(input=2.0, output=8.0).of(1_000_000, 0, 400_000) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "usage",
    [
        '{"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}',
        '{"prompt_tokens": 9, "prompt_cache_hit_tokens": 4}',
    ],
)
def test_servers_report_cached_tokens_in_two_forms(usage: str) -> None:
    body = f'{{"choices": [{{"message": {{"content": "x"}}}}], "usage": {usage}}}'
    assert decode_reply(body.encode()).cached_tokens == 4


def test_a_model_without_a_price_is_refused_where_costs_count(tmp_path: Path) -> None:
    entry = {"base_url": "http://localhost:1/v1", "model_name": "m"}
    priced = {**entry, "price": {"input": 1, "output": 2}}
    file = tmp_path / "models.yaml"
    file.write_text(yaml.safe_dump({"models": {"a": priced, "b": entry}}))
    settings: dict[str, Any] = {"llm": {"file": file}, "executor": {"models": ("a", "b")}}
    judged = settings | {"judge": {"model": "simulated"}}
    with pytest.raises(ConfigError, match=r"models: b has no price, and others have one; give it"):
        make_pool(make_config(**judged))
    file.write_text(yaml.safe_dump({"models": {"a": entry, "b": entry}}))
    assert make_pool(make_config(**judged)) is not None
    with pytest.raises(ConfigError, match=r"b has no price, and reward\.cost_weight counts money"):
        make_pool(make_config(**judged, reward=RewardSection(cost_weight=0.1)))
    with pytest.raises(ConfigError, match=r"name judge\.model"):
        make_pool(make_config(**settings))
    assert make_config(**judged).judge_model == "simulated", "a pool has no say in it"
    with pytest.raises(ValidationError, match="a canvas chooses no models"):
        make_config(**judged, environment="canvas")


def test_an_operator_with_a_model_of_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="operator answer: rename its parameter"):
        add_model_parameter(add_model_parameter(Operators([OPERATORS["answer"]])))


@pytest.mark.parametrize(
    "settings", [{"models": ["a"]}, {"models": ["a", "a"]}, {"shuffle": True}, {"names": "index"}]
)
def test_a_pool_has_two_models_or_more(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"name two or more|named twice"):
        ExecutorSection(**settings)
