"""The blocks of the terminal screen, each as lines of text for a width. No layout here."""

from collections.abc import Sequence

from rich.text import Text

from flowright.monitoring.servers import traffic
from flowright.monitoring.snapshot import (
    DRIFT_ALARM,
    RECENT,
    Snapshot,
    drift,
    failures,
    is_ours,
    kinds,
    last,
    rollout_seconds,
    stage_seconds,
)
from flowright.rendering.glyphs import LABEL, VALUE, Glyphs, line, shortened, wrapped
from flowright.rendering.series import Row
from flowright.rendering.untrusted import one_line
from flowright.rendering.values import duration, percent, points


def learning(snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Text]:
    """Reward, accuracy and what became of the samples, as of the last step."""
    rows = [
        _row(snapshot, "reward", "reward/mean", "{:.3f}", width, glyphs),
        _row(snapshot, "gold", "gold/accuracy", "%", width, glyphs),
        *_by_kind(snapshot, width),
        _validation(snapshot, width),
        _row(snapshot, "valid", "rollout/valid_frac", "%", width, glyphs, low=0.9),
        _row(snapshot, "unscored", "rollout/unscored", "%", width, glyphs, high=0.01),
        _row(snapshot, "no spread", "reward/zero_variance_frac", "%", width, glyphs),
    ]
    return [row for row in rows if row is not None] or [Text("no step finished yet", style="dim")]


def judge(snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Text]:
    """The judge's audit (law 3): agreement, drift of its verdicts from gold, its two
    errors, and the share of its verdicts that fallback rules gave instead (law 4)."""
    floor = snapshot.setting("judge", "min_agreement") or None
    rows = [_row(snapshot, "agreement", "judge/agreement_with_gold", "%", width, glyphs, low=floor)]
    drifts = drift(snapshot)
    recent = last(drifts, RECENT)
    if recent is not None:
        value = _value(f"{points(recent)} points", abs(recent) > DRIFT_ALARM)
        rows.append(line("drift", value, [v for _, v in drifts], width, glyphs))
    false = [
        ("false +", snapshot.latest("judge/false_positive_rate")),
        ("false -", snapshot.latest("judge/false_negative_rate")),
    ]
    rates = [f"{label} {percent(value)}" for label, value in false if value is not None]
    if rates:
        rows.append(Text(f"{'':<{LABEL}}{'  '.join(rates)}", style="dim"))
    if fallback := last(snapshot.series("judge/source/rule_fallback"), RECENT):
        rows.append(_label("by rules") + _value(percent(fallback), True))
    return [row for row in rows if row is not None]


def policy(snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Text]:
    """The learner's own health."""
    rows = [
        _row(snapshot, "KL", "policy/kl", "{:.4f}", width, glyphs),
        _row(snapshot, "entropy", "policy/entropy", "{:.3f}", width, glyphs),
        _row(snapshot, "clipped", "policy/clip_frac", "%", width, glyphs),
        _row(snapshot, "grad norm", "policy/grad_norm", "{:.2f}", width, glyphs),
        *(
            _row(snapshot, curve.label, curve.metric, "{:,.0f}", width, glyphs)
            for curve in snapshot.display.curves
            if curve.label
        ),
    ]
    return [row for row in rows if row is not None]


def times(snapshot: Snapshot, width: int, glyphs: Glyphs) -> list[Text]:
    """Seconds of each stage, mean of the recent steps, and the GPU's memory where there is one."""
    stages = stage_seconds(snapshot, RECENT)
    longest = max(stages.values(), default=0.0) or 1.0
    room = max(4, min(30, width - LABEL - VALUE))
    lines = [
        _label(stage)
        + Text(f"{duration(value):<{VALUE}}")
        + Text(glyphs.bars[-1] * max(1, round(room * value / longest)), style="blue")
        for stage, value in stages.items()
    ]
    step = last(snapshot.series("time/step"), RECENT)
    if step is not None:
        lines.append(_label("whole step") + Text(duration(step), style="bold"))
    each = [f"{name} {duration(s)}" for name, s in rollout_seconds(snapshot, RECENT).items()]
    if each:
        lines.append(_label("a rollout") + Text("  ".join(each), style="dim"))
    memory = snapshot.latest("gpu/memory_gb")
    if memory is not None:
        lines.append(_label("GPU memory") + Text(f"{memory:.1f} GB", style="bold"))
    return lines


def failed(snapshot: Snapshot, rollouts: Sequence[Row], width: int) -> list[Text]:
    """Shares of the recent rollouts that failed, the policy's faults apart from ours, each with
    the newest message."""
    if not snapshot.training_rows:
        return []
    recent = failures(snapshot.training_rows[-RECENT:])
    lines: list[Text] = []
    for whose, ours in (("policy's", False), ("ours", True)):
        found = [(r, share) for r, share in recent.items() if is_ours(r) is ours]
        if not found:
            lines.append(_label(whose) + Text("none", style="dim"))
        for position, (reason, share) in enumerate(found[:3]):
            text = f"{one_line(reason, 15):<15}{percent(share):>9}"
            lines.append(_label("" if position else whose) + Text(text, "red" if ours else ""))
        message = _latest_message(rollouts, ours) if found else None
        if message:
            lines.append(shortened(f"{'':<{LABEL}}{message}", width, "dim"))
    return lines


def servers(snapshot: Snapshot) -> list[Text]:
    """A line for each role whose requests the recent steps counted: calls, what servers refused or
    did not answer, calls that failed, and the time that attempts waited for each other."""
    lines: list[Text] = []
    for role, found in traffic(snapshot.training_rows[-RECENT:]).items():
        counts = found.counts
        row = _label(one_line(role, LABEL - 1)) + Text(f"{counts.get('calls', 0):,.0f} calls")
        if found.troubles:
            told = "  ".join(f"{name} {count:,.0f}" for name, count in found.troubles.items())
            row += Text("  ") + _value(told, True)
        if counts.get("failures"):
            row += Text(f"  failed {counts['failures']:,.0f}", style="bold red")
        if counts.get("wait_seconds"):
            row += Text(f"  waited {duration(counts['wait_seconds'])}", style="dim")
        lines.append(row)
    return lines


def _row(
    snapshot: Snapshot,
    label: str,
    metric: str,
    form: str,
    width: int,
    glyphs: Glyphs,
    low: float | None = None,
    high: float | None = None,
) -> Text | None:
    """A metric's last value with its history; it stands out while the mean of the recent steps is
    below ``low`` or above ``high``."""
    course = snapshot.series(metric)
    if not course:
        return None
    value = course[-1][1]
    shown = percent(value) if form == "%" else form.format(value)
    mean = last(course, RECENT) or 0.0
    alarming = (low is not None and mean < low) or (high is not None and mean > high)
    return line(label, _value(shown, alarming), [v for _, v in course], width, glyphs)


def _value(shown: str, alarming: bool) -> Text:
    # The exclamation mark is for terminals without colour.
    return Text(f"{shown} !", "bold yellow") if alarming else Text(shown, "bold")


def _label(text: str) -> Text:
    return Text(f"{text:<{LABEL}}", style="dim")


def _by_kind(snapshot: Snapshot, width: int) -> list[Text]:
    values = [(k, last(snapshot.series(f"gold/accuracy/{k}"), RECENT)) for k in kinds(snapshot)]
    shown = [f"{one_line(k, 8)} {100 * value:.0f} %" for k, value in values if value is not None]
    if not shown:
        return []
    rows = wrapped("  ".join(shown), width, "dim", indent=LABEL)
    return [_label(f" last {RECENT}") + rows[0][LABEL:], *rows[1:]]


def _validation(snapshot: Snapshot, width: int) -> Text | None:
    course = snapshot.series("val/gold")
    if not course:
        return None
    (start, before), (step, now) = course[0], course[-1]
    row = _label("validation") + Text(percent(now), style="bold")
    if step > start:
        row += Text(f"  was {percent(before)}")
        if width >= 60:
            row += Text(f"  (steps {step:.0f} and {start:.0f})", style="dim")
    return row


def _latest_message(rollouts: Sequence[Row], ours: bool) -> str | None:
    for rollout in reversed(rollouts):
        failure = rollout.get("failure")
        if failure and (failure.get("blame") == "infrastructure") is ours:
            return one_line(f"{failure.get('reason')}: {failure.get('message')}")
    return None
