"""A real vLLM for the tests that need one: found, started on a free port, ended. No stand-in."""

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from processes import free_port

from flowright.config.root import Config
from flowright.environments.registry import load_config

ROOT = Path(__file__).parents[2]
POLICY = "policy"
FIGURES = "figures.txt"
SETUP = "bash scripts/setup_real_vllm.sh"

STEADY = ("--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096")
"""Without chunked prefill: with it, a request with a seed ends the engine on a CPU (vLLM 0.32)."""
ADAPTERS = (
    *("--enable-lora", "--max-lora-rank", "64", "--max-loras", "2"),
    *("--logprobs-mode", "processed_logprobs"),
)
ALL_WEIGHTS = ("--logprobs-mode", "processed_logprobs")

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

PATIENCE = 600.0
"""Seconds until a server that starts is given up: the machine may be busy."""


def vllm_program() -> Path:
    """The ``vllm`` of ``FLOWRIGHT_REAL_VLLM`` (an environment's folder) or of ``.venv-vllm``."""
    place = ROOT / (os.environ.get("FLOWRIGHT_REAL_VLLM") or ".venv-vllm")
    program = place / "bin/vllm"
    if not program.exists():
        raise FileNotFoundError(f"{program}: make it with {SETUP}, or set FLOWRIGHT_REAL_VLLM")
    return program


def interrupt_once() -> None:
    """Let Ctrl-C and SIGTERM end the tests, and nothing after that the servers' end."""

    def interrupt(number: int, frame: object) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in ENDING:
        signal.signal(each, interrupt)


def vllm_environment(**more: str) -> dict[str, str]:
    """What a server on a CPU needs beside its arguments: one thread, which is faster than two where
    others compute, a gigabyte for keys and values, and nothing asked of a hub."""
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **more,
    }


class RealVllm:
    """`vllm serve` of a model's folder under ``name``. It keeps its port over restarts; its log is
    appended to. ``seconds`` is how long the latest start took."""

    def __init__(self, name: str, folder: str, logs: Path, *arguments: str) -> None:
        self.name = name
        self.folder = folder
        self.port = free_port()
        self.log = logs / f"{name}.log"
        self.seconds = 0.0
        self._command = [
            *(str(vllm_program()), "serve", folder, "--served-model-name", name),
            *("--host", "127.0.0.1", "--port", str(self.port), *STEADY, *arguments),
        ]
        adapts, exchanges = "--enable-lora" in arguments, arguments[-2:] == ALL_WEIGHTS
        self._variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} if adapts else {}
        self._variables |= {"VLLM_SERVER_DEV_MODE": "1"} if exchanges and not adapts else {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def serves(self) -> bool:
        with contextlib.suppress(OSError):
            return self.name in served_models(self.url)
        return False

    def start(self) -> None:
        """Start it unless it runs, and wait until it serves."""
        if self._process is not None and self._process.poll() is None:
            return
        began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=vllm_environment(**self._variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        while not self.serves:
            if self._process.poll() is not None or time.monotonic() - began > PATIENCE:
                self.stop()
                raise RuntimeError(f"{self.name} did not start; its log is {self.log}")
            time.sleep(0.2)
        self.seconds = time.monotonic() - began

    def kill_engine(self) -> None:
        """End the process that computes, as a machine without memory does: without a word."""
        assert self._process is not None
        os.kill(engine_of(self._process.pid), signal.SIGKILL)

    def wait_until_dead(self) -> None:
        """The front end ends itself once it misses its engine."""
        assert self._process is not None
        self._process.wait(PATIENCE)
        self.stop()

    def stop(self) -> None:
        if self._process is not None:
            end_group(self._process)
            self._process = None


def served_models(url: str) -> list[str]:
    """The names that a server knows; OSError where there is none (yet)."""
    with urllib.request.urlopen(f"{url}/models", timeout=30) as reply:
        return [row["id"] for row in json.load(reply)["data"]]


def engine_of(server: int) -> int:
    """The process id of a server's engine, which is one of its children."""
    found = [pid for pid in descendants(server) if "EngineCore" in _title(pid)]
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} engines among the children of process {server}")
    return found[0]


def descendants(parent: int) -> Iterator[int]:
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in map(int, children.read_text().split()):
                yield pid
                yield from descendants(pid)


def _title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, with all that it started there."""
    for number, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what outlived its leader


def quickstart(*changes: str) -> Config:
    """The configuration of the quickstart, its cold start a third as long."""
    return load_config(ROOT / "config/quickstart.yaml", [*SHORT_COLD_START, *changes])


SHORT_COLD_START = (
    *("policy.tiny.steps=120", "policy.tiny.examples=960"),
    f"policy.tiny.cache_dir={ROOT / 'data/cache'}",
)
