"""The papers' table: six datasets, what others report of them, and ours from an
``evaluation.json``, with what keeps ours from being compared with theirs. Nothing is measured here,
and torch is not needed.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from flowright.core.untrusted import one_line
from flowright.data.loading import AFLOW_TEST, Provenance
from flowright.evaluation.published import DATASETS, METRICS, PUBLISHED, Metric, Published

_BY_KIND: Mapping[str, Metric] = {
    "gsm8k": "equality",
    "math": "equality",
    "humaneval": "pass@1",
    "mbpp": "pass@1",
    "hotpotqa": "accuracy",
    "drop": "accuracy",
}
"""What the gold check measures of a dataset."""

_WITH_F1 = ("hotpotqa", "drop")


@dataclass(frozen=True, slots=True)
class Models:
    """Who was really asked: the policy, and the large models by what their servers call them.
    ``simulated`` names the roles that the embedded server played."""

    policy: str
    executor: str
    judge: str
    simulated: tuple[str, ...] = ()

    def line(self) -> str:
        """All of them in words; what they are called is text of others."""
        roles = {"policy": self.policy, "executor": self.executor, "judge": self.judge}
        return "; ".join(
            f"{role} {one_line(name, 120)}" + " (simulated)" * (role in self.simulated)
            for role, name in roles.items()
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """Our figure of a dataset, a share with its 95 % interval; None where nothing could be scored.
    ``unscored`` is the share of attempts that nobody could score."""

    value: float | None
    low: float | None
    high: float | None
    metric: Metric
    problems: int
    unscored: float

    @property
    def text(self) -> str:
        return "-" if self.value is None else f"{100 * self.value:.1f}"

    @property
    def interval(self) -> str:
        if self.low is None or self.high is None:
            return ""
        return f"{100 * self.low:.0f}-{100 * self.high:.0f}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of ours. ``repetitions``: attempts at each problem, whose mean is a problem's share.
    ``mean`` is that of all six datasets, None where one is missing."""

    name: str
    cells: Mapping[str, Cell]
    repetitions: int
    mean: float | None

    @property
    def mean_text(self) -> str:
        return "" if self.mean is None else f"{100 * self.mean:.1f}"


@dataclass(frozen=True, slots=True)
class PaperTable:
    """Rows of others and ours, the models that ours used, and the notes below."""

    published: Sequence[Published]
    ours: Sequence[Measured]
    models: Models
    provenance: Provenance
    problems_hash: str
    simulated: bool
    notes: tuple[str, ...] = ()

    def name(self, row: Measured) -> str:
        """A row's name as screens show it."""
        return one_line(row.name, 80) + ", simulated" * self.simulated

    def to_json(self) -> dict[str, Any]:
        """The content of ``papers.json``: the values as they are, shares of ours, others in per
        cent."""
        return {"datasets": dict(DATASETS), **asdict(self), "models_used": self.models.line()}

    def markdown(self) -> str:
        """The content of ``papers.md``."""
        head = ["", *DATASETS.values(), "mean"]
        lines = [
            f"# The papers' table{', simulated' * self.simulated}",
            "",
            "In per cent. Not a ranking: the notes say where split, metric or executor differ.",
            "",
            _line(head),
            _line(["---", *["---:"] * (len(head) - 1)]),
        ]
        for number, one in enumerate(self.published, start=1):
            lines.append(_line([f"{one.system} [{number}]", *published_texts(one)]))
        for row in self.ours:
            cells = [_markdown_cell(row.cells.get(name)) for name in DATASETS]
            lines.append(_line([f"ours: {self.name(row)}", *cells, row.mean_text]))
        used = [f"Models really used: {self.models.line()}.", *self.notes]
        lines += ["", *(f"- {_escaped(note)}" for note in used), "", "Sources:", ""]
        lines += [f"- [{n}] {_escaped(line)}" for n, line in enumerate(sources(self.published), 1)]
        return "\n".join(lines) + "\n"


def published_texts(row: Published) -> list[str]:
    """Others' figures by dataset and their mean, as they were published: no place is rounded away;
    empty where there is none."""
    figures = [row.figures.get(name) for name in DATASETS]
    values = [*(figure.value if figure else None for figure in figures), row.mean]
    return ["" if value is None else str(value) for value in values]


def sources(rows: Sequence[Published]) -> list[str]:
    """Of each row a line: who reports it, with which models, on what, how often, and remarks."""
    return [
        "; ".join([
            f"{row.source}: workflows by {row.policy}",
            f"executor {row.executor or 'not said'}",
            f"split {row.split}",
            _metrics_of(row),
            "repetitions " + ("not said" if row.repetitions is None else str(row.repetitions)),
            *row.remarks,
        ])
        for row in rows
    ]  # fmt: skip


def _metrics_of(row: Published) -> str:
    """Its metrics, each with the datasets that it is of."""
    told: dict[str, list[str]] = {}
    for name, figure in row.figures.items():
        told.setdefault(figure.metric or "not said", []).append(DATASETS[name])
    return "metric " + (", ".join(f"{k} ({', '.join(v)})" for k, v in told.items()) or "not said")


def paper_table(
    evaluation: Mapping[str, Any],
    models: Models,
    provenance: Provenance,
    samples: int,
    problems_hash: str = "",
    published: Sequence[Published] = PUBLISHED,
) -> PaperTable:
    """Of the content of an ``evaluation.json``. ``samples`` are the attempts of a policy at each
    problem (baselines have one); ``problems_hash`` is of all problems that were measured."""
    best = evaluation.get("summary", {}).get("best_single")
    ours = [
        _measured(row, samples if row["group"] == "policy" else 1)
        for row in evaluation["rows"]
        if row["group"] == "policy" or row.get("shown") or row["name"] == best
    ]
    simulated = bool(evaluation.get("simulated"))
    table = PaperTable(published, ours, models, provenance, problems_hash, simulated)
    return replace(table, notes=tuple(_notes(table)))


def _measured(row: Mapping[str, Any], repetitions: int) -> Measured:
    cells = {name: _cell(row, name) for name in DATASETS if name in row["sources"]}
    values = [cell.value for cell in cells.values() if cell.value is not None]
    mean = math.fsum(values) / len(values) if len(values) == len(DATASETS) else None
    return Measured(row["name"], cells, repetitions, mean)


def _cell(row: Mapping[str, Any], dataset: str) -> Cell:
    score = row["sources"][dataset]
    f1 = row.get("f1", {}).get(dataset) if dataset in _WITH_F1 else None
    found = (score["gold"], score["gold_low"], score["gold_high"])
    metric = _BY_KIND[dataset]
    if f1 is not None:
        found, metric = (f1["value"], f1["low"], f1["high"]), "F1"
    return Cell(*found, metric, score["problems"], score["unscored"])


def differences(cell: Cell, dataset: str, table: PaperTable, other: Published) -> list[str]:
    """Which of split, metric and executor are not those of another's figure of a dataset; what is
    not known to be the same differs."""
    same_split = other.on_aflow and table.provenance.is_aflow_test(dataset, cell.problems)
    metric, executor = other.figures[dataset].metric, other.executor
    same_executor = (
        "executor" not in table.models.simulated
        and executor is not None
        and table.models.executor.rpartition("/")[2].casefold() == executor.casefold()
    )
    same = {"split": same_split, "metric": metric == cell.metric, "executor": same_executor}
    return [name for name, is_same in same.items() if not is_same]


def _notes(table: PaperTable) -> list[str]:
    cells: dict[str, Cell] = {}
    for row in table.ours:
        cells = {**row.cells, **cells}
    notes = [_note(name, cells[name], table) for name in DATASETS if name in cells]
    absent = [title for name, title in DATASETS.items() if name not in cells]
    if absent:
        notes.append(f"Ours has no problems of {', '.join(absent)}.")
    if table.ours:
        times = sorted({row.repetitions for row in table.ours})
        notes.append(
            f"Repetitions of ours: {' and '.join(map(str, times))} a problem (a policy has "
            "evaluation.final_samples or evaluation.samples, a baseline one); AFlow averages three "
            "runs."
        )
    lost = max((c.unscored for row in table.ours for c in row.cells.values()), default=0.0)
    if lost:
        notes.append(f"Not scored, by no fault of the policy: up to {lost:.1%} of a dataset.")
    if table.problems_hash:
        notes.append(f"SHA-256 of all problems that were measured: {table.problems_hash[:16]}.")
    if table.simulated:
        notes.append(
            "The embedded server answered or judged: figures of ours are simulated and are no "
            "claims about any model."
        )
    return [
        *notes,
        "The same metric is the same measure, not the same program: answers are read and compared "
        "by this house's gold check, of which the judge is no part.",
    ]


def _note(dataset: str, cell: Cell, table: PaperTable) -> str:
    """How ours was measured on a dataset, and who differs from that in what."""
    told = [
        f"{DATASETS[dataset]}: {_split_words(dataset, cell.problems, table.provenance)}",
        f"{cell.metric}, the {METRICS[cell.metric]}",
    ]
    if dataset in _WITH_F1 and cell.metric != "F1":
        told.append("this evaluation kept no F1, which AFlow reports")
    by_what: dict[str, list[str]] = {}
    for other in table.published:
        if dataset in other.figures:
            found = differences(cell, dataset, table, other)
            by_what.setdefault(", ".join(found), []).append(other.system)
    for what, systems in by_what.items():
        who = ", ".join(systems)
        told.append(
            f"not comparable with {who}: other {what}"
            if what
            else f"split, metric and executor as {who}"
        )
    return "; ".join(told) + "."


def _split_words(dataset: str, problems: int, found: Provenance) -> str:
    count = "1 problem" if problems == 1 else f"{problems:,} problems"
    digest = found.sha256(dataset)
    of_file = f" (file's SHA-256 {one_line(digest[:12])})" if digest else ""
    if found.mode is None:
        return f"{count} of {one_line(found.name, 120)}, of which split is not known"
    if found.mode == "offline":
        return f"{count} of the offline mixture's {found.split} part"
    if found.mode == "official":
        return f"{count} of the {found.split} part of an official mixture{of_file}"
    if found.split == "test":
        size = AFLOW_TEST.get(dataset)
        known = size is None or found.is_aflow_test(dataset, size)
        other = "" if known else ", in a file other than the known one"
        of = f" of its {size:,}" if size else ""
        return f"{count}{of} of AFlow's test split{of_file}{other}"
    return f"{count} of AFlow's validation split, not its test split{of_file}"


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    ends = f" ({cell.interval})" if cell.interval else ""
    return f"{cell.text}{ends}, n={cell.problems}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) if set(cell) - set('-:') else cell for cell in cells)} |"


def _escaped(text: str) -> str:
    """A line in which nothing is Markdown or HTML; every text of others went through
    :func:`one_line`."""
    return re.sub(r"([\\`*_\[\]<>|&#~$])", r"\\\1", text)
