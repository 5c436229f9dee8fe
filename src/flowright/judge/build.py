"""From the configuration to a judge. The one place that knows which wrapper goes around which."""

from flowright.config import JudgeSection
from flowright.judge.llm_judge import LlmJudge
from flowright.judge.rules import RuleJudge
from flowright.judge.verdict import Judge
from flowright.judge.wrappers import Gated, WithRuleFallback
from flowright.llm.chat import ChatModel


def build_judge(section: JudgeSection, model: ChatModel | None) -> Judge:
    """The configured judge. ``model`` may be None only where rules alone decide."""
    return Gated(_ungated(section, model)) if section.gate else _ungated(section, model)


def _ungated(section: JudgeSection, model: ChatModel | None) -> Judge:
    if section.mode == "rules":
        return RuleJudge()
    if model is None:
        raise ValueError(f"judge.mode {section.mode!r} needs a model")
    asked = LlmJudge(model, section)
    if section.mode == "judge_with_rule_fallback":
        return WithRuleFallback(asked, RuleJudge())
    return asked
