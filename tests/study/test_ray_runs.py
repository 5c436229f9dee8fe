"""Runs as processes of a Ray cluster. What an actor does is tested without Ray; where Ray is
installed (requirements-ray.txt), a cluster of two nodes on this machine is started, too."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flowright.study.runner import RunProcess, on_ray
from flowright.study.runs import StudyCell, StudyRun

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install -r requirements-ray.txt"
)
RUN = StudyRun(StudyCell("a", "a", "a"), 0, Path("a/seed_0"), "", "", ())
WAITS = """
import os, time
try:
    print("began", os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"), os.getcwd(), flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("saved", flush=True)
    raise SystemExit(7)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "waits.py"
    path.write_text(WAITS)
    return path


def until(holds: Callable[[], Any], what: str) -> Any:
    """What ``holds`` returns once it is true."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.05)
    pytest.fail(f"not within two minutes: {what}")


def begun(log: Path) -> list[str]:
    """What the script printed when it began: its process, its GPUs, its folder."""

    def printed() -> list[str]:
        text = log.read_text() if log.exists() else ""
        return text.splitlines()[0].split()[1:] if "\n" in text else []

    return until(printed, f"a line in {log.name}")


def test_a_run_is_interrupted_though_who_started_it_ignores_interrupts(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path.parent)  # the actor goes to the study's folder; this takes us back
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        log = tmp_path / "run.log"
        run = RunProcess([sys.executable, str(script)], str(log), str(tmp_path))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, before)
    assert begun(log)[2] == str(tmp_path)
    run.signal(signal.SIGINT)
    assert run.wait() == 7
    assert log.read_text().splitlines()[-1] == "saved"


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """A cluster of two nodes with a GPU each (which nobody looks for), and its second node."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    store = {"object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1, **store})
    try:
        second = cluster.add_node(num_cpus=1, num_gpus=1, **store)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster, second
    finally:
        cluster.shutdown()


@needs_ray
def test_each_run_has_a_gpu_of_a_cluster_and_is_interrupted_or_lost_by_itself(
    tmp_path: Path, script: Path, two_nodes: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, second = two_nodes
    monkeypatch.chdir(tmp_path)
    words = [sys.executable, str(script)]
    logs = [tmp_path / f"{name}.log" for name in ("one", "two", "three")]
    processes: list[int] = []
    with on_ray(gpus=1) as (room, start_of):
        assert room == 2
        start = start_of(RUN)
        one, two = (start(words, log) for log in logs[:2])
        for log in logs[:2]:
            pid, gpus, folder = begun(log)
            processes.append(int(pid))
            assert (gpus, folder) == ("0", str(tmp_path))  # the only one of its node
        one.signal(signal.SIGINT)
        assert one.wait() == 7 and logs[0].read_text().endswith("saved\n")
        three = start(words, logs[2])  # in the place of the first
        processes.append(int(begun(logs[2])[0]))
        cluster.remove_node(second)
        # One of the two was on the node that is lost, and nobody knows how it ended.
        with ThreadPoolExecutor(2) as threads:
            ends = {threads.submit(child.wait): child for child in (two, three)}
            lost = next(as_completed(ends))
            assert lost.result() == 1
            (other,) = ends.keys() - {lost}
            ends[other].signal(signal.SIGINT)
            assert other.result() == 7
    for pid in processes:  # that of the lost node, which was none of its own
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
