"""The pages of a group (all attempts at one problem in one step) and of a problem over the run."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from urllib.parse import quote

from flowright.core.formatting import Record, object_of
from flowright.core.report import LineChart, ReportCell, ReportColumn, ReportTable, Series
from flowright.core.untrusted import visible
from flowright.viewer.attempts_page import attempts_table
from flowright.viewer.layout import Links, link, number, outcome_chip
from flowright.viewer.rendering.charts import chart_html
from flowright.viewer.rendering.markup import Child, Html, el
from flowright.viewer.rendering.record_blocks import WHOLE, blocks_html, code_block
from flowright.viewer.rendering.report import table_html
from flowright.viewer.rollout_records import (
    combination_of,
    escape_surrogates,
    problem_blocks,
    reward_arithmetic,
    reward_of,
    source_of,
)
from flowright.viewer.search import Attempt, AttemptSearch
from flowright.viewer.selection import Filter

MOST_LINES = 600
"""Lines of two programs that are compared; longer ones are shown without a difference."""
MOST_PROGRAMS = 12
"""Groups whose programs are read and compared, the newest; the table names all."""


def group_body(
    found: AttemptSearch, attempts: Sequence[Attempt], records: Sequence[Record], links: Links
) -> Html:
    """A group's attempts side by side. ``records`` are theirs, in the same order."""
    step, group = attempts[0].step, attempts[0].group
    task = object_of(records[0], "task")
    rewards = [value for value in map(reward_of, records) if value is not None]
    summary = "no attempt was scored: the group trains nothing"
    if rewards:
        spread = pstdev(rewards)
        summary = (
            f"{len(rewards)} of {len(records)} scored, mean reward {fmean(rewards):.3f}, "
            f"standard deviation {spread:.3f}"
        )
        summary += "" if spread else ": no spread, so there is nothing to learn from"
    return el(
        "div",
        el("h1", f"Group {step}/{group}"),
        el(
            "div",
            el("span", link(links.of_run("attempts", f"step={step}"), f"Step {step}")),
            el("span", link(links.task(str(task.get("id") or "")), "This problem over time")),
            el("span", summary),
            class_="bar",
        ),
        el("section", blocks_html(problem_blocks(records[0]), WHOLE)),
        attempts_table(found, attempts, links, Filter(), f"{len(attempts)} attempts", True),
        _best_and_worst(attempts, records, links),
        el("h2", "Programs"),
        el("div", [_card(*each, links) for each in zip(attempts, records, strict=True)],
           class_="cards"),
    )  # fmt: skip


def _best_and_worst(
    attempts: Sequence[Attempt], records: Sequence[Record], links: Links
) -> Html | None:
    """The best against the worst of those that were scored."""
    scored = [(r, n) for n, record in enumerate(records) if (r := reward_of(record)) is not None]
    if not scored:
        return None
    best, worst = max(scored, key=lambda each: (each[0], -each[1])), min(scored)
    if best[0] == worst[0]:
        return None
    title: list[Child] = []
    for word, (reward, n) in (("From the worst (", worst), (" to the best (", best)):
        attempt = attempts[n]
        title += [word, link(links.attempt(attempt), attempt.place), f", {reward:.2f})"]
    shown = difference(source_of(records[worst[1]]), source_of(records[best[1]]))
    return el("section", el("h2", title), shown)


def difference(before: str, after: str) -> Html:
    """The lines of two programs, removed ones marked with - and added ones with +."""
    old, new = (visible(source).splitlines() for source in (before, after))
    if old == new:
        return el("p", "the same program", class_="soft")
    if max(len(old), len(new)) > MOST_LINES:
        return el("p", f"longer than {MOST_LINES} lines: not compared", class_="soft")
    rows: list[Html] = []
    for line in list(difflib.unified_diff(old, new, lineterm="", n=30))[2:]:
        if not line.startswith("@"):
            class_ = {"+": "plus", "-": "minus"}.get(line[:1])
            rows.append(el("span", line[:2000], class_=class_))
    return el("pre", rows, class_="diff")


def _card(attempt: Attempt, record: Record, links: Links) -> Html:
    counted = combination_of(record)
    workflow = object_of(record, "workflow")
    calls = workflow.get("calls")
    bad_line = object_of(record, "failure").get("line") if workflow else None
    operators = tuple(map(str, calls)) if isinstance(calls, list) else ()
    chip = outcome_chip(counted.outcome, counted.failure)
    return el(
        "article",
        el("h3", link(links.attempt(attempt), attempt.place), " ", chip),
        el("p", reward_arithmetic(record), class_="who"),
        code_block(source_of(record), bad_line, operators),
        class_="card",
    )


# --- a problem over the run -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Visit:
    """One group of attempts at the problem; ``right`` by the judge, ``gold`` by gold."""

    attempts: Sequence[Attempt]
    right: int
    gold: int

    @property
    def step(self) -> int:
        return self.attempts[0].step

    @property
    def mean(self) -> float | None:
        rewards = [a.reward for a in self.attempts if a.reward is not None]
        return fmean(rewards) if rewards else None

    @property
    def best(self) -> Attempt:
        """The attempt of the highest reward."""
        scored = [a for a in self.attempts if a.reward is not None]
        return max(scored, key=lambda a: a.reward or 0.0) if scored else self.attempts[0]


def group_visits(found: AttemptSearch, task: str) -> list[Visit]:
    """All groups of a problem, the first step first."""
    groups: dict[tuple[int, int], list[Attempt]] = {}
    where = "WHERE a.task = (SELECT id FROM tasks WHERE name = ?) ORDER BY a.id"
    for attempt in found.attempts(where, (task,)):
        groups.setdefault((attempt.step, attempt.group), []).append(attempt)
    visits: list[Visit] = []
    for attempts in groups.values():
        about = [found.about(attempt) for attempt in attempts]
        right = sum(each.outcome == "right" for each in about)
        visits.append(Visit(attempts, right, sum(each.gold == "right" for each in about)))
    return visits


def problem_body(
    found: AttemptSearch, task: str, links: Links, read: Callable[[Attempt], Record]
) -> Html | None:
    """A problem through the run, None where the run has no attempt at it. ``read`` gives the
    record of an attempt."""
    visits = group_visits(found, task)
    if not visits:
        return None
    named = quote(escape_surrogates(task), safe="")
    shown = visits[-MOST_PROGRAMS:]
    best = [read(visit.best) for visit in shown]
    solved = next((visit for visit in visits if visit.gold), None)
    by = "gold"
    if solved is None:
        solved, by = next((visit for visit in visits if visit.right), None), "the judge"
    first = f"first solved in step {solved.step} by {by}" if solved else "never solved"
    count = sum(len(visit.attempts) for visit in visits)
    means = [(visit.step, visit.mean) for visit in visits if visit.mean is not None]
    chart = LineChart(
        "Mean reward of its group",
        [Series("reward", "c1", means, marks=True)],
        "{:.2f}".format,
        0.0,
        1.0,
        address=lambda step: links.of_run("attempts", f"step={step}&task={named}"),
    )
    return el(
        "div",
        el("h1", "A problem over time"),
        el(
            "div",
            el("span", task, class_="soft"),
            el("span", f"{count:,} attempts in {len(visits):,} groups; {first}"),
            class_="bar",
        ),
        el("section", blocks_html(problem_blocks(best[-1]), WHOLE)),
        chart_html(chart),
        _groups_table(visits, links),
        _programs(shown, best, links, len(visits)),
    )


def _groups_table(visits: Sequence[Visit], links: Links) -> Html | None:
    columns = [
        ReportColumn("Group", is_text=True),
        *("Attempts", "Right, judge", "Right, gold", "Mean reward"),
        ReportColumn("Programs", tip="different ones"),
        ReportColumn("Best attempt", is_text=True),
    ]
    rows: list[list[ReportCell | str]] = []
    for visit in reversed(visits):
        place = f"{visit.step}/{visit.attempts[0].group}"
        programs = {attempt.program for attempt in visit.attempts}
        to_best = links.attempt(visit.best)
        rows.append(
            [
                ReportCell(place, address=links.of_run(f"group/{place}")),
                *map(str, (len(visit.attempts), visit.right, visit.gold)),
                number(visit.mean),
                str(len(programs)),
                ReportCell(visit.best.place, is_text=True, address=to_best),
            ]
        )
    return table_html(ReportTable(columns, rows, "Groups, the newest first", anchor="rows"))


def _programs(visits: Sequence[Visit], best: Sequence[Record], links: Links, of_all: int) -> Html:
    """The best program of each group against that of the group before."""
    parts: list[Html] = []
    before: str | None = None
    for visit, record in zip(visits, best, strict=True):
        source = source_of(record)
        shown = difference(before, source) if before is not None else el("pre", source)
        where = link(links.attempt(visit.best), visit.best.place)
        title = el("h3", where, f", reward {number(visit.best.reward)}")
        parts.append(el("section", title, shown))
        before = source
    cut = f", the last {len(visits)} of {of_all} groups" if len(visits) < of_all else ""
    lead = f"The best program of each group against that of the group before{cut}."
    return el("section", el("h2", "Changes of its workflow"), el("p", lead, class_="lead"), parts)
