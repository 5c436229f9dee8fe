"""Open the configured judge, and put it in its wrappers.

The order of the wrappers is written once, in :func:`wrap_backend` and :func:`wrap_verdicts`, for
runs and services (:func:`build_judge`) and for the reward adapter.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flowright.config.judge import WORDING, JudgeSection
from flowright.config.llm import SIMULATED
from flowright.config.loading import load_entries
from flowright.config.reward import TermsSection
from flowright.core.errors import ConfigError
from flowright.data.contamination import TrainedOn
from flowright.grading.gold import Algebra
from flowright.judging.group_judge import GroupJudge
from flowright.judging.llm_judge import LlmJudge
from flowright.judging.panel import BestSamples, MetaJudge, Panel
from flowright.judging.prompts import WITHOUT_REFERENCE, wording_hash
from flowright.judging.remote import RemoteJudge
from flowright.judging.rules import RuleJudge
from flowright.judging.terms import NoJudge, RewardTerms, WithTerms
from flowright.judging.verdict import Judge, Status, Wrapper
from flowright.judging.wrappers import (
    STEERABLE,
    Cached,
    Calibrated,
    CircuitBreaker,
    Gated,
    LogsFailures,
    SampledJudge,
    SecondReading,
    WithRuleFallback,
    WithRulesFirst,
)
from flowright.llm.chat import ChatModel
from flowright.llm.client import ChatClient
from flowright.llm.counters import Counters

W = TypeVar("W", bound=Wrapper)


@dataclass(frozen=True, slots=True)
class OpenJudge:
    """A judge that is ready for queries. ``service`` is None if models or rules decide; ``models``
    are the names of the models in use, ``clients`` theirs; ``trained_on`` is known of some trained
    judges. With a ``ranking``, ``judge`` compares two answers. ``terms`` are not part of ``judge``,
    which is not asked where its weight is 0."""

    judge: Judge
    service: RemoteJudge | None
    models: tuple[str, ...]
    own_notes: tuple[str, ...] = ()
    trained_on: TrainedOn | None = None
    clients: tuple[ChatClient, ...] = ()
    ranking: GroupJudge | None = None
    terms: RewardTerms | None = None

    def weighted(self, right_from: float) -> Judge:
        """Return the judge of a service: with the terms, and scores in [0, 1]."""
        if self.terms is None:
            return self.judge
        return WithTerms(self.judge, self.terms, right_from, bounded=True)

    @property
    def counters(self) -> tuple[Counters, ...]:
        """Counters of its service; those of its models belong to their clients."""
        return () if self.service is None else (self.service.counters,)

    @property
    def simulated(self) -> bool:
        """True for the embedded server, and for a service or a model's server that was simulated at
        the latest check."""
        others = (*self.clients, *((self.service,) if self.service else ()))
        return SIMULATED in self.models or any(each.simulated for each in others)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on its verdicts, a sentence each; a service's are those of the latest check."""
        return self.own_notes if self.service is None else self.service.notes

    def state(self, without: Sequence[str] = ()) -> list[Any]:
        """Return the contents of its caches (:meth:`Cached.state`), a list for each."""
        return [cache.state(without) for cache in caches_of(self.judge, self.terms)]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        for cache, known in zip(caches_of(self.judge, self.terms), state, strict=False):
            cache.restore(known)

    async def check(self) -> list[str]:
        """Return why its service cannot be used, in a line; empty if it can. Models are checked by
        their opener (:meth:`flowright.simulation.large_models.OpenModels.check`)."""
        return [] if self.service is None else await self.service.check()


def model_folders(llm_file: Path, names: Collection[str]) -> list[Path]:
    """Return the folders of the models that ``llm.file`` names by path, as a server on this machine
    does."""
    entries = load_entries(llm_file, names).values()
    named = [(Path(entry.model_name), entry.tokenizer) for entry in entries]
    return [path for paths in named for path in paths if path is not None]


@asynccontextmanager
async def open_judge(
    section: JudgeSection,
    model: str | None,
    models: Mapping[str, ChatClient],
    algebra: Algebra | None = None,
    seed: int = 0,
    reward: TermsSection | None = None,
) -> AsyncIterator[OpenJudge]:
    """Open the judge of ``section``, and the terms of ``reward``. ``model`` names the judge among
    ``models``, None for a service or rules; ``models`` must contain it and the panel. Calls are
    counted under the role ``judge``, those of a service under ``judge_service``. ``algebra``
    evaluates expressions for the rules, which abstain on them without it. ``seed``: that of the
    run."""
    async with AsyncExitStack() as stack:
        service: RemoteJudge | None = None
        reward = reward or TermsSection()
        if section.service is not None and reward.judge_weight:
            service = RemoteJudge(section.service)
            stack.push_async_callback(service.aclose)
        names = section.further_models if reward.judge_weight else ()
        if not reward.asks_model:
            model = None
        if model is not None and service is None and section.mode != "rules":
            names = (model, *names)
        clients = {name: models[name].as_role("judge") for name in names if name in models}
        asked = service or clients.get(model or "")
        judge: Judge = NoJudge()
        ranking = None
        terms = open_terms(reward, section, clients.get(model or ""), algebra, seed)
        if section.group.method != "none":
            section = section.model_copy(update={"ask": "pairwise"})
        if reward.judge_weight:
            panel = [clients[name] for name in section.panel]
            meta = clients[section.meta] if section.meta else None
            judge = build_judge(section, asked, panel, algebra, meta, seed)
            if section.group.method != "none":
                ranking = GroupJudge(section, judge, clients.get(model or ""), seed)
        yield OpenJudge(
            judge, service, names, clients=tuple(clients.values()), ranking=ranking, terms=terms
        )


def open_terms(
    reward: TermsSection,
    section: JudgeSection,
    model: ChatModel | None = None,
    algebra: Algebra | None = None,
    seed: int = 0,
) -> RewardTerms | None:
    """Return the terms of a reward, None where the judge's score is all of it. ``model`` grades
    aspects, with the settings of ``section``. Raises ConfigError."""
    if not reward.has_terms:
        return None
    gold, aspects = rules_alone(algebra), reward.aspects
    if not aspects:
        return RewardTerms(reward, gold)
    if model is None:
        raise ConfigError("reward.terms: aspects need a model that judges (judge.model)")
    asking = section.model_copy(update={"ask": "multi_aspect", "aspects": aspects})
    judge = LlmJudge(model, asking)
    backend = wrap_backend(
        judge,
        (section.breaker_threshold, section.breaker_seconds),
        (section.cache_size, f"{fingerprint(asking)} {seed}"),
    )
    second = (judge.strictly(), None) if section.second_reading else None
    grader = wrap_verdicts(backend, second_reading=second, gate=section.gate)
    is_ours = section.wording in WORDING
    return RewardTerms(reward, gold, grader, WITHOUT_REFERENCE["multi_aspect"] if is_ours else "")


def build_judge(
    section: JudgeSection,
    model: ChatModel | Judge | None,
    panel: Sequence[ChatModel] = (),
    algebra: Algebra | None = None,
    meta: ChatModel | None = None,
    seed: int = 0,
) -> Judge:
    """Build the configured judge around ``model``, which may be a service or another judge, and is
    None only if rules alone decide. Each member of the ``panel`` has a cache and a breaker of its
    own, around its samples, which ``meta``, the model of ``judge.meta``, rates. Raises ConfigError
    for a wording, or another choice by import path, that cannot be used."""
    if section.mode == "rules":
        judge = rules_alone(algebra) if section.second_reading else RuleJudge(algebra=algebra)
        return Gated(judge) if section.gate else judge
    if model is None:
        raise ValueError(f"judge.mode {section.mode!r} needs a model or a service")

    def backend(member: ChatModel | Judge) -> Judge:
        if isinstance(member, Judge):
            return member
        temperature = section.sample_temperature if section.samples > 1 else section.temperature
        return LlmJudge(member, section.model_copy(update={"temperature": temperature}))

    def sampled(judge: Judge) -> Judge:
        if section.samples == 1:
            return judge
        samples = [SampledJudge(judge, number) for number in range(section.samples)]
        if section.meta is not None:
            if meta is None:
                raise ConfigError("judge.meta: rates a model's samples alone; leave it out here")
            rater, sure = MetaJudge(meta, section), section.min_confidence
            return BestSamples(
                samples, section.combine, min_confidence=sure, meta=rater, keep=section.keep
            )
        # With a panel, the confidence counts twice: among samples, and among members.
        return Panel(samples, section.combine, min_confidence=section.min_confidence)

    def joined(judges: Sequence[Judge]) -> Judge:
        if len(judges) == 1:
            return judges[0]
        return Panel(
            judges, section.combine, section.quorum, section.weights, section.min_confidence
        )

    judges = [backend(member) for member in (model, *panel)]
    breaker = section.breaker_threshold, section.breaker_seconds
    cache = section.cache_size, f"{fingerprint(section)} {seed}"
    rules = RuleJudge(only_certain=True, algebra=algebra)
    second = None
    if section.second_reading:
        readers = [j.strictly() if isinstance(j, LlmJudge) else j for j in judges]
        second = joined([sampled(reader) for reader in readers]), rules
    return wrap_verdicts(
        joined([wrap_backend(sampled(judge), breaker, cache) for judge in judges]),
        fallback=rules if section.mode == "judge_with_rule_fallback" else None,
        second_reading=second,
        rules_first=rules if section.mode == "rules_then_judge" else None,
        gate=section.gate,
    )


def wrap_backend(
    judge: Judge,
    breaker: tuple[int, float],
    cache: tuple[int, str],
    calibration: tuple[float, float] = (0.0, 1.0),
) -> Judge:
    """Wrap one model or service, from the inside out: breaker, calibration, cache. The arguments
    are those of :class:`CircuitBreaker`, :class:`Cached` and :class:`Calibrated`; a first one of 0
    leaves the wrapper out."""
    if breaker[0]:
        judge = CircuitBreaker(judge, *breaker)
    if calibration[0]:
        judge = Calibrated(judge, *calibration)
    return Cached(judge, *cache) if cache[0] else judge


def wrap_verdicts(
    judge: Judge,
    *,
    fallback: Judge | None = None,
    second_reading: tuple[Judge, Judge | None] | None = None,
    steerable: frozenset[Status] = STEERABLE,
    last_resort: Judge | None = None,
    rules_first: Judge | None = None,
    logs: bool = False,
    gate: bool = True,
) -> Judge:
    """Wrap one judge or panel, from the inside out: rule fallback, second reading (its reader and
    rules, for ``steerable`` failures), rule fallback as the last resort, rules first, log, gate.
    The floor of a second reading is no judge's verdict, so it stands outside of the caches."""
    if fallback is not None:
        judge = WithRuleFallback(judge, fallback)
    if second_reading is not None:
        judge = SecondReading(judge, *second_reading, steerable)
    if last_resort is not None:
        judge = WithRuleFallback(judge, last_resort)
    if rules_first is not None:
        judge = WithRulesFirst(judge, rules_first)
    if logs:
        judge = LogsFailures(judge)
    return Gated(judge) if gate else judge


def rules_alone(algebra: Algebra | None = None) -> Judge:
    """Return the judge of ``judge.mode: rules``: an answer that the rules cannot decide is wrong
    if they decide its reference (``source="floor"``)."""
    rules = RuleJudge(algebra=algebra)
    return SecondReading(rules, reader=rules, rules=rules)


def wrappers_of(judge: Judge, kind: type[W]) -> list[W]:
    """Return the wrappers of a kind around the judge and within it, the outermost first."""
    inside = judge.members if isinstance(judge, Panel) else ()
    inside = (judge.inner,) if isinstance(judge, Wrapper) else inside
    found = [judge] if isinstance(judge, kind) else []
    return found + [wrapper for each in inside for wrapper in wrappers_of(each, kind)]


def caches_of(judge: Judge | None, terms: RewardTerms | None) -> list[Cached]:
    """Return the caches of a judge and of the judge of aspects."""
    asked = (judge, terms.aspects if terms is not None else None)
    return [cache for each in asked if each is not None for cache in wrappers_of(each, Cached)]


def fingerprint(section: JudgeSection) -> str:
    """Identify everything that decides a verdict beside model and query."""
    parameters = section.model_dump(
        include={
            "ask", "aspects", "right_from", "both_orders", "on_disagreement", "samples",
            "sample_temperature", "principles", "meta", "keep", "combine", "min_confidence",
            "temperature", "max_tokens", "reasoning_effort", "max_answer_chars",
        }
    )  # fmt: skip
    return f"{wording_hash(section)} {parameters}"
