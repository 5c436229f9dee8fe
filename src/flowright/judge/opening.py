"""Opening the configured judge: its service is connected, its models are open already."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from flowright.config import SIMULATED, JudgeSection
from flowright.judge.build import build_judge
from flowright.judge.remote import RemoteJudge
from flowright.judge.verdict import Judge
from flowright.llm.client import ChatClient


@dataclass(frozen=True, slots=True)
class OpenJudge:
    """A judge that can be asked. ``service`` is None where models or rules decide; ``models`` are
    the names of those that are asked."""

    judge: Judge
    service: RemoteJudge | None
    models: tuple[str, ...]

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
    service or rules do; ``models`` must have it and the panel."""
    async with AsyncExitStack() as stack:
        service: RemoteJudge | None = None
        if section.service is not None:
            service = RemoteJudge(section.service)
            stack.push_async_callback(service.aclose)
        names = section.panel
        if model is not None and service is None and section.mode != "rules":
            names = (model, *names)
        asked = service or models.get(model or "")
        judge = build_judge(section, asked, [models[name] for name in section.panel])
        yield OpenJudge(judge, service, names)
