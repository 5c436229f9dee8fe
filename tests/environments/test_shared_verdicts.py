"""A verdict that equal answers share is the same, and the first of them pays, whichever was judged
first, in whichever process."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import judged_environment
import pytest
from judged_environment import TASKS, groups_of, judged

from flowright.config.grpo import RolloutSection
from flowright.environments.base import Environment
from flowright.environments.remote import with_workers
from flowright.environments.rollout import plain
from flowright.grpo.episodes import rolled_out


@pytest.fixture(autouse=True)
def _workers_find_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(Path(judged_environment.__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


async def records(environment: Environment, step: int, memory: Any = None) -> tuple[Any, Any]:
    """Rewards and verdicts of a step, and the memory behind it."""
    async with environment.open(TASKS):
        if memory is not None:
            environment.remember(memory)
        found = await rolled_out(environment, groups_of(step))
        verdicts = [
            (r.reward.value, plain(replace(r.verdict, seconds=0.0)))
            for group in found
            for r in group
            if r.verdict
        ]
        return verdicts, await environment.memory()


async def test_the_first_of_equal_answers_pays_whichever_was_judged_first():
    forwards, memory = await records(judged(), 1)
    backwards, other_memory = await records(judged("backwards"), 1)
    assert backwards == forwards
    # The last two tasks repeat the first two.
    asked = [1, 1, 0, 0] * 6 + [0] * 8
    verdicts = [verdict for _, verdict in forwards]
    assert [verdict["attempts"] for verdict in verdicts] == asked
    assert [verdict["usage"]["calls"] for verdict in verdicts] == asked
    assert [v["source"] for v in verdicts] == ["llm" if one else "cache" for one in asked]
    assert len({value for value, _ in forwards}) == 2

    # A later step asks nothing, whoever asked before.
    later, _ = await records(judged(), 2, memory)
    assert later == (await records(judged("backwards"), 2, other_memory))[0]
    assert [verdict["attempts"] for _, verdict in later] == [0] * 32


async def test_without_a_cache_each_pays_for_itself():
    found, _ = await records(judged("backwards", cache_size=0), 1)
    assert [verdict["attempts"] for _, verdict in found] == [1] * 32


async def test_workers_and_their_memory_charge_alike():
    alone, memory = await records(judged(), 1)
    workers = with_workers(judged("backwards"), RolloutSection(workers=2), print)
    shared, parts = await records(workers, 1)
    assert shared == alone
    expected, _ = await records(judged(), 2, memory)
    assert (await records(judged("backwards"), 2, parts))[0] == expected
