"""Groups taken as they end: none waits for a slow one, none becomes too stale, a resumed run takes
the same ones."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError
from toy_run import Killed, Outcome, Toy, Wrapped, configured, train

from flowright.config.grpo import PipelineSection
from flowright.core.journal import read_journal
from flowright.environments.episode import Episode
from flowright.environments.rollout import Rollout
from flowright.grpo.order import FILE, can_wait, first_ended
from flowright.runs.run_files import read_rollouts

STEPS, STALENESS = 6, 3


@dataclass
class Held(Toy):
    """Holds the first group of the run until :attr:`going`."""

    going: asyncio.Event = field(default_factory=asyncio.Event)

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        if groups[0][0].key.startswith("1/1/0/"):
            await self.going.wait()
        return await super().rollout(groups)


async def held(path: Path, until: int, kill: int | None = None, resume: bool = False) -> Outcome:
    """Train with the first group held until so many updates are done."""
    toy = Held()

    def refreshed(version: int) -> None:
        if version >= until:
            toy.going.set()
        if version == kill:
            raise Killed

    grpo, quiet = {"steps": STEPS}, {"every": 0}
    config = configured(grpo, evaluation=quiet, max_staleness=STALENESS, order="ready")
    raises: Any = {} if kill is None else {"raises": Killed}
    wrapped: Any = lambda local: Wrapped(local, refreshed=refreshed)  # noqa: E731
    return await train(path, toy, config, resume, sampler=wrapped, **raises)


def taken(path: Path) -> list[list[list[int]]]:
    """The groups of each step, each by its batch and its place there."""
    return [record["groups"] for _, record in read_journal(path / FILE).records]


@pytest.mark.parametrize(("until", "step"), [(0, 1), (2, 3), (3, 4)])
async def test_a_slow_group_delays_itself_alone(tmp_path: Path, until: int, step: int):
    done = await held(tmp_path, until)
    found = taken(tmp_path)
    assert [n for n, groups in enumerate(found, start=1) if [1, 0] in groups] == [step]
    every = sorted(place for groups in found for place in groups)
    assert every == [[batch, place] for batch in range(1, STEPS + 1) for place in (0, 1)]
    for number, groups in enumerate(found, start=1):
        rows = list(read_rollouts(tmp_path, number))
        versions = {max(0, batch - 2) for batch, _ in groups}  # sampled a step ahead
        assert {row["policy_version"] for row in rows} == versions
        assert min(versions) >= number - 1 - STALENESS
    assert len(done.metrics) == STEPS + 1


@pytest.mark.parametrize("kill", [3, 4])
async def test_a_resumed_run_takes_the_same_groups(tmp_path: Path, kill: int):
    await held(tmp_path / "whole", until=2)
    await held(tmp_path / "run", until=2, kill=kill)
    assert len(taken(tmp_path / "run")) == kill
    await held(tmp_path / "run", until=0, resume=True)  # nothing is held any more
    for step in range(1, kill + 1):
        both = [list(read_rollouts(tmp_path / name, step)) for name in ("run", "whole")]
        assert both[0] == both[1]
    every = sorted(place for groups in taken(tmp_path / "run") for place in groups)
    assert every == [[batch, place] for batch in range(1, STEPS + 1) for place in (0, 1)]


@given(st.data())
def test_every_group_is_taken_in_time(data: st.DataObject):
    """Against a run in which groups end at random steps."""
    size, staleness = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 4))
    steps = 8

    async def run() -> list[int]:
        due: dict[int, int] = {}
        tasks: dict[int, asyncio.Task[None]] = {}
        waited = []
        for step in range(1, steps + 1):
            for batch in range(len(tasks) // size + 1, min(step + 1, steps) + 1):
                for place in range(size):
                    number = (batch - 1) * size + place
                    due[number] = max(0, batch - 2) + 1 + staleness
                    ticks = data.draw(st.integers(0, 5))
                    tasks[number] = asyncio.create_task(ticking(ticks))
            numbers = sorted(due)
            found = await first_ended([tasks[n] for n in numbers], [due[n] for n in numbers],
                                      step, size)  # fmt: skip
            assert len(found) == size
            for n in found:
                assert tasks[numbers[n]].done()
                waited.append(due.pop(numbers[n]) - step)
        assert not due
        return waited

    async def ticking(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    assert min(asyncio.run(run())) >= 0


def test_groups_that_can_wait():
    assert can_wait([3, 3, 4], step=2, now=0, size=2)
    assert not can_wait([3, 3, 3], step=2, now=0, size=2)
    assert can_wait([3, 3, 3], step=2, now=1, size=2)
    assert not can_wait([2], step=2, now=0, size=2)


def test_ready_needs_room_to_wait():
    with pytest.raises(ValidationError, match="needs 2 or more"):
        PipelineSection(order="ready", max_staleness=1)
    assert PipelineSection(order="ready").on("cpu").max_staleness == 2
