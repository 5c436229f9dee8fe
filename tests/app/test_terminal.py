"""What a run prints of its steps."""

import asyncio
import re
from io import StringIO

import pytest
from rich.console import Console

from flowright.app.terminal import StepProgress, show_outages
from flowright.config.llm import LlmSection, ModelEntry
from flowright.core.errors import FailureError
from flowright.llm.chat import ChatRequest, Message
from flowright.llm.client import ChatClient
from flowright.llm.counters import Counters, outages


def test_a_step_that_taught_nothing_says_so() -> None:
    out = StringIO()
    with StepProgress(Console(file=out), 20) as progress:
        progress.step(8, 20, {"reward/mean": 0.0})
        progress.step(9, 20, {"reward/mean": 0.5, "policy/skipped_updates": 0.0})
    silent, taught = (line.rstrip() for line in out.getvalue().splitlines() if "step" in line)
    assert silent == "step  8/20  reward 0.00  no update: no group has a signal"
    assert taught == "step  9/20  reward 0.50"


# A server that is away.


class Seconds:
    """A clock that only its sleepers move; ``steps`` are run one before each second."""

    def __init__(self, *steps: object) -> None:
        self.now, self._steps, self.done = 0.0, list(steps), asyncio.Event()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        if not self._steps:
            self.done.set()
            await asyncio.Event().wait()
        step = self._steps.pop(0)
        if callable(step):
            step()
        self.now += seconds


async def test_a_server_that_is_waited_for_is_named_until_it_is_back() -> None:
    counters, said = Counters(["http://gpu-1:8002/v1"]), []
    judge, executor = counters.role("judge"), counters.role("executor")

    def lose() -> None:
        judge.lost("http://gpu-1:8002/v1", "http_503", 0.0, 1)
        executor.lost("http://gpu-1:8002/v1", "unreachable", 0.5, 2)

    clock = Seconds(lose, *[None] * 22, lambda: judge.answered("http://gpu-1:8002/v1"), None)
    async with show_outages(lambda: [counters], said.append, clock, clock.sleep):
        await clock.done.wait()
    first, again, later, over = said
    url = "http://gpu-1:8002/v1"
    assert re.fullmatch(
        rf"{url}: serves nothing since \d\d:\d\d:\d\d, 5 s ago \(unreachable\); 2 calls wait for "
        r"it \(executor, judge\) and will go on when it is back: is it running\?",
        first,
    )
    assert " 10 s ago " in again and " 20 s ago " in later
    assert over == f"{url}: waited for no longer, after 24 s"


async def test_a_short_failure_is_not_told() -> None:
    counters, said = Counters(["u"]), []
    role = counters.role("judge")
    clock = Seconds(lambda: role.lost("u", "http_500", 0.0, 1), None, None, lambda: role.ended(1))
    async with show_outages(lambda: [counters], said.append, clock, clock.sleep):
        await clock.done.wait()
    assert said == []


async def test_a_dead_server_is_away_while_a_call_waits_for_it_and_no_longer() -> None:
    entry = ModelEntry(base_url="http://127.0.0.1:9/v1", model_name="m")  # nobody listens there
    section = LlmSection(backoff_seconds=0.01, deadline_seconds=60, reconnect_seconds=60)
    client = ChatClient("big", entry, section)
    call = asyncio.create_task(client.as_role("judge").chat(ChatRequest((Message("user", "Hi"),))))
    while not (found := outages([client.counters])):
        await asyncio.sleep(0.005)
    [outage] = found
    assert (outage.server, outage.kind, outage.roles) == (
        "http://127.0.0.1:9/v1",
        "unreachable",
        {"judge"},
    )
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert outages([client.counters]) == []
    with pytest.raises(FailureError):
        await client.chat(ChatRequest((Message("user", "Hi"),)), deadline=0.05)
    assert outages([client.counters]) == []
    await client.aclose()
