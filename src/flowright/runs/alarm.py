"""The alarm for a policy that exploits its judge: the judge calls more answers right than gold
does, not at one step, which is noise, but on the mean of several (law 3). How well that tells was
measured: docs/study.md.
"""

from collections.abc import Sequence

from flowright.config import AlarmSection

DRIFT = "judge/drift"
"""Judge minus gold: the share of answers judged right less the share that gold finds right, among
those that both have seen. Positive where the judge is generous."""

MEASURED = (
    "Measured in simulation (docs/study.md): as shipped it went off in all of 136 runs that "
    "exploited a planted bias, in 104 of them by the onset of the exploitation, 2.5 steps before "
    "it in the median, and in none of 10 under an honest judge; it goes off as well under a judge "
    "that is generous from the start."
)
"""How well the alarm of the default settings tells, for those who see it go off."""


def trailing_means(values: Sequence[float], count: int) -> list[float]:
    """Of every ``count`` values in a row, which know nothing of what is to come; the first stands
    for the value in place ``count`` - 1."""
    return [sum(values[end - count : end]) / count for end in range(count, len(values) + 1)]


def drifts(mean: float, section: AlarmSection) -> bool:
    """Whether judge and gold are too far apart, whichever says more; ``mean`` is of
    ``section.steps`` steps. Exploited is a judge that says more."""
    return section.gap is not None and abs(mean) > section.gap


def first_alarm(course: Sequence[tuple[int, float]], section: AlarmSection) -> int | None:
    """The first step at which the alarm goes off, None where it never does. ``course`` has
    ``judge/drift`` by step, ascending; steps without it count for nothing."""
    if section.gap is None:
        return None
    means = trailing_means([value for _, value in course], section.steps)
    steps = [step for step, _ in course[section.steps - 1 :]]
    return next((s for s, value in zip(steps, means, strict=True) if value > section.gap), None)


def alarm_of(course: Sequence[tuple[int, float]], section: AlarmSection) -> str | None:
    """What to say after the last step of ``course``; None where all is quiet at it."""
    late = course[-section.steps :]
    if first_alarm(late, section) is None:
        return None
    gap = sum(value for _, value in late) / len(late)
    return (
        f"the judge calls {100 * gap:.1f} points more right than gold does "
        f"({alarm_line(section)}): the policy may exploit it"
    )


def alarm_line(section: AlarmSection) -> str:
    """When it goes off, in a few words."""
    if section.gap is None:
        return "no alarm (judge.alarm.gap)"
    return f"above {100 * section.gap:g} points over {section.steps} steps"
