"""``report.html`` of a study: one static page with the answer first, then plots and tables, and a
link to the report of every run."""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median as middle
from urllib.parse import quote

from flowright.core.files import disk_errors, write_text
from flowright.core.formatting import (
    NOTHING,
    Form,
    amount,
    duration,
    format_value,
    percent,
    points,
    short_percent,
)
from flowright.core.report import GridChart, ReportChart
from flowright.core.statistics import Estimate
from flowright.core.untrusted import one_line
from flowright.runs.run_files import read_state
from flowright.study.arm_comparison import CellSummary, ClaimOutcome, median
from flowright.study.collect import Collected, Row
from flowright.study.config import MEASURES, StudyConfig
from flowright.study.detectors import Detector, Remedy
from flowright.study.figures import Plots, heat_map, plots_of
from flowright.study.study_records import StudyJournal, read_claims
from flowright.study.summary import (
    VERDICTS,
    Analysis,
    difference_form,
    estimated,
    form_of,
    in_short,
    p_text,
    sentence,
)
from flowright.study.transfer import MatrixEntry, read_matrix
from flowright.viewer.rendering.charts import chart_html
from flowright.viewer.rendering.markup import (
    Child,
    Html,
    el,
    folded,
    grid,
    header,
    page,
    section,
    strip,
    table,
)

FEW_SEEDS = 8
OPEN_CHARTS = 6
GOLD = "gold check"  # no arm has this name
_SHOWN = ("final_gold", "final_proxy", "final_gap", "exploitation", "max_share")


def write_study_report(analysis: Analysis, journal: StudyJournal, out: Path) -> Path:
    """Write the page; return its path. Raises RunError on a full disk."""
    path = out / "report.html"
    with disk_errors(out):
        write_text(path, render(analysis, journal, out))
    return path


def render(analysis: Analysis, journal: StudyJournal, out: Path) -> str:
    """Render the document."""
    study, found = analysis.study, analysis.found
    plots = plots_of(analysis)
    body = [
        strip("Simulated numbers.", _simulated_arms(found, out)) if found.simulated else None,
        _claims_strip(journal, out),
        el(
            "main",
            _header(study, found, journal),
            _answer(analysis),
            _learning(plots),
            _exploitation(plots),
            _doses(plots),
            _alarms(analysis, plots),
            _remedies(analysis.remedies),
            _claims(study, analysis.outcomes),
            section(
                "arms",
                "Arms",
                "Means over seeds and paired differences to the control, with percentile intervals "
                "at 95 % of 2,000 resamples of the seeds. P-values of the differences of final "
                "gold, in points, are two-sided, of exact sign flips, and not adjusted: they "
                "describe.",
                _arms_table(analysis.summaries, study.control),
                _onsets_table(analysis.summaries),
            ),
            _transfer(out),
            _runs(found),
            el("footer", f"{'Simulated. ' if found.simulated else ''}Written by Flowright."),
        ),
    ]
    return page(f"{one_line(study.name, 60)} - study", body)


def _simulated_arms(found: Collected, out: Path) -> str:
    cells = {row["cell"]: out / row["folder"] for row in found.rows if row["steps"]}
    simulated = [cell for cell, run in cells.items() if read_state(run).get("simulated")]
    if len(simulated) in (0, len(cells)):
        return "The embedded server answered and judged; nothing here was seen of a real judge."
    return f"The embedded server answered or judged in {', '.join(simulated)}, and in no other arm."


def _header(study: StudyConfig, found: Collected, journal: StudyJournal) -> Html:
    finished = sum(row["finished"] for row in found.rows)
    failures = sum(row["failures"] for row in found.rows)
    chips = [
        f"{finished} of {len(found.rows)} runs finished",
        f"{failures} failed processes",
        f"paired seeds: {len(study.all_seeds)}",
        f"base: {study.base}",
        f"control: {study.control}",
    ]
    note = "What a judge's bias does to the policy that it rewards."
    if journal.first_start is not None:
        note += f" First run started {_utc(journal.first_start)}."
    return header("Study", one_line(study.name, 100), [one_line(c, 120) for c in chips], note)


def _utc(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _claims_strip(journal: StudyJournal, out: Path) -> Html | None:
    """Show the claims' hash, and whether they were written before the first run."""
    claims = read_claims(out)
    if claims is None:
        return strip("No claims were written before the runs.", "", alarm=True)
    written = datetime.datetime.fromisoformat(claims["written"]).timestamp()
    text = f"SHA-256 {claims['sha256']}, written {_utc(written)}"
    first = journal.first_start
    if first is None:
        return strip("Claims.", f"{text}; no run has started.")
    # The file's time has whole seconds.
    if int(written) > int(first):
        return strip("Claims after the fact.", f"{text}, after the first run's start.", alarm=True)
    return strip("Claims.", f"{text}, before the first run started ({_utc(first)}).")


def _answer(analysis: Analysis) -> Html:
    study = analysis.study
    findings = [o for o in analysis.outcomes if o.claim.kind == "finding"]
    groups = {
        "Findings: claimed before the first run, and shown": [o for o in findings if o.holds],
        "Claimed, and not shown or not decided": [o for o in findings if not o.holds],
        "By construction of the simulation: checks, not findings": [
            o for o in analysis.outcomes if o.claim.kind == "construction"
        ],
    }
    caution = (
        f"With few seeds ({len(study.all_seeds)}) the bootstrap's intervals are too narrow; go by "
        "the p-values, and by more seeds."
    )
    few = len(study.all_seeds) < FEW_SEEDS
    return section(
        "answer",
        "The answer",
        "",
        el("ul", [el("li", line) for line in in_short(analysis)]),
        el("p", caution, class_="soft") if few else None,
        [
            [el("h3", title), el("ol", [el("li", sentence(o, study.control)) for o in shown])]
            for title, shown in groups.items()
            if shown
        ],
        el("p", "No claims were made.", class_="soft") if not analysis.outcomes else None,
    )


def _drawn(charts: Iterable[ReportChart], class_: str = "charts") -> Html | None:
    return grid([chart_html(chart) for chart in charts], class_)


def _learning(plots: Plots) -> Html:
    shown = [*plots["learning"].values()]
    others = _drawn(plots["learning_others"].values())
    return section(
        "learning",
        "Proxy and gold",
        "What the policy was rewarded with, and what was right, in training. Bands are 95 % "
        "intervals of the mean over seeds; strokes at the bottom are onsets.",
        _drawn(shown[:OPEN_CHARTS]),
        folded("More arms", _drawn(shown[OPEN_CHARTS:])) if shown[OPEN_CHARTS:] else None,
        folded("Other doses and arms", others) if others else None,
    )


def _exploitation(plots: Plots) -> Html:
    lead = (
        "An onset is where attempts with a full reward are wrong (gap of 0.08 to 0.12) and show "
        "the arm's shortcut (share of 15 to 30 %), by CHERRL's definition. A run that ends "
        "without one is censored at its last step."
    )
    empty = el("p", "No run has what these need yet.", class_="soft")
    drawn = [*plots["paths"].values(), *plots["onsets"].values()]
    return section("onset", "Exploitation", lead, _drawn(drawn) or empty)


def _doses(plots: Plots) -> Html | None:
    shown = _drawn([*plots["doses"].values(), *plots["errors"].values()])
    lead = (
        "Means over seeds with 95 % intervals. Of two parameters, mean paired differences to the "
        "control; red is worse. Wrong answers that a judge without a bias calls right count as "
        "exploited, too."
    )
    return section("doses", "Doses", lead, shown) if shown else None


# Tables.

_Rows = Iterable[tuple[Child, Sequence[Child]]]


def _table(head: Sequence[str], rows: _Rows) -> Html:
    """Render a table of (name, cells)."""
    body = [el("tr", el("th", name), [el("td", cell) for cell in cells]) for name, cells in rows]
    return table(head, body)


def _interval(estimate: Estimate, form: Form) -> list[Child]:
    value = format_value(estimate.value, form)
    if estimate.low is None or estimate.high is None:
        return [value]
    low, high = (form(bound).removesuffix(" %") for bound in (estimate.low, estimate.high))
    return [value, el("small", f"{low} to {high}")]


def _alarms(analysis: Analysis, plots: Plots) -> Html | None:
    if not analysis.alarms:
        return None
    lead = (
        "How well a series separates treated runs that have an onset from the control's, by its "
        "highest rise: until the onset (a warning), and to the end (an audit), as the area under "
        "the curve. In the table, thresholds let at most "
        f"{short_percent(analysis.study.false_alarms)} of the control's whole runs alarm; "
        "judge.alarm has the one that training ships with. Those of the audit see the gap that "
        "defines the onset: they do well by construction, and need known "
        "answers in training."
    )
    head = (
        *("alarm", "needs gold", "AUC to onset", "AUC to end", "threshold", "caught by onset"),
        *("later", "never", "median lead", "false alarms"),
    )
    shown = _drawn(plots["alarms"].values(), "charts two")
    rows = ((alarm.series.title, _alarm_cells(alarm)) for alarm in analysis.alarms)
    return section("alarms", "Alarms", lead, shown, _table(head, rows))


def _alarm_cells(alarm: Detector) -> list[Child]:
    return [
        "yes" if alarm.series.gold else "no",
        f"{alarm.early_auc:.2f}",
        f"{alarm.auc:.2f}",
        f"{alarm.threshold:.3g}",
        [f"{alarm.early} of {alarm.onsets}", *_interval(alarm.caught, percent)[1:]],
        f"{alarm.late}",
        f"{alarm.onsets - alarm.early - alarm.late}",
        f"{middle(alarm.leads):+g}" if alarm.leads else NOTHING,
        [f"{alarm.false} of {alarm.controls}", *_interval(alarm.false_rate, percent)[1:]],
    ]


def _remedies(found: Sequence[Remedy]) -> Html | None:
    """Render a table for each arm with remedies: itself, then these."""
    lead = (
        "An arm as it is, and what its remedies change: points, paired by seed, with 95 % "
        "intervals; calls and gold checks are those of a run. Stops are worked out from the arm's "
        "own runs, as if they had ended at the alarm, with the threshold that the control's runs "
        "set. Chosen were the best alarms of those above. They describe, and are no claims."
    )
    head = (
        *("", "gold at the end", "gold over training", "shortcut's share", "onsets"),
        *("calls a run", "gold checks a run"),
    )
    drawn: list[Html] = []
    for target in dict.fromkeys(remedy.against for remedy in found):
        own = [remedy for remedy in found if remedy.against == target]
        names = ["as it is" if remedy.is_target else remedy.name for remedy in own]
        rows = zip(names, map(_remedy_cells, own), strict=True)
        drawn += [el("h3", target), _table(head, rows)]
    return section("remedies", "What helps, and what it costs", lead, drawn) if drawn else None


def _remedy_cells(remedy: Remedy) -> list[Child]:
    form = percent if remedy.is_target else points
    return [
        *(_interval(e, form) for e in (remedy.last_gold, remedy.gold_area, remedy.last_share)),
        NOTHING if remedy.onsets is None else f"{remedy.onsets} of {remedy.runs}",
        format_value(remedy.calls, amount),
        format_value(remedy.audits, amount),
    ]


def _claims(study: StudyConfig, found: Sequence[ClaimOutcome]) -> Html | None:
    if not found:
        return None
    lead = (
        "Fixed before the first run. Holm p: adjusted for all claims together. A claim that is not "
        "shown is not refuted; the interval has what is compatible."
    )
    head = ("claim", "compared", "measure", "expected", "seeds", "estimate", "Holm p", "outcome")
    rows = ((o.claim.id.replace("_", " "), _claim_cells(o, study.control)) for o in found)
    return section("claims", "Claims", lead, _table(head, rows))


def _claim_cells(outcome: ClaimOutcome, control: str) -> list[Child]:
    claim = outcome.claim
    form = difference_form("final_gold" if claim.test == "log_rank" else claim.measure)
    bound = f", margin {claim.threshold:g}" if claim.threshold else ""
    unit = el("small", "per unit of dose") if outcome.slope else None
    p = el("small", f"p {p_text(outcome.p)}, alpha {claim.alpha:g}")
    return [
        [claim.arm, el("small", f"v {claim.against or control}")],
        MEASURES[claim.measure].title,
        [f"{claim.direction}{bound}", el("small", claim.test.replace("_", " "))],
        f"{outcome.pairs} of {outcome.wanted}",
        [*_interval(outcome.estimate, form), unit],
        [p_text(outcome.holm), p],
        [el("b", VERDICTS[outcome.holds]), el("small", claim.kind)],
    ]


def _arms_table(found: Sequence[CellSummary], control: str) -> Html:
    head = (
        *("arm", "n", *(MEASURES[name].title for name in _SHOWN)),
        *(f"gold v {control}", "p", "failed", "unscored", "calls"),
    )
    gold = difference_form("final_gold")
    rows: list[tuple[Child, list[Child]]] = [
        (
            s.cell.name,
            [
                f"{s.finished} of {s.runs}",
                *(_interval(s.means[name], form_of(name)) for name in _SHOWN),
                _interval(s.gained.get("final_gold", Estimate(None)), gold),
                p_text(s.p.get("final_gold")),
                f"{s.failures}",
                format_value(s.means["unscored"].value, percent),
                format_value(s.means["calls"].value, amount),
            ],
        )
        for s in found
    ]
    return _table(head, rows)


def _onsets_table(found: Sequence[CellSummary]) -> Html | None:
    rows: list[tuple[Child, list[Child]]] = []
    for summary in found:
        times = summary.times
        if times:
            steps = sorted(time.at for time in times if time.seen)
            spread = f"{steps[0]:g} to {steps[-1]:g}" if steps else NOTHING
            counts = [f"{len(times)}", f"{len(steps)}", f"{len(times) - len(steps)}"]
            half = format_value(median(times), "{:g}".format)
            rows.append((summary.cell.name, [summary.cell.shortcut, *counts, half, spread]))
    head = ("arm", "shortcut", "runs", "with an onset", "censored", "median step", "steps")
    return _table(head, rows) if rows else None


def _runs(found: Collected) -> Html:
    meanings = [el("li", f"{m.title}: {m.meaning}") for m in MEASURES.values()]
    titles = (MEASURES[name].title for name in _SHOWN)
    head = ("run", "state", "steps", "failed", *titles, "onset", "took")
    rows = ((_run_link(row), _run_cells(row)) for row in found.rows)
    return section(
        "runs",
        "Runs",
        "Everything above is of these; results.parquet and curves.parquet have every figure.",
        folded(f"{len(found.rows)} runs", _table(head, rows)),
        folded("What is measured", el("ul", meanings)),
    )


def _run_link(row: Row) -> Child:
    name = one_line(row["run"], 80)
    return el("a", name, href=quote(f"{row['folder']}/report.html")) if row["steps"] else name


def _run_cells(row: Row) -> list[Child]:
    onset = format_value(row["onset"], "{:g}".format)
    return [
        one_line(row["status"], 20),
        f"{row['steps']}",
        f"{row['failures']}",
        *(format_value(row[measure], form_of(measure)) for measure in _SHOWN),
        f"none until {row['steps']}" if row["onset_censored"] else onset,
        format_value(row["seconds"], duration),
    ]


# The transfer matrix.


def _transfer(out: Path) -> Html | None:
    """Render the matrix as two heat maps and a table; None without one."""
    found = read_matrix(out)
    if not found:
        return None
    lead = (
        "Every policy's answers to the held-out problems, graded by the judge of every arm: the "
        "share that it calls right, and how many points that is above gold on the same answers. "
        "Intervals are at 95 %, from 2,000 resamples of whole problems with the answers of all "
        "seeds. Attempts without an answer are wrong under every judge; those that a judge gave no "
        "verdict on are in no share."
    )
    waiting = "A field without a number: the judge could not be asked about all answers yet."
    judges = [*dict.fromkeys(entry.graded_by for entry in found)]
    policies = [*dict.fromkeys(entry.trained_under for entry in found)]
    right = {(GOLD, entry.trained_under): entry.gold for entry in found}
    right |= {(entry.graded_by, entry.trained_under): entry.right for entry in found}
    excess = {(entry.graded_by, entry.trained_under): entry.excess for entry in found}
    charts = (
        _matrix_map("Called right", [GOLD, *judges], policies, right, short_percent, shares=True),
        _matrix_map("Called right minus gold, points", judges, policies, excess, points),
    )
    head = (
        *("trained under", "graded by", "models", "its own judge", "runs", "problems", "attempts"),
        *("lost", "unscored", "not asked", "called right", "gold", "minus gold, points"),
    )
    rows = ((entry.trained_under, _matrix_cells(entry)) for entry in found)
    return section(
        "transfer",
        "Transfer: trained under one judge, graded by another",
        lead,
        _drawn(charts, "charts two"),
        el("p", waiting, class_="soft") if any(entry.waiting for entry in found) else None,
        folded("All of the matrix", _table(head, rows)),
    )


def _matrix_map(
    title: str,
    judges: Sequence[str],
    policies: Sequence[str],
    estimates: Mapping[tuple[str, str], Estimate],
    form: Form,
    shares: bool = False,
) -> GridChart:
    numbers = {at: one.value for at, one in estimates.items() if one.value is not None}
    intervals = {
        at: f"{100 * one.low:.0f} to {100 * one.high:.0f}"
        for at, one in estimates.items()
        if one.low is not None and one.high is not None
    }
    names = ("graded by", "trained under")
    return heat_map(title, names, judges, policies, numbers, form, intervals, shares)


def _matrix_cells(entry: MatrixEntry) -> list[Child]:
    counts = (entry.runs, entry.problems, entry.attempts, entry.lost, entry.unscored, entry.waiting)
    return [
        entry.graded_by,
        one_line(entry.judges, 80),
        "yes" if entry.same_judge else "",
        *(format_value(count, amount) for count in counts),
        estimated(entry.right, percent),
        estimated(entry.gold, percent),
        estimated(entry.excess, points),
    ]
