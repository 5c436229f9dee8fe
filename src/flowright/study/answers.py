"""The answer of a study in sentences, made from the outcomes of its claims. No layout here."""

from flowright.core.formatting import NOTHING, Form, format_value, percent, points
from flowright.core.statistics import Estimate
from flowright.study.compare import Outcome
from flowright.study.config import ClaimSection
from flowright.study.measures import MEASURES
from flowright.viewer.rendering import svg

VERDICTS = {True: "holds", False: "not shown", None: "not decided yet"}


def form_of(measure: str) -> Form:
    """How a value of the measure is written."""
    return percent if MEASURES[measure].share else svg.plain


def difference_form(measure: str) -> Form:
    """How a difference of two values is written: of shares in points."""
    return points if MEASURES[measure].share else _signed


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{svg.plain(value)}"


def estimated(estimate: Estimate, form: Form) -> str:
    """``+3.1 (1.0 to 5.2)``; ``-`` where there is none."""
    value = format_value(estimate.value, form)
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} ({form(estimate.low)} to {form(estimate.high)})"


def p_words(p: float | None) -> str:
    """A p-value with two digits, small ones as less than a bound."""
    if p is None:
        return NOTHING
    return "<0.0001" if p < 0.0001 else f"{p:.2g}"


def sentence(outcome: Outcome, control: str) -> str:
    """One claim: what was expected, what was seen, what follows."""
    claim = outcome.claim
    if outcome.holds is None and outcome.whole:
        seeds = "1 seed has" if outcome.wanted == 1 else f"{outcome.wanted} seeds have"
        return f"{claim.hypothesis} Not decided: {seeds} no p-value; run more."
    if outcome.holds is None:
        return (
            f"{claim.hypothesis} Not decided yet: {outcome.pairs} of {outcome.wanted} seeds are "
            "there with both values."
        )
    seen = f"{_seen(outcome, control)}, {outcome.pairs} seeds, Holm p {p_words(outcome.holm)}"
    verdict = {True: "This holds", False: "This was not shown"}[outcome.holds]
    return f"{claim.hypothesis} {verdict}: {seen}."


def _seen(outcome: Outcome, control: str) -> str:
    claim, estimate = outcome.claim, outcome.estimate
    against = claim.against or control
    if claim.test == "log_rank":
        told = estimated(estimate, points)
        ours, theirs = (
            "none" if at is None else f"{at:g}" for at in outcome.medians or (None, None)
        )
        return (
            f"median step of the {_title(claim)} {ours} in {claim.arm}, {theirs} in {against}; "
            f"share of runs with one {told} points"
        )
    form = difference_form(claim.measure)
    unit = " points" if MEASURES[claim.measure].share else ""
    told = f"{estimated(estimate, form)}{unit}"
    if outcome.slope:
        return f"{_title(claim)} changes by {told} for each unit of the dose of {claim.arm}"
    margin = ""
    if claim.threshold:
        bound = "within" if claim.direction == "none" else "asked for more than"
        margin = f", {bound} {difference_form(claim.measure)(claim.threshold).lstrip('+')}{unit}"
    return f"{_title(claim)} of {claim.arm} minus {against} is {told}{margin}"


def _title(claim: ClaimSection) -> str:
    return MEASURES[claim.measure].title
