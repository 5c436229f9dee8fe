"""launch_vllm_safe.sh with a real vLLM: start, status, a killed engine, a new start, stop."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import free_port
from real_vllm import ROOT, STEADY, engine_of, vllm_environment, vllm_program

from flowright.config.llm import LlmSection, ModelEntry
from flowright.llm.chat import ChatRequest, Message
from flowright.llm.client import ChatClient

pytestmark = pytest.mark.real

NOT_SERVING = 3  # exit code of --status


class Launcher:
    """The script, for the embedded policy as executor, which starts soonest."""

    def __init__(self, model: str, logs: Path) -> None:
        self.port, self.state = free_port(), logs / "launcher"
        self._environment = vllm_environment(
            EXECUTOR_DEVICE="cpu",
            EXECUTOR_MODEL=model,
            EXECUTOR_PORT=str(self.port),
            EXECUTOR_MAX_MODEL_LEN="1024",
            EXECUTOR_REASONING_PARSER="",
            VLLM_BIN=str(vllm_program()),
            VLLM_STATE_DIR=str(self.state),
        )

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "launch_vllm_safe.sh", "executor", *arguments],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def start(self) -> None:
        done = self.call("--", *STEADY)
        assert done.returncode == 0, done.stdout

    def kill_engine(self) -> None:
        server = int((self.state / "executor.pid").read_text().split()[0])
        os.kill(engine_of(server), signal.SIGKILL)


@pytest.fixture
def launcher(policy_folder: str, logs: Path) -> Iterator[Launcher]:
    launcher = Launcher(policy_folder, logs)
    try:
        yield launcher
    finally:
        launcher.call("--stop")


async def test_a_server_is_started_watched_lost_started_again_and_stopped(
    launcher: Launcher, policy_folder: str
) -> None:
    entry = ModelEntry(base_url=f"http://127.0.0.1:{launcher.port}/v1", model_name=policy_folder)
    patient = LlmSection(deadline_seconds=900.0, reconnect_seconds=900.0)
    client = ChatClient("large", entry, patient)
    request = ChatRequest((Message("user", "What is 6 * 7?"),), temperature=0.0, max_tokens=8)
    try:
        assert launcher.call("--status").returncode == NOT_SERVING
        await asyncio.to_thread(launcher.start)
        assert (status := launcher.call("--status")).returncode == 0, status.stdout
        assert policy_folder in status.stdout
        first = await client.chat(request)

        launcher.kill_engine()
        again = asyncio.create_task(client.chat(request))
        while "not running" not in (await asyncio.to_thread(launcher.call, "--status")).stdout:
            await asyncio.sleep(0.2)
        assert not again.done()  # it waits for the server
        await asyncio.to_thread(launcher.start)
        assert (await again).text == first.text
    finally:
        await client.aclose()
    stopped = launcher.call("--stop")
    assert stopped.returncode == 0 and "stopped" in stopped.stdout, stopped.stdout
    assert launcher.call("--status").returncode == NOT_SERVING
