"""How commands end: an exit status and one line, whatever ends them."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, errno, os, socket, sys, time
from flowright.core import command_line
from flowright.core.command_line import run_command, on_signal
from flowright.core.errors import RunPaused, UserError

def signals():
    return command_line._received.number

async def idle():
    with on_signal(lambda: "2 rows are kept"):
        try:
            print("ready", flush=True)
            await asyncio.sleep(60)
        finally:
            print("closed", flush=True)

def loop():
    import uvloop
    uvloop.run(idle())

async def busy():
    # The signal comes while the loop calls a protocol, which keeps what is raised there.
    class Slow(asyncio.Protocol):
        def data_received(self, data):
            print("ready", flush=True)
            until = time.monotonic() + 60
            while signals() is None and time.monotonic() < until:
                pass

    ours, theirs = socket.socketpair()
    with on_signal(lambda: "2 rows are kept"):
        try:
            await asyncio.get_running_loop().create_connection(Slow, sock=ours)
            theirs.send(b"x")
            await asyncio.sleep(60)
        finally:
            print("closed", flush=True)

def callback():
    import uvloop
    uvloop.run(busy())

def stuck():
    with on_signal(lambda: "never mind", lambda: print("last words", flush=True)):
        try:
            print("ready", flush=True)
            time.sleep(60)
        finally:
            print("closing", flush=True)
            time.sleep(60)

def raising(error):
    raise error

MAINS = {
    "loop": loop,
    "callback": callback,
    "stuck": stuck,
    "mistake": lambda: raising(UserError("one", "two")),
    "paused": lambda: raising(RunPaused("later")),
    "full": lambda: raising(OSError(errno.ENOSPC, "No space left", "out/x")),
    "readonly": lambda: open("/dev/null/x", "w"),
    "pipe": lambda: [print("line " * 100) for _ in range(100000)],
    "bug": lambda: {}["bug"],
}
sys.exit(run_command(lambda: MAINS[sys.argv[1]]() and 0 or 0))
"""


def started(name: str, stdout: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("where", ["loop", "callback"])
def test_a_signal_is_answered_by_a_line_and_everything_is_closed(
    where: str, number: int, status: int
) -> None:
    with started(where) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, errors = process.communicate(timeout=600)
    name = signal.Signals(number).name
    assert errors == f"{name}: stopping; 2 rows are kept (once more ends at once)\n"
    assert (out, process.returncode) == ("closed\n", status)


STOPPED = """
import asyncio, sys
from flowright.cli import commands

async def forever():
    print("ready", flush=True)
    await asyncio.sleep(600)

def work(options):
    asyncio.run(forever())

command = commands.Command(work, lambda parser: None, signals=False, stopped="verdicts are kept")
commands.COMMANDS = {"work": command}
sys.exit(commands.main(["work"]))
"""


def test_every_signal_is_answered_where_a_command_hears_ctrl_c_itself() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with subprocess.Popen(
            [sys.executable, "-c", STOPPED],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            _, errors = process.communicate(timeout=600)
        assert (errors, process.returncode) == ("verdicts are kept\n", 128 + number)


def test_a_limit_of_open_files_is_raised_or_too_low_in_one_line() -> None:
    for limits, shown in (
        ("ulimit -n 40", "ulimit -n is 40: 128 open files may be needed"),
        ("ulimit -Sn 40", "/nowhere"),  # raised to the hard limit
    ):
        found = subprocess.run(
            ["bash", "-c", f"{limits}; exec {sys.executable} -m flowright report /nowhere"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        assert (found.returncode, len(found.stderr.splitlines())) == (2, 1), found.stderr
        assert found.stderr.startswith(shown)


def test_a_terminal_that_goes_away_stops_the_command_and_breaks_nothing(tmp_path: Path) -> None:
    """Its lines have nowhere to go, and what it does at the end is done."""
    terminal, side = pty.openpty()
    program = f"{PROGRAM.rpartition('sys.exit')[0]}" + (
        "def main():\n"
        "    try: loop()\n"
        "    finally: print('closing', flush=True); open(sys.argv[1], 'w').close()\n"
        "    return 0\n"
        "sys.exit(run_command(main))\n"
    )
    done = tmp_path / "done"
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", sys.executable, "-c", program, str(done)],
        stdin=side,
        stdout=side,
        stderr=side,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    os.close(side)
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)
    assert process.wait(timeout=600) == 129 and done.exists()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_a_closed_stream_gives_its_number_to_nobody(closed: str) -> None:
    program = (
        "import os, sys; from flowright.core.command_line import run_command; "
        "run_command(lambda: print('é') or 0, signals=False); "
        "sys.exit(40 + (os.open('/dev/null', os.O_RDONLY) > 2))"
    )
    command = f'"$0" -c "$1" {closed}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, program], cwd=ROOT, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (41, b"")


def test_a_name_that_the_terminal_cannot_show_is_shown_by_its_code() -> None:
    program = (
        "from flowright.core.command_line import run_command; run_command(lambda: print('目') or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\\u76ee\n", b"")


def test_the_second_signal_ends_what_does_not_end() -> None:
    with started("stuck") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "closing\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=600)
    assert errors.count("SIGINT: stopping; never mind") == 1
    assert (out, process.returncode) == ("last words\n", 130)


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("mistake", 2, "one\ntwo\n"),
        ("paused", 3, "later\n"),
        ("full", 2, "out/x: the disk is full; free some space and start again\n"),
    ],
)
def test_what_the_user_can_mend_is_told_without_a_traceback(
    name: str, status: int, said: str
) -> None:
    with started(name) as process:
        out, errors = process.communicate(timeout=600)
    assert (out, errors, process.returncode) == ("", said, status)


def test_a_file_that_cannot_be_written_is_one_line() -> None:
    with started("readonly") as process:
        _, errors = process.communicate(timeout=600)
    assert (errors, process.returncode) == ("/dev/null/x: not a directory\n", 2)


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    reading, writing = os.pipe()
    with started("pipe", stdout=writing) as process:
        os.close(writing)
        os.read(reading, 10)
        os.close(reading)
        _, errors = process.communicate(timeout=600)
    assert (errors, process.returncode) == ("", 0)


def test_output_to_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full, started("pipe", stdout=full.fileno()) as process:
        _, errors = process.communicate(timeout=600)
    assert (errors, process.returncode) == (
        "the disk is full; free some space and start again\n",
        2,
    )


def test_a_bug_keeps_its_traceback() -> None:
    with started("bug") as process:
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "Traceback" in errors and "KeyError" in errors
