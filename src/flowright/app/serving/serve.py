"""Running a policy at work: a port taken, policy and executor opened, signals obeyed.

``scripts/serve_policy.py`` is its command line.
"""

import contextlib
from typing import Any

import uvloop
from pydantic import ValidationError
from rich.console import Console

from flowright.app.serving.author import open_author
from flowright.app.serving.opening import Opening
from flowright.app.serving.service import PolicyApp
from flowright.app.serving.settings import PolicyServer
from flowright.app.terminal import say
from flowright.core.errors import UserError
from flowright.core.net import LOOPBACK, DrainingServer, is_loopback, listen
from flowright.environments.workflow.config import WorkflowConfig

SIMULATED_NOTICE = "simulated: the embedded server answers, and knows the run's problems alone"


def serve_policy(opening: Opening, host: str, port: int, **given: Any) -> int:
    """Serve until SIGTERM or SIGINT, drained; returns the exit status. ``given`` are settings of
    the server; those that are None have their defaults. Raises UserError when it cannot start."""
    config, console = opening.config, Console(stderr=True)
    usual = {
        "name": config.run.name,
        "temperature": config.evaluation.temperature,
        "top_p": config.policy.top_p,
        "max_question_bytes": config.own(WorkflowConfig).max_prompt_chars,
        "hosts": LOOPBACK if is_loopback(host) else ("*",),
    }
    chosen = {key: value for key, value in given.items() if value is not None}
    try:
        settings = PolicyServer.model_validate(usual | chosen)
    except ValidationError as error:
        lines = [f"{one['loc'][0]}: {one['msg']}" for one in error.errors()]
        raise UserError(*lines) from None
    listener = listen(host, port)
    with contextlib.closing(listener):

        async def serve() -> None:
            async with open_author(opening, console) as author:
                about: dict[str, Any] = {
                    "model": settings.name,
                    "policy": opening.name,
                    "executor": config.aflow_executor_model,
                    "simulated": author.simulated,
                }
                app = PolicyApp(author, settings, about)
                server = DrainingServer(
                    app,
                    app.state.traffic.drain,
                    settings.drain_seconds,
                    lambda line: print(line, flush=True),
                )
                shown = f"[{host}]" if ":" in host else host
                url = f"http://{shown}:{listener.getsockname()[1]}/v1"
                print(f"model `{settings.name}` at {url}", flush=True)
                say(console, f"policy    {opening.words}")
                say(console, f"executor  {config.aflow_executor_model}")
                if author.simulated:
                    say(console, SIMULATED_NOTICE)
                if not settings.api_key:
                    say(console, "No key is set: whoever reaches this address can use it.")
                await server.serve(sockets=[listener])

        uvloop.run(serve())
    return 0
