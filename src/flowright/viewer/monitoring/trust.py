"""The report's sections about trust: what failed and whose fault it was, the judge's audit, and
what the run's requests came to: sums of the steps' ``servers/`` metrics, by role and server.

``servers/<role>/<count>`` are a step's counts of a role (executor, judge, policy),
``servers/<role>/<host:port>/<count>`` those of one of its servers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from flowright.core.errors import Reason
from flowright.core.formatting import (
    Form,
    Point,
    Record,
    duration,
    is_number,
    percent,
    points,
    said,
)
from flowright.core.report import Series
from flowright.core.untrusted import one_line
from flowright.runs.alarm import DRIFT, MEASURED, alarm_line, first_alarm
from flowright.viewer.monitoring.sections import Chart
from flowright.viewer.monitoring.snapshot import FAILED, Snapshot, edge, failures, is_ours
from flowright.viewer.rendering.charts import line_chart, spark
from flowright.viewer.rendering.markup import Html, el, grid, section, table
from flowright.viewer.rendering.svg import plain

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
            ("read again, shortened", "c6", "judge/source/second_reading"),
            ("called wrong unread", "c2", "judge/source/floor"),
        ],
    ),
    RARE(
        "No verdict, by reason",
        [
            ("declined", "c6", "judge/status/declined"),
            ("refused", "c5", "judge/status/refused"),
            ("not parsed", "c2", "judge/status/parse_error"),
            ("truncated", "c4", "judge/status/truncated"),
            ("no room in time", "c4", "judge/status/overloaded"),
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
    if panels is None:
        return None
    at = first_alarm(snapshot.series(DRIFT), snapshot.drift_alarm)
    went = "It has not gone off." if at is None else f"It went off at step {at:g}."
    alarm = el("p", f"Alarm: {alarm_line(snapshot.drift_alarm)}. {went} {MEASURED}")
    return section("judge", "Judge audit", lead, alarm, panels)


def _drift_chart(snapshot: Snapshot) -> Html | None:
    return line_chart(
        "Drift: judge minus gold, points",
        [Series("drift", "c5", snapshot.series(DRIFT), smoothed=True)],
        form=lambda v: points(v) if v else "0",
        low=-0.05,
        high=0.05,
        zero_line=True,
    )


PREFIX = "servers/"
TROUBLES = (("429", "http_429"), ("5xx", "http_5xx"), ("timeouts", "timeouts"))
COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
COUNTS = (
    *(("Calls", "calls"), ("Attempts", "attempts"), ("429", "http_429"), ("5xx", "http_5xx")),
    *(("Timeouts", "timeouts"), ("Failed", "failures"), ("Waited", "wait_seconds")),
    *(("Tokens in", "prompt_tokens"), ("Tokens out", "completion_tokens")),
)
ALARMING = {"http_429", "http_5xx", "timeouts", "failures"}


@dataclass(frozen=True, slots=True)
class Traffic:
    """A role's sums by name of the count, and those of each of its servers."""

    counts: dict[str, float] = field(default_factory=dict)
    servers: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def troubles(self) -> dict[str, float]:
        """Attempts that servers refused, broke on or did not answer in time, and those that failed
        otherwise, where there are any."""
        found = {name: self.counts.get(key, 0.0) for name, key in TROUBLES}
        found["other failures"] = self.counts.get("failures", 0.0) - sum(found.values())
        return {name: count for name, count in found.items() if count > 0}


def traffic(rows: Iterable[Record]) -> dict[str, Traffic]:
    """The sums over some steps, by role; empty where no step tells."""
    roles: dict[str, Traffic] = {}
    for row in rows:
        for metric, value in row.items():
            if not metric.startswith(PREFIX) or not is_number(value):
                continue
            role, *server, count = metric.removeprefix(PREFIX).split("/")
            found = roles.setdefault(role, Traffic())
            into = found.servers.setdefault("/".join(server), {}) if server else found.counts
            into[count] = into.get(count, 0.0) + value
    return roles


def servers_section(snapshot: Snapshot) -> Html | None:
    """All requests of the run, and when they failed."""
    roles = traffic(snapshot.rows)
    if not roles:
        return None
    body: list[Html] = []
    for role, found in roles.items():
        body.append(_role_row(role, found.counts, "own"))
        body += [_role_row(server, counts) for server, counts in sorted(found.servers.items())]
    refused = [count for _, count in TROUBLES]
    charts = [
        _role_chart(snapshot, "Failed attempts, per step", list(roles), ["failures"]),
        _role_chart(snapshot, "429, 5xx and timeouts, per step", list(roles), refused),
    ]
    lead = (
        "Requests to the models' servers over the whole run. A call is one request with all its "
        "attempts; failed are attempts, for whatever reason. Waited is the time that calls spent "
        "in our own queue and between attempts."
    )
    head = ("Role, server", *(name for name, _ in COUNTS))
    return section("servers", "Servers", lead, table(head, body), grid(charts))


def _role_row(name: str, counts: Mapping[str, float], class_: str | None = None) -> Html:
    cells: list[Html] = []
    for _, key in COUNTS:
        form: Form = duration if key == "wait_seconds" else "{:,.0f}".format
        alarming = key in ALARMING and counts.get(key)
        cells.append(el("td", said(counts.get(key), form), class_="drift" if alarming else None))
    return el("tr", el("th", one_line(name, 60)), cells, class_=class_)


def _role_chart(snapshot: Snapshot, title: str, roles: list[str], counts: list[str]) -> Html | None:
    drawn = [
        Series(one_line(role, 30), colour, _sums(snapshot, role, counts))
        for role, colour in zip(roles, COLOURS, strict=False)
    ]
    return line_chart(title, drawn, form=plain, low=0.0)


def _sums(snapshot: Snapshot, role: str, counts: list[str]) -> list[Point]:
    """A role's sum of some counts in every step that had it."""
    found: list[Point] = []
    for row in snapshot.rows:
        values = [row.get(f"{PREFIX}{role}/{count}") for count in counts]
        known = [value for value in values if is_number(value)]
        if known:
            found.append((row["step"], sum(known)))
    return found
