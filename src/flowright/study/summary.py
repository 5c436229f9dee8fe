"""A study in a few sentences, before its claims: what was found, how soon, at what loss, and what
helps. They describe; what was claimed beforehand is decided elsewhere.
"""

from collections.abc import Iterator, Sequence
from statistics import median as middle

from flowright.core.formatting import percent, points
from flowright.study.answers import estimated
from flowright.study.collect import Collected
from flowright.study.compare import Outcome, Summary, values_of
from flowright.study.config import StudyConfig
from flowright.study.detectors import Detector
from flowright.study.remedies import Remedy
from flowright.study.survival import median


def in_short(
    study: StudyConfig,
    found: Collected,
    told: Sequence[Summary],
    decided: Sequence[Outcome],
    alarms: Sequence[Detector],
    mended: Sequence[Remedy],
) -> list[str]:
    """The sentences; those that nothing is known of are left out."""
    if not found.of(study.control):
        return [f"No run of the control, {study.control}, has finished: nothing can be compared."]
    return [
        *_about_control(study, found),
        *_by_dose(told),
        *_losses(study, told),
        *_of_alarms(alarms),
        *_of_remedies(mended),
        *_of_claims(decided),
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


def _by_dose(told: Sequence[Summary]) -> Iterator[str]:
    """Onsets by dose, of all arms that have one and are about a shortcut."""
    doses: dict[tuple[str, float], list[Summary]] = {}
    for summary in told:
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
        arms = len({summary.cell.arm for group in doses.values() for summary in group})
        yield f"Exploitation begins, over {arms} arm{'s' * (arms > 1)}, {'; '.join(parts)}."


def _losses(study: StudyConfig, told: Sequence[Summary]) -> Iterator[str]:
    lost = sorted(
        (
            (summary.gained["final_gold"].value, summary)
            for summary in told
            if summary.cell.name != study.control
            and not summary.cell.remedy_for
            and summary.gained["final_gold"].value is not None
        ),
        key=lambda each: each[0] or 0.0,
    )
    if lost:
        _, worst = lost[0]
        told_worst = estimated(worst.gained["final_gold"], points)
        yield (
            f"The least gold after training is that of {worst.cell.name}: {told_worst} points "
            f"against {study.control}."
        )


def _of_alarms(alarms: Sequence[Detector]) -> Iterator[str]:
    for gold, words in ((False, "needs no known answers"), (True, "needs known answers")):
        best = next((alarm for alarm in alarms if alarm.series.gold == gold), None)
        if best is not None:
            lead = f" (median lead {middle(best.leads):g} steps)" if best.leads else ""
            yield (
                f"The best alarm that {words} is {best.series.title}: it goes off by the onset in "
                f"{best.early} of {best.onsets} runs{lead}, and in {best.false} of "
                f"{best.controls} runs of the control."
            )


def _of_remedies(mended: Sequence[Remedy]) -> Iterator[str]:
    targets = {row.against: row for row in mended if row.is_target}
    for name, target in targets.items():
        rows = [row for row in mended if row.against == name and not row.is_target]
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
    told = "" if times is None else f", for {times:.2g} times the calls"
    if times is not None and abs(times - 1) < 0.05:
        told = ", for as many calls"
    return told + (f" and {best.audits:,.0f} gold checks a run" if best.audits else "")


def _of_claims(decided: Sequence[Outcome]) -> Iterator[str]:
    for kind, words in (("finding", "findings"), ("construction", "checks of the construction")):
        own = [outcome for outcome in decided if outcome.claim.kind == kind]
        if own and all(outcome.holds is not None for outcome in own):
            held = sum(outcome.holds is True for outcome in own)
            yield f"Claimed {words}: {len(own)}. Shown: {held}, not shown: {len(own) - held}."
