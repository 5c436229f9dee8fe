"""The alarm for a policy that exploits its judge: the judge calls more answers right than gold
does, not at one step, which is noise, but on the mean of several (law 3). How well that tells was
measured: docs/study.md.
"""

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
    "that is generous from the start."
)
"""How well the alarm of the default settings tells, for those who see it go off."""


def trailing_means(values: Sequence[float], count: int) -> list[float]:
    """Of every ``count`` values in a row, which know nothing of what is to come; the first stands
    for the value in place ``count`` - 1."""
    return [sum(values[end - count : end]) / count for end in range(count, len(values) + 1)]


def drifts_of(rows: Iterable[Record]) -> list[tuple[int, float]]:
    """``judge/drift`` by step, of the rows of ``metrics.jsonl`` that have it."""
    return [(row["step"], row[DRIFT]) for row in rows if DRIFT in row]


def drifting(course: Sequence[Point], section: AlarmSection) -> float | None:
    """By how much the judge says more than gold of late, or less (below 0), as the mean of the last
    ``section.steps`` values of ``course``; None while that is within the limit, or while there are
    fewer. ``course`` has ``judge/drift`` by step, ascending."""
    late = [value for _, value in course[-section.steps :]]
    if section.gap is None or len(late) < section.steps:
        return None
    mean = sum(late) / len(late)
    return mean if abs(mean) > section.gap else None


def first_alarm(course: Sequence[Point], section: AlarmSection) -> float | None:
    """The first step at which the judge says more than gold by too much, None where it never does.
    One that says less drifts, too, and is not exploited."""
    if section.gap is None:
        return None
    means = trailing_means([value for _, value in course], section.steps)
    steps = [step for step, _ in course[section.steps - 1 :]]
    return next((s for s, value in zip(steps, means, strict=True) if value > section.gap), None)


def alarm_of(course: Sequence[Point], section: AlarmSection) -> str | None:
    """What to say after the last step of ``course``; None where all is quiet at it."""
    gap = drifting(course, section)
    if gap is None or gap < 0:
        return None
    return (
        f"the judge calls {100 * gap:.1f} points more right than gold does "
        f"({alarm_line(section)}): the policy may exploit it"
    )


def alarm_line(section: AlarmSection) -> str:
    """When it goes off, in a few words."""
    if section.gap is None:
        return "no alarm (judge.alarm.gap)"
    return f"above {100 * section.gap:g} points over {section.steps} steps"
