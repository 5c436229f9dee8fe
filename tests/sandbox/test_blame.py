"""Whose fault an execution is that ended without a word: the program's, the machine's.

A program can look as if it waited for the machine; nothing that it can arrange makes it ungraded.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from busy_machine import busy

from flowright.core.errors import FailureError, Reason
from flowright.sandbox import Limits, Sandbox

LIMITS = Limits(cpu_seconds=0.2, wall_seconds=0.4, memory_bytes=256 << 20)
TESTS = ["assert add(1, 2) == 3"]
SYSCALL = "import ctypes, os, signal, socket, threading, time\ncall = ctypes.CDLL(None).syscall\n"

DISGUISES = {
    "vfork of a thread": "call(56, 0x54F00, 0, 0, 0, 0)\ntime.sleep(60)",
    "vfork": "call(58)\ntime.sleep(60)",
    "threads that come and go": (
        "def churn():\n"
        "    while True:\n"
        "        t = threading.Thread(target=time.sleep, args=(0.004,)); t.start(); t.join()\n"
        "for _ in range(6): threading.Thread(target=churn, daemon=True).start()\n"
        "time.sleep(60)"
    ),
    "a first thread that is gone": (
        "threading.Thread(target=time.sleep, args=(60,)).start()\ncall(60, 0)"
    ),
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "stopped, one thread of two": (
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "os.kill(os.getpid(), signal.SIGTSTP)"
    ),
    "a lock that nobody opens": "l = threading.Lock(); l.acquire(); l.acquire()",
    "a futex": "word = ctypes.c_int(0)\ncall(202, ctypes.byref(word), 0, 0, None, None, 0)",
    "a full pipe": "r, w = os.pipe()\nwhile True: os.write(w, bytes(4096))",
    "a full channel": "while True: os.write(3, b'\\0\\0\\0\\1 ')",
    "a channel that says nothing": "os.write(3, b'\\0')\ntime.sleep(60)",
    "closed descriptors": "os.closerange(0, 64)\ntime.sleep(60)",
    "a channel shut down": "socket.socket(fileno=3).shutdown(socket.SHUT_RDWR)",
    "yielding": "while True: os.sched_yield()",
    "many that yield": (
        "def spin():\n"
        "    while True: os.sched_yield()\n"
        "for _ in range(20): threading.Thread(target=spin, daemon=True).start()\n"
        "time.sleep(60)"
    ),
    "a short sleep after the other": "while True: time.sleep(1e-9)",
    "all signals held back": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nsignal.sigwait([10])"
    ),
    "SIGKILL to itself": "os.kill(os.getpid(), signal.SIGKILL)\nos._exit(137)",
    "SIGKILL to its group": "os.killpg(0, signal.SIGKILL)\nos._exit(137)",
    "the exit status of a kill": "os._exit(-9)",
    "another program": "os.execv('/bin/true', ['true'])",
    "a limit of its own": (
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (0, 0))\nwhile True: pass"
    ),
    "a signal frame that is none": "call(15)",
    "no stack": "call(11, ctypes.addressof(ctypes.c_int()) & ~0xfff, 1 << 40)\nctypes.string_at(0)",
    "a forbidden machine call": "call(0x40000000 + 39)",
    "memory up to its limit": "x = [bytearray(1 << 20) for _ in range(200)]\ntime.sleep(60)",
    "output without end": "os.set_blocking(1, True)\nwhile True: os.write(1, bytes(1 << 16))",
    "its files cut and grown": (
        "[os.ftruncate(n, 1 << 20) for n in (0, 1, 2) if os.fstat(n).st_size >= 0]\n"
        "time.sleep(60)"
    ),
    "a timer that ends it": "signal.setitimer(signal.ITIMER_REAL, 0.05)\ntime.sleep(60)",
    "reading what is slow": "os.read(0, 1); os.read(3, 1); os.read(3, 1 << 20)",
}  # fmt: skip


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(LIMITS, workers=2) as sandbox:
        yield sandbox


@pytest.mark.parametrize("body", DISGUISES.values(), ids=DISGUISES)
async def test_a_solution_that_looks_like_trouble_has_failed(sandbox: Sandbox, body: str) -> None:
    before = sandbox.retried
    at_once = f"{SYSCALL}{body}\ndef add(a, b): return 0\n"
    within = f"{SYSCALL}def add(a, b):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    reports = await asyncio.gather(
        sandbox.check(at_once, "", TESTS, "add"),
        sandbox.check(f"{within}    return 0\n", "", TESTS, "add"),
    )
    assert not any(report.passed for report in reports)
    assert sandbox.retried == before, "it was taken for trouble of the sandbox's"


WORK = "def add(a, b):\n    for _ in range({}): pass\n    return a + b\n"
SHORT = Limits(cpu_seconds=5.0, wall_seconds=0.8)


@pytest.mark.slow
async def test_a_busy_machine_is_nobodys_fault() -> None:
    async with Sandbox(SHORT, workers=2) as sandbox:
        with busy():
            reports = await asyncio.gather(
                *(sandbox.check(WORK.format(12_000_000 + n), "", TESTS, "add") for n in range(2))
            )
            results = await asyncio.gather(
                sandbox.run("for _ in range(12_000_000): pass\nprint('done')"),
                sandbox.run("while True: pass", limits=LIMITS),
                sandbox.run("import time; time.sleep(60)"),
                sandbox.run("import os\nwhile True: os.sched_yield()", limits=LIMITS),
            )
    assert [report.passed for report in reports] == [True] * 2, reports
    assert [result.status for result in results] == ["ok", "timeout", "timeout", "timeout"]


async def test_where_no_cpu_is_to_be_had_the_machine_is_to_blame_once_patience_ends() -> None:
    async with Sandbox(SHORT, workers=1, patience_seconds=0.0) as sandbox:
        with pytest.raises(FailureError, match=r"too busy.*sandbox\.patience_seconds") as caught:
            await sandbox.run("while True: pass")
        assert caught.value.failure.reason is Reason.SANDBOX_LOST
        assert sandbox.retried == 0, "a second try would find the machine as busy"
        assert (await sandbox.run("print('next')", limits=Limits())).stdout == "next\n"


async def test_one_that_is_told_to_hurry_has_less_time(sandbox: Sandbox) -> None:
    sleeping = "import time; time.sleep(60)"
    long = Limits(wall_seconds=600.0)
    assert (await sandbox.run(sleeping, limits=long, wall_seconds=0.1)).status == "timeout"
    assert (await sandbox.run(sleeping, wall_seconds=600.0)).status == "timeout"
