"""The report's sections about trust: what failed and whose fault it was, and the judge's audit."""

from collections.abc import Mapping
from functools import partial

from flowright.errors import Reason
from flowright.monitoring.sections import Chart
from flowright.monitoring.snapshot import FAILED, Snapshot, drift, edge, failures, is_ours
from flowright.rendering.charts import Series, line_chart, spark
from flowright.rendering.markup import Html, el
from flowright.rendering.page import grid, section, table
from flowright.rendering.series import percent, points
from flowright.rendering.untrusted import one_line

MEANINGS: Mapping[str, str] = {
    Reason.TRUNCATED: "the completion hit its token limit",
    Reason.NO_ANSWER: "nothing that can be an answer",
    Reason.CRASHED: "raised an error while running",
    Reason.CALL_BUDGET: "too many LLM calls",
    Reason.TOKEN_BUDGET: "too many tokens",
    Reason.SIZE_BUDGET: "a prompt or an answer that is too large",
    Reason.TIME_BUDGET: "too slow",
    Reason.MEMORY_BUDGET: "too much memory",
    Reason.LLM_UNAVAILABLE: "the large model did not answer, retries included",
    Reason.SANDBOX_LOST: "the code sandbox lost a process",
    Reason.JUDGE_FAILED: "the judge gave no usable verdict, retries included",
    Reason.INTERNAL: "a bug of ours",
}
"""Of failures that any environment may have; others are its display's to explain."""

COLUMNS = 6
RARE = partial(Chart, high=0.02, smoothed=False, zeros=False)
AUDIT = (
    Chart("Agreement with gold", [("agreement", "c1", "judge/agreement_with_gold")], 1.0, 0.8),
    Chart(
        "The judge's errors",
        [
            ("right though gold says wrong", "c5", "judge/false_positive_rate"),
            ("wrong though gold says right", "c2", "judge/false_negative_rate"),
        ],
        high=0.1,
    ),
    RARE(
        "No verdict, share",
        [
            ("where gold says wrong", "c5", "judge/no_verdict_rate_wrong"),
            ("where gold says right", "c2", "judge/no_verdict_rate_right"),
        ],
    ),
    RARE(
        "Verdicts that are not the judge's own word",
        [
            ("given by fallback rules", "c5", "judge/source/rule_fallback"),
            ("declined", "c6", "judge/status/declined"),
            ("not parsed", "c2", "judge/status/parse_error"),
            ("truncated", "c4", "judge/status/truncated"),
            ("timed out", "c3", "judge/status/timeout"),
            ("unavailable", "c1", "judge/status/unavailable"),
        ],
    ),
)


def failure_taxonomy(snapshot: Snapshot, messages: Mapping[str, str]) -> Html | None:
    """What failed and whose fault it was, over the run; ``messages`` by reason."""
    rows = snapshot.training_rows
    if not rows:
        return None
    reasons = list(failures(rows))
    body: list[Html] = []
    for title, ours in (("The policy's: a low reward", False), ("Ours: unscored", True)):
        body.append(el("tr", el("th", title, colspan=COLUMNS), class_="ours"))
        found = [reason for reason in reasons if is_ours(reason) is ours]
        body += [_failure_row(snapshot, reason, messages.get(reason)) for reason in found]
        if not found:
            body.append(el("tr", el("td", "none", class_="text soft", colspan=COLUMNS)))
    count = edge(len(rows))
    steps = "step" if count == 1 else str(count)
    meaning = el("th", "Meaning, newest message", class_="text")
    head = ("Reason", "Whole run", f"First {steps}", f"Last {steps}", "", meaning)
    return section(
        "failures",
        "Failures",
        "Shares of all rollouts. A fault of the policy earns a low reward; a fault of ours leaves "
        "the attempt out of the training.",
        table(head, body),
        grid([_valid_chart(snapshot)]),
    )


def _failure_row(snapshot: Snapshot, reason: str, message: str | None) -> Html:
    rows = snapshot.training_rows
    count, ours = edge(len(rows)), is_ours(reason)
    shares = [failures(some).get(reason, 0.0) for some in (rows, rows[:count], rows[-count:])]
    points = [(row["step"], row.get(f"{FAILED}{reason}", 0.0)) for row in rows]
    told = el("small", one_line(message, 160)) if message else None
    meanings = {**MEANINGS, **snapshot.display.meanings}
    return el(
        "tr",
        el("th", one_line(reason, 40)),
        [el("td", percent(share)) for share in shares],
        el("td", spark(points, "c5" if ours else "c2")),
        el("td", meanings.get(reason, ""), told, class_="text"),
    )


def _valid_chart(snapshot: Snapshot) -> Html | None:
    shares = [("valid", "rollout/valid_frac"), *snapshot.display.shares]
    drawn = [
        Series(name, colour, snapshot.series(metric), smoothed=True)
        for (name, metric), colour in zip(shares, ("c3", "c4", "c1", "c2"), strict=False)
    ]
    drawn.append(Series("unscored", "c5", snapshot.series("rollout/unscored")))
    return line_chart("Valid and unscored, share", drawn, low=0.0, high=1.0)


def judge_audit(snapshot: Snapshot) -> Html | None:
    """The judge beside gold, step by step (law 3)."""
    panels = grid([_drift_chart(snapshot), *(chart.drawn(snapshot) for chart in AUDIT)])
    lead = (
        "The reward is the judge's; gold is computed beside it wherever there is a check. All of "
        "this is about the answers that both have seen. A judge that turns generous while gold "
        "stands still is being gamed."
    )
    return section("judge", "Judge audit", lead, panels) if panels else None


def _drift_chart(snapshot: Snapshot) -> Html | None:
    return line_chart(
        "Drift: judge minus gold, points",
        [Series("drift", "c5", drift(snapshot), smoothed=True)],
        form=lambda v: points(v) if v else "0",
        low=-0.05,
        high=0.05,
        zero_line=True,
    )
