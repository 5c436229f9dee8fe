"""Rollouts in workers give what they give in the trainer's process, whatever befalls a worker."""

import os
from pathlib import Path
from typing import Any

import pytest
import worker_environment
from worker_environment import TASKS, fated, groups_of, seen

from flowright.config.grpo import RolloutSection
from flowright.core.errors import ConfigError, Failure, FailureError, Reason, RunPaused
from flowright.environments.base import Environment
from flowright.environments.remote import with_workers
from flowright.llm.counters import metrics_since


@pytest.fixture(autouse=True)
def _workers_find_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(Path(worker_environment.__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


async def played(
    environment: Environment, *texts: dict[int, str], memory: Any = None, first: int = 1
) -> tuple[list[Any], dict[str, float], Any]:
    """The rollouts of some steps, one after the other, their counts, and the memory left."""
    found = []
    async with environment.open(TASKS):
        if memory is not None:
            environment.remember(memory)
        for step, some in enumerate(texts, first):
            found.append(seen(await environment.rollout(groups_of(step, some))))
        return found, metrics_since(environment.counters()), await environment.memory(["0/9/"])


def at_work(environment: Environment, said: list[str], **section: Any) -> Environment:
    section = RolloutSection(workers=2, **section)
    return with_workers(environment, section, said.append, silence_seconds=4)


async def test_ranks_and_their_workers_share_the_bound_on_requests(tmp_path: Path):
    most = fated(tmp_path).config.llm.in_flight(1)
    for workers, share in ((0, most // 3), (2, most // 6)):
        environment = with_workers(fated(tmp_path), RolloutSection(workers=workers), print, ranks=3)
        async with environment.open(TASKS):
            assert environment.status().notes == (f"{share} requests",)


async def test_two_workers_roll_out_as_one_process_does(tmp_path: Path):
    alone = await played(fated(tmp_path), {}, {})
    said: list[str] = []
    shared = await played(at_work(fated(tmp_path), said), {}, {})
    assert shared[0] == alone[0]
    assert alone[0][0][0] == [("t0", 0.0, "0/1/0/0"), ("t0", 1.0, "0/1/0/0")]
    assert shared[1] == alone[1] == {**alone[1], "servers/executor/calls": 32.0}
    assert said == []

    # A memory is that of any number of workers.
    whole, parts = dict(alone[2]), [dict(part) for part in shared[2]["of_workers"]]
    assert all(parts) and not parts[0].keys() & parts[1].keys() and parts[0] | parts[1] == whole
    resumed = [
        (await played(make(), {}, memory=memory, first=3))[0]
        for memory in (alone[2], shared[2])
        for make in (lambda: fated(tmp_path), lambda: at_work(fated(tmp_path), said))
    ]
    assert all(found == resumed[0] for found in resumed)
    assert all(value == 1.0 for group in resumed[0][0] for _, value, _ in group)


@pytest.mark.parametrize(
    ("text", "why"), [("kill", "signal 9"), ("stop", "check_health"), ("hang", "rollout")]
)
async def test_a_worker_that_is_lost_is_replaced_and_no_number_changes(
    tmp_path: Path, text: str, why: str
):
    quiet, loud = tmp_path / "quiet", tmp_path / "loud"
    quiet.mkdir(), loud.mkdir()
    before = [{}] * (20 if text == "kill" else 1)  # many, so that the memory is fetched
    alone = await played(fated(quiet), *before, {}, {})
    said: list[str] = []
    environment = at_work(fated(loud), said, timeout_seconds=4 if text == "hang" else 600)
    shared = await played(environment, *before, {3: text}, {})
    assert shared[0] == alone[0]
    (line,) = said
    assert line.startswith("rollout worker ") and why in line


@pytest.mark.parametrize(("text", "losses"), [("kill_again", 2), ("raise_again", 1)])
async def test_a_failure_while_a_new_worker_gets_its_memory_changes_no_number(
    tmp_path: Path, text: str, losses: int
):
    quiet, loud = tmp_path / "quiet", tmp_path / "loud"
    quiet.mkdir(), loud.mkdir()
    alone = await played(fated(quiet), {}, {}, {})
    said: list[str] = []
    environment = with_workers(fated(loud), RolloutSection(workers=1), said.append)
    async with environment.open(TASKS):
        found = [seen(await environment.rollout(groups_of(1)))]
        if text == "raise_again":
            assert await environment.answer_in_time(groups_of(1, {2: text})[2][0])
            found.append(seen(await environment.rollout(groups_of(2))))
        else:
            found.append(seen(await environment.rollout(groups_of(2, {2: text}))))
        found.append(seen(await environment.rollout(groups_of(3, {4: "kill"}))))
    assert found == alone[0]
    assert len(said) == losses


async def test_a_worker_that_is_lost_again_and_again_pauses_the_run(tmp_path: Path):
    environment = at_work(fated(tmp_path), [])
    with pytest.raises(RunPaused) as paused:
        await played(environment, {2: "always_kill"})
    (line,) = paused.value.problems
    assert "was lost 3 times" in line and "was ended by signal 9" in line
    with pytest.raises(RunPaused, match="was lost 3 times"):
        await played(at_work(fated(tmp_path, model="die"), []), {})


async def test_what_a_worker_raises_is_raised_here(tmp_path: Path):
    environment = at_work(fated(tmp_path, model="refuse"), [])
    with pytest.raises(ConfigError) as refused:
        await played(environment, {})
    assert refused.value.problems == ("judge.model: not in a worker",)

    environment = at_work(fated(tmp_path), [])
    async with environment.open(TASKS):
        ((first, _), *_) = groups_of(1, {0: "raise"})
        with pytest.raises(FailureError) as failed:
            await environment.answer_in_time(first)
        message = "environment: ValueError: no answer"
        assert failed.value.failure == Failure(Reason.INTERNAL, message)
        ((second, _), *_) = groups_of(1)
        observation = await environment.answer_in_time(second)
        assert observation is not None and observation.text == "after 1"
        with pytest.raises(ExceptionGroup) as caught:
            await environment.rollout(groups_of(1, {0: "lambda"}))
        assert "local object" in str(caught.value.exceptions[0])


async def test_a_new_worker_that_cannot_be_opened_pauses_the_run(tmp_path: Path):
    environment = with_workers(fated(tmp_path, model="once"), RolloutSection(workers=1), [].append)
    with pytest.raises(RunPaused, match="cannot be opened: its server is down"):
        await played(environment, {2: "kill"})
