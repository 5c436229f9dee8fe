"""``report.html`` of a study: one static page, from what was collected. The answer first, then
plots, tables, and every run with a link to its own report.
"""

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path

from flowright.core.files import disk_errors, write_text
from flowright.core.formatting import short_percent
from flowright.core.untrusted import one_line
from flowright.runs.run_files import read_state
from flowright.study.analysis import Analysed
from flowright.study.answers import sentence
from flowright.study.claims import read_claims
from flowright.study.collect import Collected
from flowright.study.compare import Outcome
from flowright.study.config import StudyConfig
from flowright.study.drawings import Chart
from flowright.study.journal import Journal
from flowright.study.measures import MEASURES
from flowright.study.plots import Plots, plots_of
from flowright.study.summary import in_short
from flowright.study.tables import (
    arms_table,
    claims_table,
    detectors_table,
    onsets_table,
    remedies_tables,
    runs_table,
)
from flowright.study.transfer_page import transfer_section
from flowright.viewer.rendering.markup import Html, el, folded, grid, header, page, section, strip

FEW_SEEDS = 8
OPEN_CHARTS = 6


def write_study_report(seen: Analysed, journal: Journal, out: Path) -> Path:
    """Write the page; returns its path. Raises RunError on a full disk."""
    path = out / "report.html"
    with disk_errors(out):
        write_text(path, render(seen, journal, out))
    return path


def render(seen: Analysed, journal: Journal, out: Path) -> str:
    """The document."""
    study, found = seen.study, seen.found
    plots = plots_of(seen)
    note = simulated_words(found, out)
    body = [
        strip("Simulated numbers.", note) if found.simulated else None,
        _claims_strip(journal, out),
        el(
            "main",
            _header(study, found, journal),
            _answer(seen),
            _learning(plots),
            _exploitation(plots),
            _doses(plots),
            _alarms(seen, plots),
            _remedies(seen),
            _claims(study, seen.decided),
            section(
                "arms",
                "Arms",
                "Means over seeds and paired differences to the control, with percentile intervals "
                "at 95 % of 2,000 resamples of the seeds. P-values of the differences of final "
                "gold, in points, are two-sided, of exact sign flips, and not adjusted: they "
                "describe.",
                arms_table(seen.told, study.control),
                onsets_table(seen.told),
            ),
            transfer_section(out),
            _runs(found),
            el("footer", f"{'Simulated. ' if found.simulated else ''}Written by Flowright."),
        ),
    ]
    return page(f"{one_line(study.name, 60)} - study", body)


def simulated_words(found: Collected, out: Path) -> str:
    """Which numbers come from the embedded server: all, or those of some arms."""
    cells = {row["cell"]: out / row["folder"] for row in found.rows if row["steps"]}
    told = [cell for cell, run in cells.items() if read_state(run).get("simulated")]
    if len(told) in (0, len(cells)):
        return "The embedded server answered and judged; nothing here was seen of a real judge."
    return f"The embedded server answered or judged in {', '.join(told)}, and in no other arm."


def _header(study: StudyConfig, found: Collected, journal: Journal) -> Html:
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
        note += f" First run started {_when(journal.first_start)}."
    return header("Study", one_line(study.name, 100), [one_line(c, 120) for c in chips], note)


def _when(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _claims_strip(journal: Journal, out: Path) -> Html | None:
    """The claims' hash, and whether they were there before the first run."""
    claims = read_claims(out)
    if claims is None:
        return strip("No claims were written before the runs.", "", alarm=True)
    written = datetime.datetime.fromisoformat(claims["written"]).timestamp()
    told = f"SHA-256 {claims['sha256']}, written {_when(written)}"
    first = journal.first_start
    if first is None:
        return strip("Claims.", f"{told}; no run has started.")
    # The file's time has whole seconds.
    if int(written) > int(first):
        return strip("Claims after the fact.", f"{told}, after the first run's start.", alarm=True)
    return strip("Claims.", f"{told}, before the first run started ({_when(first)}).")


def _answer(seen: Analysed) -> Html:
    study, decided = seen.study, seen.decided
    shown = [o for o in decided if o.claim.kind == "finding"]
    held, others = ([o for o in shown if (o.holds is True) == holds] for holds in (True, False))
    built = [o for o in decided if o.claim.kind == "construction"]
    few = len(study.all_seeds) < FEW_SEEDS
    caution = (
        f"With few seeds ({len(study.all_seeds)}) the bootstrap's intervals are too narrow; go by "
        "the p-values, and by more seeds."
    )
    short = in_short(study, seen.found, seen.told, decided, seen.alarms, seen.mended)
    return section(
        "answer",
        "The answer",
        "",
        el("ul", [el("li", line) for line in short]),
        el("p", caution, class_="soft") if few else None,
        el("h3", "Findings: claimed before the first run, and shown") if held else None,
        _sentences(study, held),
        el("h3", "Claimed, and not shown or not decided") if others else None,
        _sentences(study, others),
        el("h3", "By construction of the simulation: checks, not findings") if built else None,
        _sentences(study, built),
        el("p", "No claims were made.", class_="soft") if not decided else None,
    )


def _sentences(study: StudyConfig, shown: Sequence[Outcome]) -> Html | None:
    items = [el("li", sentence(outcome, study.control)) for outcome in shown]
    return el("ol", items) if items else None


def _drawn(charts: Iterable[Chart | None], class_: str = "charts") -> Html | None:
    return grid([chart.html for chart in charts if chart is not None], class_)


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


def _alarms(seen: Analysed, plots: Plots) -> Html | None:
    if not seen.alarms:
        return None
    lead = (
        "How well a series tells treated runs that have an onset from the control's, by its "
        "highest rise: until the onset (a warning), and to the end (an audit), as the area under "
        "the curve. In the table, thresholds let at most "
        f"{short_percent(seen.study.false_alarms)} of the control's whole runs alarm; judge.alarm "
        "has the one that training ships with. Those of the audit see the gap that defines the "
        "onset: they do well by construction, and need known "
        "answers in training."
    )
    shown = _drawn(plots["alarms"].values(), "charts two")
    return section("alarms", "Alarms", lead, shown, detectors_table(seen.alarms))


def _remedies(seen: Analysed) -> Html | None:
    shown = remedies_tables(seen.mended)
    lead = (
        "An arm as it is, and what its remedies change: points, paired by seed, with 95 % "
        "intervals; calls and gold checks are those of a run. Stops are worked out from the arm's "
        "own runs, as if they had ended at the alarm, with the threshold that the control's runs "
        "set. Chosen were the best alarms of those above. They describe, and are no claims."
    )
    return section("remedies", "What helps, and what it costs", lead, shown) if shown else None


def _claims(study: StudyConfig, decided: Sequence[Outcome]) -> Html | None:
    if not decided:
        return None
    lead = (
        "Fixed before the first run. Holm p: adjusted for all claims together. A claim that is not "
        "shown is not refuted; the interval says what is compatible."
    )
    return section("claims", "Claims", lead, claims_table(decided, study.control))


def _runs(found: Collected) -> Html:
    meanings = [el("li", f"{m.title}: {m.meaning}") for m in MEASURES.values()]
    return section(
        "runs",
        "Runs",
        "Everything above is of these; results.parquet and curves.parquet have every figure.",
        folded(f"{len(found.rows)} runs", runs_table(found.rows)),
        folded("What is measured", el("ul", meanings)),
    )
