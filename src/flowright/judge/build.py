"""From the configuration to a judge. The one place that knows which wrapper goes around which."""

from collections.abc import Sequence

from flowright.config import JudgeSection
from flowright.judge.breaker import CircuitBreaker
from flowright.judge.cache import Cached
from flowright.judge.llm_judge import LlmJudge
from flowright.judge.panel import Panel
from flowright.judge.prompts import PROMPT_VERSION
from flowright.judge.rules import RuleJudge
from flowright.judge.verdict import Judge
from flowright.judge.wrappers import Gated, WithRuleFallback, WithRulesFirst
from flowright.llm.chat import ChatModel


def build_judge(
    section: JudgeSection, model: ChatModel | None, panel: Sequence[ChatModel] = ()
) -> Judge:
    """The configured judge, from the outside in: gate, rules, panel, cache, breaker, model.

    ``model`` may be None only where rules alone decide; ``panel`` are the models of
    ``section.panel``, each with a cache and a breaker of its own.
    """
    judge = _decider(section, model, panel)
    return Gated(judge) if section.gate else judge


def _decider(section: JudgeSection, model: ChatModel | None, panel: Sequence[ChatModel]) -> Judge:
    if section.mode == "rules":
        return RuleJudge()
    if model is None:
        raise ValueError(f"judge.mode {section.mode!r} needs a model")
    asked = _asked(section, model)
    if panel:
        members = [asked, *(_asked(section, member) for member in panel)]
        asked = Panel(members, section.combine, section.quorum, section.weights or None)
    if section.mode == "judge_with_rule_fallback":
        return WithRuleFallback(asked, RuleJudge())
    if section.mode == "rules_then_judge":
        return WithRulesFirst(RuleJudge(reader_behind=True), asked)
    return asked


def _asked(section: JudgeSection, model: ChatModel) -> Judge:
    asked: Judge = LlmJudge(model, section)
    if section.breaker_threshold:
        asked = CircuitBreaker(asked, section.breaker_threshold, section.breaker_seconds)
    if section.cache_size:
        asked = Cached(asked, section.cache_size, _fingerprint(section))
    return asked


def _fingerprint(section: JudgeSection) -> str:
    """What decides a verdict beside model and query."""
    asked = (section.temperature, section.max_tokens, section.reasoning_effort)
    return f"{PROMPT_VERSION} {asked}"
