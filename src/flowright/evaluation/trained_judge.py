"""A trained judge, loaded from a run, a checkpoint, an adapter, a Hugging Face folder or verl's
files: to be measured, calibrated or served. It scores answers or writes its verdicts, in this
process; one that writes may be at an OpenAI-compatible server instead.

One that scores is calibrated at the end of its run, for the checkpoint that is served, or on the
pairs of a file (scripts/calibrate_judge.py)."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers.utils import logging

from flowright.config.grpo import GrpoSection
from flowright.config.judge import JudgeSection, TrainedJudgeSection
from flowright.config.llm import ModelEntry
from flowright.config.loading import load_judge_server
from flowright.config.policy import PolicySection
from flowright.config.root import JudgeServerConfig
from flowright.core.batch_calls import RequestBatcher
from flowright.core.errors import ConfigError, DataError, UserError
from flowright.core.files import check_writable, read_object, write_json
from flowright.data.contamination import TrainedOn
from flowright.data.task import Pair, Task
from flowright.environments.judging.frame_judge import (
    FORM_FILE,
    FrameJudge,
    JudgeForm,
    ServerWriter,
    Written,
    chosen_form,
    form_of_run,
    read_form,
)
from flowright.environments.judging.rows import read_rows
from flowright.environments.judging.tasks import FORMS, JudgingTask
from flowright.grpo.batch import Group, scalar_scores
from flowright.grpo.checkpoint import Saves
from flowright.grpo.fixed_data import FixedData, scored_group
from flowright.judging.build import OpenJudge, build_judge, fingerprint, open_terms
from flowright.judging.measuring.benchmark_judges import (
    JudgeName,
    OpenedJudge,
    ServiceJudge,
    Way,
    measured_section,
)
from flowright.judging.measuring.pair_figures import prompt_of
from flowright.judging.service.app import Ready
from flowright.judging.terms import RewardTerms
from flowright.judging.trained.calibration import (
    FILE,
    FILE as CALIBRATION,
    Calibration,
    ScoredPair,
    calibrate,
    read_calibration,
    write_calibration,
)
from flowright.judging.trained.scalar_judge import ScalarJudge, ServedScalarJudge
from flowright.llm.chat import Message, RequestRefused, Usage
from flowright.llm.client import ChatClient
from flowright.llm.context import WithControl
from flowright.policy.chat_templates import CHAT_TEMPLATE
from flowright.policy.export.model import export_of
from flowright.policy.export.source import ExportSource, Kind, export_id, find_source
from flowright.policy.head import prepare_scalar
from flowright.policy.local import LocalSampler
from flowright.policy.model import Policy, choose_device, policy_of
from flowright.policy.model_folders import load_tokenizer
from flowright.policy.model_thread import on_model_thread
from flowright.policy.sampling import Sample, Sampling, template_ids
from flowright.policy.tuning import CONFIG_FILE
from flowright.runs.run_files import step_name

TEXTS_AT_ONCE = 64

_SCORES = "ForSequenceClassification"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class JudgeFolder:
    """A judge's files. ``place`` is the folder of its calibration; ``form`` is the question form of
    a judge that writes, None if its files lack one."""

    source: ExportSource
    place: Path
    form: JudgeForm | None
    calibration: Calibration

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def scores(self) -> bool:
        """True if it scores answers, by its files alone."""
        adapter = self.source.kind is Kind.ADAPTER
        folder = self.source.folder / ("huggingface" if self.source.kind is Kind.SHARDS else "")
        config = _json(folder / (CONFIG_FILE if adapter else "config.json"))
        if adapter:
            return config.get("task_type") == "SEQ_CLS"
        return any(str(name).endswith(_SCORES) for name in config.get("architectures") or ())


@dataclass(frozen=True, slots=True)
class LoadedJudge:
    """A judge in memory. ``longest`` is the most tokens of a text by its config."""

    policy: Policy
    scores: bool
    longest: int | None


def find_judge(path: Path) -> JudgeFolder:
    """Describe the judge in a folder without loading it. Raises RunError where there is none,
    DataError for files that cannot be read."""
    return judge_of(find_source(path))


def judge_of(source: ExportSource) -> JudgeFolder:
    """Describe the judge of a source."""
    place = source.folder
    if (place.parent / "manifest.json").is_file():  # a checkpoint's adapter/ or model/
        place = place.parent
    form = read_form(place / FORM_FILE) or form_of_run(source.run)
    return JudgeFolder(source, place, form, read_calibration(place))


def load_judge(found: JudgeFolder, device: str = "auto", base: str | None = None) -> LoadedJudge:
    """Load the judge. An adapter is merged into its base (``base``, or the one its files name) in
    float32. Raises RunError or ConfigError."""
    logging.disable_progress_bar()
    source = found.source
    export = export_of(source, base, None, merge=False)
    kind = (export.kind.architectures or [""])[0]
    if not kind.endswith((_SCORES, "ForCausalLM")) or (
        kind.endswith(_SCORES) and export.kind.num_labels != 1
    ):
        raise ConfigError(
            f"{source.name}: {kind or 'no model'}; a judge is a language model, or one of "
            f"AutoModel{_SCORES} with one label"
        )
    scores = kind.endswith(_SCORES)
    section = _section(source.run, scores, device)
    where = choose_device(section)
    dtype = getattr(torch, str(section.on(where.type).dtype))
    model = export.load(torch.float32 if export.adapter is not None else dtype)
    if isinstance(model, PeftModel):
        merged: Any = model.merge_and_unload()
        model = merged.to(dtype)
    folders = [one for one in export.about if any((one / name).is_file() for name in _TOKENIZER)]
    template = source.folder / CHAT_TEMPLATE  # beside an adapter: of its training
    if not folders:
        raise ConfigError(f"{source.name}: no tokenizer beside it; export it, or copy its base's")
    tokenizer = load_tokenizer(folders[0], template if template.is_file() else None)
    if scores:
        prepare_scalar(model, tokenizer, fresh=False)
    policy = policy_of(model.to(where), tokenizer, section, 0, source.name)
    longest = getattr(export.kind.get_text_config(), "max_position_embeddings", None)
    return LoadedJudge(policy, scores, longest)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error


def _section(run: Mapping[str, Any], scores: bool, device: str) -> PolicySection:
    """Precision and layers as in training, where known."""
    trained = run.get("policy", {})
    kept = {key: trained[key] for key in ("dtype", "lora") if trained.get(key) is not None}
    head = "score" if scores else "language_model"
    return PolicySection.model_validate({**kept, "head": head, "device": device})


def copy_judge_files(source: ExportSource, out: Path) -> list[str]:
    """Copy a judge's question form and calibration beside its exported weights; return a line for
    each file."""
    found = judge_of(source)
    lines = []
    if found.form is not None:
        text = json.dumps(found.form.model_dump(), indent=2)
        (out / FORM_FILE).write_text(text + "\n", encoding="utf-8")
        lines.append(f"{FORM_FILE}: the question form of the judge")
    if found.calibration.is_fitted:
        (out / CALIBRATION).write_bytes((found.place / CALIBRATION).read_bytes())
        lines.append(f"{CALIBRATION}: {found.calibration}")
    return lines


Backend = Callable[[], AbstractAsyncContextManager[tuple[OpenJudge, Ready]]]


def load_trained_judge(config: JudgeServerConfig) -> Backend:
    """Load the judge of ``trained``; return what opens it as a backend on the service's event loop.
    Raises RunError, ConfigError or DataError."""
    section = config.trained
    assert section.folder is not None, "trained.folder names the judge"
    found = find_judge(section.folder)
    if section.base_url is not None:
        return lambda: _at_server(config, found)
    loaded = load_judge(found, section.device, section.base)
    judge: FrameJudge | ServedScalarJudge
    if loaded.scores:
        scorer = LocalScorer(loaded, section.batch, section.max_tokens)
        judge = ServedScalarJudge(found.name, scorer, found.calibration, config.judge)
    else:
        judge = _frame_judge(found, loaded, config.judge, section)
    record = TrainedOn.gathered({section.folder, found.place})
    terms = open_terms(config.reward, config.judge)
    return lambda: _in_process(config.judge, judge, record, terms)


def _frame_judge(
    found: JudgeFolder, loaded: LoadedJudge, section: JudgeSection, trained: TrainedJudgeSection
) -> FrameJudge:
    """Return a judge that writes, in this process."""
    writer = LocalWriter(loaded, section, trained)
    return FrameJudge(found.name, writer, chosen_form(found.form, trained), section)


@asynccontextmanager
async def _in_process(
    section: JudgeSection,
    judge: FrameJudge | ServedScalarJudge,
    record: TrainedOn | None,
    terms: RewardTerms | None,
) -> AsyncIterator[tuple[OpenJudge, Ready]]:
    async def ready() -> list[str]:
        return []

    built = build_judge(section, judge)
    yield OpenJudge(built, None, (), judge.notes, record, terms=terms), ready


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
        writer = ServerWriter(WithControl(client.as_role("judge")), config.judge)
        judge = FrameJudge(found.name, writer, chosen_form(found.form, section), config.judge)
        record = TrainedOn.gathered({found.source.folder, found.place})
        built = build_judge(config.judge, judge)
        terms = open_terms(config.reward, config.judge)
        yield OpenJudge(built, None, (), judge.notes, record, terms=terms), client.check
    finally:
        await client.aclose()


@asynccontextmanager
async def open_trained_judge(named: JudgeName) -> AsyncIterator[OpenedJudge]:
    """Open the trained judge in a folder for a benchmark. One that writes is asked as it was
    trained; with ``--ask pointwise`` for a grade of each answer. Raises RunError, ConfigError or
    DataError."""
    folder = Path(named.judge)
    found = find_judge(folder)
    loaded = load_judge(found)
    folders = [*{folder, found.place}]
    identity = export_id(found.source)
    if loaded.scores:
        scalar = ScalarJudge(found.name, LocalScorer(loaded), found.calibration)
        about = {"folder": found.name, "weights": identity, "calibration": str(found.calibration)}
        yield OpenedJudge(scalar, TEXTS_AT_ONCE, about, folders)
        return
    config = load_judge_server(named.config, named.overrides)
    if config.reward.has_terms:
        raise UserError("reward.terms: a trained judge is measured alone; leave them out")
    section = measured_section(config.judge).model_copy(update={"both_orders": False})
    judge = _frame_judge(found, loaded, section, config.trained)
    way: Way = "pointwise" if chosen_form(found.form, config.trained).judges == "one" else named.way
    about = {"folder": found.name, "weights": identity, "way": way,
             "asked": fingerprint(section.model_copy(update={"ask": way}))}  # fmt: skip
    measured = ServiceJudge(build_judge(section, judge), way)
    yield OpenedJudge(measured, 2 * config.trained.batch, about, folders)


def _shares_prefixes(policy: Policy) -> bool:
    kinds = getattr(policy.causal_lm.config, "layer_types", None) or ["full_attention"]
    return set(kinds) == {"full_attention"}


class LocalWriter:
    """Writes with the judge's own weights; waiting prompts are sampled in one batch. A reply has at
    most ``judge.max_tokens`` tokens, drawn at ``judge.temperature``."""

    def __init__(
        self, judge: LoadedJudge, section: JudgeSection, trained: TrainedJudgeSection
    ) -> None:
        self._policy = judge.policy
        longest = trained.max_tokens or judge.longest
        room = section.max_tokens if longest is None else min(section.max_tokens, longest // 2)
        self._longest = None if longest is None else longest - room
        self._sampling = Sampling(section.temperature, 1.0, room, seed=0)
        sharing = _shares_prefixes(judge.policy)
        self._sampler = LocalSampler(judge.policy, trained.batch, sharing=sharing)
        self.batcher = RequestBatcher(partial(on_model_thread, self._written), trained.batch)

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
        sample = await self.batcher.ask(ids)
        return Written(sample.text, sample.finish_reason, Usage(1, len(ids), len(sample.token_ids)))

    def _written(self, prompts: Sequence[Sequence[int]]) -> list[Sample]:
        # Every prompt at place 0: equal prompts get equal replies, whatever else is in the batch.
        groups = self._sampler.draw(prompts, 1, self._sampling, [0] * len(prompts))
        return [group[0] for group in groups]


class LocalScorer:
    """Scores an answer by the last token of the whole conversation in the model's chat template.
    Waiting texts are computed in one batch; those with a common beginning share it, where the
    model's attention allows. ``longest`` is the most tokens of a text."""

    def __init__(
        self, judge: LoadedJudge, at_once: int = TEXTS_AT_ONCE, longest: int | None = None
    ) -> None:
        if not judge.scores:
            raise ConfigError(f"{judge.policy.name}: it writes and scores nothing")
        self._policy = judge.policy
        self._longest = longest or judge.longest
        self._section = GrpoSection(prefix_sharing=_shares_prefixes(judge.policy))
        self.batcher = RequestBatcher(partial(on_model_thread, self._scores), at_once)

    async def score(self, turns: Sequence[Message], answer: str) -> tuple[float, int]:
        whole = [*turns, Message("assistant", answer)]
        ids = await asyncio.to_thread(template_ids, whole, self._policy.tokenizer, to_answer=False)
        if not ids:
            raise DataError("a text without a token")
        if self._longest is not None and len(ids) > self._longest:
            raise DataError(f"a text of {len(ids):,} tokens; the judge takes {self._longest:,}")
        return await self.batcher.ask((tuple(turns), ids)), len(ids)

    def _scores(self, texts: Sequence[tuple[tuple[Message, ...], list[int]]]) -> list[float]:
        """Scores of texts with the conversation that they answer, in their order."""
        places: dict[tuple[Message, ...], list[int]] = defaultdict(list)
        for place, (turns, _) in enumerate(texts):
            places[turns].append(place)
        groups: list[Group] = [
            scored_group([texts[place][1] for place in some]) for some in places.values()
        ]
        scores = scalar_scores(self._policy, groups, self._section)
        order = [place for some in places.values() for place in some]
        return [score for _, score in sorted(zip(order, scores, strict=True))]


async def calibrate_run(saves: Saves, batches: FixedData, tasks: Sequence[Task], step: int) -> None:
    """Calibrate the judge of a finished run on its held-out pairs: the best checkpoint, else the
    last, as exporting and serving choose it. Writes calibration.json beside the weights, and a copy
    into the run directory for its report; reports too few pairs. All ranks call it alike, and have
    that checkpoint's weights afterwards."""
    policy, ranks, root = saves.policy, saves.ranks, saves.run.checkpoints_path
    best = step if saves.best is None else saves.best.step
    if best != step:
        await saves.load_weights(root / step_name(best))
    pairs = [task for task in tasks if isinstance(task, JudgingTask) and isinstance(task.row, Pair)]
    groups = [group for task in pairs for group in batches.groups([task])]
    scores = await on_model_thread(scalar_scores, policy, groups, saves.config.grpo)
    if not ranks.is_first:
        return
    both = zip(scores[::2], scores[1::2], strict=True)
    scored = [
        ScoredPair(first, second, task.row.label, prompt_of(task.row))
        for task, (first, second) in zip(pairs, both, strict=True)
        if isinstance(task.row, Pair)
    ]
    try:
        found = calibrate(scored, "the run's held-out pairs")
    except DataError as error:
        saves.reporter.say(f"not calibrated: {error}")
        return
    path = write_calibration(root / step_name(best), found)
    write_json(saves.run.path / FILE, {**found.record, "checkpoint": step_name(best)})
    for line in found.lines():
        saves.reporter.say(line)
    saves.reporter.say(f"written   {path}")


def calibrate_folder(
    folder: Path, files: Sequence[Path], device: str = "auto"
) -> tuple[Calibration, list[str]]:
    """Calibrate the judge in a folder on the pairs of files, and write calibration.json beside its
    weights. Returns it with lines for people. Raises UserError."""
    found = find_judge(folder)
    check_writable(found.place)
    read = read_rows(files, FORMS["bradley_terry"])
    pairs = [row for row in read.rows if isinstance(row, Pair)]
    judge = load_judge(found, device)
    if not judge.scores:
        raise ConfigError(f"{found.name}: it writes its verdicts; scores alone have a temperature")
    scored, problems = asyncio.run(_score_pairs(LocalScorer(judge), pairs))
    calibration = calibrate(scored, ", ".join(path.name for path in files))
    path = write_calibration(found.place, calibration)
    lines = [*read.report.lines(3), *(f"left out  {problem}" for problem in problems)]
    return calibration, [*lines, *calibration.lines(), f"written   {path}"]


async def _score_pairs(
    scorer: LocalScorer, pairs: Sequence[Pair]
) -> tuple[list[ScoredPair], list[str]]:
    """Pairs with their scores, and a line for each pair without."""

    async def one(pair: Pair) -> ScoredPair:
        turns = [*pair.conversation]
        answers = (scorer.score(turns, answer) for answer in (pair.first, pair.second))
        (first, _), (second, _) = await asyncio.gather(*answers)
        return ScoredPair(first, second, pair.label, prompt_of(pair))

    found = await asyncio.gather(*map(one, pairs), return_exceptions=True)
    problems = []
    for pair, each in zip(pairs, found, strict=True):
        if isinstance(each, DataError):
            problems.append(f"{pair.id}: {each}")
        elif isinstance(each, BaseException):
            raise each
    return [each for each in found if isinstance(each, ScoredPair)], problems
