"""Reports of scored responses, and of IFEval and IFBench beside published shares, built from their
records alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flowright.core.formatting import Record, percent
from flowright.core.report import (
    Note,
    Report,
    ReportBlock,
    ReportCell,
    ReportSection,
    ReportTable,
)
from flowright.core.untrusted import one_line

_M_IFEVAL = "lightblue-tech/M-IFEval, verdicts of 2024; recounted"


@dataclass(frozen=True, slots=True)
class PublishedShares:
    """Per cent by prompt and by instruction; None if unpublished."""

    work: str
    source: str
    strict_prompt: float | None = None
    strict_instruction: float | None = None
    loose_prompt: float | None = None
    loose_instruction: float | None = None


PUBLISHED: Mapping[str, tuple[PublishedShares, ...]] = {
    "ifeval": (
        PublishedShares("PaLM 2 S", "Zhou et al. 2023, table 3", 43.07, 55.76, 46.95, 59.11),
        PublishedShares("Mistral-7B-Instruct-v0.3", _M_IFEVAL, 47.13, 58.99, 51.39, 63.43),
        PublishedShares("Llama-3.1-8B, AWQ", _M_IFEVAL, 72.09, 80.10, 75.79, 82.97),
        PublishedShares("Qwen2.5-7B, GPTQ", _M_IFEVAL, 73.01, 80.58, 75.79, 82.61),
        PublishedShares("claude-3-5-sonnet-20240620", _M_IFEVAL, 82.26, 88.13, 89.28, 93.05),
        PublishedShares("gpt-4o-2024-08-06", _M_IFEVAL, 84.10, 88.61, 87.80, 91.25),
    ),
    "ifbench": (
        PublishedShares("Qwen3-32B", "Pyatkin et al. 2025", loose_prompt=37.3),
        PublishedShares("o3", "Pyatkin et al. 2025", loose_prompt=69.3),
    ),
}


TITLES = {"ifeval": "IFEval", "ifbench": "IFBench"}
_SHOWN = 12


def scores_report(record: Record) -> Report:
    """Build the report of scored responses."""
    columns = ("", "score", "95 %", "rows", "responses", "missing", "ungraded")
    rows = [
        [
            f"test_score/{one_line(source, 60)}",
            "" if score["score"] is None else f"{score['score']:.4f}",
            "" if score["low"] is None else f"{score['low']:.3f} to {score['high']:.3f}",
            *(f"{score[name]:,}" for name in columns[3:]),
        ]
        for source, score in record["sources"].items()
    ]
    blocks: list[ReportBlock] = [ReportTable(columns, rows)]
    if healthbench := record.get("healthbench"):
        blocks.append(Note(_healthbench(healthbench)))
        by = [
            [one_line(name, 60), percent(part["score"]), percent(part["bootstrap_std"]),
             f"{part['samples']:,}"]
            for name, part in healthbench.get("by", {}).items()
        ]  # fmt: skip
        if by:
            blocks.append(ReportTable(("HealthBench", "score", "deviation", "samples"), by))
    for why, count in record["ungraded"].items():
        blocks.append(Note(f"{count:,} ungraded, in no mean: {one_line(why, 200)}"))
    if rows_without := record["missing"]:
        named = _named(str(row) for row in rows_without)
        blocks.append(Note(f"a response is missing (null), in no mean, in rows {named}"))
    blocks += _thinking(record)
    return Report(
        kind="Scores",
        title=f"Scores of {record['data']}",
        sections=[ReportSection("scores", "Scores", blocks)],
        warnings=[("SIMULATED:", "the embedded judge graded.")] if record["simulated"] else [],
    )


def _named(names: Iterable[str]) -> str:
    """Return the first names of a list, on one line."""
    listed = list(names)
    return one_line(", ".join(listed[:_SHOWN]) + ", ..." * (len(listed) > _SHOWN), 200)


def _thinking(record: Record) -> list[ReportBlock]:
    count = record.get("thinking")
    line = f"{count:,} responses open with thinking, which is not scored" if count else ""
    return [Note(line)] if line else []


def _healthbench(score: Record) -> str:
    if score["score"] is None:
        return "HealthBench: no response was graded"
    return (
        f"HealthBench: {percent(score['score'])}, bootstrap standard deviation "
        f"{percent(score['bootstrap_std'])}, {score['samples']:,} samples, "
        f"{score['unscored']:,} unscored"
        + (f"; the first {limit:,} rows alone (--limit)" if (limit := score.get("limit")) else "")
    )


def instructions_report(record: Record) -> Report:
    """Build the report of IFEval and IFBench."""
    benchmarks = record["benchmarks"]
    sections = [
        ReportSection(
            name,
            TITLES[name],
            [
                Note(_answered(record)),
                *_thinking(record),
                _figures(record),
                Note("in papers, in this order: Pr(S), Ins(S), Pr(L), Ins(L)"),
                *_comparison(record),
                *_published(name),
            ],
        )
        for name, record in benchmarks.items()
    ]
    strangers = record["strangers"]
    return Report(
        kind="Instruction following",
        title=f"{' and '.join(TITLES[name] for name in benchmarks)}: instructions followed",
        sections=sections,
        notes=[f"answers to no prompt of these: {strangers}"] if strangers else [],
    )


def _answered(record: Record) -> str:
    line = f"{record['answered']} of {record['prompts']} prompts answered"
    if record["prompts"] < (total := record.get("of", 0)):
        line += f"; the first {record['prompts']} of {total} prompts alone (--limit)"
    if record["missing"]:
        missing = record["missing"]
        line += f"; {len(missing)} missing, in no figure: {_named(missing)}"
    if record["unscored"]:
        reasons = "; ".join(sorted(set(record["unscored"].values())))
        keys = one_line(", ".join(record["unscored"]), 200)
        line += f"; {len(record['unscored'])} unscored, in no figure: {keys}: {reasons}"
    return line


def _figures(record: Record) -> ReportTable:
    fixed = {_place(f): f for f in record["figures"] if f["kind"] == "fixed"}
    rows: list[list[ReportCell | str]] = []
    for figure in record["figures"]:
        if figure["kind"] != "canonical":
            continue
        other = fixed[_place(figure)]
        interval = ""
        if figure["low"] is not None:
            low, high = percent(figure["low"]).removesuffix(" %"), percent(figure["high"])
            interval = f"{low} to {high}"
        drawn = figure["fewest"] != figure["most"]
        rows.append(
            [
                f"{figure['reading']}, by {figure['level']}",
                f"{figure['followed']}/{figure['total']}",
                "" if figure["share"] is None else percent(figure["share"]),
                interval,
                f"{figure['fewest']} to {figure['most']}" if drawn else "",
                f"{other['followed']} ({other['followed'] - figure['followed']:+d})",
            ]
        )
    return ReportTable(("", "followed", "share", "95 %", "by the draw", "fixed"), rows)


def _place(figure: Record) -> tuple[Any, Any]:
    return figure["reading"], figure["level"]


def _comparison(record: Record) -> list[ReportBlock]:
    """Others' verdicts, and where they differ."""
    found = record["compared"]
    if found is None:
        return []
    differ = found["differences"]
    drawn = sum(one["is_drawn"] for one in differ)
    counted = ", ".join(f"{count} {reading}" for reading, count in found["compared"].items())
    lines = [
        f"beside the given verdicts ({counted or 'none'}): {len(differ)} differ, "
        f"{drawn} of them where the benchmark draws; {found['absent']} have none"
    ]
    for one in differ[:_SHOWN]:
        ids = one_line(", ".join(one["ids"]), 90) or "another number of instructions"
        lines.append(f"  key {one['key']}, {one['reading']}: {ids}{' (drawn)' * one['is_drawn']}")
    if len(differ) > _SHOWN:
        lines.append(f"  and {len(differ) - _SHOWN} more, in the record")
    return [Note(line) for line in lines]


def _published(name: str) -> list[ReportBlock]:
    """PublishedShares figures, with their sources below."""
    sources = list(dict.fromkeys(one.source for one in PUBLISHED[name]))
    columns = ("published by others, %", "strict", "by instr.", "loose", "by instr.", "")
    rows = [
        [
            one.work,
            *(
                "" if share is None else f"{share:.1f}"
                for share in (
                    one.strict_prompt,
                    one.strict_instruction,
                    one.loose_prompt,
                    one.loose_instruction,
                )
            ),
            f"[{sources.index(one.source) + 1}]",
        ]
        for one in PUBLISHED[name]
    ]
    notes = [Note(f"[{number}] {source}") for number, source in enumerate(sources, start=1)]
    return [ReportTable(columns, rows), *notes]
