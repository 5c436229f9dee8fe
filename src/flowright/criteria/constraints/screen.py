"""A measurement of following instructions on the terminal, from its record alone."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flowright.core.formatting import Record, percent
from flowright.core.untrusted import one_line
from flowright.criteria.constraints.published import PUBLISHED

TITLES = {"ifeval": "IFEval", "ifbench": "IFBench"}
_SHOWN = 12


def constraints_screen(record: Record) -> Group:
    parts: list[RenderableType] = []
    for name, told in record["benchmarks"].items():
        parts += [Text(TITLES[name], style="bold"), Text(_answered(told))]
        parts += [_figures(told), *_comparison(told), _published(name), Text("")]
    if record["strangers"]:
        parts.append(Text(f"answers to no prompt of these: {record['strangers']}"))
    return Group(*parts)


def _answered(told: Record) -> str:
    line = f"{told['answered']} of {told['prompts']} prompts answered"
    if told["missing"]:
        keys = ", ".join(told["missing"][:_SHOWN]) + ", ..." * (len(told["missing"]) > _SHOWN)
        line += f"; {len(told['missing'])} missing, in no figure: {one_line(keys, 200)}"
    if told["unscored"]:
        whys = "; ".join(sorted(set(told["unscored"].values())))
        keys = ", ".join(told["unscored"])
        line += f"; {len(told['unscored'])} unscored, in no figure: {one_line(keys, 200)}: {whys}"
    return line


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    table.columns[0].no_wrap = True
    table.caption_justify = "left"
    return table


def _figures(told: Record) -> RenderableType:
    table = _table("", "followed", "share", "95 %", "by the draw", "fixed")
    fixed = {_place(f): f for f in told["figures"] if f["kind"] == "fixed"}
    for figure in told["figures"]:
        if figure["kind"] != "canonical":
            continue
        other = fixed[_place(figure)]
        band = f"{figure['fewest']} to {figure['most']}"
        table.add_row(
            f"{figure['reading']}, by {figure['level']}",
            f"{figure['followed']}/{figure['total']}",
            _percent(figure["share"]),
            _interval(figure),
            band if figure["fewest"] != figure["most"] else "",
            f"{other['followed']} ({other['followed'] - figure['followed']:+d})",
        )
    return table


def _place(figure: Record) -> tuple[Any, Any]:
    return figure["reading"], figure["level"]


def _percent(share: float | None) -> str:
    return "" if share is None else percent(share)


def _interval(figure: Record) -> str:
    if figure["low"] is None:
        return ""
    return f"{percent(figure['low']).removesuffix(' %')} to {percent(figure['high'])}"


def _comparison(told: Record) -> Iterator[RenderableType]:
    """Others' verdicts, and where they say something else."""
    found = told["compared"]
    if found is None:
        return
    differ = found["differences"]
    drawn = sum(one["is_drawn"] for one in differ)
    counted = ", ".join(f"{count} {reading}" for reading, count in found["compared"].items())
    yield Text(
        f"beside the verdicts given ({counted or 'none'}): {len(differ)} differ, "
        f"{drawn} of them where the benchmark draws; {found['absent']} have none"
    )
    for one in differ[:_SHOWN]:
        ids = one_line(", ".join(one["ids"]), 90) or "another number of instructions"
        yield Text(f"  key {one['key']}, {one['reading']}: {ids}{' (drawn)' * one['is_drawn']}")
    if len(differ) > _SHOWN:
        yield Text(f"  and {len(differ) - _SHOWN} more, in the record")


def _published(name: str) -> Group:
    """With their sources below, so that the figures fit beside each other."""
    sources = list(dict.fromkeys(one.source for one in PUBLISHED[name]))
    table = _table("published by others, %", "strict", "by instr.", "loose", "by instr.", "")
    for one in PUBLISHED[name]:
        shares = (
            one.strict_prompt,
            one.strict_instruction,
            one.loose_prompt,
            one.loose_instruction,
        )
        number = f"[{sources.index(one.source) + 1}]"
        table.add_row(one.work, *("" if s is None else f"{s:.1f}" for s in shares), Text(number))
    notes = (Text(f"[{number}] {source}") for number, source in enumerate(sources, start=1))
    return Group(table, *notes)
