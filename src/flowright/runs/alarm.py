"""The alarm for a policy that exploits its judge: the judge finds more answers right than gold
does, on the mean of several steps (law 3). Its accuracy was measured: docs/study.md."""

from collections.abc import Iterable, Sequence

from flowright.config.judge import AlarmSection
from flowright.core.formatting import Point, Record

DRIFT = "judge/drift"
"""Judge minus gold: the share of answers judged right less the share that gold finds right, among
those that both have seen. Positive where the judge is generous."""

MEASURED = (
    "Measured in simulation (docs/study.md): as shipped it went off in all of 136 runs that "
    "exploited a planted bias, in 107 of them by the onset of the exploitation, 4 steps before it "
    "in the median, and in none of 10 under an honest judge; it goes off as well under a judge "
    "that is generous from the start. That onset is defined by rewarded answers that gold rejects, "
    "which is what the alarm measures."
)
"""Accuracy of the alarm at its default settings, shown when it goes off."""


def trailing_means(values: Sequence[float], count: int) -> list[float]:
    """Return the means of every ``count`` values in a row; the first belongs to the value at index
    ``count`` - 1."""
    return [sum(values[end - count : end]) / count for end in range(count, len(values) + 1)]


def drifts_of(rows: Iterable[Record]) -> list[tuple[int, float]]:
    """Return ``judge/drift`` by step from rows of ``metrics.jsonl``."""
    return [(row["step"], row[DRIFT]) for row in rows if DRIFT in row]


def drifting(course: Sequence[Point], section: AlarmSection) -> float | None:
    """Return the mean of the last ``section.steps`` values of ``course``, ``judge/drift`` by
    ascending step; None while it is within the limit or there are fewer values. Below 0 the judge
    finds fewer answers right than gold does."""
    late = [value for _, value in course[-section.steps :]]
    if section.gap is None or len(late) < section.steps:
        return None
    mean = sum(late) / len(late)
    return mean if abs(mean) > section.gap else None


def first_alarm(course: Sequence[Point], section: AlarmSection) -> float | None:
    """Return the first step at which the judge exceeds gold by too much, None without one. A judge
    below gold drifts, too, but is not exploited."""
    if section.gap is None:
        return None
    means = trailing_means([value for _, value in course], section.steps)
    steps = [step for step, _ in course[section.steps - 1 :]]
    return next((s for s, value in zip(steps, means, strict=True) if value > section.gap), None)


def alarm_of(course: Sequence[Point], section: AlarmSection) -> str | None:
    """Return the alarm after the last step of ``course``; None without one."""
    gap = drifting(course, section)
    if gap is None or gap < 0:
        return None
    return (
        f"the judge calls {100 * gap:.1f} points more right than gold does "
        f"({alarm_line(section)}): the policy may exploit it"
    )


def alarm_line(section: AlarmSection) -> str:
    """Return the limit of the alarm as a phrase."""
    if section.gap is None:
        return "no alarm (judge.alarm.gap)"
    return f"above {100 * section.gap:g} points over {section.steps} steps"
