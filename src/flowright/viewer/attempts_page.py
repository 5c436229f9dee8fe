"""The page of a selection of attempts: its filters and its table."""

from collections import Counter
from collections.abc import Mapping, Sequence

from flowright.core.formatting import NOTHING, amount, duration, format_value
from flowright.core.report import ReportCell, ReportColumn, ReportTable
from flowright.viewer.layout import (
    Links,
    link,
    opinion_mark,
    outcome_chip,
    reward_cell,
    whole,
)
from flowright.viewer.rendering.markup import Child, Html, el, join
from flowright.viewer.rendering.report import table_html
from flowright.viewer.rollout_records import NONE, Combination
from flowright.viewer.search import Attempt, AttemptSearch
from flowright.viewer.selection import AGAINST, MEASURES, NAMED, PLACES, SORTS, Filter

LABELS = {
    "source": "dataset",
    "verdict": "verdict by",
    "status": "judge's status",
    "llm_tokens": "LLM tokens",
    "against": "judge, gold",
    "q": "search",
    "blame": "fault",
}
WORDS = {
    "against": {
        "agree": "agree",
        "too_generous": "judge right, gold wrong",
        "too_strict": "judge wrong, gold right",
    },
    "blame": {"policy": "the policy's", "infrastructure": "ours"},
}
EXAMPLES = {"step": "12 or 10..20", "reward": "0.2..0.8 or >0.5", "seconds": ">30"}
PROBLEM = "Problem"
EXPORTS = (("JSONL", "jsonl"), ("Parquet", "parquet"), ("Inspect log", "inspect.json"))
_HEADS = (
    *(("Attempt", "step", True), ("Outcome", None, True), ("Judge", None, False)),
    *(("Gold", None, False), ("Reward", "reward", False), ("Adv.", "advantage", False)),
    *((PROBLEM, None, True), ("Answer or failure", None, True), ("Operators", None, True)),
    *(("Calls", "calls", False), ("LLM", "llm_tokens", False), ("Tokens", "tokens", False)),
    ("Time", "seconds", False),
)
"""Titles of columns, the filters that sort by them, and whether they are text."""


def attempts_body(found: AttemptSearch, chosen: Filter, links: Links, of_steps: int) -> Html:
    """Filters beside the table of the selection."""
    if not of_steps:
        none = "None is recorded: no step has ended yet, or the run samples nothing."
        return el("div", el("h1", "Attempts"), el("p", none))
    page = found.page(chosen)
    count, more = found.count(chosen)
    caption = f"{count:,}{' or more' if more else ''} attempt{'' if count == 1 else 's'}"
    following = first = None
    if page.after:
        address = links.of_run("attempts", chosen.query(after=page.after))
        following = el("a", "Next page", href=address, rel="next")
    if chosen.after:
        first = el("a", "First page", href=links.of_run("attempts", chosen.query()))
    exports = [
        [link(links.of_run(f"export.{suffix}", chosen.query()), name), " "]
        for name, suffix in EXPORTS
    ]
    bar = [el("b", caption), first, following, el("span", "Export: ", exports, class_="end")]
    below = el("div", el("span", following, class_="end"), class_="bar") if following else None
    content = [
        [el("p", problem, class_="problem") for problem in chosen.problems],
        _active(chosen, links),
        el("div", bar, class_="bar"),
        attempts_table(found, page.attempts, links, chosen, caption),
        below,
    ]
    return el(
        "div",
        el("h1", "Attempts"),
        _progress(found, of_steps),
        el("div", _form(found, chosen, links), el("div", content), class_="split"),
    )


def attempts_table(
    found: AttemptSearch,
    attempts: Sequence[Attempt],
    links: Links,
    chosen: Filter,
    caption: str,
    of_one_problem: bool = False,
) -> Html | None:
    """One attempt a row, linked to its page with the selection. Attempts ``of_one_problem`` do not
    name it, and cannot be sorted."""
    tasks = found.tasks({attempt.task for attempt in attempts})
    notes = found.notes({attempt.id for attempt in attempts})
    columns = [
        _column(name, None if of_one_problem else sort, text, chosen, links)
        for name, sort, text in _HEADS
        if not (of_one_problem and name == PROBLEM)
    ]
    rows: list[list[ReportCell | str]] = []
    for attempt in attempts:
        about = found.about(attempt)
        name, title = tasks.get(attempt.task, ("", NOTHING))
        shown = el("span", link(links.task(name), title), class_="one")
        small = el("small", f"{about.kind} {about.source}", class_="one")
        note = el("span", notes.get(attempt.id, ""), class_="two")
        operators = found.operators.get(attempt.operators, NONE).replace(",", " ")
        rows.append(
            [
                ReportCell(
                    attempt.place,
                    "" if about.baseline == NONE else about.baseline,
                    address=links.attempt(attempt, chosen.query()),
                ),
                ReportCell(outcome_chip(about.outcome, about.failure), is_text=True),
                opinion_mark(about.judge),
                opinion_mark(about.gold),
                reward_cell(attempt.reward),
                format_value(attempt.advantage, "{:+.2f}".format),
                *([] if of_one_problem else [ReportCell(join([shown, small]), style="wide-cell")]),
                ReportCell(note, style="wide-cell"),
                ReportCell(el("span", operators, class_="two"), style="narrow-cell"),
                whole(attempt.calls),
                format_value(attempt.llm_tokens, amount),
                whole(attempt.tokens),
                format_value(attempt.seconds, duration),
            ]
        )
    return table_html(ReportTable(columns, rows, caption, anchor="rows"))


def _column(name: str, sort: str | None, text: bool, chosen: Filter, links: Links) -> ReportColumn:
    if sort is None or links.exported:
        return ReportColumn(name, is_text=text)
    is_this = sort == chosen.sort
    turned = "asc" if is_this and chosen.descending else None
    query = chosen.query(sort=None if sort == "step" else sort, dir=turned)
    order = ("descending" if chosen.descending else "ascending") if is_this else None
    tip, address = f"sort by {LABELS.get(sort, sort)}", links.of_run("attempts", query)
    return ReportColumn(name, is_text=text, tip=tip, address=address, order=order)


def _active(chosen: Filter, links: Links) -> Html | None:
    """The filters in use, each with a link to drop it."""
    items: list[Html] = []
    for name, value in chosen.values.items():
        if name != "in":
            text = f"{LABELS.get(name, name)}: {WORDS.get(name, {}).get(value, value)}"
            address = links.of_run("attempts", chosen.query(**{f"{name}_": None}))
            items.append(el("li", el("a", text, href=address, title="drop this filter")))
    return el("ul", items, class_="active", aria_label="Filters in use") if items else None


def _progress(found: AttemptSearch, of_steps: int) -> Html | None:
    """The parts of the run that are not in the index yet, or cannot be."""
    progress = found.progress(of_steps)
    parts: list[str] = []
    if progress.steps < of_steps:
        steps = f"{progress.steps:,} of {of_steps:,} steps"
        parts.append(f"{steps} are indexed so far, the newest first")
    if progress.unread:
        parts.append(f"{progress.unread:,} lines of the run's files are no whole records")
    if progress.cut:
        parts.append(f"{progress.cut:,} attempts have a text that is searched in part only")
    return el("p", "; ".join(parts), class_="soft") if parts else None


def _form(found: AttemptSearch, chosen: Filter, links: Links) -> Html:
    values = chosen.values
    search = el("input", type="search", name="q", value=values.get("q", ""), maxlength=500,
                placeholder='words, "a phrase", -not, begin*')  # fmt: skip
    places = [("", "anywhere"), *((place, place) for place in PLACES)]
    fields: list[Child] = [
        el("label", "Search", search, class_="wide-field"),
        _select("in", places, values),
        _input("step", values),
        *(
            _select(name, _options(name, counts), values)
            for name, counts in facet_counts(found).items()
            if counts or name in values
        ),
        *(_input(name, values) for name in MEASURES),
    ]
    kept = {"task": values.get("task", ""), "dir": "" if chosen.descending else "asc"}
    kept["sort"] = "" if chosen.sort == SORTS[0] else chosen.sort
    fields += [
        el("input", type="hidden", name=n, value=value) for n, value in kept.items() if value
    ]
    clear = el("a", "Clear", href=links.of_run("attempts"))
    buttons = el("div", el("button", "Show", type="submit"), clear, class_="row")
    form = el("form", fields, buttons, action=links.of_run("attempts"), method="get")
    return el("details", el("summary", "Filters"), form, class_="filters", open=True)


def _options(name: str, counts: Mapping[str, int]) -> list[tuple[str, str]]:
    words = WORDS.get(name, {})
    listed = [(value, f"{words.get(value, value)} ({n:,})") for value, n in counts.items()]
    return [("", "any"), *listed]


def _select(name: str, options: Sequence[tuple[str, str]], values: Mapping[str, str]) -> Html:
    value = values.get(name, "")
    if value and value not in dict(options):
        options = [*options, (value, value)]
    items = [el("option", shown, value=v, selected=v == value) for v, shown in options]
    return el("label", LABELS.get(name, name), el("select", items, name=name))


def _input(name: str, values: Mapping[str, str]) -> Html:
    box = el("input", name=name, value=values.get(name, ""), placeholder=EXAMPLES.get(name, ""),
             autocomplete="off", size=8)  # fmt: skip
    return el("label", LABELS.get(name, name), box)


def facet_counts(found: AttemptSearch) -> dict[str, dict[str, int]]:
    """The number of the run's attempts for each value of each filter, most first."""
    totals = {name: Counter[str]() for name in (*NAMED, "against", "repair", "operator")}
    for number, count in found.rows("SELECT id, attempts FROM combinations WHERE attempts > 0"):
        about = found.combinations.get(number, Combination())
        for name in NAMED:
            totals[name][getattr(about, name)] += count
        for name, pairs in AGAINST.items():
            if (about.judge, about.gold) in pairs:
                totals["against"][name] += count
        names = ["none"] if about.repairs == NONE else ["any", *about.repairs.split(",")]
        totals["repair"].update(dict.fromkeys(names, count))
    for number, count in found.rows("SELECT id, attempts FROM operators WHERE attempts > 0"):
        names = found.operators.get(number, NONE).split(",")
        totals["operator"].update(dict.fromkeys(names, count))
    return {
        name: dict(counts.most_common())
        for name, counts in totals.items()
        if len(counts) > 1 or (name in ("against", "repair") and counts)
    }
