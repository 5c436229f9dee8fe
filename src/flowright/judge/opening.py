"""Opening the configured judge: its service is connected, its models are open already."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from flowright.config import SIMULATED, JudgeSection
from flowright.judge.build import build_judge
from flowright.judge.remote import RemoteJudge
from flowright.judge.verdict import Judge
from flowright.llm.client import ChatClient
from flowright.llm.counters import Counters


@dataclass(frozen=True, slots=True)
class OpenJudge:
    """A judge that can be asked. ``service`` is None where models or rules decide; ``models`` are
    the names of those that are asked."""

    judge: Judge
    service: RemoteJudge | None
    models: tuple[str, ...]

    @property
    def counters(self) -> tuple[Counters, ...]:
        """What its service was asked; its models' counters are those of their clients."""
        return () if self.service is None else (self.service.counters,)

    @property
    def simulated(self) -> bool:
        """Whether the embedded server judges, or a service that said so in the latest check."""
        from_service = self.service is not None and self.service.simulated
        return SIMULATED in self.models or from_service

    async def check(self) -> list[str]:
        """What keeps its service from being used, in a line; empty when all is well. Its models are
        checked by who opened them (:meth:`flowright.simulation.opening.Models.check`)."""
        return [] if self.service is None else await self.service.check()


@asynccontextmanager
async def open_judge(
    section: JudgeSection, model: str | None, models: Mapping[str, ChatClient]
) -> AsyncIterator[OpenJudge]:
    """The judge of ``section``. ``model`` names the one of ``models`` that judges, None where a
    service or rules do; ``models`` must have it and the panel. Their calls for it are counted
    under the role ``judge``, those of a service under ``judge_service``."""
    async with AsyncExitStack() as stack:
        service: RemoteJudge | None = None
        if section.service is not None:
            service = RemoteJudge(section.service)
            stack.push_async_callback(service.aclose)
        names = section.panel
        if model is not None and service is None and section.mode != "rules":
            names = (model, *names)
        clients = {name: models[name].as_role("judge") for name in names if name in models}
        asked = service or clients.get(model or "")
        judge = build_judge(section, asked, [clients[name] for name in section.panel])
        yield OpenJudge(judge, service, names)
