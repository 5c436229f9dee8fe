"""What decides whose fault an end is: the control process, accounts of ends, whose turn it is."""

import asyncio
import os
import subprocess
import time

import pytest

from flowright.sandbox import Limits
from flowright.sandbox.control import Control, cpu_seconds, stood_in_line
from flowright.sandbox.pool import Turns
from flowright.sandbox.reports import status_of
from flowright.sandbox.worker import Exit, WorkerLost

LIMITS = Limits(cpu_seconds=1.0, memory_bytes=400)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def test_the_cpu_time_of_a_process_is_read_from_outside() -> None:
    before = time.process_time()
    assert before <= cpu_seconds(os.getpid()) <= time.process_time()
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    with pytest.raises(OSError):
        cpu_seconds(ended.pid)


async def test_a_control_offers_what_the_machine_has() -> None:
    control, never = Control(), asyncio.get_running_loop().create_future()
    both = await asyncio.gather(control.offers(0.05, 60.0, never), control.offers(1e9, 0.3, never))
    assert both[0] is None
    assert both[1] is not None and both[1] < 1.0
    never.set_result(None)
    assert await control.offers(1e9, 1e9, never) is None


def test_a_sleeper_and_the_dead_do_not_stand_in_line() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        assert cat.stdin is not None and cat.stdout is not None
        cat.stdin.write(b"x")
        cat.stdin.flush()
        assert cat.stdout.read(1) == b"x"  # it is up
        pidfd = os.pidfd_open(cat.pid)
        try:
            while stood_in_line(pidfd, 1e6):  # on its way to the next read
                time.sleep(0.01)
            assert stood_in_line(pidfd, 0.0)  # any wait is a part of no time at all
            cat.kill()
            cat.wait()
            assert not stood_in_line(pidfd, 0.0)
        finally:
            os.close(pidfd)
    assert stood_in_line(-1, 1e6)  # nothing can be said of it: look further


def test_what_a_kill_says() -> None:
    def end(cpu: float = 0.1, memory: int = 10, ordered: bool = False, overtime: bool = False):
        return Exit(-9, cpu, memory, ordered, overtime)

    assert status_of(end(ordered=True), LIMITS, False) == "ok"
    assert status_of(end(ordered=True, overtime=True), LIMITS, False) == "timeout"
    assert status_of(end(cpu=0.97), LIMITS, False) == "timeout"
    assert status_of(end(memory=390), LIMITS, True) == "memory"
    for lost, again in ((end(memory=390), False), (end(), True)):
        with pytest.raises(WorkerLost, match="out of memory"):
            status_of(lost, LIMITS, again)


async def test_turns_come_in_order_and_end_when_nobody_wants_them() -> None:
    turns, seen = Turns(2), []

    async def one(name: str, alone: bool = False) -> None:
        await turns.take(alone)
        seen.append(name)

    tasks = [asyncio.create_task(one(name, name == "c")) for name in "abcde"]
    await asyncio.sleep(0)
    assert seen == ["a", "b"]
    turns.end()
    await asyncio.sleep(0)
    assert seen == ["a", "b"]  # c wants to be alone
    with turns.quiet():
        turns.end()
        await asyncio.sleep(0)
        assert seen == ["a", "b"]
    await asyncio.sleep(0)
    assert seen == ["a", "b", "c"]
    tasks[3].cancel()
    await asyncio.sleep(0)
    turns.end()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert seen == ["a", "b", "c", "e"]


async def test_a_turn_that_nobody_waits_for_any_more_is_free() -> None:
    turns = Turns(1)
    await turns.take()
    for given in (False, True):
        waiting = asyncio.create_task(turns.take())
        await asyncio.sleep(0)
        if given:
            turns.end()  # it is given the turn, and leaves before it knows
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert turns.taken == (0 if given else 1)
