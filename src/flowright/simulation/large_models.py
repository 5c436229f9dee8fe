"""Open large models by name: a client for each, and the embedded server if it is one of them."""

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
class OpenModels:
    """Open large models, by their name in the configuration."""

    clients: Mapping[str, ChatClient]

    @property
    def simulated(self) -> bool:
        """True if the embedded server or a simulated one at an address plays one, as of the latest
        check."""
        return SIMULATED in self.clients or any(c.simulated for c in self.clients.values())

    @property
    def counters(self) -> tuple[Counters, ...]:
        """The counters of each client."""
        return tuple(client.counters for client in self.clients.values())

    async def check(self, budgets: Mapping[str, Mapping[str, int]] | None = None) -> list[str]:
        """Return a line for each server that cannot be used. ``budgets`` are, by model, those of
        :meth:`flowright.llm.client.ChatClient.check`."""
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
) -> AsyncIterator[OpenModels]:
    """Open a client for each name, in alphabetical order. If ``simulated`` is among them, the
    embedded server is started; ``tasks`` are those that it can answer (as a judge it needs none, it
    gets question and reference), with the settings of ``sandbox``.

    A server that does not answer raises nothing here; see :meth:`OpenModels.check`. Raises
    ConfigError for names that ``llm.file`` lacks, UserError if the embedded server cannot start.
    """
    async with AsyncExitStack() as stack:
        played = simulated.played(names)
        entries = load_entries(llm.file, names, simulated)
        if played:
            server = SimulatedServer(tasks, simulated, sandbox)
            await stack.enter_async_context(server)
            entries |= {name: server.entry(name) for name in played}
        clients: dict[str, ChatClient] = {}
        for name in sorted(entries):
            own = name in played  # each process has one server of its own
            clients[name] = ChatClient(name, entries[name], llm.shared_by(1) if own else llm)
            stack.push_async_callback(clients[name].aclose)
        yield OpenModels(clients)
