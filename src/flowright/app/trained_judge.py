"""A judge that was trained, from its folder: measured (scripts/evaluate_judge.py) or served
(scripts/serve_judge.py --model), one that scores or one that writes its verdicts, in this process;
or one that writes, at an OpenAI-compatible server.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from flowright.app.judge_folder import JudgeFolder, LoadedJudge, find_judge, load_judge
from flowright.app.scalar_judge import AT_ONCE, ScalarJudge, Scorer, ServedScalarJudge
from flowright.app.together import Together
from flowright.config.judge import JudgeSection, TrainedJudgeSection
from flowright.config.llm import ModelEntry
from flowright.config.loading import load_judge_server
from flowright.config.root import JudgeServerConfig
from flowright.core.errors import ConfigError, DataError
from flowright.environments.judging.serving import FrameJudge, ServerWriter, Written, chosen_form
from flowright.judging.build import OpenJudge, build_judge, fingerprint
from flowright.judging.measuring.benchmark_judges import (
    JudgeName,
    OpenedJudge,
    ServiceJudge,
    Way,
    measured_section,
)
from flowright.judging.service.app import Ready
from flowright.llm.chat import Message, RequestRefused, Usage
from flowright.llm.client import ChatClient
from flowright.policy.local import LocalSampler
from flowright.policy.prompt import template_ids
from flowright.policy.sampler import Sample, Sampling

Backend = Callable[[], AbstractAsyncContextManager[tuple[OpenJudge, Ready]]]


def trained_judge(config: JudgeServerConfig) -> Backend:
    """The judge of ``trained``, loaded: what opens it as a service's backend, on the service's own
    loop. Raises RunError, ConfigError or DataError for what cannot be served."""
    section = config.trained
    assert section.folder is not None, "trained.folder names the judge"
    found = find_judge(section.folder)
    if section.base_url is not None:
        return lambda: _at_server(config, found)
    loaded = load_judge(found, section.device, section.base)
    judge: FrameJudge | ServedScalarJudge
    if loaded.scores:
        scorer = Scorer(loaded, section.batch, section.max_tokens)
        judge = ServedScalarJudge(found.name, scorer, found.calibration, config.judge)
    else:
        judge = _writing(found, loaded, config.judge, section)
    return lambda: _here(config.judge, judge)


def _writing(
    found: JudgeFolder, loaded: LoadedJudge, section: JudgeSection, trained: TrainedJudgeSection
) -> FrameJudge:
    """A judge that writes, in this process."""
    writer = LocalWriter(loaded, section, trained)
    return FrameJudge(found.name, writer, chosen_form(found.form, trained), section)


@asynccontextmanager
async def _here(
    section: JudgeSection, judge: FrameJudge | ServedScalarJudge
) -> AsyncIterator[tuple[OpenJudge, Ready]]:
    async def ready() -> list[str]:
        return []

    yield OpenJudge(build_judge(section, judge), None, (), judge.notes), ready


@asynccontextmanager
async def _at_server(
    config: JudgeServerConfig, found: JudgeFolder
) -> AsyncIterator[tuple[OpenJudge, Ready]]:
    section = config.trained
    if found.scores:
        raise ConfigError(
            f"trained.base_url: {found.name} scores answers, which is computed in the service's "
            "own process; leave base_url out"
        )
    name = section.model_name or str(section.folder)
    client = ChatClient(
        name, ModelEntry(base_url=section.base_url or "", model_name=name), config.llm
    )
    try:
        writer = ServerWriter(client.as_role("judge"), config.judge)
        judge = FrameJudge(found.name, writer, chosen_form(found.form, section), config.judge)
        yield OpenJudge(build_judge(config.judge, judge), None, (), judge.notes), client.check
    finally:
        await client.aclose()


@asynccontextmanager
async def open_trained_judge(named: JudgeName) -> AsyncIterator[OpenedJudge]:
    """What ``--judge`` names to be measured: a run, a checkpoint or a folder that transformers
    loads, such as scripts/export_model.py writes. One that writes is asked as it was trained; with
    ``--ask pointwise`` for a grade of each answer. Raises RunError, ConfigError or DataError."""
    folder = Path(named.judge)
    found = find_judge(folder)
    loaded = load_judge(found)
    places = [*{folder, found.place}]
    if loaded.scores:
        contender = ScalarJudge(found.name, Scorer(loaded), found.calibration)
        about = {"folder": found.name, "calibration": str(found.calibration)}
        yield OpenedJudge(contender, AT_ONCE, about, places)
        return
    config = load_judge_server(named.config, named.overrides)
    section = measured_section(config.judge).model_copy(update={"both_orders": False})
    judge = _writing(found, loaded, section, config.trained)
    way: Way = "pointwise" if chosen_form(found.form, config.trained).judges == "one" else named.way
    about = {"folder": found.name, "way": way,
             "asked": fingerprint(section.model_copy(update={"ask": way}))}  # fmt: skip
    measured = ServiceJudge(build_judge(section, judge), way)
    yield OpenedJudge(measured, 2 * config.trained.batch, about, places)


class LocalWriter:
    """Writes with the judge's own weights; prompts that wait together are sampled together. A reply
    has at most ``judge.max_tokens`` tokens, and ``judge.temperature`` is that of its draws."""

    def __init__(
        self, judge: LoadedJudge, section: JudgeSection, trained: TrainedJudgeSection
    ) -> None:
        self._policy = judge.policy
        longest = trained.max_tokens or judge.longest
        room = section.max_tokens if longest is None else min(section.max_tokens, longest // 2)
        self._longest = None if longest is None else longest - room
        self._sampling = Sampling(section.temperature, 1.0, room, seed=0)
        kinds = getattr(judge.policy.causal_lm.config, "layer_types", None) or ["full_attention"]
        sharing = set(kinds) == {"full_attention"}
        self._sampler = LocalSampler(judge.policy, trained.batch, sharing=sharing)
        self.together = Together(self._written, trained.batch)

    async def write(self, messages: Sequence[Message]) -> Written:
        try:
            ids = await asyncio.to_thread(
                template_ids, messages, self._policy.tokenizer, to_answer=True
            )
        except DataError as error:
            raise RequestRefused(str(error)) from error
        if self._longest is not None and len(ids) > self._longest:
            raise RequestRefused(
                f"a prompt of {len(ids):,} tokens; beside a reply the judge takes {self._longest:,}"
            )
        sample = await self.together.ask(ids)
        return Written(sample.text, sample.finish_reason, Usage(1, len(ids), len(sample.token_ids)))

    def _written(self, prompts: Sequence[Sequence[int]]) -> list[Sample]:
        # Every prompt at place 0: equal prompts are written alike, whoever else waits.
        places = [0] * len(prompts)
        groups = self._sampler.draw(prompts, 1, self._sampling, places)
        return [group[0] for group in groups]
