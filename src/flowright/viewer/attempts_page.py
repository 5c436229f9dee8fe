"""The page of a selection of attempts: what it can be narrowed by, and its table."""

from collections.abc import Mapping, Sequence

from flowright.core.formatting import NOTHING, amount, duration
from flowright.viewer.layout import (
    Column,
    Links,
    data_table,
    link,
    opinion_mark,
    outcome_chip,
    reward_cell,
    whole,
)
from flowright.viewer.rendering.markup import Child, Html, el
from flowright.viewer.rollout_records import NONE, Combination
from flowright.viewer.search import Attempt, Found
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
_HEADS = (
    ("Attempt", "step", True),
    ("Outcome", None, True),
    ("Judge", None, False),
    ("Gold", None, False),
    ("Reward", "reward", False),
    ("Adv.", "advantage", False),
    (PROBLEM, None, True),
    ("Answer or failure", None, True),
    ("Operators", None, True),
    ("Calls", "calls", False),
    ("LLM", "llm_tokens", False),
    ("Tokens", "tokens", False),
    ("Time", "seconds", False),
)


def attempts_body(found: Found, chosen: Filter, links: Links, of_steps: int) -> Html:
    """Filters beside the table of the selection."""
    page = found.page(chosen)
    count, more = found.count(chosen)
    told = f"{count:,}{' or more' if more else ''} attempt{'' if count == 1 else 's'}"
    following = None
    if page.after:
        address = links.of_run("attempts", chosen.query(after=page.after))
        following = el("a", "Next page", href=address, rel="next")
    first = None
    if chosen.after:
        first = el("a", "First page", href=links.of_run("attempts", chosen.query()))
    bar = el("div", el("b", told), first, following, _exports(chosen, links), class_="bar")
    table = attempts_table(found, page.attempts, links, chosen, told)
    notes = [el("p", problem, class_="problem") for problem in chosen.problems]
    below = el("div", el("span", following, class_="end"), class_="bar") if following else None
    return el(
        "div",
        el("h1", "Attempts"),
        _progress(found, of_steps),
        el(
            "div",
            _form(found, chosen, links),
            el("div", notes, _active(chosen, links), bar, table, below),
            class_="split",
        ),
    )


def attempts_table(
    found: Found,
    attempts: Sequence[Attempt],
    links: Links,
    chosen: Filter,
    caption: str,
    of_one_problem: bool = False,
) -> Html:
    """One attempt a row; each leads to its page, which knows the selection that it stands in. Those
    ``of_one_problem`` do not name it, and have nothing to be sorted by."""
    tasks = found.tasks({attempt.task for attempt in attempts})
    notes = found.notes({attempt.id for attempt in attempts})
    columns = [
        _column(name, None if of_one_problem else sort, text, chosen, links)
        for name, sort, text in _HEADS
        if not (of_one_problem and name == PROBLEM)
    ]
    rows: list[Html] = []
    for attempt in attempts:
        name, title = tasks.get(attempt.task, ("", NOTHING))
        problem = None if of_one_problem else link(links.task(name), title)
        rows.append(_row(found, attempt, links, chosen, problem, notes.get(attempt.id, "")))
    return data_table(caption, columns, rows, id="rows")


def _row(
    found: Found, attempt: Attempt, links: Links, chosen: Filter, problem: Child, note: str
) -> Html:
    about = found.about(attempt)
    operators = found.operators.get(attempt.operators, NONE)
    address = links.attempt(attempt, chosen.query())
    return el(
        "tr",
        el("th", link(address, attempt.place), scope="row"),
        el("td", outcome_chip(about.outcome, about.failure), class_="text"),
        el("td", opinion_mark(about.judge)),
        el("td", opinion_mark(about.gold)),
        reward_cell(attempt.reward),
        el("td", NOTHING if attempt.advantage is None else f"{attempt.advantage:+.2f}"),
        _problem(problem, f"{about.kind} {about.source}"),
        el("td", el("span", note, class_="two"), class_="wide-cell"),
        el("td", el("span", operators.replace(",", " "), class_="two"), class_="narrow-cell"),
        el("td", whole(attempt.calls)),
        el("td", NOTHING if attempt.llm_tokens is None else amount(attempt.llm_tokens)),
        el("td", whole(attempt.tokens)),
        el("td", NOTHING if attempt.seconds is None else duration(attempt.seconds)),
    )


def _problem(problem: Child, about: str) -> Html | None:
    if problem is None:
        return None
    told = [el("span", problem, class_="one"), el("small", about, class_="one")]
    return el("td", told, class_="wide-cell")


def _column(name: str, sort: str | None, text: bool, chosen: Filter, links: Links) -> Column:
    if sort is None or links.exported:
        return Column(name, text)
    is_this = sort == chosen.sort
    turned = "asc" if is_this and chosen.descending else None
    address = links.of_run(
        "attempts", chosen.query(sort=None if sort == "step" else sort, dir=turned)
    )
    ordered = ("descending" if chosen.descending else "ascending") if is_this else None
    return Column(name, text, address, ordered, f"sort by {LABELS.get(sort, sort)}")


def _exports(chosen: Filter, links: Links) -> Html:
    addresses = [
        (name, links.of_run(f"export.{suffix}", chosen.query()))
        for name, suffix in (
            ("JSONL", "jsonl"),
            ("Parquet", "parquet"),
            ("Inspect log", "inspect.json"),
        )
    ]
    return el("span", "Export: ", [[link(to, name), " "] for name, to in addresses], class_="end")


def _active(chosen: Filter, links: Links) -> Html | None:
    """What is asked, each with a way to drop it."""
    items = [
        el(
            "li",
            el(
                "a",
                f"{LABELS.get(name, name)}: {WORDS.get(name, {}).get(value, value)}",
                href=links.of_run("attempts", chosen.query(**{f"{name}_": None})),
                title="drop this filter",
            ),
        )
        for name, value in chosen.values.items()
        if name != "in"
    ]
    return el("ul", items, class_="active", aria_label="Filters in use") if items else None


def _progress(found: Found, of_steps: int) -> Html | None:
    """What is not in the index yet, or cannot be."""
    told = found.progress(of_steps)
    words: list[str] = []
    if told.steps < of_steps:
        words.append(f"{told.steps:,} of {of_steps:,} steps are indexed so far, the newest first")
    if told.unread:
        words.append(f"{told.unread:,} lines of the run's files are no whole records")
    if told.cut:
        words.append(f"{told.cut:,} attempts have a text that is searched in part only")
    return el("p", "; ".join(words), class_="soft") if words else None


def _form(found: Found, chosen: Filter, links: Links) -> Html:
    told = chosen.values
    choices = facet_counts(found)
    search = el(
        "label",
        "Search",
        el("input", type="search", name="q", value=told.get("q", ""), maxlength=500,
           placeholder='words, "a phrase", -not, begin*'),
        class_="wide-field",
    )  # fmt: skip
    places = [("", "anywhere"), *((place, place) for place in PLACES)]
    fields: list[Child] = [
        search,
        _select("in", "in", places, told.get("in", "")),
        _input("step", told),
        *(
            _select(name, LABELS.get(name, name), _options(name, found_), told.get(name, ""))
            for name, found_ in choices.items()
            if found_ or name in told
        ),
        *(_input(name, told) for name in MEASURES),
        _hidden(chosen),
    ]
    clear = el("a", "Clear", href=links.of_run("attempts"))
    buttons = el("div", el("button", "Show", type="submit"), clear, class_="row")
    form = el("form", fields, buttons, action=links.of_run("attempts"), method="get")
    return el("details", el("summary", "Filters"), form, class_="filters", open=True)


def _hidden(chosen: Filter) -> Child:
    kept = [("task", chosen.values.get("task", "")), ("dir", "" if chosen.descending else "asc")]
    kept.append(("sort", "" if chosen.sort == SORTS[0] else chosen.sort))
    return [el("input", type="hidden", name=name, value=value) for name, value in kept if value]


def _options(name: str, counts: Mapping[str, int]) -> list[tuple[str, str]]:
    named = WORDS.get(name, {})
    listed = [(value, f"{named.get(value, value)} ({n:,})") for value, n in counts.items()]
    return [("", "any"), *listed]


def _select(name: str, label: str, options: Sequence[tuple[str, str]], value: str) -> Html:
    if value and value not in dict(options):
        options = [*options, (value, value)]
    items = [el("option", shown, value=v, selected=v == value) for v, shown in options]
    return el("label", label, el("select", items, name=name))


def _input(name: str, told: Mapping[str, str]) -> Html:
    box = el("input", name=name, value=told.get(name, ""), placeholder=EXAMPLES.get(name, ""),
             autocomplete="off", size=8)  # fmt: skip
    return el("label", LABELS.get(name, name), box)


def facet_counts(found: Found) -> dict[str, dict[str, int]]:
    """How many attempts of the run have each value of each filter, most first."""
    totals: dict[str, dict[str, int]] = {name: {} for name in (*NAMED, "against", "repair")}
    for number_, count in found.rows("SELECT id, attempts FROM combinations WHERE attempts > 0"):
        about = found.combinations.get(number_)
        if about is None:
            continue
        for name, value in _values(about):
            totals[name][value] = totals[name].get(value, 0) + count
    operators: dict[str, int] = {}
    for number_, count in found.rows("SELECT id, attempts FROM operators WHERE attempts > 0"):
        for name in found.operators.get(number_, NONE).split(","):
            operators[name] = operators.get(name, 0) + count
    totals["operator"] = operators
    return {
        name: dict(sorted(counts.items(), key=lambda item: -item[1]))
        for name, counts in totals.items()
        if len(counts) > 1 or (name in ("against", "repair") and counts)
    }


def _values(about: Combination) -> list[tuple[str, str]]:
    values = [(name, getattr(about, column)) for name, column in NAMED.items()]
    for name, pairs in AGAINST.items():
        if (about.judge, about.gold) in pairs:
            values.append(("against", name))
    names = ["none"] if about.repairs == NONE else ["any", *about.repairs.split(",")]
    return [*values, *(("repair", name) for name in names)]
