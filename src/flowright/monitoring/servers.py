"""What the run's requests came to, by role and server: sums of the steps' ``servers/`` metrics, and
the report's section of them.

``servers/<role>/<count>`` are a step's counts of a role (executor, judge, policy),
``servers/<role>/<host:port>/<count>`` those of one of its servers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flowright.monitoring.snapshot import Snapshot
from flowright.rendering.charts import Series, line_chart
from flowright.rendering.markup import Html, el
from flowright.rendering.page import grid, section, table
from flowright.rendering.series import Form, Point, Record, duration, is_number, said
from flowright.rendering.svg import plain
from flowright.rendering.untrusted import one_line

PREFIX = "servers/"
TROUBLES = (("429", "http_429"), ("5xx", "http_5xx"), ("timeouts", "timeouts"))
COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
COLUMNS = (
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
        body.append(_row(role, found.counts, "own"))
        body += [_row(server, counts) for server, counts in sorted(found.servers.items())]
    charts = [
        _chart(snapshot, "Failed attempts, per step", list(roles), ["failures"]),
        _chart(snapshot, "429, 5xx and timeouts, per step", list(roles), [k for _, k in TROUBLES]),
    ]
    lead = (
        "Requests to the models' servers over the whole run. A call is one request with all its "
        "attempts; failed are attempts, for whatever reason. Waited is the time that calls spent "
        "in our own queue and between attempts."
    )
    head = ("Role, server", *(name for name, _ in COLUMNS))
    return section("servers", "Servers", lead, table(head, body), grid(charts))


def _row(name: str, counts: Mapping[str, float], class_: str | None = None) -> Html:
    cells: list[Html] = []
    for _, key in COLUMNS:
        form: Form = duration if key == "wait_seconds" else "{:,.0f}".format
        alarming = key in ALARMING and counts.get(key)
        cells.append(el("td", said(counts.get(key), form), class_="drift" if alarming else None))
    return el("tr", el("th", one_line(name, 60)), cells, class_=class_)


def _chart(snapshot: Snapshot, title: str, roles: list[str], counts: list[str]) -> Html | None:
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
