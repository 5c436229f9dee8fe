"""The page of a problem: all its groups through the run, when it was first solved, and how the
workflow that is written for it changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from urllib.parse import quote

from flowright.core.formatting import Record
from flowright.core.report import Series
from flowright.viewer.facts import Combination, safe, source_of
from flowright.viewer.finding import Attempt, Found
from flowright.viewer.group_page import difference
from flowright.viewer.rendering.charts import line_chart
from flowright.viewer.rendering.markup import Html, el
from flowright.viewer.shell import Column, Links, data_table, link, number
from flowright.viewer.texts import text

MOST_PROGRAMS = 12
"""Groups whose programs are read and compared, the newest; the table names all."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One group of attempts at the problem. ``best`` has the highest reward of it."""

    attempts: Sequence[Attempt]
    right: int
    gold: int

    @property
    def step(self) -> int:
        return self.attempts[0].step

    @property
    def rewards(self) -> list[float]:
        return [a.reward for a in self.attempts if a.reward is not None]

    @property
    def mean(self) -> float | None:
        return fmean(self.rewards) if self.rewards else None

    @property
    def best(self) -> Attempt:
        scored = [a for a in self.attempts if a.reward is not None]
        return max(scored, key=lambda a: a.reward or 0.0) if scored else self.attempts[0]

    @property
    def programs(self) -> int:
        return len({a.program for a in self.attempts})


def visits_of(found: Found, task: str) -> list[Visit]:
    """All groups of a problem, the first step first."""
    groups: dict[tuple[int, int], list[Attempt]] = {}
    where = "a.task = (SELECT id FROM tasks WHERE name = ?) ORDER BY a.id"
    for attempt in found.attempts(where, (task,)):
        groups.setdefault((attempt.step, attempt.group), []).append(attempt)
    return [
        Visit(
            attempts,
            *(
                sum(_about(found, a).outcome == "right" for a in attempts),
                sum(_about(found, a).gold == "right" for a in attempts),
            ),
        )
        for attempts in groups.values()
    ]


def _about(found: Found, attempt: Attempt) -> Combination:
    return found.combinations.get(attempt.combination, Combination())


def problem_body(
    found: Found, task: str, links: Links, read: Callable[[Attempt], Record]
) -> Html | None:
    """A problem through the run, None where the run has no attempt at it. ``read`` gives the
    record of an attempt."""
    visits = visits_of(found, task)
    if not visits:
        return None
    named = quote(safe(task), safe="")
    shown = visits[-MOST_PROGRAMS:]
    best = [read(visit.best) for visit in shown]
    problem = best[-1].get("task") or {}
    solved = next((visit for visit in visits if visit.gold), None)
    by = "gold"
    if solved is None:
        solved, by = next((visit for visit in visits if visit.right), None), "the judge"
    first = f"first solved in step {solved.step} by {by}" if solved else "never solved"
    count = sum(len(visit.attempts) for visit in visits)
    told = f"{count:,} attempts in {len(visits):,} groups; {first}"
    means = [(visit.step, visit.mean) for visit in visits if visit.mean is not None]
    return el(
        "div",
        el("h1", "A problem over time"),
        el("div", el("span", task, class_="soft"), el("span", told), class_="bar"),
        el("section", text(problem.get("problem") or "", 12)),
        line_chart(
            "Mean reward of its group",
            [Series("reward", "c1", means, marks=True)],
            form="{:.2f}".format,
            low=0.0,
            high=1.0,
            address=lambda step: links.of_run("attempts", f"step={step}&task={named}"),
        ),
        _table(visits, links),
        _programs(shown, best, links, len(visits)),
    )


def _table(visits: Sequence[Visit], links: Links) -> Html:
    columns = [
        Column("Group", True),
        Column("Attempts"),
        Column("Right, judge"),
        Column("Right, gold"),
        Column("Mean reward"),
        Column("Programs", told="different ones"),
        Column("Best attempt", True),
    ]
    rows = [
        el(
            "tr",
            el("th", link(links.of_run(f"group/{v.step}/{v.attempts[0].group}"),
                          f"{v.step}/{v.attempts[0].group}"), scope="row"),
            el("td", len(v.attempts)),
            el("td", v.right),
            el("td", v.gold),
            el("td", number(v.mean)),
            el("td", v.programs),
            el("td", link(links.attempt(v.best), v.best.place), class_="text"),
        )
        for v in reversed(visits)
    ]  # fmt: skip
    return data_table("Groups, the newest first", columns, rows, id="rows")


def _programs(visits: Sequence[Visit], best: Sequence[Record], links: Links, of_all: int) -> Html:
    """How the best program of a group differs from that of the group before."""
    parts: list[Html] = []
    before: str | None = None
    for visit, record in zip(visits, best, strict=True):
        source = source_of(record)
        shown = difference(before, source) if before is not None else el("pre", source)
        title = [
            link(links.attempt(visit.best), visit.best.place),
            f", reward {number(visit.best.reward)}",
        ]
        parts.append(el("section", el("h3", title), shown))
        before = source
    cut = f", the last {len(visits)} of {of_all} groups" if len(visits) < of_all else ""
    lead = f"The best program of each group against that of the group before{cut}."
    return el("section", el("h2", "How its workflow changed"), el("p", lead, class_="lead"), parts)
