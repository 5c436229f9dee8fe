"""The transfer matrix in a study's report: two heat maps and a table."""

from collections.abc import Callable, Sequence
from pathlib import Path

from flowright.core.formatting import amount, format_value, percent, points
from flowright.core.statistics import Estimate
from flowright.core.untrusted import one_line
from flowright.study.answers import estimated
from flowright.study.drawings import heat_map
from flowright.study.transfer_table import Entry, read_matrix
from flowright.viewer.rendering import svg
from flowright.viewer.rendering.markup import Child, Html, el, folded, grid, section, table

GOLD = "gold check"  # no arm is called so
_LEAD = (
    "Every policy's answers to the held-out problems, graded by the judge of every arm: the share "
    "that it calls right, and how many points that is above gold on the same answers. Intervals "
    "are at 95 %, from 2,000 resamples of whole problems with the answers of all seeds. Attempts "
    "without an answer are wrong whoever judges; those that a judge gave no verdict on are in no "
    "share."
)
_EMPTY = "A field without a number: the judge could not be asked about all answers yet."


def transfer_section(out: Path) -> Html | None:
    """None where no matrix was made."""
    found = read_matrix(out)
    if not found:
        return None
    judges = [*dict.fromkeys(entry.graded_by for entry in found)]
    policies = [*dict.fromkeys(entry.trained_under for entry in found)]
    names = ("graded by", "trained under")
    right, excess = _values(found, lambda e: e.right), _values(found, lambda e: e.excess)
    gold = {(GOLD, entry.trained_under): entry.gold for entry in found}
    called = heat_map(
        "Called right",
        names,
        [GOLD, *judges],
        policies,
        _numbers({**gold, **right}),
        svg.short_percent,
        _intervals({**gold, **right}),
        shares=True,
    )
    above = heat_map(
        "Called right minus gold, points",
        names,
        judges,
        policies,
        _numbers(excess),
        points,
        _intervals(excess),
    )
    return section(
        "transfer",
        "Transfer: trained under one judge, graded by another",
        _LEAD,
        grid([chart.html for chart in (called, above) if chart], "charts two"),
        el("p", _EMPTY, class_="soft") if any(entry.waiting for entry in found) else None,
        folded("All of the matrix", _table(found)),
    )


Chosen = dict[tuple[str, str], Estimate]


def _values(found: Sequence[Entry], of: Callable[[Entry], Estimate]) -> Chosen:
    return {(entry.graded_by, entry.trained_under): of(entry) for entry in found}


def _numbers(chosen: Chosen) -> dict[tuple[str, str], float]:
    return {at: one.value for at, one in chosen.items() if one.value is not None}


def _intervals(chosen: Chosen) -> dict[tuple[str, str], str]:
    return {
        at: f"{100 * one.low:.0f} to {100 * one.high:.0f}"
        for at, one in chosen.items()
        if one.low is not None and one.high is not None
    }


def _table(found: Sequence[Entry]) -> Html:
    head = (
        *("trained under", "graded by", "models", "its own judge", "runs", "problems"),
        *(
            "attempts",
            "lost",
            "unscored",
            "not asked",
            "called right",
            "gold",
            "minus gold, points",
        ),
    )
    body = []
    for entry in found:
        counts = (entry.runs, entry.problems, entry.attempts)
        left = (entry.lost, entry.unscored, entry.waiting)
        cells: list[Child] = [
            entry.graded_by,
            one_line(entry.judges, 80),
            "yes" if entry.same_judge else "",
            *(format_value(count, amount) for count in (*counts, *left)),
            estimated(entry.right, percent),
            estimated(entry.gold, percent),
            estimated(entry.excess, points),
        ]
        body.append(el("tr", el("th", entry.trained_under), [el("td", cell) for cell in cells]))
    return table(head, body)
