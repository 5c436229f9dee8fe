"""The analysis of a study, its claims as sentences, and a short summary above them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median as middle

from flowright.core.formatting import NOTHING, Form, format_value, percent, plain, points
from flowright.core.statistics import Estimate
from flowright.study.arm_comparison import (
    CellSummary,
    ClaimOutcome,
    median,
    outcomes,
    summaries,
    values_of,
)
from flowright.study.collect import Collected
from flowright.study.config import MEASURES, StudyConfig
from flowright.study.detectors import Detector, Remedy, detectors, remedies
from flowright.study.runs import StudyCell

SUMMARISED = (
    *("final_gold", "final_proxy", "final_gap", "gold_area", "exploitation", "max_share"),
    *("unscored", "calls", "policy_tokens", "seconds"),
)
"""Measures that are summarised for each arm."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """All comparisons of a study's runs; ``alarms`` are sorted, the best first."""

    study: StudyConfig
    cells: Sequence[StudyCell]
    found: Collected
    outcomes: Sequence[ClaimOutcome]
    summaries: Sequence[CellSummary]
    alarms: Sequence[Detector]
    remedies: Sequence[Remedy]


def analyse(study: StudyConfig, cells: Sequence[StudyCell], found: Collected) -> Analysis:
    """Compute everything that the report shows."""
    alarms = detectors(study, cells, found)
    return Analysis(
        study=study,
        cells=cells,
        found=found,
        outcomes=outcomes(study, cells, found),
        summaries=summaries(study, cells, found, SUMMARISED),
        alarms=alarms,
        remedies=remedies(cells, found, alarms),
    )


def verdict_of(outcome: ClaimOutcome) -> str:
    if outcome.too_few:
        return "too few seeds"
    return {True: "holds", False: "not shown", None: "not decided yet"}[outcome.holds]


def form_of(measure: str) -> Form:
    """Return the format of a measure's values."""
    return percent if MEASURES[measure].share else plain


def difference_form(measure: str) -> Form:
    """Return the format of differences: points for shares."""
    return points if MEASURES[measure].share else _signed


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{plain(value)}"


def estimated(estimate: Estimate, form: Form) -> str:
    """Format an estimate as ``+3.1 (1.0 to 5.2)``, or ``-``."""
    value = format_value(estimate.value, form)
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} ({form(estimate.low)} to {form(estimate.high)})"


def p_text(p: float | None) -> str:
    """Format a p-value with two digits, or as less than 0.0001."""
    if p is None:
        return NOTHING
    return "<0.0001" if p < 0.0001 else f"{p:.2g}"


def sentence(outcome: ClaimOutcome, control: str) -> str:
    """Write one claim: its hypothesis, its verdict, its figures."""
    claim = outcome.claim
    if outcome.holds is None and outcome.is_complete:
        seeds = "1 seed has" if outcome.wanted == 1 else f"{outcome.wanted} seeds have"
        return f"{claim.hypothesis} Not decided: {seeds} no p-value; run more."
    if outcome.holds is None:
        return (
            f"{claim.hypothesis} Not decided yet: {outcome.pairs} of {outcome.wanted} seeds are "
            "there with both values."
        )
    figures = f"{_figures(outcome, control)}, {outcome.pairs} seeds, Holm p {p_text(outcome.holm)}"
    verdict = {True: "This holds", False: "This was not shown"}[outcome.holds]
    if outcome.too_few:
        verdict = f"{outcome.wanted} seeds can hold no claim"
    return f"{claim.hypothesis} {verdict}: {figures}."


def _figures(outcome: ClaimOutcome, control: str) -> str:
    claim, estimate = outcome.claim, outcome.estimate
    against = claim.against or control
    title = MEASURES[claim.measure].title
    if claim.test == "log_rank":
        ours, theirs = (
            "none" if at is None else f"{at:g}" for at in outcome.medians or (None, None)
        )
        return (
            f"median step of the {title} {ours} in {claim.arm}, {theirs} in {against}; "
            f"share of runs with one {estimated(estimate, points)} points"
        )
    form = difference_form(claim.measure)
    unit = " points" if MEASURES[claim.measure].share else ""
    value = f"{estimated(estimate, form)}{unit}"
    if outcome.slope:
        return f"{title} changes by {value} for each unit of the dose of {claim.arm}"
    margin = ""
    if claim.threshold:
        bound = "within" if claim.direction == "none" else "asked for more than"
        margin = f", {bound} {form(claim.threshold).lstrip('+')}{unit}"
    return f"{title} of {claim.arm} minus {against} is {value}{margin}"


def in_short(analysis: Analysis) -> list[str]:
    """Summarise in sentences: onsets, losses, alarms, remedies, claims; unknowns are left out."""
    study, found = analysis.study, analysis.found
    if not found.of(study.control):
        return [f"No run of the control, {study.control}, has finished: nothing can be compared."]
    return [
        *_about_control(study, found),
        *_by_dose(analysis.summaries),
        *_losses(study, analysis.summaries),
        *_of_alarms(analysis.alarms),
        *_of_remedies(analysis.remedies),
        *_of_claims(analysis.outcomes),
    ]


def _about_control(study: StudyConfig, found: Collected) -> Iterator[str]:
    rows = found.of(study.control)
    before = [row["untrained_gold"] for row in rows if row["untrained_gold"] is not None]
    after = [*values_of(found, study.control, "final_gold").values()]
    if before and after:
        mean, end = sum(before) / len(before), sum(after) / len(after)
        yield (
            f"Without treatment ({study.control}, runs: {len(rows)}) gold goes from "
            f"{percent(mean)} to {percent(end)}."
        )
    seen = {name: sum(row[f"onset_{name}"] is not None for row in rows) for name in study.shortcuts}
    if seen:
        which = ", ".join(f"{name} in {count}" for name, count in seen.items() if count)
        yield f"Runs of it with an onset of a shortcut: {which or 'none'}."


def _by_dose(arms: Sequence[CellSummary]) -> Iterator[str]:
    """Describe onsets by dose, over all arms with a dose and a shortcut."""
    doses: dict[tuple[str, float], list[CellSummary]] = {}
    for summary in arms:
        cell = summary.cell
        if summary.times and cell.dose_value is not None and not cell.remedy_for:
            doses.setdefault((next(iter(cell.dose)), cell.dose_value), []).append(summary)
    parts = []
    for (name, dose), group in sorted(doses.items()):
        times = [time for summary in group for time in summary.times]
        seen = sum(time.seen for time in times)
        half = median(times)
        when = f", half of them by step {half:g}" if half is not None else ""
        parts.append(f"at a {name} of {dose:g} in {seen} of {len(times)} runs{when}")
    if parts:
        count = len({summary.cell.arm for group in doses.values() for summary in group})
        yield f"Exploitation begins, over {count} arm{'s' * (count > 1)}, {'; '.join(parts)}."


def _losses(study: StudyConfig, arms: Sequence[CellSummary]) -> Iterator[str]:
    lost = sorted(
        (
            (summary.gained["final_gold"].value, summary)
            for summary in arms
            if summary.cell.name != study.control
            and not summary.cell.remedy_for
            and summary.gained["final_gold"].value is not None
        ),
        key=lambda each: each[0] or 0.0,
    )
    if lost:
        _, worst = lost[0]
        value = estimated(worst.gained["final_gold"], points)
        yield (
            f"The least gold after training is that of {worst.cell.name}: {value} points "
            f"against {study.control}."
        )


def _of_alarms(alarms: Sequence[Detector]) -> Iterator[str]:
    for gold, need in ((False, "needs no known answers"), (True, "needs known answers")):
        best = next((alarm for alarm in alarms if alarm.series.gold == gold), None)
        if best is not None:
            lead = f" (median lead {middle(best.leads):g} steps)" if best.leads else ""
            circular = "; it measures what defines the onset" if gold else ""
            yield (
                f"The best alarm that {need} is {best.series.title}: it goes off by the onset in "
                f"{best.early} of {best.onsets} runs{lead}, and in {best.false} of "
                f"{best.controls} runs of the control{circular}."
            )


def _of_remedies(found: Sequence[Remedy]) -> Iterator[str]:
    targets = {row.against: row for row in found if row.is_target}
    for name, target in targets.items():
        rows = [row for row in found if row.against == name and not row.is_target]
        known = [(row.last_gold.value, row) for row in rows if row.last_gold.value is not None]
        if known:
            _, best = max(known, key=lambda each: each[0])
            yield (
                f"Of what would mend {name}, {best.name} gains most: "
                f"{estimated(best.last_gold, points)} points of gold at the end"
                f"{_costs(best, target)}."
            )


def _costs(best: Remedy, target: Remedy) -> str:
    times = best.calls / target.calls if best.calls is not None and target.calls else None
    text = "" if times is None else f", for {times:.2g} times the calls"
    if times is not None and abs(times - 1) < 0.05:
        text = ", for as many calls"
    return text + (f" and {best.audits:,.0f} gold checks a run" if best.audits else "")


def _of_claims(found: Sequence[ClaimOutcome]) -> Iterator[str]:
    for kind, name in (("finding", "findings"), ("construction", "checks of the construction")):
        own = [outcome for outcome in found if outcome.claim.kind == kind]
        if own and all(outcome.holds is not None for outcome in own):
            held = sum(outcome.holds is True for outcome in own)
            yield f"Claimed {name}: {len(own)}. Shown: {held}, not shown: {len(own) - held}."
