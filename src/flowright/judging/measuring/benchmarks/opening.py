"""From what ``--judge`` names to a contender: one row of :data:`KINDS` for each kind of judge."""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from flowright.config.llm import SIMULATED
from flowright.config.loading import load_entries, load_judge_server
from flowright.config.root import JudgeServerConfig
from flowright.core.batch_calls import ServerDown
from flowright.core.errors import UserError
from flowright.core.plugins import load
from flowright.judging.build import fingerprint
from flowright.judging.measuring.benchmarks.asked import (
    ModelJudge,
    ServiceJudge,
    Way,
    measured_section,
)
from flowright.judging.measuring.benchmarks.contenders import Chance, Contender, Length, Several
from flowright.judging.remote import RemoteJudge
from flowright.simulation.opening import open_models

BASELINES = ("length", "random")
_URL = re.compile(r"https?://\S+")


@dataclass(frozen=True, slots=True)
class Named:
    """What the command line says of a judge. ``config`` is a judge service's file, of which the
    sections ``judge``, ``llm`` and ``simulated`` are read, with ``overrides``."""

    judge: str
    config: Path
    overrides: Sequence[str] = ()
    way: Way = "pairwise"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """A judge that can be asked. ``about`` is what else decides on its verdicts, as JSON;
    ``folders`` are those of its models that are known, None for what is not trained."""

    contender: Contender
    concurrency: int
    about: dict[str, str]
    folders: Sequence[Path] | None = ()


Opening = Callable[[Named], AbstractAsyncContextManager[Opened]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of judge: whether a name is of it, and how one is opened."""

    words: str
    fits: Callable[[str], bool]
    opened: Opening


@asynccontextmanager
async def open_contender(named: Named) -> AsyncIterator[Opened]:
    """The judge of the first kind that fits. Raises UserError for a name or a setting that cannot
    be used, ServerDown where a server does not answer."""
    for kind in KINDS:
        if kind.fits(named.judge):
            async with kind.opened(named) as opened:
                yield opened
            return
    known = ", ".join(kind.words for kind in KINDS)
    raise UserError(f"--judge {named.judge}: not a judge that can be measured; a judge is {known}")


@asynccontextmanager
async def _baseline(named: Named) -> AsyncIterator[Opened]:
    contender = Length() if named.judge == "length" else Chance(named.seed)
    yield Opened(contender, 1, {}, None)


@asynccontextmanager
async def _service(named: Named) -> AsyncIterator[Opened]:
    url = f"judge.service.judge_url={named.judge}"
    async with _of_config(named, load_judge_server(named.config, [url, *named.overrides])) as one:
        yield one


@asynccontextmanager
async def _file(named: Named) -> AsyncIterator[Opened]:
    config = load_judge_server(Path(named.judge), named.overrides)
    async with _of_config(named, config) as opened:
        yield opened


@asynccontextmanager
async def _models(named: Named) -> AsyncIterator[Opened]:
    first, *others = [name.strip() for name in named.judge.split(",")]
    seats = [f'judge.model="{first}"', f"judge.panel={others}"]
    async with _of_config(named, load_judge_server(named.config, [*seats, *named.overrides])) as o:
        yield o


@asynccontextmanager
async def _of_config(named: Named, config: JudgeServerConfig) -> AsyncIterator[Opened]:
    """The service that a configuration names, or its model with its panel."""
    section = measured_section(config.judge)
    if section.service is not None and config.judge.panel:
        raise UserError("judge.panel: a service is measured alone; set judge.panel=[]")
    way, rooms = named.way, config.llm.max_concurrency
    about = {"way": way, "asked": fingerprint(section.model_copy(update={"ask": way}))}
    if section.service is not None:
        judge = RemoteJudge(section.service)
        try:
            if problems := await judge.check():
                raise ServerDown(*problems, "nothing was measured")
            waiting = section.service.max_concurrent_requests * section.service.max_batch_size
            yield Opened(ServiceJudge(judge, way, judge.simulated), waiting, {"way": way})
        finally:
            await judge.aclose()
        return
    async with open_models(config.models, config.llm, config.simulated, None, ()) as models:
        if problems := await models.check():
            raise ServerDown(*problems, "nothing was measured")
        clients = {name: client.as_role("judge") for name, client in models.clients.items()}
        seats = [
            ModelJudge(clients[name], section, way, name == SIMULATED)
            for name in (config.judge.model or "", *config.judge.panel)
        ]
        one = seats[0] if len(seats) == 1 else Several(seats, config.judge.quorum)
        yield Opened(one, rooms, about, _folders(config))


def _folders(config: JudgeServerConfig) -> list[Path] | None:
    """Of the models that ``llm.file`` names by their path, as a server on this machine has them."""
    entries = load_entries(config.llm.file, config.models).values()
    named = [(Path(entry.model_name), entry.tokenizer) for entry in entries]
    return [path for paths in named for path in paths if path is not None] if entries else None


def _is_path(name: str) -> bool:
    """Names of models may hold a slash as well."""
    return ("/" in name or name.startswith(".")) and Path(name).exists()


@asynccontextmanager
async def _folder(named: Named) -> AsyncIterator[Opened]:
    """Of a room above, which loads torch."""
    opening: Opening = load("flowright.app.trained_judge:open_trained_judge", "judge")
    async with opening(named) as opened:
        yield opened


KINDS: tuple[Kind, ...] = (
    Kind("a baseline (length, random)", lambda name: name in BASELINES, _baseline),
    Kind("the address of a judge service", lambda n: bool(_URL.fullmatch(n)), _service),
    Kind("a judge's YAML file", lambda name: name.endswith((".yaml", ".yml")), _file),
    Kind("a folder with a judge that was trained", lambda name: Path(name).is_dir(), _folder),
    Kind("a model of llm.file, several with commas", lambda n: not _is_path(n), _models),
)
"""In this order."""
