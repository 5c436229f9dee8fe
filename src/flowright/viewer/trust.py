"""Sections of a run's report about trust: failures and whose fault they were, the judge's audit,
and the run's requests.

``servers/<role>/<count>`` are a step's counts of a role (executor, judge, policy),
``servers/<role>/<host:port>/<count>`` those of one of its servers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle

from flowright.core.errors import Reason
from flowright.core.formatting import (
    Form,
    Point,
    Record,
    duration,
    format_value,
    is_number,
    percent,
    plain,
    points,
    short_percent,
)
from flowright.core.report import (
    LineChart,
    Note,
    ReportBlock,
    ReportCell,
    ReportColumn,
    ReportSection,
    ReportTable,
    Series,
    Spark,
)
from flowright.core.untrusted import one_line
from flowright.runs.alarm import DRIFT, MEASURED, alarm_line, first_alarm
from flowright.runs.totals import SERVERS, requests
from flowright.viewer.sections import COLOURS, Chart, some
from flowright.viewer.snapshot import (
    FAILED,
    Snapshot,
    edge,
    failures,
    is_ours,
    last,
    some_steps,
    trend,
)

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
    Reason.REWARD_FAILED: "a term of the reward has no value: see its function",
    Reason.INTERNAL: "a bug of ours",
}
"""Meanings of the failures that any environment may have; its display explains the others."""

RARE = partial(Chart, high=0.02, smoothed=False, zeros=False)
AUDIT = (
    Chart("Agreement with gold", [("agreement", "c1", "judge/agreement_with_gold")], 1.0, 0.8),
    Chart(
        "The judge's errors",
        [
            ("judge right, gold wrong", "c5", "judge/false_positive_rate"),
            ("judge wrong, gold right", "c2", "judge/false_negative_rate"),
        ],
        high=0.1,
    ),
    RARE(
        "No verdict, share",
        [
            ("gold wrong", "c5", "judge/no_verdict_rate_wrong"),
            ("gold right", "c2", "judge/no_verdict_rate_right"),
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


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """A reason of failure: its share of each step's attempts, its newest message, the number of
    attempts, and the address of their list, where these are known."""

    reason: str
    shares: list[Point]
    message: str = ""
    count: int | None = None
    address: str | None = None


def failed_attempts(snapshot: Snapshot, messages: Mapping[str, str]) -> list[FailedAttempts]:
    """The failures in a run's metrics, the most frequent first; ``messages`` by reason."""
    rows = snapshot.training_rows
    return [
        FailedAttempts(
            reason,
            [(row["step"], row.get(f"{FAILED}{reason}", 0.0)) for row in rows],
            messages.get(reason, ""),
        )
        for reason in failures(rows)
    ]


def failure_section(
    snapshot: Snapshot,
    failed: list[FailedAttempts],
    address: Callable[[str, int], str | None] | None = None,
) -> ReportSection:
    """Failures by reason, the policy's and ours; ``address`` leads from a step to its attempts of
    an outcome."""
    tables: list[ReportBlock] = []
    charts: list[ReportBlock] = []
    for whose, effect, outcome, ours in (
        ("The policy's", "a low reward", "failed", False),
        ("Ours", "unscored", "unscored", True),
    ):
        found = [each for each in failed if is_ours(each.reason) is ours]
        if not found:
            tables.append(Note(f"{whose}: none", soft=True))
            continue
        tables.append(_failure_table(f"{whose}: {effect}", found, snapshot))
        lines = [
            Series(one_line(each.reason, 40), colour, each.shares, smoothed=True)
            for each, colour in zip(found, COLOURS, strict=False)
        ]
        to = partial(address, outcome) if address else None
        charts.append(LineChart(f"{whose}, share", lines, short_percent, 0.0, address=to))
    lead = (
        "Shares of all rollouts. A fault of the policy earns a low reward; a fault of ours leaves "
        "the attempt out of the training."
    )
    blocks = [*tables, *charts, _valid_chart(snapshot)]
    return ReportSection("failures", "Failures", blocks, lead)


def _failure_table(title: str, failed: list[FailedAttempts], snapshot: Snapshot) -> ReportTable:
    counted = any(each.count is not None for each in failed)
    steps = some_steps(edge(max(len(each.shares) for each in failed)))
    meanings = {**MEANINGS, **snapshot.display.meanings}
    columns = [
        ReportColumn("Reason", is_text=True),
        *(["Attempts"] if counted else []),
        *("Whole run", f"First {steps}", f"Last {steps}", ""),
        ReportColumn("Meaning, newest message", is_text=True),
    ]
    rows: list[list[ReportCell | str]] = []
    for each, colour in zip(failed, cycle(COLOURS), strict=False):
        ends = trend(each.shares)
        shares = (last(each.shares, len(each.shares)), *((ends.first, ends.last) if ends else ()))
        meaning = meanings.get(each.reason, "")
        rows.append(
            [
                ReportCell(one_line(each.reason, 40), address=each.address),
                *([format_value(each.count, "{:,.0f}".format)] if counted else []),
                *(format_value(share, percent) for share in shares),
                ReportCell("", mark=Spark(each.shares, colour)),
                ReportCell(meaning, one_line(each.message, 160), is_text=True),
            ]
        )
    return ReportTable(columns, rows, title)


def _valid_chart(snapshot: Snapshot) -> LineChart:
    shares = [("valid", "rollout/valid_frac"), *snapshot.display.shares]
    drawn = [
        Series(name, colour, snapshot.series(metric), smoothed=True)
        for (name, metric), colour in zip(shares, ("c3", "c4", "c1", "c2"), strict=False)
    ]
    drawn.append(Series("unscored", "c5", snapshot.series("rollout/unscored")))
    return LineChart("Valid and unscored, share", drawn, short_percent, low=0.0, high=1.0)


def judge_audit(snapshot: Snapshot) -> ReportSection | None:
    """The judge beside gold, step by step (law 3)."""
    at = first_alarm(snapshot.series(DRIFT), snapshot.drift_alarm)
    went = "It has not gone off." if at is None else f"It went off at step {at:g}."
    drift = LineChart(
        "Drift: judge minus gold, points",
        [Series("drift", "c5", snapshot.series(DRIFT), smoothed=True)],
        form=lambda value: points(value) if value else "0",
        low=-0.05,
        high=0.05,
        zero_line=True,
    )
    lead = (
        "The reward is the judge's; gold is computed beside it wherever there is a check. All of "
        "this is about the answers that both have seen. A judge that turns generous while gold "
        "stands still is being gamed."
    )
    alarm = Note(f"Alarm: {alarm_line(snapshot.drift_alarm)}. {went} {MEASURED}")
    charts = [chart.of(snapshot) for chart in AUDIT]
    return some(ReportSection("judge", "Judge audit", [alarm, drift, *charts], lead))


TROUBLES = (("429", "http_429"), ("5xx", "http_5xx"), ("timeouts", "timeouts"))
COUNTS = (
    *(("Calls", "calls"), ("Attempts", "attempts"), ("429", "http_429"), ("5xx", "http_5xx")),
    *(("Timeouts", "timeouts"), ("Failed", "failures"), ("Waited", "wait_seconds")),
    *(("Tokens in", "prompt_tokens"), ("Tokens out", "completion_tokens")),
)
ALARMING = {"http_429", "http_5xx", "timeouts", "failures"}


@dataclass(frozen=True, slots=True)
class ServerTraffic:
    """A role's sums by name of the count, and those of each of its servers."""

    counts: dict[str, float] = field(default_factory=dict)
    servers: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def troubles(self) -> dict[str, float]:
        """Attempts that servers refused, failed on or did not answer in time, and other failures,
        where there are any."""
        found = {name: self.counts.get(key, 0.0) for name, key in TROUBLES}
        found["other failures"] = self.counts.get("failures", 0.0) - sum(found.values())
        return {name: count for name, count in found.items() if count > 0}


def traffic(rows: Iterable[Record], evaluation: Record | None = None) -> dict[str, ServerTraffic]:
    """Sum over some steps, and over the before/after table, by role."""
    roles: dict[str, ServerTraffic] = {}
    for metric, value in requests(rows, evaluation).items():
        role, *server, count = metric.removeprefix(SERVERS).split("/")
        found = roles.setdefault(role, ServerTraffic())
        into = found.servers.setdefault("/".join(server), {}) if server else found.counts
        into[count] = value
    return roles


def servers_section(snapshot: Snapshot) -> ReportSection | None:
    """All requests of the run, and when they failed."""
    roles = traffic(snapshot.rows, snapshot.evaluation)
    rows: list[list[ReportCell | str]] = []
    shaded: list[int] = []
    for role, found in roles.items():
        shaded.append(len(rows))
        rows.append(_role_row(role, found.counts))
        rows += [_role_row(server, counts) for server, counts in sorted(found.servers.items())]
    refused = [key for _, key in TROUBLES]
    lead = (
        "Requests to the models' servers over the whole run, the before/after table included. A "
        "call is one request with all its attempts; failed are attempts, for whatever reason. "
        "Waited is the time that calls spent in our own queue and between attempts."
    )
    blocks = (
        ReportTable(("Role, server", *(name for name, _ in COUNTS)), rows, shaded=shaded),
        _role_chart(snapshot, "Failed attempts, per step", list(roles), ["failures"]),
        _role_chart(snapshot, "429, 5xx and timeouts, per step", list(roles), refused),
    )
    return some(ReportSection("servers", "Servers", blocks, lead))


def _role_row(name: str, counts: Mapping[str, float]) -> list[ReportCell | str]:
    cells: list[ReportCell | str] = [one_line(name, 60)]
    for _, key in COUNTS:
        form: Form = duration if key == "wait_seconds" else "{:,.0f}".format
        alarming = key in ALARMING and counts.get(key)
        cells.append(
            ReportCell(format_value(counts.get(key), form), "", "alarm" if alarming else "")
        )
    return cells


def _role_chart(snapshot: Snapshot, title: str, roles: list[str], counts: list[str]) -> LineChart:
    """Each role's sum of some counts in every step that had any of them."""
    drawn: list[Series] = []
    for role, colour in zip(roles, COLOURS, strict=False):
        course: list[Point] = []
        for row in snapshot.rows:
            known = [v for n in counts if is_number(v := row.get(f"{SERVERS}{role}/{n}"))]
            if known:
                course.append((row["step"], sum(known)))
        drawn.append(Series(one_line(role, 30), colour, course))
    return LineChart(title, drawn, plain, 0.0)
