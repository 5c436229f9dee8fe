"""The pages of runs: all of a folder, with headline figures and the settings in which they differ;
one with the report's sections, links to their attempts and counts of the index; and two or more
compared, or two stretches of steps of one, with a test of the difference problem by problem.
"""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from urllib.parse import quote, urlencode

from flowright.core.errors import boundary
from flowright.core.formatting import (
    NOTHING,
    Form,
    duration,
    format_value,
    percent,
    plain,
    points,
)
from flowright.core.report import (
    LineChart,
    ReportCell,
    ReportColumn,
    ReportSection,
    ReportTable,
    Series,
    Spark,
)
from flowright.core.statistics import DIFFERENCE, RESAMPLES, Resampler, mean
from flowright.core.untrusted import one_line
from flowright.runs.run_files import BASELINES
from flowright.viewer import sections, trust
from flowright.viewer.layout import Links, link, number
from flowright.viewer.rendering.markup import Child, Html, el, join, section
from flowright.viewer.rendering.report import section_html, table_html, tiles_html
from flowright.viewer.rollout_records import NONE
from flowright.viewer.run_list import ViewedRun
from flowright.viewer.run_report import chips, configuration, run_sections, status_chip
from flowright.viewer.search import (
    AttemptSearch,
    Solved,
    failures_by_step,
    operators_by_step,
    opinion_counts,
    solved_by_task,
)
from flowright.viewer.selection import Range, step_ids
from flowright.viewer.snapshot import (
    AGREEMENT,
    CUT,
    RECENT,
    SAMPLED,
    Snapshot,
    held_out,
    last,
    some_steps,
    trend,
)

MOST_DIFFERENCES = 12
STATUS = {"finished": "good", "running": "plain"}
_HEADS = (
    *(ReportColumn("Run", is_text=True), ReportColumn("Status", is_text=True), "Step"),
    *(ReportColumn("What", is_text=True), "Reward", "", "Loss", "", "Gold", "Held out", "Drift"),
    *("Unscored", "Time", ReportColumn("Last news", is_text=True)),
)
_OPTIONAL = range(4, 11)
"""Columns that are left out where no run has a value."""


def runs_body(runs: Sequence[ViewedRun], links: Links, against: str = "") -> Html:
    """A row a run. ``against``: the name of the run whose settings the others are compared with."""
    base = next((run.snapshot() for run in runs if run.name == against), None)
    heads: list[ReportColumn | str] = [*_HEADS]
    if base is not None:
        heads.append(ReportColumn(f"Differs from {against}", is_text=True))
    rows = [_row_or_why(run, links, base) for run in runs]
    empty = {n for n in _OPTIONAL if all(_is_empty(row, n) for row in rows)}
    heads = [head for n, head in enumerate(heads) if n not in empty]
    rows = [[cell for n, cell in enumerate(row) if n not in empty] for row in rows]
    caption = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    table = table_html(ReportTable(heads, rows, caption, anchor="rows"))
    if links.exported:
        return el("div", el("h1", "Runs"), table)
    hint = "Mark two or more: curves over each other, and problem by problem."
    button = el("button", "Compare the marked runs", type="submit")
    below = el("div", button, el("span", hint, class_="soft"), class_="bar")
    form = el("form", table, below, action="/compare", method="get")
    return el("div", el("h1", "Runs"), form if runs else el("p", "No run here yet."))


def _is_empty(row: Sequence[ReportCell | str], n: int) -> bool:
    cell = row[n] if n < len(row) else NOTHING
    if isinstance(cell, ReportCell):
        return isinstance(cell.mark, Spark) and not cell.mark.points
    return cell == NOTHING


def _row_or_why(run: ViewedRun, links: Links, base: Snapshot | None) -> Sequence[ReportCell | str]:
    """A run's row, or why there is none: a fault of one hides no other."""
    with boundary("its files hold something that is not expected") as tried:
        return _cells(run, run.snapshot(), links, base)
    why = one_line(tried.failure.message if tried.failure else "", 300)
    return [run.name, ReportCell(el("span", why, class_="tag alarm"), is_text=True)]


def _cells(
    run: ViewedRun, snapshot: Snapshot, links: Links, base: Snapshot | None
) -> list[ReportCell | str]:
    state, figure, drift = snapshot.state, held_out(snapshot), snapshot.recent_drift
    damaged = run.damaged.replace(f"{run.path}/", "")
    status = "damaged" if damaged else snapshot.status
    name = join([link(Links(run.name, links.exported, links.held).of_run(""), run.name)])
    if not links.exported:
        about = {"value": run.name, "aria_label": f"mark {run.name}"}
        name = join([el("input", type="checkbox", name="run", **about), " ", name])
    took, unscored = sum(snapshot.seconds.values()), snapshot.series("rollout/unscored")
    news: list[Child] = [_date(state.get("updated"))]
    if base is None and not links.exported:
        to = f"/?against={quote(run.name, safe='')}"
        news += [" ", el("a", "differences", href=to)]
    differences = [] if base is None else [ReportCell(_differences(base, snapshot), style="long")]
    return [
        name,
        ReportCell(el("span", status, class_=f"tag {STATUS.get(status, 'alarm')}"), is_text=True),
        f"{snapshot.step or 0}/{state['steps']}" if state.get("steps") else NOTHING,
        ReportCell(one_line(damaged or _what(snapshot), 80), is_text=True),
        _change(snapshot, "reward/mean", "{:.2f}".format),
        ReportCell("", mark=Spark(snapshot.series("reward/mean"), "c1")),
        _change(snapshot, "train/loss", "{:.3f}".format),
        ReportCell("", mark=Spark(snapshot.series("train/loss"), "c1")),
        _change(snapshot, "gold/accuracy", percent),
        figure.text() if figure else NOTHING,
        format_value(drift, points),
        format_value(last(unscored, len(unscored)), percent),
        duration(took) if took else NOTHING,
        ReportCell(join(news), is_text=True),
        *differences,
    ]


def _what(snapshot: Snapshot) -> str:
    environment = snapshot.config.get("environment") or "workflow"
    policy = snapshot.state.get("policy") or snapshot.config.get("strategy_model") or ""
    label = " (simulated)" if snapshot.simulated else ""
    return ", ".join(str(part) for part in (environment, policy) if part) + label


def _change(snapshot: Snapshot, metric: str, form: Form) -> str:
    ends = trend(snapshot.series(metric))
    return ends.text(form) if ends else NOTHING


def _date(updated: object) -> str:
    if not isinstance(updated, int | float):
        return NOTHING
    try:
        when = datetime.datetime.fromtimestamp(updated, datetime.UTC)
    except (ValueError, OverflowError, OSError):  # no time that a calendar has
        return NOTHING
    return when.strftime("%Y-%m-%d %H:%M")


def _differences(base: Snapshot, snapshot: Snapshot) -> str:
    """The run's settings that differ from the base's."""
    changed = [
        f"{key}: {here} (there {there})"
        for key, (here, there) in sections.differing(snapshot.config, base.config).items()
        if key != "run.name"
    ]
    if not changed:
        return "nothing"
    more = len(changed) - MOST_DIFFERENCES
    shown = changed[:MOST_DIFFERENCES] + ([f"and {more} more"] if more > 0 else [])
    return el("span", [[line, el("br")] for line in shown])


# --- one run --------------------------------------------------------------------------------------


def run_body(found: AttemptSearch, snapshot: Snapshot, links: Links) -> Html:
    """Everything about one run."""

    def address(query: str, step: int | None = None) -> str | None:
        also = f"step={step}" if step is not None else ""
        return links.of_run("attempts", "&".join(filter(None, (also, query))))

    failed = [
        trust.FailedAttempts(reason, shares, count=count, address=address(f"failure={reason}"))
        for reason, (count, shares) in sorted(failures_by_step(found).items())
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
        (SAMPLED, "{} of the trained tokens are the sampled ones", ""),
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
    rows: list[Sequence[ReportCell | str]] = []
    for (name, (_, course)), colour in zip(
        operators_by_step(found).items(), cycle(sections.COLOURS), strict=False
    ):
        ends = trend(course)
        assert ends is not None, "an operator has a share in every step"
        to = links.of_run("attempts", f"operator={name}")
        shares = (percent(ends.first), percent(ends.last))
        mark = ReportCell("", mark=Spark(course, colour))
        rows.append((ReportCell(name, address=to), *shares, mark))
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


# --- runs compared --------------------------------------------------------------------------------

CURVES = (
    ("Loss", "train/loss"),
    ("Loss, held out", "val/loss"),
    ("Accuracy", "train/accuracy"),
    ("Accuracy, held out", "val/accuracy"),
    ("Reward, mean", "reward/mean"),
    ("Right by gold", "gold/accuracy"),
    ("Held out, gold", "val/gold"),
    ("Held out, mean reward", "val/reward"),
    ("Valid", "rollout/valid_frac"),
    ("Judge less gold", "judge/drift"),
    ("KL to the base model", "policy/kl"),
    ("Entropy", "policy/entropy"),
    ("Tokens of the large model per problem", "tokens/llm_mean"),
)
MOST_PROBLEMS = 200
SOLVED = 0.5
"""Share of the attempts at a problem that have to be right for it to be called solved."""


@dataclass(frozen=True, slots=True)
class Side:
    """A run and the steps of it that are compared: a range, or empty for all."""

    run: ViewedRun
    snapshot: Snapshot
    steps: str = ""

    @property
    def name(self) -> str:
        return f"{self.run.name}, steps {self.steps}" if self.steps else self.run.name

    def among(self, *sides: "Side") -> str:
        """The name beside those of others: the steps alone, where all are of one run."""
        alone = len({side.run.name for side in sides}) == 1 and self.steps
        return f"steps {self.steps}" if alone else self.name

    def solved(self) -> dict[str, Solved]:
        chosen = Range.read(self.steps) if self.steps else None
        with self.run.found() as found:
            return solved_by_task(found, step_ids(chosen) if chosen else None)


def compare_body(sides: Sequence[Side], problems: Sequence[str] = ()) -> Html:
    """Runs over each other; the first two, or one's first and last steps, problem by problem."""
    first, second = sides[0], sides[1]
    distinct = list({side.run.name: side for side in sides}.values())
    return el(
        "div",
        el("h1", " against ".join(side.name for side in sides)),
        [el("p", problem, class_="problem") for problem in problems],
        _form(sides),
        _paired(first, second) if first.run.steps() or second.run.steps() else None,
        _overlay(distinct) if len(distinct) > 1 else None,
        _settings(first, second) if len(distinct) > 1 else None,
    )


def _form(sides: Sequence[Side]) -> Html:
    fields: list[Child] = []
    for n, side in enumerate(sides):
        fields.append(el("input", type="hidden", name="run", value=side.run.name))
        if n < 2:
            box = el("input", name=f"steps{n + 1}", value=side.steps, size=10,
                     placeholder="all, or 30..44")  # fmt: skip
            fields.append(el("label", f"{side.run.name}: steps ", box, " "))
    return el(
        "form", fields, el("button", "Compare"), action="/compare", method="get", class_="bar"
    )


RunPair = tuple[str, float, float]
"""A problem that both sides tried: its name and the share that is right, or the mean reward, of
each."""


def pair_problems(
    first: dict[str, Solved], second: dict[str, Solved]
) -> tuple[list[RunPair], str, int]:
    """Return the problems that both tried and that have what is measured, its name, and the number
    of the others that both tried. Measured is gold where any of them has it, else the mean reward.
    A problem has gold where gold has an opinion of an attempt of either side: there a side whose
    attempts all failed has none right."""
    both = {task: (solved, second[task]) for task, solved in first.items() if task in second}
    measured, pairs = (
        "share right by gold",
        [
            (task, a.gold, b.gold)
            for task, (a, b) in both.items()
            if (a.known or b.known) and a.gold is not None and b.gold is not None
        ],
    )
    if not pairs:
        measured, pairs = (
            "mean reward",
            [
                (task, a.mean, b.mean)
                for task, (a, b) in both.items()
                if a.mean is not None and b.mean is not None
            ],
        )
    return pairs, measured, len(both) - len(pairs)


def _paired(first: Side, second: Side) -> Html:
    pairs, measured, missing = pair_problems(first.solved(), second.solved())
    if not pairs:
        none = el("p", "No problem was tried and scored by both: nothing to pair.")
        return el("section", el("h2", "Problem by problem"), none)
    names = [task for task, _, _ in pairs]
    differences = [after - before for _, before, after in pairs]
    resampler = Resampler(names, RESAMPLES, seed=0)
    estimate = resampler.estimate(names, [(d, 1.0) for d in differences], mean, within=DIFFERENCE)
    p_value = resampler.p_value(names, differences)
    gained = [pair for pair in pairs if pair[1] < SOLVED <= pair[2]]
    lost = [pair for pair in pairs if pair[2] < SOLVED <= pair[1]]
    interval = ""
    if estimate.low is not None and estimate.high is not None:
        interval = f" (95 % interval {estimate.low:+.3f} to {estimate.high:+.3f})"
    chance = NOTHING if p_value is None else f"{p_value:.4f}"
    were = "problem that both tried is" if missing == 1 else "problems that both tried are"
    left_out = f"; {missing:,} more {were} left out, for it is not known of them" if missing else ""
    lead = (
        f"{len(pairs):,} problems were tried by both; measured is the {measured} of all "
        f"attempts at each{left_out}. The second less the first: "
        f"{estimate.value or 0:+.3f}{interval}, p = {chance} by a randomization test over "
        "problems. Attempts at one problem count as one."
    )
    both = [
        _problems("Solved by the second and not by the first", gained, first, second),
        _problems("Solved by the first and not by the second", lost, first, second),
    ]
    return el(
        "section",
        el("h2", "Problem by problem"),
        el("p", lead),
        el("div", both, class_="columns"),
    )


def _problems(title: str, pairs: Sequence[RunPair], first: Side, second: Side) -> Html:
    ordered = sorted(pairs, key=lambda pair: -abs(pair[2] - pair[1]))
    rows = [
        (
            task,
            ReportCell(number(before), address=_attempts_address(first, task)),
            ReportCell(number(after), address=_attempts_address(second, task)),
        )
        for task, before, after in ordered[:MOST_PROBLEMS]
    ]
    more = len(ordered) - len(rows)
    caption = f"{len(ordered):,} problems{f', {more:,} of them not listed' if more else ''}"
    names = [side.among(first, second) for side in (first, second)]
    columns = [ReportColumn("Problem", is_text=True), *names]
    table = table_html(ReportTable(columns, rows, caption)) or el("p", "none", class_="soft")
    return el("div", el("h3", title), table)


def _attempts_address(side: Side, task: str) -> str | None:
    query = {"task": task, **({"step": side.steps} if side.steps else {})}
    return Links(side.run.name).of_run("attempts", urlencode(query))


def _overlay(sides: Sequence[Side]) -> Html:
    charts: list[LineChart] = []
    for title, metric in CURVES:
        lines = [
            Series(side.run.name, colour, side.snapshot.series(metric), smoothed=True)
            for side, colour in zip(sides, cycle(sections.COLOURS), strict=False)
        ]
        charts.append(LineChart(title, lines, plain))
    return section_html(ReportSection("curves", "Curves", charts))


def _settings(first: Side, second: Side) -> Html:
    changed = sections.differing(first.snapshot.config, second.snapshot.config)
    rows = [
        (key, *(ReportCell(value, style="text long") for value in values))
        for key, values in changed.items()
    ]
    names = ("Setting", first.run.name, second.run.name)
    columns = [ReportColumn(name, is_text=True) for name in names]
    table = table_html(ReportTable(columns, rows, f"{len(rows)} settings differ"))
    shown = table or el("p", "none", class_="soft")
    return el("section", el("h2", "Settings that differ"), shown)
