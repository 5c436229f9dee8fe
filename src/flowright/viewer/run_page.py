"""The page of a run: the report's sections with links to their attempts, and counts of the
index."""

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlencode

from flowright.core.formatting import percent
from flowright.core.report import (
    ReportCell,
    ReportColumn,
    ReportSection,
    ReportTable,
    Spark,
)
from flowright.runs.run_files import BASELINES
from flowright.viewer import sections, trust
from flowright.viewer.layout import Links, link
from flowright.viewer.rendering.markup import Html, el, section
from flowright.viewer.rendering.report import section_html, tiles_html
from flowright.viewer.rollout_records import NONE
from flowright.viewer.run_report import chips, configuration, run_sections, status_chip
from flowright.viewer.search import (
    AttemptSearch,
    failures_by_step,
    operators_by_step,
    opinion_counts,
)
from flowright.viewer.snapshot import AGREEMENT, CUT, RECENT, Snapshot, some_steps, trend


def run_body(found: AttemptSearch, snapshot: Snapshot, links: Links) -> Html:
    """Everything about one run."""

    def address(query: str, step: int | None = None) -> str | None:
        also = f"step={step}" if step is not None else ""
        return links.of_run("attempts", "&".join(filter(None, (also, query))))

    failed = [
        trust.FailedAttempts(
            reason, each.shares, count=each.count, address=address(f"failure={reason}")
        )
        for reason, each in sorted(failures_by_step(found).items())
    ]
    failed.sort(key=lambda each: -(each.count or 0))
    shown = run_sections(
        snapshot,
        failed,
        [_opinions(found, links), _operators(found, links)],
        None if links.exported else lambda step: address("", step),
        lambda outcome, step: address(f"outcome={outcome}", step),
    )
    return el(
        "div",
        el("h1", links.run),
        el("ul", status_chip(snapshot), [el("li", c) for c in chips(snapshot)], class_="chips"),
        _alarms(snapshot, links),
        tiles_html(sections.tiles(snapshot)),
        map(section_html, shown),
        _held_out(links),
        section_html(configuration(snapshot)),
        data_steps=links.of_run("attempts"),
    )


def _alarms(snapshot: Snapshot, links: Links) -> Html | None:
    """Metrics out of their range in the last steps, each with a link to the attempts."""
    found: list[tuple[str, str]] = []
    if (drift := snapshot.drift) is not None:
        against = "too_generous" if drift > 0 else "too_strict"
        found.append((f"the judge drifts: {100 * drift:+.1f} points", f"against={against}"))
    for metric, text, query in (
        (AGREEMENT, "the judge agrees with gold on {}", ""),
        ("rollout/unscored", "{} unscored", "outcome=unscored"),
        ("rollout/valid_frac", "{} valid", "outcome=failed"),
        (CUT, "{} of the prompts cut", ""),
    ):
        if (mean := snapshot.out_of_range(metric)) is not None:
            found.append((text.format(percent(mean)), query))
    if not found:
        return None
    items = [el("li", link(links.of_run("attempts", query), text)) for text, query in found]
    count = min(RECENT, sum(row["step"] > 0 for row in snapshot.rows))
    title = el("p", f"Out of range in the last {some_steps(count)}:")
    return el("div", title, el("ul", items), class_="problem")


def _opinions(found: AttemptSearch, links: Links) -> ReportSection | None:
    """The judge against gold as a table of counts, those of a disagreement with their attempts."""
    counts = opinion_counts(found)
    if not any(gold != NONE for _, gold in counts):
        return None
    opinions = ("right", "wrong", NONE)
    against = {("right", "wrong"): "too_generous", ("wrong", "right"): "too_strict"}

    def cell(judge: str, gold: str) -> ReportCell:
        name = against.get((judge, gold))
        to = links.of_run("attempts", f"against={name}") if name else None
        return ReportCell(f"{counts.get((judge, gold), 0):,}", address=to)

    columns = [ReportColumn("Judge", is_text=True), *(f"gold: {gold}" for gold in opinions)]
    rows = [(judge, *(cell(judge, gold) for gold in opinions)) for judge in opinions]
    caption = "Attempts that ran to an answer, by the opinions of judge and gold; - is no opinion"
    table = ReportTable(columns, rows, caption)
    return ReportSection("opinions", "Judge against gold", [table])


def _operators(found: AttemptSearch, links: Links) -> ReportSection | None:
    courses = operators_by_step(found)
    rows: list[Sequence[ReportCell | str]] = []
    for number, (name, course) in enumerate(courses.items()):
        ends = trend(course.shares)
        assert ends is not None, "an operator has a share in every step"
        to = links.of_run("attempts", f"operator={name}")
        mark = Spark(course.shares, sections.COLOURS[number % len(sections.COLOURS)])
        shares = (percent(ends.first), percent(ends.last))
        rows.append((ReportCell(name, address=to), *shares, ReportCell("", mark=mark)))
    columns = [ReportColumn("Operator", is_text=True), "First steps", "Last steps", ""]
    caption = "Share of a step's attempts that call it"
    table = ReportTable(columns, rows, caption)
    return ReportSection("calls", "Operators", [table]) if rows else None


def _held_out(links: Links) -> Html | None:
    """Links to the attempts at held-out problems."""
    paired = "the first half against the second, problem by problem"
    rows = [
        el(
            "li",
            link(replace(links, run=run).of_run("attempts"), name),
            [" (", link(f"/compare?{urlencode({'run': run})}", paired), ")"]
            if not links.exported and name != BASELINES.capitalize()
            else None,
        )
        for name, run in links.parts[1:]
    ]
    lead = (
        "Validation: while it trained. Evaluation: the before/after table, untrained as step 0. "
        "Baselines: those of that table, their numbers as steps."
    )
    title = "Attempts at held-out problems"
    return section("held-out", title, lead, el("ul", rows)) if rows else None
