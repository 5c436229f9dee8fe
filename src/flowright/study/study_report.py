"""``report.html`` of a study: one static page with the answer first, then plots and tables, and a
link to the report of every run."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median as middle
from urllib.parse import quote

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
from flowright.core.report import (
    Bullets,
    Fold,
    GridChart,
    Heading,
    Note,
    Report,
    ReportBlock,
    ReportCell,
    ReportChart,
    ReportSection,
    ReportTable,
    estimate_cell,
)
from flowright.core.statistics import Estimate, wilson
from flowright.core.untrusted import one_line
from flowright.runs.run_files import read_state
from flowright.study.arm_comparison import CellSummary, ClaimOutcome, median
from flowright.study.collect import Collected, Row
from flowright.study.config import MEASURES, StudyConfig
from flowright.study.detectors import Detector, Remedy
from flowright.study.figures import Plots, heat_map, plots_of
from flowright.study.runs import StudyJournal, read_claims
from flowright.study.summary import (
    Analysis,
    difference_form,
    estimated,
    form_of,
    in_short,
    p_text,
    sentence,
    verdict_of,
)
from flowright.study.transfer import MatrixEntry, read_matrix
from flowright.viewer.rendering.charts import draw
from flowright.viewer.rendering.report import write_report

FEW_SEEDS = 8
OPEN_CHARTS = 6
GOLD = "gold check"  # no arm has this name
_SHOWN = ("final_gold", "final_proxy", "final_gap", "exploitation", "max_share")


def write_study_report(analysis: Analysis, journal: StudyJournal, out: Path) -> Path:
    """Write the page; return its path. Raises RunError on a full disk."""
    path = out / "report.html"
    write_report(study_report(analysis, journal, out), path)
    return path


def study_report(analysis: Analysis, journal: StudyJournal, out: Path) -> Report:
    """Build the report."""
    study, found = analysis.study, analysis.found
    plots = plots_of(analysis)
    finished = sum(row["finished"] for row in found.rows)
    chips = (
        f"{finished} of {len(found.rows)} runs finished",
        f"{sum(row['failures'] for row in found.rows)} failed processes",
        f"paired seeds: {len(study.all_seeds)}",
        f"base: {study.base}",
        f"control: {study.control}",
    )
    began = journal.first_start
    subtitle = f"First run started {_utc(began)}." if began is not None else ""
    simulated = [("Simulated numbers.", _simulated_arms(found, out))] if found.simulated else []
    built = (
        _answer(analysis),
        _learning(plots),
        _exploitation(plots),
        _doses(plots),
        _alarms(analysis, plots),
        _remedies(analysis.remedies),
        _claims(study, analysis.outcomes),
        _arms(analysis.summaries, study.control),
        _transfer(out),
        _runs(found),
    )
    return Report(
        kind="Study",
        title=study.name,
        sections=[section for section in built if section is not None],
        warnings=simulated,
        banners=[_claims_banner(journal, out)],
        chips=[one_line(chip, 120) for chip in chips],
        subtitle=subtitle,
    )


def _simulated_arms(found: Collected, out: Path) -> str:
    cells = {row["cell"]: out / row["folder"] for row in found.rows if row["steps"]}
    simulated = [cell for cell, run in cells.items() if read_state(run).get("simulated")]
    if len(simulated) in (0, len(cells)):
        return "The embedded server answered and judged; nothing here was seen of a real judge."
    return f"The embedded server answered or judged in {', '.join(simulated)}, and in no other arm."


def _utc(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _claims_banner(journal: StudyJournal, out: Path) -> tuple[str, str, bool]:
    """Show the claims' hash, and whether they were written before the first run."""
    claims = read_claims(out)
    if claims is None:
        return "No claims were written before the runs.", "", True
    written = datetime.datetime.fromisoformat(claims["written"]).timestamp()
    text = f"SHA-256 {claims['sha256']}, written {_utc(written)}"
    first = journal.first_start
    if first is None:
        return "Claims.", f"{text}; no run has started.", False
    # The file's time has whole seconds.
    if int(written) > int(first):
        return "Claims after the fact.", f"{text}, after the first run's start.", True
    return "Claims.", f"{text}, before the first run started ({_utc(first)}).", False


def _answer(analysis: Analysis) -> ReportSection:
    study = analysis.study
    findings = [o for o in analysis.outcomes if o.claim.kind == "finding"]
    groups = {
        "Findings: claimed before the first run, and shown": [o for o in findings if o.holds],
        "Claimed, and not shown or not decided": [o for o in findings if not o.holds],
        "By construction of the simulation: checks, not findings": [
            o for o in analysis.outcomes if o.claim.kind == "construction"
        ],
    }
    blocks: list[ReportBlock] = [Bullets(in_short(analysis))]
    if len(study.all_seeds) < FEW_SEEDS:
        caution = (
            f"With few seeds ({len(study.all_seeds)}) the bootstrap's intervals are too narrow; go "
            "by the p-values, and by more seeds."
        )
        blocks.append(Note(caution, soft=True))
    for title, shown in groups.items():
        if shown:
            lines = [sentence(outcome, study.control) for outcome in shown]
            blocks += [Heading(title), Bullets(lines, numbered=True)]
    if not analysis.outcomes:
        blocks.append(Note("No claims were made.", soft=True))
    return ReportSection("answer", "The answer", blocks)


def _learning(plots: Plots) -> ReportSection:
    lead = (
        "What the policy was rewarded with, and what was right, in training. Bands are 95 % "
        "intervals of the mean over seeds; strokes at the bottom are onsets."
    )
    shown = [*plots["learning"].values()]
    more = Fold("More arms", shown[OPEN_CHARTS:])
    others = Fold("Other doses and arms", [*plots["learning_others"].values()])
    return ReportSection("learning", "Proxy and gold", [*shown[:OPEN_CHARTS], more, others], lead)


def _exploitation(plots: Plots) -> ReportSection | None:
    lead = (
        "An onset is where attempts with a full reward are wrong (gap of 0.08 to 0.12) and show "
        "the arm's shortcut (share of 15 to 30 %), by CHERRL's definition. A run that ends "
        "without one is censored at its last step."
    )
    drawn = _drawn(plots, "paths", "onsets")
    if not _drawn(plots, "onsets"):
        return ReportSection("onset", "Gold against KL", drawn) if drawn else None
    return ReportSection("onset", "Exploitation", drawn, lead)


def _doses(plots: Plots) -> ReportSection | None:
    lead = (
        "Means over seeds with 95 % intervals. Of two parameters, mean paired differences to the "
        "control; red is worse. Wrong answers that a judge without a bias calls right count as "
        "exploited, too."
    )
    drawn = _drawn(plots, "doses", "errors")
    return ReportSection("doses", "Doses", drawn, lead) if drawn else None


def _drawn(plots: Plots, *groups: str) -> list[ReportChart]:
    """The charts of some groups that have data."""
    return [c for group in groups for c in plots[group].values() if draw(c) is not None]


# Tables.

_Cells = list[ReportCell | str]


def _interval(estimate: Estimate, form: Form, unit: str = "") -> ReportCell:
    cell = estimate_cell(asdict(estimate), form)
    return replace(cell, note="; ".join(filter(None, (cell.note, unit))))


def _counted(part: int, whole: int) -> ReportCell:
    """Return ``part of whole`` with Wilson's interval of the share."""
    cell = _interval(Estimate(part / whole, *wilson(part, whole)), percent)
    return replace(cell, text=f"{part} of {whole}")


def _alarms(analysis: Analysis, plots: Plots) -> ReportSection | None:
    if not analysis.alarms:
        return None
    lead = (
        "How well a series separates treated runs that have an onset from the control's, by its "
        "highest rise: until the onset (a warning), and to the end (an audit), as the area under "
        "the curve. In the table, thresholds let at most "
        f"{short_percent(analysis.study.false_alarms)} of the control's whole runs alarm; "
        "judge.alarm has the one that training ships with."
    )
    head = (
        *("alarm", "AUC to onset", "AUC to end", "threshold", "caught by onset"),
        *("later", "never", "median lead", "false alarms"),
    )
    blocks: list[ReportBlock] = []
    for title, group, gold in (
        ("Without gold", "alarms", False),
        ("With gold in training: by construction", "alarms_gold", True),
    ):
        rows = [_alarm_cells(alarm) for alarm in analysis.alarms if alarm.series.gold == gold]
        if rows:
            blocks += [Heading(title), *_drawn(plots, group), ReportTable(head, rows)]
    blocks.append(
        Note(
            "An onset is defined by the gap between reward and gold among rewarded attempts. "
            "Alarms with gold measure that gap or a part of it, so that they meet its onset is no "
            "evidence; those without are scored by themselves.",
            soft=True,
        )
    )
    return ReportSection("alarms", "Alarms", blocks, lead)


def _alarm_cells(alarm: Detector) -> _Cells:
    return [
        alarm.series.title,
        f"{alarm.early_auc:.2f}",
        f"{alarm.auc:.2f}",
        f"{alarm.threshold:.3g}",
        _counted(alarm.early, alarm.onsets),
        f"{alarm.late}",
        f"{alarm.onsets - alarm.early - alarm.late}",
        f"{middle(alarm.leads):+g}" if alarm.leads else NOTHING,
        _counted(alarm.false, alarm.controls),
    ]


def _remedies(found: Sequence[Remedy]) -> ReportSection | None:
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
    blocks: list[ReportBlock] = []
    for target in dict.fromkeys(remedy.against for remedy in found):
        own = [remedy for remedy in found if remedy.against == target]
        blocks += [Heading(target), ReportTable(head, [_remedy_cells(remedy) for remedy in own])]
    title = "What helps, and what it costs"
    return ReportSection("remedies", title, blocks, lead) if blocks else None


def _remedy_cells(remedy: Remedy) -> _Cells:
    form = percent if remedy.is_target else points
    return [
        "as it is" if remedy.is_target else remedy.name,
        *(_interval(e, form) for e in (remedy.last_gold, remedy.gold_area, remedy.last_share)),
        NOTHING if remedy.onsets is None else f"{remedy.onsets} of {remedy.runs}",
        format_value(remedy.calls, amount),
        format_value(remedy.audits, amount),
    ]


def _claims(study: StudyConfig, found: Sequence[ClaimOutcome]) -> ReportSection | None:
    if not found:
        return None
    lead = (
        "Fixed before the first run. Holm p: adjusted for all claims together. A claim that is not "
        "shown is not refuted; the interval has what is compatible."
    )
    head = ("claim", "compared", "measure", "expected", "seeds", "estimate", "Holm p", "outcome")
    table = ReportTable(head, [_claim_cells(outcome, study.control) for outcome in found])
    return ReportSection("claims", "Claims", [table], lead)


def _claim_cells(outcome: ClaimOutcome, control: str) -> _Cells:
    claim = outcome.claim
    form = difference_form("final_gold" if claim.test == "log_rank" else claim.measure)
    bound = f", margin {claim.threshold:g}" if claim.threshold else ""
    return [
        claim.id.replace("_", " "),
        ReportCell(claim.arm, f"v {claim.against or control}"),
        MEASURES[claim.measure].title,
        ReportCell(f"{claim.direction}{bound}", claim.test.replace("_", " ")),
        f"{outcome.pairs} of {outcome.wanted}",
        _interval(outcome.estimate, form, "per unit of dose" if outcome.slope else ""),
        ReportCell(p_text(outcome.holm), f"p {p_text(outcome.p)}, alpha {claim.alpha:g}"),
        ReportCell(verdict_of(outcome), claim.kind),
    ]


def _arms(found: Sequence[CellSummary], control: str) -> ReportSection:
    lead = (
        "Means over seeds and paired differences to the control, with percentile intervals at 95 % "
        "of 2,000 resamples of the seeds. P-values of the differences of final gold, in points, "
        "are two-sided, of exact sign flips, and not adjusted: they describe."
    )
    head = (
        *("arm", "n", *(MEASURES[name].title for name in _SHOWN)),
        *(f"gold v {control}", "p", "failed", "unscored", "calls", "policy tokens"),
    )
    gold = difference_form("final_gold")
    rows: list[_Cells] = [
        [
            s.cell.name,
            f"{s.finished} of {s.runs}",
            *(_interval(s.means[name], form_of(name)) for name in _SHOWN),
            _interval(s.gained.get("final_gold", Estimate(None)), gold),
            p_text(s.p.get("final_gold")),
            f"{s.failures}",
            format_value(s.means["unscored"].value, percent),
            *(format_value(s.means[name].value, amount) for name in ("calls", "policy_tokens")),
        ]
        for s in found
    ]
    return ReportSection("arms", "Arms", [ReportTable(head, rows), _onsets_table(found)], lead)


def _onsets_table(found: Sequence[CellSummary]) -> ReportTable:
    rows: list[_Cells] = []
    for summary in found:
        times = summary.times
        if times:
            steps = sorted(time.at for time in times if time.seen)
            spread = f"{steps[0]:g} to {steps[-1]:g}" if steps else NOTHING
            counts = [f"{len(times)}", f"{len(steps)}", f"{len(times) - len(steps)}"]
            half = format_value(median(times), "{:g}".format)
            rows.append([summary.cell.name, summary.cell.shortcut or "", *counts, half, spread])
    head = ("arm", "shortcut", "runs", "with an onset", "censored", "median step", "steps")
    return ReportTable(head, rows)


def _runs(found: Collected) -> ReportSection:
    lead = "Everything above is of these; results.parquet and curves.parquet have every figure."
    titles = (MEASURES[name].title for name in _SHOWN)
    head = ("run", "state", "steps", "failed", *titles, "onset", "took")
    table = ReportTable(head, [_run_cells(row) for row in found.rows])
    meanings = Bullets([f"{m.title}: {m.meaning}" for m in MEASURES.values()])
    blocks = (Fold(f"{len(found.rows)} runs", [table]), Fold("What is measured", [meanings]))
    return ReportSection("runs", "Runs", blocks, lead)


def _run_cells(row: Row) -> _Cells:
    onset = format_value(row["onset"], "{:g}".format)
    address = quote(f"{row['folder']}/report.html") if row["steps"] else None
    return [
        ReportCell(one_line(row["run"], 80), address=address),
        one_line(row["status"], 20),
        f"{row['steps']}",
        f"{row['failures']}",
        *(format_value(row[measure], form_of(measure)) for measure in _SHOWN),
        f"none until {row['steps']}" if row["onset_censored"] else onset,
        format_value(row["seconds"], duration),
    ]


# The transfer matrix.


def _transfer(out: Path) -> ReportSection | None:
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
    judges = [*dict.fromkeys(entry.graded_by for entry in found)]
    policies = [*dict.fromkeys(entry.trained_under for entry in found)]
    right = {(GOLD, entry.trained_under): entry.gold for entry in found}
    right |= {(entry.graded_by, entry.trained_under): entry.right for entry in found}
    excess = {(entry.graded_by, entry.trained_under): entry.excess for entry in found}
    blocks: list[ReportBlock] = [
        _matrix_map("Called right", [GOLD, *judges], policies, right, short_percent, shares=True),
        _matrix_map("Called right minus gold, points", judges, policies, excess, points),
    ]
    if any(entry.waiting for entry in found):
        waiting = "A field without a number: the judge could not be asked about all answers yet."
        blocks.append(Note(waiting, soft=True))
    head = (
        *("trained under", "graded by", "models", "its own judge", "runs", "problems", "attempts"),
        *("lost", "unscored", "not asked", "called right", "gold", "minus gold, points"),
    )
    table = ReportTable(head, [_matrix_cells(entry) for entry in found])
    blocks.append(Fold("All of the matrix", [table]))
    title = "Transfer: trained under one judge, graded by another"
    return ReportSection("transfer", title, blocks, lead)


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


def _matrix_cells(entry: MatrixEntry) -> _Cells:
    counts = (entry.runs, entry.problems, entry.attempts, entry.lost, entry.unscored, entry.waiting)
    return [
        entry.trained_under,
        entry.graded_by,
        one_line(entry.judges, 80),
        "yes" if entry.same_judge else "",
        *(format_value(count, amount) for count in counts),
        estimated(entry.right, percent),
        estimated(entry.gold, percent),
        estimated(entry.excess, points),
    ]
