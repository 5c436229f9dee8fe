"""Programs in the sandbox: outcomes, limits, what they can reach, and what becomes of trouble."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from flowright.core.errors import FailureError, Reason, UserError
from flowright.sandbox import Limits, Sandbox


def children() -> set[int]:
    """The processes that this process started: the sandboxes' interpreters."""
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def open_files() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


async def test_program_reads_stdin_and_prints(sandbox: Sandbox) -> None:
    result = await sandbox.run("print(input()[::-1])\nimport sys\nsys.stderr.write('é')", "héllo\n")
    assert (result.status, result.stdout, result.stderr) == ("ok", "olléh\n", "é")
    assert result.cpu_seconds > 0 and result.seconds > 0


@pytest.mark.parametrize(
    "source, status, said",
    [
        ("1 / 0", "error", 'File "main.py", line 1, in <module>\n    1 / 0'),
        ("def f(:", "error", "SyntaxError"),
        ("\0", "error", "null bytes"),
        ("import sys; sys.exit(3)", "error", ""),
        ("import sys; sys.exit('no')", "error", "no\n"),
        ("raise SystemExit", "ok", ""),
        ("import os; os._exit(0)", "ok", ""),
        ("x = bytearray(1 << 40)", "memory", "MemoryError"),
        ("x = [0]\nwhile True: x += x", "memory", "MemoryError"),
        ("import ctypes; ctypes.string_at(1)", "killed", ""),
        ("import os; os.abort()", "killed", ""),
        ("raise Exception('\\ud800 \\x1b]0;x\\x07')", "error", "\\ud800 \\x1b]0;x\\x07"),
        ("import os; os.fork()", "error", "PermissionError"),
        ("import subprocess; subprocess.run(['true'])", "error", "PermissionError"),
        ("import socket; socket.socket()", "error", "PermissionError"),
        ("import os; print(os.listdir('/'))", "error", "PermissionError"),
        ("import flowright", "error", "ModuleNotFoundError"),
        ("import solution", "error", "ModuleNotFoundError"),
    ],
)  # fmt: skip
async def test_outcomes(sandbox: Sandbox, source: str, status: str, said: str) -> None:
    result = await sandbox.run(source)
    assert result.status == status, result
    assert said in result.stderr


@pytest.mark.parametrize(
    "source, output",
    [
        ("import numpy; print(numpy.arange(3).sum())", "3"),
        ("import sympy; print(sympy.integrate('2*x'))", "x**2"),
        ("import asyncio\nasync def f(): return 7\nprint(asyncio.run(f()))", "7"),
        (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(8) as p: print(sum(p.map(int, '123')))",
            "6",
        ),
        (
            "import threading, time\n"
            "threading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()",
            "late",
        ),
        ("if __name__ == '__main__': print('main')", "main"),
        ("import zoneinfo, ssl, sqlite3, lzma, decimal; print('ok')", "ok"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(1))",
            "A(x=1)",
        ),
        ("import signal as s; s.alarm(5); print(s.getitimer(s.ITIMER_REAL)[0] > 4)", "True"),
        ("import os; print(os.environ, os.getppid() < 2)", "environ({})"),
    ],
)  # fmt: skip
async def test_honest_programs(sandbox: Sandbox, source: str, output: str) -> None:
    result = await sandbox.run(source)
    assert result.status == "ok", result.stderr
    assert result.stdout.startswith(output)


async def test_two_runs_of_one_program_are_the_same(sandbox: Sandbox) -> None:
    source = "import random\nprint(random.random(), hash('a'), list({'x', 'y', 'z', 'w'}))"
    results = await asyncio.gather(*(sandbox.run(source) for _ in range(6)))
    assert len({result.stdout for result in results}) == 1
    source = "import numpy\nprint(numpy.random.rand())"
    assert (await sandbox.run(source)).stdout == (await sandbox.run(source)).stdout


async def test_cpu_time_decides_and_sleep_is_free(sandbox: Sandbox) -> None:
    limits = Limits(cpu_seconds=0.3, wall_seconds=5.0)
    spin = await sandbox.run("while True: pass", limits=limits)
    assert spin.status == "timeout" and spin.cpu_seconds >= 0.27
    sleep = await sandbox.run("import time; time.sleep(0.6); print('up')", limits=limits)
    assert (sleep.status, sleep.stdout) == ("ok", "up\n")


async def test_sleeping_away_the_wall_time_is_the_programs_own_fault(sandbox: Sandbox) -> None:
    result = await sandbox.run("import time; time.sleep(60)", limits=Limits(wall_seconds=0.4))
    assert result.status == "timeout"


async def test_a_stopped_program_is_not_the_machines_fault(sandbox: Sandbox) -> None:
    stop = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    assert (await sandbox.run(stop, limits=Limits(wall_seconds=0.4))).status == "timeout"


async def test_output_is_cut(sandbox: Sandbox) -> None:
    limits = Limits(output_bytes=1000, file_bytes=100_000)
    source = "import sys\nprint('a' * 5000)\nsys.stderr.write('b' * 5000 + 'end')"
    result = await sandbox.run(source, limits=limits)
    assert result.stdout == "a" * 1000
    assert result.stderr == "b" * 997 + "end"
    flood = await sandbox.run("while True: print('a' * 1000)", limits=limits)
    assert flood.status == "error" and len(flood.stdout) == 1000


async def test_threads_are_limited(sandbox: Sandbox) -> None:
    if not sandbox.isolation.private_uid:
        pytest.skip("without a user id of its own a sandbox cannot count its threads")
    source = (
        "import threading, time\ntry:\n    for n in range(500):\n"
        "        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "except RuntimeError: print(n)"
    )
    result = await sandbox.run(source, limits=Limits(processes=16, memory_bytes=8 << 30))
    assert 8 <= int(result.stdout) <= 32


async def test_tmp_is_private_small_and_gone_afterwards() -> None:
    async with Sandbox(Limits(file_bytes=1 << 20), workers=1) as sandbox:
        if not sandbox.isolation.namespaces:
            pytest.skip("without namespaces there is no /tmp")
        write = (
            "import os, tempfile\n"
            "with tempfile.TemporaryDirectory() as d: open(d + '/x', 'w').write('y')\n"
            "os.symlink('/', 'root'); os.mkdir('deep'); open('kept', 'w').write('z' * 1000)\n"
            "try:\n    for n in range(10):\n"
            "        with open(f'big{n}', 'wb') as f: f.write(bytes(500_000))\n"
            "except OSError as e: print(n, e.strerror)\n"
        )
        first = await sandbox.run(write)
        assert first.stdout == "2 No space left on device\n", first
        assert not Path("/tmp/kept").exists()
        # The working directory: /tmp, or another folder where this environment lies below /tmp.
        second = await sandbox.run("import os; print(os.listdir('.'), os.stat('.').st_mode)")
        assert second.stdout == f"[] {0o41777}\n", second


async def test_more_programs_than_workers(sandbox: Sandbox) -> None:
    results = await asyncio.gather(*(sandbox.run(f"print({n} * 2)") for n in range(40)))
    assert [result.stdout for result in results] == [f"{n * 2}\n" for n in range(40)]


async def test_the_event_loop_goes_on_meanwhile(sandbox: Sandbox) -> None:
    gaps = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    ticking = asyncio.create_task(tick())
    await sandbox.run("import time; time.sleep(0.4)")
    ticking.cancel()
    assert len(gaps) > 2  # were it held up, there would be one


async def test_a_cancelled_run_leaves_nothing_and_frees_its_worker() -> None:
    before = children()
    async with Sandbox(workers=1) as sandbox:
        for _ in range(3):
            task = asyncio.create_task(sandbox.run("while True: pass"))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with asyncio.timeout(600):
            results = await asyncio.gather(*(sandbox.run("print('next')") for _ in range(4)))
        assert {result.stdout for result in results} == {"next\n"}
        assert len(children() - before) == 1
    assert children() == before


async def test_a_lost_interpreter_is_replaced_and_the_run_tried_again() -> None:
    before = children()
    async with Sandbox(workers=1) as sandbox:
        (zygote,) = children() - before
        task = asyncio.create_task(sandbox.run("import time; time.sleep(0.5); print('done')"))
        await asyncio.sleep(0.2)
        os.kill(zygote, signal.SIGKILL)
        assert (await task).stdout == "done\n"
        assert len(children() - before) == 1 and zygote not in children()


async def test_losing_it_twice_is_our_fault_not_the_programs() -> None:
    before = children()
    async with Sandbox(workers=1) as sandbox:
        task = asyncio.create_task(sandbox.run("import time; time.sleep(30)"))
        lost: set[int] = set()
        while len(lost) < 2:
            await asyncio.sleep(0.05)
            for zygote in children() - before - lost:
                await asyncio.sleep(0.5)
                os.kill(zygote, signal.SIGKILL)
                lost.add(zygote)
        with pytest.raises(FailureError) as caught:
            await task
        assert caught.value.failure.reason is Reason.SANDBOX_LOST
        assert (await sandbox.run("print('again')")).stdout == "again\n"


async def test_nothing_is_left_when_it_closes() -> None:
    before, files = children(), open_files()
    async with Sandbox(workers=2) as sandbox:
        await sandbox.run("print(1)")
        task = asyncio.create_task(sandbox.run("while True: pass"))
        await asyncio.sleep(0.1)
        assert len(children() - before) == 2
    with pytest.raises(FailureError, match="closed"):
        await task
    assert children() == before
    assert open_files() == files


async def test_less_isolation_than_required_refuses_to_start() -> None:
    with pytest.raises(UserError, match=r"cannot isolate.*no Landlock.*allow_weaker"):
        async with Sandbox(workers=1, layers=()):
            raise AssertionError
    async with Sandbox(workers=1, layers=(), allow_weaker=True) as weaker:
        assert not weaker.isolation.sufficient
        assert "read a file outside" in weaker.isolation.escapes
        assert str(weaker.isolation).startswith("WEAKER THAN REQUIRED: seccomp, no Landlock")
        assert (await weaker.run("print(1)")).stdout == "1\n"


async def test_without_landlock_and_namespaces_the_disk_is_sealed() -> None:
    async with Sandbox(workers=1, layers=("sealed",)) as sealed:
        isolation = sealed.isolation
        assert isolation.sealed and isolation.sufficient, str(isolation)
        assert "disk sealed" in str(isolation)
        for program, told in (
            ("import os; print(os.path.exists('/etc/passwd'))", "False\n"),
            ("import numpy; print(int(numpy.linalg.det(numpy.eye(3))))", "1\n"),
            ("import sympy; print(sympy.factor(sympy.Symbol('x') ** 2 - 1))", "(x - 1)*(x + 1)\n"),
            ("import csv, difflib, uuid; print('é'.encode('latin-1'))", "b'\\xe9'\n"),
            ("import random, secrets; print(len(secrets.token_hex(2)))", "4\n"),
            ("import time, datetime; print(datetime.datetime(2026, 1, 1).year)", "2026\n"),
        ):
            result = await sealed.run(program)
            assert (result.status, result.stdout) == ("ok", told), result.stderr
        for program in ("open('/etc/passwd')", "import os; os.listdir('/')", "import turtle"):
            result = await sealed.run(program)
            assert result.status == "error", program
            assert "main.py" in result.stderr


async def test_the_isolation_in_force_is_told(sandbox: Sandbox) -> None:
    assert sandbox.isolation.sufficient
    assert sandbox.isolation.seccomp and not sandbox.isolation.escapes
    assert "seccomp" in str(sandbox.isolation)


def test_asking_before_entering_is_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="enter the sandbox first"):
        _ = Sandbox().isolation
