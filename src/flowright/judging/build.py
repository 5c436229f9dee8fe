"""From the configuration to a judge: opened, and built in its wrappers.

Its service is connected here; its models are open already. The one place that knows which wrapper
goes around which.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from flowright.config.judge import JudgeSection
from flowright.config.llm import SIMULATED
from flowright.grading.gold import Algebra
from flowright.judging.llm_judge import LlmJudge
from flowright.judging.panel import Panel
from flowright.judging.prompts import wording_hash
from flowright.judging.remote import RemoteJudge
from flowright.judging.rules import RuleJudge
from flowright.judging.verdict import Judge, Wrapper
from flowright.judging.wrappers import (
    Cached,
    CircuitBreaker,
    Gated,
    Sample,
    SecondReading,
    WithRuleFallback,
    WithRulesFirst,
)
from flowright.llm.chat import ChatModel
from flowright.llm.client import ChatClient
from flowright.llm.counters import Counters


@dataclass(frozen=True, slots=True)
class OpenJudge:
    """A judge that can be asked. ``service`` is None where models or rules decide; ``models`` are
    the names of those that are asked. ``own_notes``: see :attr:`notes`."""

    judge: Judge
    service: RemoteJudge | None
    models: tuple[str, ...]
    own_notes: tuple[str, ...] = ()

    @property
    def counters(self) -> tuple[Counters, ...]:
        """What its service was asked; its models' counters are those of their clients."""
        return () if self.service is None else (self.service.counters,)

    @property
    def simulated(self) -> bool:
        """Whether the embedded server judges, or a service that said so in the latest check."""
        from_service = self.service is not None and self.service.simulated
        return SIMULATED in self.models or from_service

    @property
    def notes(self) -> tuple[str, ...]:
        """What one has to know of its verdicts, a sentence each: its own word, or its service's in
        the latest check."""
        return self.own_notes if self.service is None else self.service.notes

    def state(self, without: Sequence[str] = ()) -> list[Any]:
        """What its caches know (:meth:`flowright.judging.wrappers.Cached.state`), a list for each."""
        return [cache.state(without) for cache in caches(self.judge)]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        for cache, known in zip(caches(self.judge), state, strict=False):
            cache.restore(known)

    async def check(self) -> list[str]:
        """What keeps its service from being used, in a line; empty when all is well. Its models are
        checked by who opened them (:meth:`flowright.simulation.opening.Models.check`)."""
        return [] if self.service is None else await self.service.check()


@asynccontextmanager
async def open_judge(
    section: JudgeSection,
    model: str | None,
    models: Mapping[str, ChatClient],
    algebra: Algebra | None = None,
) -> AsyncIterator[OpenJudge]:
    """The judge of ``section``. ``model`` names the one of ``models`` that judges, None where a
    service or rules do; ``models`` must have it and the panel. Their calls for it are counted
    under the role ``judge``, those of a service under ``judge_service``. With ``algebra`` the rules
    evaluate expressions; without it they abstain there."""
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
        panel = [clients[name] for name in section.panel]
        judge = build_judge(section, asked, panel, algebra)
        yield OpenJudge(judge, service, names)


def build_judge(
    section: JudgeSection,
    model: ChatModel | Judge | None,
    panel: Sequence[ChatModel] = (),
    algebra: Algebra | None = None,
) -> Judge:
    """The configured judge, from the outside in: gate, rules, second reading, panel, cache,
    breaker, samples, and what is asked. The floor of a second reading is no judge's verdict and is
    not cached.

    ``model`` is asked, or the service of ``section.service``, or another judge that the section's
    wrappers go around; None only where rules alone decide.
    ``panel`` are the models of ``section.panel``, each with a cache and a breaker of its own.
    ``algebra`` decides for the rules what has to be evaluated.
    Raises ConfigError for a wording or another choice by import path that cannot be used.
    """
    judge = _decider(section, model, panel, algebra)
    return Gated(judge) if section.gate else judge


def rules_alone(algebra: Algebra | None = None) -> Judge:
    """The judge of ``judge.mode: rules``: what the rules decide of the reference and not of the
    answer is wrong (``source="floor"``)."""
    rules = RuleJudge(algebra=algebra)
    return SecondReading(rules, reader=rules, rules=rules)


def _decider(
    section: JudgeSection,
    model: ChatModel | Judge | None,
    panel: Sequence[ChatModel],
    algebra: Algebra | None,
) -> Judge:
    if section.mode == "rules":
        return rules_alone(algebra) if section.second_reading else RuleJudge(algebra=algebra)
    if model is None:
        raise ValueError(f"judge.mode {section.mode!r} needs a model or a service")
    judges = [_backend(section, member) for member in (model, *panel)]
    asked = _together(section, [_kept(section, _sampled(section, judge)) for judge in judges])
    rules = RuleJudge(only_certain=True, algebra=algebra)
    if section.mode == "judge_with_rule_fallback":
        asked = WithRuleFallback(asked, rules)
    if section.second_reading:
        readers = [j.strictly() if isinstance(j, LlmJudge) else j for j in judges]
        reader = _together(section, [_sampled(section, judge) for judge in readers])
        asked = SecondReading(asked, reader, rules)
    if section.mode == "rules_then_judge":
        return WithRulesFirst(asked, rules)
    return asked


def _backend(section: JudgeSection, model: ChatModel | Judge) -> Judge:
    if isinstance(model, Judge):
        return model
    temperature = section.sample_temperature if section.samples > 1 else section.temperature
    return LlmJudge(model, section.model_copy(update={"temperature": temperature}))


def _sampled(section: JudgeSection, judge: Judge) -> Judge:
    if section.samples == 1:
        return judge
    samples = [Sample(judge, number) for number in range(section.samples)]
    # With a panel, the confidence must do twice: among these, and among the members.
    return Panel(samples, section.combine, min_confidence=section.min_confidence)


def _kept(section: JudgeSection, judge: Judge) -> Judge:
    """One model or service with what is its own: breaker, cache."""
    if section.breaker_threshold:
        judge = CircuitBreaker(judge, section.breaker_threshold, section.breaker_seconds)
    if section.cache_size:
        judge = Cached(judge, section.cache_size, fingerprint(section))
    return judge


def _together(section: JudgeSection, judges: Sequence[Judge]) -> Judge:
    if len(judges) == 1:
        return judges[0]
    return Panel(judges, section.combine, section.quorum, section.weights, section.min_confidence)


def caches(judge: Judge) -> list[Cached]:
    """Those around the judge and within it, the outermost first."""
    inside = judge.members if isinstance(judge, Panel) else ()
    inside = (judge.inner,) if isinstance(judge, Wrapper) else inside
    found = [judge] if isinstance(judge, Cached) else []
    return found + [cache for each in inside for cache in caches(each)]


def fingerprint(section: JudgeSection) -> str:
    """What decides a verdict beside model and query."""
    asked = section.model_dump(
        include={
            "ask", "aspects", "right_from", "both_orders", "on_disagreement", "samples",
            "sample_temperature", "combine", "min_confidence", "temperature", "max_tokens",
            "reasoning_effort", "max_answer_chars",
        }
    )  # fmt: skip
    return f"{wording_hash(section)} {asked}"
