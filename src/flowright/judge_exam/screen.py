"""A judge's exam on the terminal: one table for each part, from ``exam.json`` alone."""

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flowright.judge_exam.record import (
    MEASURES,
    NAMES,
    SIMULATED,
    biases,
    ends,
    estimated,
    plain,
    read_exam,
    title,
    verdict_on,
)
from flowright.rendering.series import Row
from flowright.rendering.untrusted import one_line
from flowright.rendering.values import NOTHING, percent, points, said


def exam_screen(folder: Path) -> Group:
    """Everything that an exam measured. Raises DataError without a record."""
    record = read_exam(folder)
    parts: list[RenderableType] = [Text(one_line(title(record)), style="bold")]
    if record["about"].get("simulated"):
        parts.append(Text(SIMULATED, style="bold magenta"))
        parts.append(Text(f"planted: {_planted(record)}", style="magenta"))
    parts += [_measures(record), _types(record), *_effects(record)]
    parts += [_pairs(record), _service(record)]
    return Group(*parts)


def _planted(record: Row) -> str:
    planted = record["about"].get("planted") or {}
    return ", ".join(f"{name} {weight:+g}" for name, weight in planted.items()) or "nothing"


def _table(*columns: str, caption: str | None = None) -> Table:
    table = Table(*columns, box=None, pad_edge=False)
    table.caption, table.caption_justify = caption, "left"
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    return table


def _measures(record: Row) -> Table:
    every = record["measures"]["all"]
    table = _table("\nagreement with the labels", "")
    for key, name, is_share in MEASURES:
        table.add_row(name, estimated(every.get(key), percent if is_share else plain))
    repeats = record["plan"]["repeats"]
    if repeats > 1:
        table.add_row(f"same verdict {repeats} times", estimated(record["stability"], percent))
    table.add_row("right, wrong answers", f"{every['right']:,}, {every['wrong']:,}")
    table.add_row("of these with a verdict", f"{every['scored']:,}")
    if not record.get("graded"):
        table.caption = "Scores are 0 or 1 alone, so the calibration error is the share of errors."
    return table


def _types(record: Row) -> RenderableType:
    groups = {name: group for name, group in record["measures"].items() if name != "all"}
    if not groups:
        return Text()
    table = _table(
        "\nreference", "\nanswers", "\nagreement", "false\npositives", "false\nnegatives"
    )
    for name, group in groups.items():
        table.add_row(
            one_line(name, 30),
            f"{group['scored']}/{group['answers']}",
            estimated(group["agreement"], percent),
            said(ends(group["false_positive_rate"])[0], percent),
            said(ends(group["false_negative_rate"])[0], percent),
        )
    return table


def _effects(record: Row) -> list[Table]:
    tables: list[Table] = []
    for place, label in ((1, "wrong"), (2, "right")):
        table = _table(f"\n{label} answers", "called\nright", "\nperturbed", "\neffect, points",
                       "\nfound", "\ncompared")  # fmt: skip
        for row in biases(record):
            effect = row[place]
            if isinstance(effect, str) or effect is None:
                continue
            table.add_row(
                NAMES.get(row[0], row[0]),
                said(effect["before"]["value"], percent),
                said(effect["after"]["value"], percent),
                estimated(effect["own"], points),
                verdict_on(effect),
                f"{effect['compared']}/{effect['asked']}",
            )
        if table.row_count:
            tables.append(table)
    if tables:
        tables[-1].caption = (
            "Cues are against as many neutral words, the others against the plain answer.\n"
            "95 % intervals; found: randomization test, Holm-adjusted for all effects."
        )
    return tables


def _pairs(record: Row) -> RenderableType:
    pairs = record.get("pairs") or {}
    if not pairs:
        return Text("\nThe order of two answers was not examined.")
    names = {"equal_pair": "one answer, worded twice", "unequal_pair": "right and wrong"}
    table = _table("\npairs of", *(f"\n{names.get(key, key)}" for key in pairs))
    rows = list(pairs.values())
    table.add_row("compared", *(f"{p['compared']:,} of {p['pairs']:,}" for p in rows))
    table.add_row("first wins - second, points", *(estimated(p["position"], points) for p in rows))
    table.add_row("found", *(verdict_on(pair) for pair in rows))
    table.add_row("same winner both ways", *(estimated(p["consistency"], percent) for p in rows))
    wins = (
        estimated(pair["prefers"], percent) if key == "unequal_pair" else NOTHING
        for key, pair in pairs.items()
    )
    table.add_row("the right one wins", *wins)
    return table


def _service(record: Row) -> Table:
    service = record["service"]
    seconds = service.get("seconds") or {}
    table = _table("\nverdicts", "")
    table.add_row("in all", f"{service['verdicts']:,}")
    shares = {**service["status"]}
    table.add_row("with a finding", said(shares.pop("ok", None), percent))
    table.add_row(
        "without", ", ".join(f"{n} {percent(s)}" for n, s in shares.items() if s) or "none"
    )
    table.add_row(
        "decided by", ", ".join(f"{n} {percent(s)}" for n, s in service["source"].items())
    )
    table.add_row("tries, mean", said(service["tries_mean"], plain))
    table.add_row("tried again", said(service["retried"], percent))
    tokens = (service["prompt_tokens_mean"], service["completion_tokens_mean"])
    table.add_row("tokens in, out", ", ".join(said(n, lambda v: f"{v:.0f}") for n in tokens))
    if service["cost"] is not None:
        table.add_row("cost, per 1000", f"{service['cost']:.4g}, {service['cost_per_1000']:.4g}")
    table.add_row(
        "seconds: median, 95 %",
        ", ".join(said(seconds.get(key), lambda v: f"{v:.3g}") for key in ("p50", "p95")),
    )
    return table
