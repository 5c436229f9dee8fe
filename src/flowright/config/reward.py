"""The keys of weighted terms beside a judge: in `reward` of a run or a judge service, and in
`reward.config` of the adapter."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from flowright.config.section import Name, Section

LARGEST_REWARD = 1e12
"""Larger rewards are refused: their squares overflow in a group's deviation and in metrics."""

RewardValue = Annotated[float, Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD)]
ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]

_RESERVED = frozenset(
    {"judge", "overall", "reason", "validity", "correctness", "cost", "kl", "overlong"}
)
"""Names of other parts of a verdict or a reward."""


class TermSection(Section):
    """The value of a `function`, a `rule` or an `aspect`."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
    """Name in metrics and records."""
    weight: RewardValue = 1.0
    """Factor of its value; 0 only logs it."""
    function: ImportPath | None = None
    """`package.module:function` with TRL's signature."""
    rule: Name | None = None
    """`gold` (0 or 1), `words` (length as a share of the argument `most`, at most 1), or the id of
    a constraint checker (0 or 1)."""
    arguments: Mapping[str, Any] = Field(default_factory=dict)
    """Arguments of the rule."""
    aspect: Name | None = None
    """Question that `judge.model` grades; from 0 to 1."""

    @model_validator(mode="after")
    def _check_one_source(self) -> "TermSection":
        given = [key for key in ("function", "rule", "aspect") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give one of function, rule and aspect, not {', '.join(given) or 'none'}"
            )
        if self.arguments and self.rule is None:
            raise ValueError("arguments are a rule's; leave them out")
        return self


class TermsSection(Section):
    """Weighted terms beside the judge. The score of an answer is the sum of weights times values,
    not normalised."""

    judge_weight: Annotated[float, Field(ge=0, le=LARGEST_REWARD)] = 1.0
    """Weight of the judge; 0: it is not asked."""
    terms: tuple[TermSection, ...] = ()
    """Terms that are added."""

    @model_validator(mode="after")
    def _check_names(self) -> "TermsSection":
        names = [term.name for term in self.terms]
        if bad := sorted({*_RESERVED} & {*names}):
            raise ValueError(f"terms: {', '.join(bad)}: parts of every reward; choose other names")
        if len({*names}) < len(names):
            raise ValueError("terms: two have the same name")
        if not self.judge_weight and not any(term.weight for term in self.terms):
            raise ValueError("judge_weight: 0 without a term that has a weight: nothing is earned")
        return self

    @property
    def has_terms(self) -> bool:
        """True if a score is more than the judge's."""
        return bool(self.terms) or self.judge_weight != 1

    @property
    def aspects(self) -> dict[str, str]:
        """Questions of the aspects by name."""
        return {term.name: term.aspect for term in self.terms if term.aspect is not None}

    @property
    def asks_model(self) -> bool:
        """True if the judge is asked, for a verdict or for aspects."""
        return bool(self.judge_weight or self.aspects)

    @property
    def formula(self) -> str:
        """The sum, for people: ``1 judge + 0.2 concise``; empty without terms."""
        judge = [f"{self.judge_weight:g} judge"] if self.judge_weight else []
        sum_of = [*judge, *(f"{term.weight:g} {term.name}" for term in self.terms)]
        return " + ".join(sum_of).replace("+ -", "- ") if self.has_terms else ""

    def check_aspects(self, has_model: bool) -> None:
        """Raise ValueError for aspects where no model of `llm.file` judges."""
        if self.aspects and not has_model:
            raise ValueError(
                f"reward.terms: aspect {', '.join(self.aspects)}: graded by judge.model, which "
                "judges neither beside judge.service nor with judge.mode: rules"
            )
