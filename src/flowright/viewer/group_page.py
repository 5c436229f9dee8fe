"""The page of a group: all attempts at one problem in one step, as the trainer saw them, and the
best against the worst as a difference of programs.
"""

import difflib
from collections.abc import Sequence
from statistics import fmean, pstdev

from flowright.core.formatting import Record, object_of
from flowright.core.untrusted import visible
from flowright.viewer.attempts_page import attempts_table
from flowright.viewer.facts import combination_of, source_of
from flowright.viewer.filters import Filter
from flowright.viewer.finding import Attempt, Found
from flowright.viewer.monitoring.exhibits import reward_arithmetic, reward_of
from flowright.viewer.rendering.block_markup import code_block
from flowright.viewer.rendering.markup import Html, el
from flowright.viewer.shell import Links, link, outcome_chip
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
