"""The report's first screen: what a reader must see first. Judge drift from gold is among its tiles
whatever its size (law 3).
"""

from flowright.monitoring.snapshot import DRIFT_ALARM, Snapshot, drift, edge, first, last
from flowright.rendering.markup import Html, el
from flowright.rendering.page import tile
from flowright.rendering.series import Record, is_number
from flowright.rendering.values import Form, duration, percent, points


def tiles(snapshot: Snapshot) -> Html:
    """The first screen."""
    shown = [
        _accuracy(snapshot),
        _drift(snapshot),
        _change(snapshot, "Reward", "reward/mean", "{:.2f}".format),
        _change(snapshot, f"Valid {snapshot.display.completion}s", "rollout/valid_frac", percent),
        _unscored(snapshot),
        _pace(snapshot),
    ]
    return el("div", [found for found in shown if found is not None], class_="tiles")


def _accuracy(snapshot: Snapshot) -> Html | None:
    """Held-out accuracy by gold, before and after: from the evaluation, else from validation."""
    before, after = _policy_cells(snapshot)
    title = "Held-out accuracy, by gold"
    if before and after:
        change = 100 * (after["gold"] - before["gold"])
        apart = _apart(before, after)
        told = {True: "intervals do not overlap", False: "intervals overlap", None: ""}[apart]
        big = f"{percent(before['gold'])} → {percent(after['gold'])}"
        note = f"{change:+.1f} points{'; ' if told else ''}{told}"
        return tile(title, big, note, "good" if apart and change > 0 else None)
    course = snapshot.series("val/gold")
    if not course:
        return None
    big = f"{percent(course[0][1])} → {percent(course[-1][1])}"
    return tile(title, big, f"validation, steps {course[0][0]} and {course[-1][0]}")


def _drift(snapshot: Snapshot) -> Html:
    """Judge minus gold over the last steps, or that there is no gold to compare with."""
    course = drift(snapshot)
    count = edge(len(course))
    early, late = first(course, count), last(course, count)
    title = "Judge drift from gold"
    if early is None or late is None:
        style = "warn" if snapshot.names("judge/") else None
        return tile(title, "unknown", "no step has both verdicts and gold checks", style)
    alarm = abs(late) > DRIFT_ALARM
    told = [f"at first {points(early)}"]
    for label, metric in (
        ("agreement", "judge/agreement_with_gold"),
        ("false right", "judge/false_positive_rate"),
        ("false wrong", "judge/false_negative_rate"),
    ):
        value = last(snapshot.series(metric), count)
        if value is not None:
            told.append(f"{label} {percent(value)}")
    note = f"{'rewards may be wrong; ' if alarm else ''}{', '.join(told)}"
    return tile(title, f"{points(late)} points", note, "alarm" if alarm else "good")


def _change(snapshot: Snapshot, title: str, metric: str, form: Form) -> Html | None:
    course = snapshot.series(metric)
    count = edge(len(course))
    before, after = first(course, count), last(course, count)
    if before is None or after is None:
        return None
    steps = "step" if count == 1 else f"{count} steps"
    return tile(title, f"{form(before)} → {form(after)}", f"first and last {steps}")


def _unscored(snapshot: Snapshot) -> Html | None:
    course = snapshot.series("rollout/unscored")
    share = last(course, len(course))
    if share is None:
        return None
    note = "of all samples, through faults of ours; they train nothing"
    return tile("Unscored", f"{100 * share:.2f} %", note, "warn" if share > 0.01 else None)


def _pace(snapshot: Snapshot) -> Html | None:
    course = snapshot.series("time/step")
    mean = last(course, len(course))
    if mean is None:
        return None
    return tile(
        "Time", duration(sum(s for _, s in course)), f"{len(course)} steps of {duration(mean)}"
    )


def _policy_cells(snapshot: Snapshot) -> tuple[Record | None, Record | None]:
    """The "all" cells of the untrained and of the trained policy."""
    cells: dict[str, Record] = {}
    for row in snapshot.compared:
        if row.get("group") == "policy" and is_number((row["kinds"].get("all") or {}).get("gold")):
            cells[str(row["name"]).split()[0]] = row["kinds"]["all"]
    return cells.get("untrained"), cells.get("trained")


def _apart(before: Record, after: Record) -> bool | None:
    """Whether two intervals do not overlap; None where one is missing."""
    ends = [cell.get(key) for cell in (before, after) for key in ("gold_low", "gold_high")]
    numbers = [end for end in ends if is_number(end)]
    return None if len(numbers) < 4 else numbers[1] < numbers[2] or numbers[3] < numbers[0]
