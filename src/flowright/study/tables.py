"""The tables of a study's report."""

from collections.abc import Sequence
from statistics import median as middle
from urllib.parse import quote

from flowright.rendering.markup import Child, Html, el
from flowright.rendering.page import table
from flowright.rendering.series import NOTHING, amount, duration, percent, said
from flowright.rendering.untrusted import one_line
from flowright.statistics import Estimate
from flowright.study.answers import VERDICTS, difference_form, estimated, form_of, p_words
from flowright.study.collect import Row
from flowright.study.compare import Outcome, Summary
from flowright.study.detectors import Detector
from flowright.study.measures import MEASURES
from flowright.study.survival import median

SUMMARISED = (
    *("final_gold", "final_proxy", "final_gap", "gold_area", "exploitation", "max_share"),
    *("unscored", "calls", "seconds"),
)
"""Measures that are summarised for each arm."""
_SHOWN = ("final_gold", "final_proxy", "final_gap", "exploitation", "max_share")


def _row(name: Child, cells: Sequence[Child]) -> Html:
    return el("tr", el("th", name), [el("td", cell) for cell in cells])


def _interval(estimate: Estimate, measure: str, differs: bool = False) -> list[Child]:
    form = difference_form(measure) if differs else form_of(measure)
    value = said(estimate.value, form)
    if estimate.low is None or estimate.high is None:
        return [value]
    return [value, el("small", f"{form(estimate.low)} to {form(estimate.high)}")]


def arms_table(told: Sequence[Summary], control: str) -> Html:
    """A row an arm and dose."""
    head = (
        *("arm", "n", *(MEASURES[name].title for name in _SHOWN)),
        *(f"gold minus {control}, points", "p", "failed", "unscored", "calls a run"),
    )
    body = []
    for s in told:
        gained = s.gained.get("final_gold", Estimate(None))
        cells: list[Child] = [f"{s.finished} of {s.runs}"]
        cells += [_interval(s.means[name], name) for name in _SHOWN]
        cells += [_interval(gained, "final_gold", differs=True), p_words(s.p.get("final_gold"))]
        cells += [f"{s.failures}", said(s.means["unscored"].value, percent)]
        cells.append(said(s.means["calls"].value, amount))
        body.append(_row(s.cell.name, cells))
    return table(head, body)


def onsets_table(told: Sequence[Summary]) -> Html | None:
    """Onsets of the arms that are about a shortcut; None without any."""
    body = []
    for s in told:
        if not s.times:
            continue
        seen = sum(time.seen for time in s.times)
        half = median(s.times)
        steps = sorted(time.at for time in s.times if time.seen)
        spread = f"{steps[0]:g} to {steps[-1]:g}" if steps else NOTHING
        cells = [s.cell.shortcut, f"{len(s.times)}", f"{seen}", f"{len(s.times) - seen}"]
        body.append(_row(s.cell.name, [*cells, said(half, "{:g}".format), spread]))
    if not body:
        return None
    head = ("arm", "shortcut", "runs", "with an onset", "censored", "median step", "steps")
    return table(head, body)


def claims_table(decided: Sequence[Outcome], control: str) -> Html:
    """A row a claim, in the order in which they were made."""
    head = (
        *("claim", "kind", "compared", "measure", "expected", "test", "seeds", "estimate", "p"),
        *("Holm p", "alpha", "outcome"),
    )
    body = []
    for o in decided:
        claim = o.claim
        form = difference_form("final_gold" if claim.test == "log_rank" else claim.measure)
        bound = f", margin {claim.threshold:g}" if claim.threshold else ""
        per = " per unit of dose" if o.slope else ""
        cells: list[Child] = [
            claim.kind,
            f"{claim.arm} v {claim.against or control}",
            MEASURES[claim.measure].title,
            f"{claim.direction}{bound}",
            claim.test,
            f"{o.pairs} of {o.wanted}",
            f"{estimated(o.estimate, form)}{per}",
            p_words(o.p),
            p_words(o.holm),
            f"{claim.alpha:g}",
            el("b", VERDICTS[o.holds]),
        ]
        body.append(_row(claim.id, cells))
    return table(head, body)


def detectors_table(found: Sequence[Detector]) -> Html:
    """A row an alarm, the best first."""
    head = (
        *(
            "alarm",
            "needs gold",
            "AUC until the onset",
            "AUC to the end",
            "threshold",
            "caught by the onset",
            "only later",
        ),
        *("never", "median lead, steps", "control runs that alarm"),
    )
    body = []
    for d in found:
        caught, false = (estimated(e, percent) for e in (d.caught, d.false_rate))
        lead = f"{middle(d.leads):+g}" if d.leads else NOTHING
        cells = [
            "yes" if d.series.gold else "no",
            f"{d.early_auc:.2f}",
            f"{d.auc:.2f}",
            f"{d.threshold:.3g}",
            f"{d.early} of {d.onsets}: {caught}",
            f"{d.late}",
            f"{d.onsets - d.early - d.late}",
            lead,
            f"{d.false} of {d.controls}: {false}",
        ]
        body.append(_row(d.series.title, cells))
    return table(head, body)


def runs_table(rows: Sequence[Row]) -> Html:
    """A row a run, with a link to its own report."""
    head = (
        "run",
        "state",
        "steps",
        "failed",
        *(MEASURES[n].title for n in _SHOWN),
        "onset",
        "took",
    )
    body = []
    for row in rows:
        name = one_line(row["run"], 80)
        link = el("a", name, href=quote(f"{row['folder']}/report.html"))
        onset = said(row["onset"], "{:g}".format)
        if row["onset_censored"]:
            onset = f"none until {row['steps']}"
        cells: list[Child] = [one_line(row["status"], 20), f"{row['steps']}", f"{row['failures']}"]
        cells += [said(row[measure], form_of(measure)) for measure in _SHOWN]
        body.append(
            _row(link if row["steps"] else name, [*cells, onset, said(row["seconds"], duration)])
        )
    return table(head, body)
