"""A chat model that writes workflows: what it is shown, what it costs, whose fault a failure is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from llm_standin import Seen, StandIn, Step, good, problem
from workflow_doubles import task

from flowright.app.measuring import open_evaluation
from flowright.config.llm import LlmSection, ModelEntry, PriceSection
from flowright.core.errors import UserError
from flowright.environments.registry import make_config
from flowright.environments.rollout import Rollout
from flowright.environments.workflow.environment import WorkflowEnvironment
from flowright.evaluation.writer import ChatWriter
from flowright.llm.client import ChatClient

PROGRAM = 'async def workflow(problem):\n    return await answer(problem, model="{}")'
POOL: dict[str, Any] = {
    "executor": {"models": ("small", "large")},
    "simulated": {
        "models": {
            "small": {"price": {"input": 0.1, "output": 0.4}},
            "large": {"price": {"input": 2, "output": 8}},
        }
    },
}
TASKS = [task(id=name, question=f"{name}: what is 6 * 7?") for name in ("runs", "wrong", "lost")]


def choose(seen: Seen) -> Step:
    """``runs``: a program, then its submission; ``wrong``: no program; ``lost``: refused."""
    messages = seen.json["messages"]
    if "lost:" in messages[1]["content"]:
        return problem(400, "no")
    if "wrong:" in messages[1]["content"]:
        return good("I do not write programs.")
    return good("SUBMIT" if len(messages) > 2 else PROGRAM.format("large"))


async def measured(
    turns: int, choose: Any, tasks: Sequence[Any] = TASKS, settings: Any = POOL
) -> tuple[list[Seen], Any, list[Sequence[Rollout]]]:
    kept: list[Sequence[Rollout]] = []
    config = make_config(
        **settings, workflow={"turns": turns, "workers": 1}, policy={"prompt": "compact"}
    )
    environment = WorkflowEnvironment(config)
    async with StandIn(choose=choose) as server, environment.open(tasks):
        entry = ModelEntry(
            base_url=server.url, model_name="m", price=PriceSection(input=1, output=3)
        )
        client = ChatClient("strong", entry, LlmSection(attempts=1))
        writer = ChatWriter(environment, client, lambda key, some: kept.extend(some))
        row = await writer.row("untrained strong", tasks, samples=2)
        await client.aclose()
        return server.seen, row, kept


@pytest.mark.parametrize("turns", [1, 2])
async def test_a_chat_model_writes_and_its_own_tokens_count(turns: int) -> None:
    """The server counts 11 tokens in and 7 out a reply: money of (11 + 3 * 7) / 1e6."""
    seen, row, kept = await measured(turns, choose)
    assert "- large (2 in, 8 out)" in seen[0].json["messages"][0]["content"], "the full prompt"
    assert len({one.json["seed"] for one in seen}) == len(seen)
    (runs, _), (wrong, _), (lost, _) = kept
    assert runs.failure is None and runs.spent is not None
    assert wrong.failure is not None and wrong.reward.value == -0.2
    assert lost.reward.value is None and row.kinds["all"].unscored == pytest.approx(1 / 3)
    replies = turns  # of `wrong` too: it is shown its failure
    assert wrong.spent is not None and wrong.spent.calls == replies
    assert wrong.spent.tokens == 18 * replies
    assert wrong.spent.money == pytest.approx(32e-6 * replies)
    executed = runs.spent.money - 32e-6 * turns
    assert executed > 0 and runs.spent.calls == turns + 1
    assert row.money[0] > row.money[1] == wrong.spent.money and row.costs[1] == 18 * replies
    assert row.group == "policy" and row.lengths == ()


async def test_what_its_own_turns_bring_about_is_its_fault() -> None:
    def refuses_later(seen: Seen) -> Step:
        messages = seen.json["messages"]
        return problem(400, "too long") if len(messages) > 2 else good(PROGRAM.format("small"))

    _, row, ((first, _),) = await measured(2, refuses_later, TASKS[:1])
    assert first.stop == "overflow" and first.reward.value is not None
    assert row.kinds["all"].unscored == 0


async def test_its_money_counts_only_where_the_models_of_its_programs_have_prices() -> None:
    program = good("async def workflow(problem):\n    return await answer(problem)")
    _, row, ((first, _),) = await measured(1, lambda seen: program, TASKS[:1], {})
    assert first.failure is None and row.costs[0] > 18 and row.money == ()


def test_a_model_that_cannot_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    entry = {"base_url": "http://localhost:1/v1", "model_name": "m"}
    file.write_text(yaml.safe_dump({"models": {"strong": entry}}))
    settings = {**POOL, "llm": {"file": file}}

    def refusal(name: str, **more: Any) -> str:
        config = make_config(**{**settings, **more})
        opened = open_evaluation(config, (), None, tmp_path / "out", False, name)
        with pytest.raises(UserError) as caught, opened:
            pass
        return str(caught.value)

    assert "strong has no price, and the pool's models have" in refusal("strong")
    assert "small is simulated" in refusal("small")
    assert "environment is canvas" in refusal("strong", environment="canvas", executor={})
    assert "weak" in refusal("weak", executor={})
