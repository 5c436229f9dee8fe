"""The papers' table: figures that others report of six datasets (``papers.yaml``), ours from an
``evaluation.json``, and notes on what keeps the two from being compared. No model is asked, and
torch is not loaded."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from flowright.config.llm import SIMULATED
from flowright.config.loading import load_entries
from flowright.config.root import Config
from flowright.core.untrusted import one_line
from flowright.data.loading import AFLOW_TEST, Provenance
from flowright.environments.base import Environment

_FACTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))

DATASETS: Mapping[str, str] = _FACTS["datasets"]
"""The six datasets of the papers: the name of our source, and the usual one."""

TITLES: Mapping[str, str] = {**DATASETS, **_FACTS["others"]}
"""Titles of the six and of others, which have a column where ours were measured."""

METRICS: Mapping[str, str] = _FACTS["metrics"]

_EMBEDDED = {SIMULATED: "the embedded server"}


@dataclass(frozen=True, slots=True)
class Published:
    """A row of others, as ``papers.yaml`` explains it. ``figures``: by dataset ``value`` in per
    cent and ``metric``, None where the source does not state it."""

    system: str
    source: str
    policy: str
    executor: str | None
    split: str
    repetitions: int | None
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    mean: float | None = None
    on_aflow: bool = False
    remarks: tuple[str, ...] = ()

    def texts(self, columns: Sequence[str]) -> list[str]:
        """Return figures and their mean as published, unrounded; empty where missing."""
        values = [self.figures.get(name, {}).get("value") for name in columns]
        return ["" if value is None else str(value) for value in (*values, self.mean)]

    def line(self) -> str:
        """Return its source, models, split, metrics, repetitions and remarks."""
        metrics: dict[str, list[str]] = {}
        for name, figure in self.figures.items():
            metrics.setdefault(figure["metric"] or "not stated", []).append(TITLES[name])
        named = ", ".join(f"{metric} ({', '.join(of)})" for metric, of in metrics.items())
        parts = (
            f"{self.source}: workflows by {self.policy}",
            f"executor {self.executor or 'not stated'}",
            f"split {self.split}",
            f"metric {named or 'not stated'}",
            f"repetitions {self.repetitions or 'not stated'}",
            *self.remarks,
        )
        return "; ".join(parts)


def _published(facts: Mapping[str, Any]) -> Published:
    figures = {
        name: {"value": value, "metric": metric}
        for metric, values in facts.get("figures", {}).items()
        for name, value in values.items()
    }
    ordered = {name: figures[name] for name in TITLES if name in figures}
    return Published(**{**facts, "figures": ordered, "remarks": tuple(facts.get("remarks", ()))})


PUBLISHED: tuple[Published, ...] = tuple(map(_published, _FACTS["systems"]))


@dataclass(frozen=True, slots=True)
class Models:
    """The policy, and the large models by the names of their servers; ``simulated``: the roles that
    the embedded server played."""

    policy: str
    executor: str
    judge: str
    simulated: tuple[str, ...] = ()

    def line(self) -> str:
        """Return all of them with their roles; their names are untrusted text."""
        roles = {"policy": self.policy, "executor": self.executor, "judge": self.judge}
        return "; ".join(
            f"{role} {one_line(name, 120)}" + " (simulated)" * (role in self.simulated)
            for role, name in roles.items()
        )


def models_of(config: Config, environment: Environment) -> Models:
    """Return the models of a configuration, by the names of their servers; unknown for an
    environment that does not name them."""
    roles = environment.models()
    entries = load_entries(config.llm.file, config.models, config.simulated) if roles else {}

    def called(role: str) -> str:
        if role not in roles:
            return f"of environment {config.environment}, not known"
        return ", ".join(
            entries[name].model_name if name in entries else _EMBEDDED.get(name, name)
            for name in roles[role]
        )

    simulated = tuple(role for role, names in roles.items() if config.simulated.played(names))
    return Models(config.strategy_model, called("executor"), called("judge"), simulated)


@dataclass(frozen=True, slots=True)
class Cell:
    """Our figure of a dataset, a share with its 95 % interval, None where nothing was scored.
    ``unscored``: the share of attempts that could not be scored."""

    value: float | None
    low: float | None
    high: float | None
    metric: str
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

    def __str__(self) -> str:
        return f"{self.text}{self.interval and f' ({self.interval})'}, n={self.problems}"


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A row of ours. ``repetitions``: attempts at each problem, whose mean is a problem's share.
    ``mean``: of all six datasets, None where one is missing."""

    name: str
    cells: Mapping[str, Cell]
    repetitions: int
    mean: float | None


@dataclass(frozen=True, slots=True)
class PaperTable:
    """Rows of others and ours, the models of ours, and the notes below."""

    published: Sequence[Published]
    ours: Sequence[MeasuredRow]
    models: Models
    provenance: Provenance
    problems_hash: str
    simulated: bool
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> Mapping[str, str]:
        """The six datasets, and the others that ours were measured on, with their titles."""
        measured = {name for row in self.ours for name in row.cells}
        return {name: title for name, title in TITLES.items() if name in measured | {*DATASETS}}

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``papers.json``: shares of ours, others in per cent."""
        return {"datasets": dict(self.columns), **asdict(self), "models_used": self.models.line()}

    def markdown(self) -> str:
        """Return the content of ``papers.md``, which a terminal shows, too."""
        head = ["", *self.columns.values(), "mean"]
        lines = [
            f"# The papers' table{', simulated' * self.simulated}",
            "",
            "In per cent. Not a ranking: the notes list differences of split, metric and executor.",
            "",
            _line(head),
            _line(["---", *["---:"] * (len(head) - 1)]),
        ]
        for number, one in enumerate(self.published, start=1):
            lines.append(_line([f"{one.system} [{number}]", *one.texts([*self.columns])]))
        for row in self.ours:
            cells = [str(row.cells.get(name, "")) for name in self.columns]
            mean = "" if row.mean is None else f"{100 * row.mean:.1f}"
            named = one_line(row.name, 80) + ", simulated" * self.simulated
            lines.append(_line([f"ours: {named}", *cells, mean]))
        used = [f"Models really used: {self.models.line()}.", *self.notes]
        lines += ["", *(f"- {_escaped(note)}" for note in used), "", "Sources:", ""]
        lines += [f"- [{n}] {_escaped(one.line())}" for n, one in enumerate(self.published, 1)]
        return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(cell) if set(cell) - set('-:') else cell for cell in cells)} |"


def _escaped(text: str) -> str:
    """Escape Markdown and HTML; untrusted text went through :func:`one_line` before."""
    return re.sub(r"([\\`*_\[\]<>|&#~$])", r"\\\1", text)


def paper_table(
    evaluation: Mapping[str, Any],
    models: Models,
    provenance: Provenance,
    samples: int,
    problems_hash: str = "",
    published: Sequence[Published] = PUBLISHED,
) -> PaperTable:
    """Make the table of the content of an ``evaluation.json``.

    ``samples``: a policy's attempts at each problem, for evaluations that do not keep their number
    (their baselines have one). ``problems_hash``: of all problems that were measured.
    """
    best = evaluation.get("summary", {}).get("best_single")
    ours = [
        _measured(row, _attempts(row) or (samples if row["group"] == "policy" else 1))
        for row in evaluation["rows"]
        if row["group"] == "policy" or row.get("shown") or row["name"] == best
    ]
    simulated = bool(evaluation.get("simulated"))
    table = PaperTable(published, ours, models, provenance, problems_hash, simulated)
    return replace(table, notes=tuple(_notes(table)))


def _attempts(row: Mapping[str, Any]) -> int:
    """Return the attempts at each problem; 0 where the row does not have them."""
    return max(map(len, row.get("outcomes") or ()), default=0)


def _measured(row: Mapping[str, Any], repetitions: int) -> MeasuredRow:
    cells: dict[str, Cell] = {}
    for name in TITLES:
        if (score := row["sources"].get(name)) is not None:
            found = (score["gold"], score["gold_low"], score["gold_high"], _FACTS["ours"][name])
            metric = _FACTS["ours_in_words"].get(name, "")
            kept = row.get({"F1": "f1", "EM": "exact"}.get(metric, ""), {}).get(name)
            if kept is not None:
                found = (kept["value"], kept["low"], kept["high"], metric)
            cells[name] = Cell(*found, score["problems"], score["unscored"])
    values = [cells[name].value for name in DATASETS if name in cells]
    values = [value for value in values if value is not None]
    mean = math.fsum(values) / len(values) if len(values) == len(DATASETS) else None
    return MeasuredRow(row["name"], cells, repetitions, mean)


def differences(cell: Cell, dataset: str, table: PaperTable, other: Published) -> list[str]:
    """Return which of split, metric and executor differ from those of another's figure of a
    dataset; unknown ones differ."""
    executor = other.executor
    same = {
        "split": other.on_aflow and table.provenance.is_aflow_test(dataset, cell.problems),
        "metric": other.figures[dataset]["metric"] == cell.metric,
        "executor": "executor" not in table.models.simulated
        and executor is not None
        and table.models.executor.rpartition("/")[2].casefold() == executor.casefold(),
    }
    return [name for name, is_same in same.items() if not is_same]


def _notes(table: PaperTable) -> list[str]:
    cells: dict[str, Cell] = {}
    for row in table.ours:
        cells = {**row.cells, **cells}
    notes = [_note(name, cells[name], table) for name in table.columns if name in cells]
    absent = [title for name, title in DATASETS.items() if name not in cells]
    if absent:
        notes.append(f"Ours has no problems of {', '.join(absent)}.")
    if table.ours:
        times = sorted({row.repetitions for row in table.ours})
        notes.append(
            f"Repetitions of ours: {' and '.join(map(str, times))} a problem "
            "(evaluation.final_samples or evaluation.samples); AFlow averages three runs."
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
        "by our own gold check, in which the judge has no part.",
    ]


def _note(dataset: str, cell: Cell, table: PaperTable) -> str:
    """Describe our measurement of a dataset, and how each other system's differs."""
    parts = [
        f"{TITLES[dataset]}: {_split(dataset, cell.problems, table.provenance)}",
        f"{cell.metric}, the {METRICS[cell.metric]}",
    ]
    wanted = _FACTS["ours_in_words"].get(dataset, cell.metric)
    if cell.metric != wanted:
        parts.append(f"this evaluation kept no {wanted}, which others report")
    systems: dict[str, list[str]] = {}
    for other in table.published:
        if dataset in other.figures:
            found = ", ".join(differences(cell, dataset, table, other))
            systems.setdefault(found, []).append(other.system)
    for differing, named in systems.items():
        names = ", ".join(named)
        parts.append(
            f"not comparable with {names}: other {differing}"
            if differing
            else f"split, metric and executor as {names}"
        )
    return "; ".join(parts) + "."


def _split(dataset: str, problems: int, found: Provenance) -> str:
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
