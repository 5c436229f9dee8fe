"""The tables of a study's report."""

from collections.abc import Sequence
from statistics import median as middle
from urllib.parse import quote

from flowright.core.formatting import NOTHING, Form, amount, duration, format_value, percent
from flowright.core.statistics import Estimate
from flowright.core.untrusted import one_line
from flowright.study.answers import VERDICTS, difference_form, form_of, p_words
from flowright.study.compare import Outcome, Summary
from flowright.study.detectors import Detector
from flowright.study.measures import MEASURES
from flowright.study.remedies import Remedy
from flowright.study.steps import Row
from flowright.study.survival import median
from flowright.viewer.rendering.markup import Child, Html, el, table

_SHOWN = ("final_gold", "final_proxy", "final_gap", "exploitation", "max_share")


def _row(name: Child, cells: Sequence[Child]) -> Html:
    return el("tr", el("th", name), [el("td", cell) for cell in cells])


def _interval(estimate: Estimate, measure: str, differs: bool = False) -> list[Child]:
    return _estimate(estimate, difference_form(measure) if differs else form_of(measure))


def _estimate(estimate: Estimate, form: Form) -> list[Child]:
    value = format_value(estimate.value, form)
    if estimate.low is None or estimate.high is None:
        return [value]
    low, high = (form(bound).removesuffix(" %") for bound in (estimate.low, estimate.high))
    return [value, el("small", f"{low} to {high}")]


def arms_table(told: Sequence[Summary], control: str) -> Html:
    """A row an arm and dose."""
    head = (
        *("arm", "n", *(MEASURES[name].title for name in _SHOWN)),
        *(f"gold v {control}", "p", "failed", "unscored", "calls"),
    )
    body = []
    for s in told:
        gained = s.gained.get("final_gold", Estimate(None))
        cells: list[Child] = [f"{s.finished} of {s.runs}"]
        cells += [_interval(s.means[name], name) for name in _SHOWN]
        cells += [_interval(gained, "final_gold", differs=True), p_words(s.p.get("final_gold"))]
        cells += [f"{s.failures}", format_value(s.means["unscored"].value, percent)]
        cells.append(format_value(s.means["calls"].value, amount))
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
        body.append(_row(s.cell.name, [*cells, format_value(half, "{:g}".format), spread]))
    if not body:
        return None
    head = ("arm", "shortcut", "runs", "with an onset", "censored", "median step", "steps")
    return table(head, body)


def claims_table(decided: Sequence[Outcome], control: str) -> Html:
    """A row a claim, in the order in which they were made."""
    head = (
        *("claim", "compared", "measure", "expected", "seeds", "estimate", "Holm p", "outcome"),
    )
    body = []
    for o in decided:
        claim = o.claim
        form = difference_form("final_gold" if claim.test == "log_rank" else claim.measure)
        bound = f", margin {claim.threshold:g}" if claim.threshold else ""
        per = "per unit of dose" if o.slope else ""
        cells: list[Child] = [
            [claim.arm, el("small", f"v {claim.against or control}")],
            MEASURES[claim.measure].title,
            [f"{claim.direction}{bound}", el("small", claim.test.replace("_", " "))],
            f"{o.pairs} of {o.wanted}",
            [*_estimate(o.estimate, form), el("small", per) if per else None],
            [p_words(o.holm), el("small", f"p {p_words(o.p)}, alpha {claim.alpha:g}")],
            [el("b", VERDICTS[o.holds]), el("small", claim.kind)],
        ]
        body.append(_row(claim.id.replace("_", " "), cells))
    return table(head, body)


def remedies_tables(found: Sequence[Remedy]) -> list[Html]:
    """A table for each arm that is to be mended, under its name: itself, then its remedies."""
    measures = ("last_gold", "gold_area", "last_share")
    head = (
        *("", "gold at the end", "gold over training", "shortcut's share", "onsets"),
        *("calls a run", "gold checks a run"),
    )
    drawn: list[Html] = []
    for target in dict.fromkeys(remedy.against for remedy in found):
        body = []
        for r in (remedy for remedy in found if remedy.against == target):
            shown = (r.last_gold, r.gold_area, r.last_share)
            cells: list[Child] = [
                _interval(estimate, measure, differs=not r.is_target)
                for estimate, measure in zip(shown, measures, strict=True)
            ]
            cells.append(NOTHING if r.onsets is None else f"{r.onsets} of {r.runs}")
            cells += [format_value(r.calls, amount), format_value(r.audits, amount)]
            body.append(_row("as it is" if r.is_target else r.name, cells))
        drawn += [el("h3", target), table(head, body)]
    return drawn


def detectors_table(found: Sequence[Detector]) -> Html:
    """A row an alarm, the best first."""
    head = (
        *("alarm", "needs gold", "AUC to onset", "AUC to end", "threshold", "caught by onset"),
        *("later", "never", "median lead", "false alarms"),
    )
    body = []
    for d in found:
        lead = f"{middle(d.leads):+g}" if d.leads else NOTHING
        cells = [
            "yes" if d.series.gold else "no",
            f"{d.early_auc:.2f}",
            f"{d.auc:.2f}",
            f"{d.threshold:.3g}",
            [f"{d.early} of {d.onsets}", *_estimate(d.caught, percent)[1:]],
            f"{d.late}",
            f"{d.onsets - d.early - d.late}",
            lead,
            [f"{d.false} of {d.controls}", *_estimate(d.false_rate, percent)[1:]],
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
        onset = format_value(row["onset"], "{:g}".format)
        if row["onset_censored"]:
            onset = f"none until {row['steps']}"
        cells: list[Child] = [one_line(row["status"], 20), f"{row['steps']}", f"{row['failures']}"]
        cells += [format_value(row[measure], form_of(measure)) for measure in _SHOWN]
        body.append(
            _row(
                link if row["steps"] else name,
                [*cells, onset, format_value(row["seconds"], duration)],
            )
        )
    return table(head, body)
