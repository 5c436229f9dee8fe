"""Hostile solutions against the sandbox: none passes, none leaks, none leaves anything behind.

The rows of attacks.jsonl whose kind is ``solution`` and those of sandbox_attacks.py, at the
strongest isolation of this machine, or with ``--all`` at every level, with a control right after.
"""

import json
import os
import re
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from sandbox_attacks import ATTACKS, TEST

from flowright.sandbox import Limits, Sandbox
from flowright.sandbox.pool import Layer

ROWS = [
    json.loads(line) for line in Path(__file__).with_name("attacks.jsonl").read_text().splitlines()
]
CASES = [
    (row["id"], row["code"], row.get("test"), row["goal"])
    for row in ROWS
    if row["kind"] == "solution"
] + [(name, code, test, "own") for name, code, test in ATTACKS]
LIMITS = Limits(cpu_seconds=0.6, wall_seconds=2.0, memory_bytes=256 << 20)
CONTROL = "def add(a, b):\n    return a + b\n"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Scene:
    """Targets of an attack: an answer key, a victim, listening sockets."""

    folder: Path
    secret: str
    sockets: list[socket.socket]

    def fill(self, code: str, name: str) -> str:
        for mark, value in {
            "@OUT@": self.folder / "out",
            "@SECRETFILE@": self.folder / "answers",
            "@VICTIM@": self.folder / "victim",
            "@DIR@": self.folder,
            "@HOME@": self.folder,
            "@TMP@": "/tmp",
            "@PORT@": self.sockets[0].getsockname()[1],
            "@UNIX@": self.folder / "unix",
            "@ABS@": f"flowright-{self.folder.name}",
            "@ID@": name,
        }.items():
            code = code.replace(mark, str(value))
        return code

    def heard(self) -> list[str]:
        """Return the sockets that received a call."""
        found = []
        for listener in self.sockets:
            try:
                if listener.type == socket.SOCK_DGRAM:
                    listener.recv(1000)
                else:
                    listener.accept()[0].close()
                found.append(str(listener.family))
            except BlockingIOError:
                pass
        return found


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("scene")
    folder.chmod(0o777)
    secret = f"R4-SECRET-{secrets.token_hex(8)}"
    (folder / "answers").write_text(secret)
    (folder / "victim").write_text("precious")
    os.environ["FLOWRIGHT_TEST_SECRET"] = secret
    with ExitStack() as stack:
        tcp, udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
        unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        sockets = [stack.enter_context(s) for s in (tcp, udp, unix, abstract)]
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", tcp.getsockname()[1]))
        unix.bind(str(folder / "unix"))
        abstract.bind(f"\0flowright-{folder.name}")
        for listener in sockets:
            listener.setblocking(False)
            if listener.type == socket.SOCK_STREAM:
                listener.listen()
        yield Scene(folder, secret, sockets)
    del os.environ["FLOWRIGHT_TEST_SECRET"]


LEVELS: dict[str, tuple[Layer, ...]] = {
    "strongest": ("landlock", "namespaces", "sealed"),
    "namespaces": ("landlock", "namespaces"),
    "landlock": ("landlock",),
    "sealed": ("sealed",),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sandbox" in metafunc.fixturenames:
        levels = [*LEVELS][1:] if metafunc.config.getoption("--all") else ["strongest"]
        metafunc.parametrize("sandbox", levels, indirect=True, scope="module")


@pytest.fixture(scope="module")
async def sandbox(request: pytest.FixtureRequest, scene: Scene) -> AsyncIterator[Sandbox]:
    async with Sandbox(LIMITS, workers=1, layers=LEVELS[request.param]) as sandbox:
        isolation = sandbox.isolation
        if request.param == "strongest":
            yield sandbox
            return
        if request.param == "namespaces" and not isolation.namespaces:
            pytest.skip("this kernel refuses namespaces")
        if request.param == "landlock" and not isolation.landlock:
            pytest.skip("this kernel has no Landlock")
        assert isolation.sealed == (request.param == "sealed")
        yield sandbox


def descendants() -> set[int]:
    """The processes below this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except (OSError, IndexError):
                continue
    found, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return found - {os.getpid()}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def traces() -> list[str]:
    """Return what the attacks would leave behind: files by their names, shared memory by its
    key."""
    files = [path for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob("r4*")]
    table = Path("/proc/sysvipc/shm")
    segments = table.read_text().splitlines() if table.exists() else []
    return [*map(str, files), *(line for line in segments if line.split()[0] == "7")]


async def test_attacks(sandbox: Sandbox, scene: Scene) -> None:
    failures: list[str] = []
    for name, *case in CASES:
        try:
            await attack(sandbox, scene, name, *case)
        except AssertionError as error:
            failures.append(f"{name}: {error}")
    assert failures == []


async def attack(
    sandbox: Sandbox, scene: Scene, name: str, code: str, test: str | None, goal: str
) -> None:
    processes = descendants()
    files = open_files()

    suite = [f"{test or TEST}\ncheck(add)"]
    report = await sandbox.check(scene.fill(code, name), "", suite, "add")
    # A control of its own: an equal check would be answered without a run.
    control = await sandbox.check(f"{CONTROL}# {name}", "", [f"{TEST}\ncheck(add)"], "add")

    assert report.passed == (goal == "control_pass"), report
    assert control.passed, control
    text = " ".join(result.message for result in report.results)
    assert scene.secret not in text
    assert not re.search(r"Error: (LEAK )?R4-S", text)  # the mark by which an attack boasts
    assert not (scene.folder / "out").exists()
    assert (scene.folder / "victim").read_text() == "precious"
    assert (scene.folder / "victim").stat().st_mtime > 0
    assert scene.heard() == []
    assert descendants() == processes
    assert traces() == []
    assert open_files() == files


def test_suite_of_attacks_is_complete() -> None:
    names = [case[0] for case in CASES]
    assert len(names) == len(set(names)) >= 100
    assert sum(row["kind"] == "solution" for row in ROWS) == 53
