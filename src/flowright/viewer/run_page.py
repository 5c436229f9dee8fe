"""The page of a run: its first screen, curves that lead to their attempts, what failed and whose
fault it was, the judge beside gold, operators, time and tokens. Most of it is the report's.
"""

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlencode

from flowright.core.formatting import NOTHING, Point, percent
from flowright.core.report import Series
from flowright.core.untrusted import one_line
from flowright.environments.display import Display
from flowright.viewer.layout import Column, Links, data_table, link
from flowright.viewer.monitoring import sections, trust
from flowright.viewer.monitoring.before_after import evaluation_section
from flowright.viewer.monitoring.report import tiles
from flowright.viewer.monitoring.snapshot import Snapshot, edge, first, is_ours, kinds, last
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.charts import line_chart, spark
from flowright.viewer.rendering.markup import Child, Html, el, grid, section
from flowright.viewer.rollout_records import NONE, Combination
from flowright.viewer.search import Found, Tallies, operators_by_step, tallies

COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
AGREEMENT_ALARM, UNSCORED_ALARM, VALID_ALARM = 0.8, 0.01, 0.9


def run_body(found: Found, snapshot: Snapshot, links: Links) -> Html:
    """Everything about one run."""
    counts = tallies(found)
    state = snapshot.state
    step = f", step {state.get('step')} of {state['steps']}" if state.get("steps") else ""
    chips = [
        f"{key}: {one_line(state[key], 120)}"
        for key in (*snapshot.display.models, *snapshot.display.labels)
        if state.get(key)
    ]
    return el(
        "div",
        el("h1", links.run),
        el(
            "ul", el("li", f"{snapshot.status}{step}"), [el("li", c) for c in chips], class_="chips"
        ),
        _alarms(snapshot, links),
        tiles(snapshot),
        _curves(snapshot, links),
        _failures(counts, snapshot, links),
        _audit(counts, links),
        trust.judge_audit(snapshot),
        _operators(found, links),
        [sections.mix_section(snapshot, mix) for mix in snapshot.display.mixes],
        sections.cost(snapshot),
        sections.learner(snapshot),
        trust.servers_section(snapshot),
        evaluation_section(snapshot),
        _held_out(links),
        _settings(snapshot),
        data_steps=links.of_run("attempts"),
    )


def _held_out(links: Links) -> Html | None:
    """The ways to the attempts at held-out problems."""
    paired = "the first half against the second, problem by problem"
    rows = [
        el(
            "li",
            link(replace(links, run=run).of_run("attempts"), name),
            [" (", link(f"/compare?{urlencode({'run': run})}", paired), ")"]
            if not links.exported
            else None,
        )
        for name, run in links.parts[1:]
    ]
    lead = "Validation: while it trained. Evaluation: the before/after table, untrained as step 0."
    title = "Attempts at held-out problems"
    return section("held-out", title, lead, el("ul", rows)) if rows else None


def _alarms(snapshot: Snapshot, links: Links) -> Html | None:
    """What is out of its range in the last steps, each with the attempts to look at."""
    count = edge(len(snapshot.training_rows))
    late = {
        name: last(snapshot.series(metric), count)
        for name, metric in (
            ("agreement", "judge/agreement_with_gold"),
            ("unscored", "rollout/unscored"),
            ("valid", "rollout/valid_frac"),
        )
    }
    told: list[tuple[str, str]] = []
    if (drift := snapshot.drift) is not None:
        against = "too_generous" if drift > 0 else "too_strict"
        told.append((f"the judge drifts: {100 * drift:+.1f} points", f"against={against}"))
    if late["agreement"] is not None and late["agreement"] < AGREEMENT_ALARM:
        told.append((f"the judge agrees with gold on {percent(late['agreement'])}", ""))
    if late["unscored"] is not None and late["unscored"] > UNSCORED_ALARM:
        told.append((f"{percent(late['unscored'])} unscored", "outcome=unscored"))
    if late["valid"] is not None and late["valid"] < VALID_ALARM:
        told.append((f"{percent(late['valid'])} valid", "outcome=failed"))
    if not told:
        return None
    items = [el("li", link(links.of_run("attempts", query), text)) for text, query in told]
    steps = "step" if count == 1 else f"{count} steps"
    return el(
        "div", el("p", f"Out of range in the last {steps}:"), el("ul", items), class_="problem"
    )


def _curves(snapshot: Snapshot, links: Links) -> Html | None:
    """Reward, gold and judge; then each kind. A click leads to the attempts of that step. None
    where there are no steps."""
    if not snapshot.rows:
        return None
    names = (
        ("reward", "c2", "reward/mean"),
        ("right by the judge", "c4", "reward/right_frac"),
        ("right by gold", "c1", "gold/accuracy"),
    )
    panels = [_curve("All problems", names, "val/gold", snapshot, links)]
    for kind in kinds(snapshot):
        own = (("reward", "c2", f"reward/by_kind/{kind}"), ("gold", "c1", f"gold/accuracy/{kind}"))
        panels.append(_curve(one_line(kind, 30), own, f"val/gold/{kind}", snapshot, links))
    panels.append(
        line_chart(
            "Groups without spread, share",
            [
                Series(
                    "no spread", "c6", snapshot.series("reward/zero_variance_frac"), smoothed=True
                )
            ],
            low=0.0,
            address=lambda step: links.of_run("attempts", f"step={step}"),
        )
    )
    note = "" if links.exported else " A click on a step opens its attempts."
    lead = f"Thin: each step; bold: a moving mean; points: held-out problems.{note}"
    return el("section", el("h2", "Curves"), el("p", lead, class_="lead"), grid(panels))


def _curve(
    title: str,
    names: Sequence[tuple[str, str, str]],
    validation: str,
    snapshot: Snapshot,
    links: Links,
) -> Html | None:
    drawn = [Series(n, c, snapshot.series(metric), smoothed=True) for n, c, metric in names]
    drawn.append(Series("held out, gold", "c3", snapshot.series(validation), marks=True))
    return line_chart(
        title,
        drawn,
        form=svg.plain,
        low=0.0,
        address=lambda step: links.of_run("attempts", f"step={step}"),
    )


def _failures(counts: Tallies, snapshot: Snapshot, links: Links) -> Html | None:
    """Failures by reason, the policy's apart from ours; each leads to its attempts."""
    reasons = sorted({about.failure for about in counts.alike} - {NONE})
    tables = [
        _reasons(title, [r for r in reasons if is_ours(r) is ours], counts, snapshot.display, links)
        for title, ours in (("The policy's: a low reward", False), ("Ours: unscored", True))
    ]
    if not counts.steps:
        return None
    return el("section", el("h2", "Failures"), el("div", tables, class_="columns"))


def _reasons(
    title: str, reasons: list[str], counts: Tallies, display: Display, links: Links
) -> Html:
    meanings = {**trust.MEANINGS, **display.meanings}
    rows: list[Html] = []
    courses: list[Series] = []
    numbered = sorted(reasons, key=lambda reason: -_of(counts, reason))
    for number, reason in enumerate(numbered):
        course = counts.share(lambda about, r=reason: about.failure == r)
        colour = COLOURS[number % len(COLOURS)]
        if number < len(COLOURS):
            courses.append(Series(reason, colour, course, smoothed=True))
        rows.append(_reason_row(reason, counts, course, colour, meanings.get(reason, ""), links))
    if not rows:
        return el("div", el("h3", title), el("p", "none", class_="soft"))
    columns = [Column("Reason", True), Column("Attempts"), Column("First"), Column("Last"),
               Column(""), Column("Meaning", True)]  # fmt: skip
    failed = "outcome=unscored" if is_ours(numbered[0]) else "outcome=failed"
    chart = line_chart(
        "Share of a step's attempts",
        courses,
        low=0.0,
        address=lambda step: links.of_run("attempts", f"step={step}&{failed}"),
    )
    return el("div", el("h3", title), data_table(title, columns, rows), chart)


def _of(counts: Tallies, reason: str) -> int:
    return counts.total(lambda about: about.failure == reason)


def _reason_row(
    reason: str,
    counts: Tallies,
    course: list[Point],
    colour: str,
    meaning: str,
    links: Links,
) -> Html:
    count = edge(len(course))
    query = f"failure={reason}"
    ends = (first(course, count), last(course, count))
    return el(
        "tr",
        el("th", link(links.of_run("attempts", query), reason), scope="row"),
        el("td", f"{_of(counts, reason):,}"),
        [el("td", NOTHING if end is None else percent(end)) for end in ends],
        el("td", spark(course, colour), class_="optional"),
        el("td", meaning, class_="long optional"),
    )


def _audit(counts: Tallies, links: Links) -> Html | None:
    """The judge against gold as a table of counts, each of them a selection."""
    opinions = ("right", "wrong", NONE)

    def cell(judge: str, gold: str) -> Child:
        def wanted(about: Combination) -> bool:
            return about.judge == judge and about.gold == gold and about.blame == NONE

        told = f"{counts.total(wanted):,}"
        against = {("right", "wrong"): "too_generous", ("wrong", "right"): "too_strict"}
        name = against.get((judge, gold))
        return link(links.of_run("attempts", f"against={name}"), told) if name else told

    if not any(about.gold != NONE for about in counts.alike):
        return None
    heads = [Column("Judge says", True), *(Column(f"gold: {gold}") for gold in opinions)]
    rows = [
        el("tr", el("th", judge, scope="row"), [el("td", cell(judge, gold)) for gold in opinions])
        for judge in opinions
    ]
    caption = "Attempts that ran to an answer, by what judge and gold say of it; - is no opinion"
    return el("section", el("h2", "Judge against gold"), data_table(caption, heads, rows))


def _operators(found: Found, links: Links) -> Html | None:
    courses = operators_by_step(found)
    if not courses:
        return None
    rows: list[Html] = []
    for number, (name, course) in enumerate(courses.items()):
        count = edge(len(course))
        ends = (first(course, count) or 0.0, last(course, count) or 0.0)
        rows.append(
            el(
                "tr",
                el("th", link(links.of_run("attempts", f"operator={name}"), name), scope="row"),
                [el("td", percent(end)) for end in ends],
                el("td", spark(course, COLOURS[number % len(COLOURS)])),
            )
        )
    columns = [Column("Operator", True), Column("First steps"), Column("Last steps"), Column("")]
    caption = "Share of a step's attempts that call it"
    return el("section", el("h2", "Operators"), data_table(caption, columns, rows))


def _settings(snapshot: Snapshot) -> Html:
    rows = [
        el("tr", el("th", key, scope="row"), el("td", value, class_="text long"))
        for key, value in sections.settings(snapshot.config)
    ]
    shown = data_table("config.json", [Column("Key", True), Column("Value", True)], rows)
    return el("section", el("h2", "Settings"), el("details", el("summary", "All settings"), shown))
