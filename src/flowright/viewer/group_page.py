"""The pages of a group (all attempts at one problem in one step) and of a problem over the run."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from urllib.parse import quote

from flowright.core.formatting import Record, object_of
from flowright.core.report import Series
from flowright.core.untrusted import visible
from flowright.viewer.attempts_page import attempts_table
from flowright.viewer.layout import Column, Links, data_table, link, number, outcome_chip
from flowright.viewer.monitoring.attempt_groups import reward_arithmetic, reward_of
from flowright.viewer.rendering.charts import line_chart
from flowright.viewer.rendering.markup import Html, code_block, el
from flowright.viewer.rollout_records import Combination, combination_of, safe, source_of
from flowright.viewer.search import Attempt, Found
from flowright.viewer.selection import Filter
from flowright.viewer.texts import text

MOST_LINES = 600
"""Lines of two programs that are compared; longer ones are shown without a difference."""


def group_body(
    found: Found, attempts: Sequence[Attempt], records: Sequence[Record], links: Links
) -> Html:
    """A group's attempts side by side. ``records`` are theirs, in the same order."""
    first = attempts[0]
    task = object_of(records[0], "task")
    rewards = [value for value in map(reward_of, records) if value is not None]
    told = "no attempt was scored: the group trains nothing"
    if rewards:
        spread = pstdev(rewards)
        told = (
            f"{len(rewards)} of {len(records)} scored, mean reward {fmean(rewards):.3f}, "
            f"standard deviation {spread:.3f}"
        )
        told += "" if spread else ": no spread, so there is nothing to learn from"
    return el(
        "div",
        el("h1", f"Group {first.step}/{first.group}"),
        el(
            "div",
            el("span", link(links.of_run("attempts", f"step={first.step}"), f"Step {first.step}")),
            el("span", link(links.task(str(task.get("id") or "")), "This problem over time")),
            el("span", told),
            class_="bar",
        ),
        el("section", el("h3", "Problem"), text(task.get("problem") or "", 12)),
        attempts_table(found, attempts, links, Filter(), f"{len(attempts)} attempts", True),
        _difference(attempts, records, links),
        el("h2", "Programs"),
        el("div", [_card(*each, links) for each in zip(attempts, records, strict=True)],
           class_="cards"),
    )  # fmt: skip


def _difference(
    attempts: Sequence[Attempt], records: Sequence[Record], links: Links
) -> Html | None:
    """The best against the worst of those that were scored."""
    scored = [
        (value, n) for n, record in enumerate(records) if (value := reward_of(record)) is not None
    ]
    if not scored:
        return None
    best = max(scored, key=lambda each: (each[0], -each[1]))
    worst = min(scored)
    if best[0] == worst[0]:
        return None
    title = [
        "From the worst (",
        link(links.attempt(attempts[worst[1]]), attempts[worst[1]].place),
        f", {worst[0]:.2f}) to the best (",
        link(links.attempt(attempts[best[1]]), attempts[best[1]].place),
        f", {best[0]:.2f})",
    ]
    shown = difference(source_of(records[worst[1]]), source_of(records[best[1]]))
    return el("section", el("h2", title), shown)


def difference(before: str, after: str) -> Html:
    """The lines of two programs, what went marked with - and what came with +."""
    old, new = (visible(source).splitlines() for source in (before, after))
    if old == new:
        return el("p", "the same program", class_="soft")
    if max(len(old), len(new)) > MOST_LINES:
        return el("p", f"longer than {MOST_LINES} lines: not compared", class_="soft")
    rows: list[Html] = []
    for line in list(difflib.unified_diff(old, new, lineterm="", n=30))[2:]:
        class_ = {"+": "plus", "-": "minus", "@": "hunk"}.get(line[:1])
        if class_ != "hunk":
            rows.append(el("span", line[:2000], class_=class_))
    return el("pre", rows, class_="diff")


def _card(attempt: Attempt, record: Record, links: Links) -> Html:
    counted = combination_of(record)
    workflow = object_of(record, "workflow")
    calls = workflow.get("calls")
    bad = object_of(record, "failure").get("line") if workflow else None
    return el(
        "article",
        el(
            "h3",
            link(links.attempt(attempt), attempt.place),
            " ",
            outcome_chip(counted.outcome, counted.failure),
        ),
        el("p", reward_arithmetic(record), class_="who"),
        code_block(
            source_of(record), bad, tuple(map(str, calls)) if isinstance(calls, list) else ()
        ),
        class_="card",
    )


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
