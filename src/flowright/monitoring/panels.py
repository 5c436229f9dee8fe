"""The blocks of the terminal screen, each as lines of text for a width. No layout here."""

from collections.abc import Sequence

from rich.text import Text

from flowright.monitoring.snapshot import (
    DRIFT_ALARM,
    Snapshot,
    drift,
    failures,
    is_ours,
    kinds,
    last,
    rollout_seconds,
    stage_seconds,
)
from flowright.rendering.glyphs import (
    LABEL,
    VALUE,
    Glyphs,
    duration,
    heading,
    line,
    percent,
    shortened,
    wrapped,
)
from flowright.rendering.series import Row
from flowright.rendering.untrusted import one_line, visible

RECENT = 10  # steps that "recent" means
LONGEST_SAMPLE = 20_000  # characters of a workflow that are looked at


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
    points = drift(snapshot)
    recent = last(points, RECENT)
    if recent is not None:
        value = _value(f"{100 * recent:+.1f} points", abs(recent) > DRIFT_ALARM)
        rows.append(line("drift", value, [v for _, v in points], width, glyphs))
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
        _row(snapshot, "LLM tokens", "tokens/llm_mean", "{:,.0f}", width, glyphs),
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


def sample(rollouts: Sequence[Row], width: int, room: int | None) -> list[Text]:
    """One rollout of the latest step in at most ``room`` lines; another position each step, so
    that it is not always the best one."""
    if not rollouts or (room is not None and room < 5):
        return []
    rollout = rollouts[int(rollouts[0].get("step") or 0) % len(rollouts)]
    workflow = rollout.get("workflow") or {}
    source = workflow.get("source") or workflow.get("program")
    code = visible(str(source or rollout.get("completion") or "")[:LONGEST_SAMPLE]).strip("\n")
    title = heading("Sample workflow" if source else "Sample completion")
    body = _highlighted(code)
    if room is not None and len(body) > room - 2:
        kept = room - 3
        body = [*body[:kept], Text(f"... {len(body) - kept} more lines", style="dim")]
    return [title, shortened(_outcome(rollout), width, "dim"), *body]


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
    points = snapshot.series(metric)
    if not points:
        return None
    value = points[-1][1]
    shown = percent(value) if form == "%" else form.format(value)
    mean = last(points, RECENT) or 0.0
    alarming = (low is not None and mean < low) or (high is not None and mean > high)
    return line(label, _value(shown, alarming), [v for _, v in points], width, glyphs)


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
    points = snapshot.series("val/gold")
    if not points:
        return None
    (start, before), (step, now) = points[0], points[-1]
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


def _outcome(rollout: Row) -> str:
    task, verdict, gold = (rollout.get(key) or {} for key in ("task", "verdict", "gold"))
    reward = (rollout.get("reward") or {}).get("value")
    facts = [f"step {rollout.get('step')}", str(task.get("kind", ""))]
    facts.append("unscored" if reward is None else f"reward {reward:.2f}")
    if (rollout.get("failure") or {}).get("reason"):
        facts.append(f"failed: {rollout['failure']['reason']}")
    for who, opinion in (("judge", verdict.get("correct")), ("gold", gold.get("correct"))):
        if opinion is not None:
            facts.append(f"{who}: {'right' if opinion else 'wrong'}")
    return one_line(", ".join(fact for fact in facts if fact))


def _highlighted(code: str) -> list[Text]:
    # Imported here: pygments costs a tenth of a second that a screen without a sample saves.
    from rich.syntax import Syntax

    syntax = Syntax("", "python", theme="ansi_dark", background_color="default")
    rows = list(syntax.highlight(code).split("\n", allow_blank=True))
    while rows and not rows[-1].plain.strip():
        rows.pop()
    return rows
