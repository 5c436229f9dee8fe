"""The rows that ``judging`` names, to train on and held out, and what is told of them. What a
tokenizer has to say about their length comes later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from flowright.data.contamination import TrainedOn
from flowright.data.preferences import Pair
from flowright.data.row_files import Report
from flowright.environments.judging.config import GIVEN, JudgingSection, Method
from flowright.environments.judging.known_rule import ceiling, known_pairs, known_scores
from flowright.environments.judging.negatives import SOURCE as NEGATIVE, with_negatives
from flowright.environments.judging.rows import (
    AnyRow,
    Form,
    JudgedRow,
    PairRow,
    PointwiseRow,
    Row,
    SftRow,
    read_rows,
)
from flowright.environments.judging.sealed import without_benchmarks
from flowright.environments.judging.splits import Split, in_drawn_order, kept_apart, split_by_prompt

FORMS: Mapping[Method, tuple[Form, ...]] = {
    "pointwise": ("pointwise",),
    "pairwise": ("pairwise", "bradley_terry"),
    "joint": ("pointwise", "pairwise", "bradley_terry"),
    "bradley_terry": ("bradley_terry", "pairwise"),
    "sft": ("sft",),
}
"""The forms of files that a method's rows may have."""


@dataclass(frozen=True, slots=True)
class JudgingRows(Generic[AnyRow]):
    """Rows to train on and held out, and ``lines`` for people on where they come from and on what
    was left out."""

    train: tuple[AnyRow, ...]
    held_out: tuple[AnyRow, ...]
    digest: str
    lines: tuple[str, ...]


def load_rows(section: JudgingSection, seed: int) -> JudgingRows[JudgedRow]:
    """The rows of the configuration. Raises DataError."""
    split, lines = _known(section, seed) if section.data == "known_rule" else _read(section, seed)
    train, held_out = split.train, split.held_out
    if section.ties == "drop":
        train, held_out = _without_ties(train), _without_ties(held_out)
        ties = len(split.train) + len(split.held_out) - len(train) - len(held_out)
        lines.append(f"{ties:,} ties left out (judging.ties: drop)")
    many = len(train)
    train = with_negatives(train, section.negatives, seed)
    if len(train) > many:
        lines.append(f"{len(train) - many:,} rows against one-token attacks added to train")
    lines.append(_counted(train, held_out, split.digest))
    return JudgingRows(train, held_out, split.digest, tuple(lines))


def load_conversations(section: JudgingSection, seed: int) -> JudgingRows[SftRow]:
    """The conversations of ``judging.train_files``, for ``method: sft``. Raises DataError."""
    rows, report = _conversations(section.train_files)
    rows, report, checked = without_benchmarks(rows, report, section)
    if section.val_files:
        held_out, of_held_out = _conversations(section.val_files)
        split = kept_apart(rows, held_out)
        report = (report + of_held_out).less(split.left_out)
    else:
        split = split_by_prompt(rows, section.val_share, seed)
    lines = [*report.lines(section.show_left_out), checked]
    lines.append(_counted(split.train, split.held_out, split.digest))
    return JudgingRows(split.train, split.held_out, split.digest, tuple(lines))


def _conversations(paths: Sequence[Path]) -> tuple[tuple[SftRow, ...], Report]:
    found = read_rows(paths, FORMS["sft"])
    return tuple(row for row in found.rows if isinstance(row, SftRow)), found.report


def _counted(train: Sequence[Row], held_out: Sequence[Row], digest: str) -> str:
    return (
        f"{len(train):,} rows to train on, {len(held_out):,} held out; SHA-256 of the split "
        f"{digest}"
    )


def read_held_out(section: JudgingSection, path: Path, seed: int) -> tuple[JudgedRow, ...]:
    """The rows of another file, to measure on. Raises DataError."""
    return _judged_rows([path], section, seed)[0]


def _known(section: JudgingSection, seed: int) -> tuple[Split[JudgedRow], list[str]]:
    rule, train, held_out = section.known_rule, [], []
    given = "pairwise" if section.method in GIVEN else section.method
    for made, method in ((known_pairs, "pairwise"), (known_scores, "pointwise")):
        if given in (method, "joint"):
            rows = made(rule, seed)
            train += rows.train
            held_out += rows.held_out
    told = (
        f"SYNTHETIC: labels follow a known rule, {rule.noise:.0%} of them wrong; no judge can "
        f"agree with more than {ceiling(rule.noise):.0%} of the held-out ones"
    )
    return kept_apart(train, held_out), [told]


def _read(section: JudgingSection, seed: int) -> tuple[Split[JudgedRow], list[str]]:
    rows, report = _judged_rows(section.train_files, section, seed)
    rows, report, checked = without_benchmarks(rows, report, section)
    if section.val_files:
        held_out, of_held_out = _judged_rows(section.val_files, section, seed)
        split = kept_apart(rows, held_out)
        report = (report + of_held_out).less(split.left_out)
    else:
        split = split_by_prompt(rows, section.val_share, seed)
    return split, [*report.lines(section.show_left_out), checked]


def _judged_rows(
    paths: Sequence[Path], section: JudgingSection, seed: int
) -> tuple[tuple[JudgedRow, ...], Report]:
    """Rows of files; of chosen and rejected answers in an order that is drawn."""
    found = read_rows(paths, FORMS[section.method])
    rows: list[JudgedRow] = []
    for row in found.rows:
        if isinstance(row, PairRow):
            rows.append(in_drawn_order(row.pair, seed))
        elif isinstance(row, PointwiseRow | Pair):
            rows.append(row)
    return tuple(rows), found.report


def trained_on(
    rows: JudgingRows[JudgedRow] | JudgingRows[SftRow], section: JudgingSection
) -> TrainedOn:
    """Names and hashes of the rows on both sides, with what stands beside their files
    (``trained_on.json``), which knows subsets where rows name their source alone, and conversations
    that judgements are about. Raises DataError."""
    both = [*rows.train, *rows.held_out]
    conversations = [row.messages if isinstance(row, SftRow) else row.conversation for row in both]
    files = (*section.train_files, *section.val_files)
    beside = TrainedOn.gathered(dict.fromkeys(path.parent for path in files)) or TrainedOn()
    names = {row.source.removesuffix(NEGATIVE) for row in both}
    known = {name.partition("/")[0] for name in beside.subsets}
    own = TrainedOn(frozenset(names - known))
    return TrainedOn.of_conversations(conversations) | own | beside


def _without_ties(rows: Sequence[JudgedRow]) -> tuple[JudgedRow, ...]:
    return tuple(row for row in rows if not (isinstance(row, Pair) and row.label == "tie"))
