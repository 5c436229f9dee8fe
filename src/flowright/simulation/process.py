"""The embedded server: a simulated large model and judge, in a process of its own.

An OpenAI-compatible server on a loopback socket, so that the whole system runs with no GPU, key or
hub. It answers the tasks that it was started with at the accuracies of
:mod:`flowright.simulation.table`; its numbers are simulated and hold for no real model
(docs/simulated_server.md). :class:`SimulatedServer` starts ``python -m
flowright.simulation.process``; ``scripts/serve_simulated_llm.py`` is the command for people.
"""

import argparse
import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import uvicorn
import uvloop

from flowright.config.llm import ModelEntry, SimulatedModelSection, SimulatedSection
from flowright.config.workflow import SandboxSection
from flowright.core.checkout import child_environment
from flowright.core.errors import RunError, UserError
from flowright.core.net import allowed_hosts, listen, quiet_server
from flowright.data.task import Problem, read_tasks, write_tasks
from flowright.sandbox import Sandbox
from flowright.simulation.protocol import MODEL
from flowright.simulation.simulated_app import SimulatedApp

START_SECONDS = 60.0
_STOP_SECONDS = 5.0
_PARENT_CHECK_SECONDS = 0.5


class SimulatedServer:
    """The embedded server as a child process; a plain and an async context manager.

    ``tasks`` is a task file or the tasks themselves. It listens on a free loopback port, and exits
    with this process, even if that is killed. Entering raises UserError if it cannot start.
    """

    def __init__(
        self,
        tasks: Path | Sequence[Problem],
        section: SimulatedSection | None = None,
        sandbox: SandboxSection | None = None,
    ) -> None:
        self._tasks = tasks
        self._section = section or SimulatedSection()
        self._weaker = sandbox is not None and sandbox.allow_weaker
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None

    @property
    def base_url(self) -> str:
        if self._port is None:
            raise RuntimeError("enter the server first: with SimulatedServer(...) as server")
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def entry(self, name: str = MODEL) -> ModelEntry:
        """Return one of its models as an entry of the LLM file."""
        about = self._section.models.get(name) or SimulatedModelSection()
        return ModelEntry(
            base_url=self.base_url,
            model_name=name,
            no_proxy="127.0.0.1",
            price=about.price,
            note=about.note,
        )

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)

    def __enter__(self) -> Self:
        with tempfile.TemporaryDirectory(prefix="flowright-") as folder:
            if isinstance(self._tasks, Path):
                file = self._tasks
            else:
                file = Path(folder) / "tasks.jsonl"
                write_tasks(file, {task.id: task for task in self._tasks}.values())
            command = [sys.executable, "-m", "flowright.simulation.process", "--embedded"]
            command += ["--tasks", str(file), "--settings", self._section.model_dump_json()]
            command += ["--allow-weaker-sandbox"] if self._weaker else []
            # In its own session: Ctrl-C stops the trainer, which needs its server until the end.
            self._process = subprocess.Popen(
                command,
                env=child_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            try:
                self._port = _port_from(self._process)
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process, self._port = self._process, None, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _port_from(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the child's first line: its port, or the problems that kept it from starting."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline() if ready else b""
    if not line:
        state = f"ended with status {process.wait(5)}" if ready else "did not start in time"
        raise RunError(f"the embedded server {state}; its messages are above")
    report = json.loads(line)
    if "problems" in report:
        raise UserError(*report["problems"])
    return int(report["port"])


def serve(
    tasks: Sequence[Problem],
    section: SimulatedSection,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    allow_weaker: bool = False,
    ready: Callable[[int], None],
    embedded: bool = False,
) -> None:
    """Serve until interrupted; ``ready`` is called with the port. ``embedded`` exits with the
    parent process. Raises UserError if it cannot start."""
    listener = listen(host, port)

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            sandbox = Sandbox(workers=1, allow_weaker=allow_weaker)
            if any(task.kind == "code" for task in tasks):
                await stack.enter_async_context(sandbox)
            app = SimulatedApp(tasks, section, sandbox, allowed_hosts(host))
            server = uvicorn.Server(quiet_server(app, date_header=False))
            watcher = asyncio.create_task(_end_with_parent(server)) if embedded else None
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not (server.started or serving.done()):
                await asyncio.sleep(0.01)
            if server.started:
                ready(listener.getsockname()[1])
            await serving
            if watcher is not None:
                watcher.cancel()

    with contextlib.closing(listener):
        uvloop.run(run())


async def _end_with_parent(server: uvicorn.Server) -> None:
    """Stop when stdin closes or the parent process changes; the first may be missed if a fork of
    the parent still holds the other end of the pipe."""
    parent = os.getppid()
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_input() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            loop.remove_reader(sys.stdin.fileno())
            gone.set()

    loop.add_reader(sys.stdin.fileno(), on_input)
    while not gone.is_set() and os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PARENT_CHECK_SECONDS):
                await gone.wait()
    server.should_exit = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line that :class:`SimulatedServer` starts."""
    parser = argparse.ArgumentParser(
        prog="python -m flowright.simulation.process", description=main.__doc__
    )
    parser.add_argument("--tasks", type=Path, required=True, help="task file (JSON Lines)")
    parser.add_argument("--settings", default="{}", help="the `simulated` section, as JSON")
    parser.add_argument("--allow-weaker-sandbox", action="store_true")
    parser.add_argument("--embedded", action="store_true", help="end with the parent process")
    options = parser.parse_args(arguments)

    def report(**fields: object) -> None:
        print(json.dumps(fields), flush=True)

    try:
        serve(
            read_tasks(options.tasks),
            SimulatedSection.model_validate_json(options.settings),
            allow_weaker=options.allow_weaker_sandbox,
            ready=lambda port: report(port=port),
            embedded=options.embedded,
        )
    except UserError as error:
        report(problems=error.problems)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
