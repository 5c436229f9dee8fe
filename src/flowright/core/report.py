"""Contents of screens as data: the blocks of a record (facts, texts, programs, calls in time), and
a report's sections of facts, tables and charts, built once and rendered as a page or on a terminal
by :mod:`flowright.viewer.rendering`. Texts are whole and may be hostile: renderers cut and escape
them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from flowright.core.formatting import Form, Point, Record, format_value, known_number, percent
from flowright.core.untrusted import one_line


@dataclass(frozen=True, slots=True)
class Fact:
    """A name with its value. ``detail`` is printed fainter; ``alarm`` is a word or two that must be
    seen."""

    name: str
    text: str
    detail: str = ""
    alarm: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A text under its title. A ``short`` one is a value rather than a document."""

    title: str
    text: str
    short: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """A Python program; ``bad_line`` (from 1) is where it failed, ``calls`` are names to mark."""

    title: str
    source: str
    bad_line: int | None = None
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A step of a trace that ``started`` and lasted some ``seconds``, counted from the start of the
    timeline; ``blocks`` are its contents, ``note`` stands beside it."""

    name: str
    started: float
    seconds: float
    note: str = ""
    failed: bool = False
    blocks: Sequence["Block"] = ()
    children: Sequence["Call"] = ()


@dataclass(frozen=True, slots=True)
class Timeline:
    """Calls in time, over ``seconds`` in all."""

    title: str
    seconds: float
    calls: Sequence[Call]


Block = Fact | Text | Program | Timeline
"""The blocks of a record."""

# --- reports --------------------------------------------------------------------------------------

Where = Literal["both", "page", "terminal"]
"""The renderings that show a block. Charts and tiles are shown on pages only."""
Style = Literal["", "good", "warn", "alarm"]


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph; a ``soft`` one is printed in a fainter colour."""

    text: str
    soft: bool = False
    where: Where = "both"


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """Lines of a list."""

    lines: Sequence[str]
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that a page shows under a title once a reader opens it."""

    title: str
    blocks: Sequence["ReportBlock"]


@dataclass(frozen=True, slots=True)
class FactList:
    """Names and values."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Tile:
    """A headline number."""

    title: str
    value: str
    note: str = ""
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Spark:
    """A curve without axes, for a table cell."""

    points: Sequence[Point]
    colour: str


@dataclass(frozen=True, slots=True)
class IntervalMark:
    """A share with its interval on a scale from 0 to 1, for a table cell."""

    low: float
    value: float
    high: float
    colour: str


@dataclass(frozen=True, slots=True)
class ReportCell:
    """A table cell. ``note`` is printed smaller, such as an interval; ``is_text``: aligned left and
    wrapped; a page draws ``mark`` behind the text and leads to ``address``. ``style`` may have
    other classes of a page."""

    text: str
    note: str = ""
    style: str = ""
    is_text: bool = False
    mark: Spark | IntervalMark | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """A column head. Columns with ``page_only`` are left out on a terminal, which is narrow. A page
    sorts by it at ``address``; ``order``: ascending or descending by it now."""

    title: str
    page_only: bool = False
    is_text: bool = False
    tip: str = ""
    address: str | None = None
    order: str | None = None


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Rows of cells below their columns; the first cell of a row is its name. Without rows nothing
    is shown. Rows of the numbers in ``shaded`` stand out; ``anchor`` names it on a page."""

    columns: Sequence[ReportColumn | str]
    rows: Sequence[Sequence[ReportCell | str]]
    caption: str = ""
    where: Where = "both"
    shaded: Collection[int] = ()
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve. ``marks`` draws points instead of a line; ``smoothed`` a bold moving mean over
    the faint values; ``stairs`` keeps each value until the next point. ``low`` and ``high`` are the
    ends of each point's interval: a band, or whiskers of points."""

    name: str
    colour: str
    points: Sequence[Point]
    dashed: bool = False
    marks: bool = False
    smoothed: bool = False
    stairs: bool = False
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()

    @property
    def swatch(self) -> str:
        """CSS classes of its line."""
        return f"{self.colour} dashed" if self.dashed else self.colour


@dataclass(frozen=True, slots=True)
class LineChart:
    """Curves over the training step, or with ``x_form`` over another value. ``low`` and ``high``
    are always within the axis, ``x_span`` within that across, whose ticks are ``x_ticks`` or round.
    ``strokes`` at the foot are steps of onsets; ``guides`` are dotted lines between two points,
    which may be infinite. A click on a step leads to its ``address``."""

    title: str
    series: Sequence[Series]
    form: Form
    low: float | None = None
    high: float | None = None
    zero_line: bool = False
    address: Callable[[int], str | None] | None = None
    x_label: str = "step"
    x_form: Form | None = None
    x_span: Sequence[float] = ()
    x_ticks: Sequence[float] = ()
    guides: Sequence[tuple[Point, Point]] = ()
    strokes: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ScatterDot:
    """A row of a scatter: a value with its interval against its cost."""

    name: str
    colour: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class ScatterChart:
    """Shares with their intervals against a cost, the dots numbered."""

    title: str
    dots: Sequence[ScatterDot]
    x_label: str


@dataclass(frozen=True, slots=True)
class ChangeChart:
    """A value before and after for each name, on one scale from zero."""

    title: str
    rows: Sequence[tuple[str, float, float]]


@dataclass(frozen=True, slots=True)
class BarList:
    """Names and values beside bars of the values' lengths."""

    rows: Sequence[tuple[str, str, float]]


@dataclass(frozen=True, slots=True)
class ForestMark:
    """An estimate with its interval; a ``filled`` one is significant."""

    name: str
    colour: str
    value: float
    low: float
    high: float
    filled: bool


@dataclass(frozen=True, slots=True)
class ForestChart:
    """Differences of shares with intervals beside each row's name, around a line at 0. ``key``
    names the colours."""

    title: str
    rows: Sequence[tuple[str, Sequence[ForestMark]]]
    key: Sequence[tuple[str, str]] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class GridCell:
    """A cell of a grid: the larger its ``weight``, from 0 to 1, the darker. ``note`` stands below
    the text where there is room."""

    text: str
    weight: float
    colour: str = "c1"
    note: str = ""


@dataclass(frozen=True, slots=True)
class GridChart:
    """Cells by row and column, such as a heat map; None for a field without a value."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[GridCell | None]]]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class HistogramChart:
    """``counts`` of items between neighbouring ``edges``; ``marks`` are named values."""

    title: str
    counts: Sequence[int]
    edges: Sequence[float]
    unit: str
    items: str
    marks: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True, slots=True)
class ReliabilityChart:
    """Accuracy against confidence, from a half to 1. ``bins`` have their mean ``confidence``,
    ``accuracy``, and number of ``verdicts``."""

    title: str
    bins: Sequence[Record]


ReportChart = (
    LineChart
    | ScatterChart
    | ChangeChart
    | ForestChart
    | GridChart
    | HistogramChart
    | ReliabilityChart
)
ReportBlock = Note | Heading | Bullets | Fold | FactList | BarList | ReportTable | ReportChart


@dataclass(frozen=True, slots=True)
class ReportSection:
    """Blocks under a heading; ``lead`` introduces them on a page. Without blocks nothing is shown
    but a lead."""

    anchor: str
    title: str
    blocks: Sequence[ReportBlock]
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report. ``warnings`` (label and text) come before any number, then ``banners``, each
    with whether it is an alarm; ``chips`` are short facts about the measurement; ``notes`` are
    remarks on the numbers."""

    kind: str
    title: str
    sections: Sequence[ReportSection]
    warnings: Sequence[tuple[str, str]] = ()
    banners: Sequence[tuple[str, str, bool]] = ()
    chips: Sequence[str] = ()
    subtitle: str = ""
    notes: Sequence[str] = ()
    tiles: Sequence[Tile] = ()


def calibration_section(record: Record) -> ReportSection | None:
    """Build the section of a calibration record (``calibration.json``, or a benchmark's measurement
    of it); None for an empty record."""
    if not record:
        return None
    before, after = record["before"], record["after"]
    others = " of other conversations" if "conversations" in record["measured"] else ""
    lead = (
        f"Scores are divided by a temperature of {record['temperature']:.3g}, fitted by maximum "
        f"likelihood on {record['fitted']['pairs']:,} pairs "
        f"({record['fitted']['conversations']:,} conversations). Measured on "
        f"{record['measured']['pairs']:,} pairs{others}, from "
        f"{one_line(record['data'], 120)}: how often the answer with the higher score is the "
        f"preferred one, against the probability by the scores, in {record['bins']} bins."
    )
    if record.get("at_bound"):
        lead += " The temperature is at the bound of its search: these scores determine none."
    if "error_plain" in after:
        lead += " The calibration error is debiased; intervals are at 95 %."
    rows = [
        (name, *(estimate_cell(each.get(key), form) for each in (before, after)))
        for key, name, form in (
            ("error", "expected calibration error", percent),
            ("error_plain", "the same, plain", percent),
            ("brier", "Brier score a pair", "{:.3f}".format),
            ("log_loss", "log loss a pair", "{:.3f}".format),
            ("accuracy", "ranked as preferred", percent),
        )
        if key in after
    ]
    blocks = (
        ReliabilityChart("As trained", before["reliability"]),
        ReliabilityChart("Calibrated", after["reliability"]),
        ReportTable(("", "As trained", "Calibrated"), rows),
    )
    return ReportSection("calibration", "Calibration", blocks, lead)


def estimate_cell(estimate: object, form: Form) -> ReportCell:
    """Return a value with its interval as the note, such as ``91.0 %`` and ``88.2 to 93.1``."""
    value, low, high = estimate_ends(estimate)
    if value is None or low is None or high is None:
        return ReportCell(format_value(value, form))
    return ReportCell(form(value), " to ".join(form(end).removesuffix(" %") for end in (low, high)))


def estimate_ends(estimate: object) -> tuple[float | None, float | None, float | None]:
    """Return value, lower and upper end of an estimate in a record, each None if missing. A number
    alone is a value."""
    cell = estimate if isinstance(estimate, Mapping) else {"value": estimate}
    value, low, high = (known_number(cell.get(key)) for key in ("value", "low", "high"))
    return value, low, high
