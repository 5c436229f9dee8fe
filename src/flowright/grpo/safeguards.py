"""The checks that end a run before its last step: too few scored samples (law 1), a judge that
disagrees with gold (law 3), a signal.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from flowright.config.judge import AlarmSection, JudgeSection
from flowright.core.errors import RunPaused
from flowright.environments.rollout import Rollout
from flowright.judging.audit import agreement_with_gold
from flowright.runs.alarm import DRIFT, alarm_of


def unscored_share(rollouts: Sequence[Rollout]) -> float:
    return sum(rollout.reward.value is None for rollout in rollouts) / len(rollouts)


def check_scored(step: int, rollouts: Sequence[Rollout], limit: float) -> None:
    """Raise RunPaused where more than ``limit`` of the samples could not be scored."""
    if unscored_share(rollouts) <= limit:
        return
    unscored = [r for r in rollouts if r.reward.value is None]
    reasons = {str(r.failure) for r in unscored[:100]}
    raise RunPaused(
        f"step {step}: {len(unscored)} of {len(rollouts)} samples could not be scored "
        f"(limit {limit:.0%}), so nothing was trained on; mend the cause and --resume",
        *(f"  {reason[:200]}" for reason in sorted(reasons)[:5]),
    )


def check_agreement(step: int, rollouts: Sequence[Rollout], section: JudgeSection) -> str | None:
    """Return a warning where the judge agrees with gold too rarely; with ``judge.low_agreement:
    stop`` raise RunPaused."""
    found = agreement_with_gold([r.verdict for r in rollouts], [r.gold for r in rollouts])
    if found is None or found >= section.min_agreement:
        return None
    line = (
        f"step {step}: the judge agreed with gold on {found:.0%} of the samples "
        f"(judge.min_agreement {section.min_agreement:.0%})"
    )
    if section.low_agreement == "stop":
        raise RunPaused(f"{line}, so nothing was trained on; look at them and --resume")
    return line


class GapAlarm:
    """The alarm of ``judge.alarm``, step by step; its rule is in :mod:`flowright.runs.alarm`."""

    def __init__(self, section: AlarmSection) -> None:
        self._section = section
        self._course: list[tuple[int, float]] = []

    @property
    def stops(self) -> bool:
        return self._section.action == "stop"

    def after(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """Return the alarm after a step; None without one, and where it was raised before and does
        not end the run."""
        before = alarm_of(self._course, self._section)
        if DRIFT in metrics:
            self._course.append((step, metrics[DRIFT]))
        alarm = alarm_of(self._course, self._section)
        return alarm if before is None or self.stops else None

    def resume(self, course: Sequence[tuple[int, float]]) -> None:
        """Go on with the drift by step that a run has recorded."""
        self._course = [*course]


AT_ONCE_SECONDS = 1.0
"""Signals within this time are one request: supervisors such as torchrun send SIGTERM to the
process and to its group."""


@contextmanager
def stop_on_signals(stop: Callable[[str], None], several: bool = False) -> Iterator[None]:
    """Have SIGINT and SIGTERM stop the run after the step; a second one has its usual effect.

    Plain handlers, since those of the event loop would not run if it were stuck. Of ``several``
    ranks, one that leaves by an error is terminated by torchrun at once; SIGTERM is then ignored,
    so that its message is printed first.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # a worker of Ray, which hears no signals; Ray stops it
        return
    first: float | None = None

    def handle(number: int, frame: object) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            stop(signal.Signals(number).name)
        elif number == signal.SIGINT or now - first > AT_ONCE_SECONDS:
            restore()
            signal.raise_signal(number)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except BaseException:
        restore()
        if several:
            signal.signal(signal.SIGTERM, lambda *_: None)
        raise
    restore()
