"""Processes that tests start: the folder of the doubles, a free port, and the ranks of a group."""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

DOUBLES = Path(__file__).parent
SOURCE = DOUBLES.parents[1] / "src"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def run_ranks(script: str, *arguments: str, count: int = 2) -> list[int]:
    """Run a script of this folder as the ranks of a process group; return their exit codes. Waits
    for as long as all are at work, as a loaded machine is slow; one that fails ends the others."""
    group = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group["PYTHONPATH"] = os.pathsep.join([str(DOUBLES), str(SOURCE)])
    command = [sys.executable, "-W", "error", str(DOUBLES / script), *arguments]
    processes = [
        await asyncio.create_subprocess_exec(
            *command, env=os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(count)
    ]

    async def watch(process: asyncio.subprocess.Process) -> int:
        code = await process.wait()
        if code:
            _kill(processes)
        return code

    try:
        return await asyncio.gather(*map(watch, processes))
    finally:
        _kill(processes)


def _kill(processes: Sequence[asyncio.subprocess.Process]) -> None:
    for process in processes:
        if process.returncode is None:
            process.kill()
