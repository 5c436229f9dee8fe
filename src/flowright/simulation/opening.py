"""Opening large models by name: a client for each, and the embedded server where it is one of them.

Nothing is asked of them here but whether they can be used.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from flowright.config.llm import SIMULATED, LlmSection, SimulatedSection
from flowright.config.loading import load_entries
from flowright.config.workflow import SandboxSection
from flowright.data.task import Problem
from flowright.llm.client import ChatClient
from flowright.llm.counters import Counters
from flowright.simulation.process import SimulatedServer


@dataclass(frozen=True, slots=True)
class Models:
    """Large models that are open, by the name that the configuration gives them."""

    clients: Mapping[str, ChatClient]

    @property
    def simulated(self) -> bool:
        """Whether the embedded server is one of them."""
        return SIMULATED in self.clients

    @property
    def counters(self) -> tuple[Counters, ...]:
        """What they were asked, of each client."""
        return tuple(client.counters for client in self.clients.values())

    async def check(self, budgets: Mapping[str, Mapping[str, int]] | None = None) -> list[str]:
        """What keeps them from being used, one line per server; empty when all is well.
        ``budgets``: by model what :meth:`flowright.llm.client.ChatClient.check` compares."""
        found = await asyncio.gather(
            *(client.check((budgets or {}).get(name)) for name, client in self.clients.items())
        )
        return [problem for problems in found for problem in problems]


@asynccontextmanager
async def open_models(
    names: Collection[str],
    llm: LlmSection,
    simulated: SimulatedSection,
    sandbox: SandboxSection | None,
    tasks: Sequence[Problem],
) -> AsyncIterator[Models]:
    """A client for each name, in alphabetical order. Where ``simulated`` is among them, the
    embedded server is started; ``tasks`` are those that it can answer (a judge needs none: it is
    shown question and reference), in a sandbox as ``sandbox`` says.

    A server that does not answer is no error here, see :meth:`Models.check`. Raises ConfigError for
    names that ``llm.file`` lacks, UserError where the embedded server cannot start.
    """
    async with AsyncExitStack() as stack:
        entries = load_entries(llm.file, names)
        if SIMULATED in names:
            server = SimulatedServer(tasks, simulated, sandbox)
            entries[SIMULATED] = (await stack.enter_async_context(server)).entry()
        clients: dict[str, ChatClient] = {}
        for name in sorted(entries):
            clients[name] = ChatClient(name, entries[name], llm)
            stack.push_async_callback(clients[name].aclose)
        yield Models(clients)
