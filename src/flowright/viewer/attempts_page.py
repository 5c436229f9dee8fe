"""The pages of attempts: a selection with its filters, a group (all at one problem in one step),
and a problem over the run."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev
from urllib.parse import quote

from flowright.core.formatting import Record, amount, duration, format_value, object_of
from flowright.core.report import LineChart, ReportCell, ReportColumn, ReportTable, Series
from flowright.core.untrusted import visible
from flowright.viewer.layout import (
    Links,
    link,
    number,
    opinion_mark,
    outcome_chip,
    reward_cell,
    whole,
)
from flowright.viewer.rendering.charts import chart_html
from flowright.viewer.rendering.markup import Child, Html, el, join
from flowright.viewer.rendering.record_blocks import REPORT, WHOLE, blocks_html, code_block
from flowright.viewer.rendering.report import table_html
from flowright.viewer.rollout_records import (
    NONE,
    Attempt,
    escape_surrogates,
    problem_blocks,
    reward_arithmetic,
    reward_of,
    source_of,
)
from flowright.viewer.search import AttemptSearch, facet_counts
from flowright.viewer.selection import MEASURES, PLACES, SORTS, Filter
from flowright.viewer.turns import turns_html

LABELS = {
    "source": "dataset",
    "verdict": "verdict by",
    "status": "judge's status",
    "llm_tokens": "LLM tokens",
    "against": "judge, gold",
    "q": "search",
    "blame": "fault",
    "stop": "stop reason",
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
PROBLEM, TURNS = "Problem", "Turns"
EXPORTS = (("JSONL", "jsonl"), ("Parquet", "parquet"), ("Inspect log", "inspect.json"))
_HEADS = (
    *(("Attempt", "step", True), ("Outcome", None, True), ("Judge", None, False)),
    *(("Gold", None, False), ("Reward", "reward", False), ("Adv.", "advantage", False)),
    *((PROBLEM, None, True), ("Answer or failure", None, True), ("Operators", None, True)),
    *(("Calls", "calls", False), ("LLM", "llm_tokens", False), (TURNS, "turns", False)),
    *(("Tokens", "tokens", False), ("Time", "seconds", False)),
)
"""Titles of columns, the filters that sort by them, and whether they are text."""


def attempts_body(found: AttemptSearch, chosen: Filter, links: Links, of_steps: int) -> Html:
    """Filters beside the table of the selection."""
    if not of_steps:
        none = "None is recorded: no step has ended yet, or the run samples nothing."
        return el("div", el("h1", "Attempts"), el("p", none))
    attempts, after = found.page(chosen)
    count, more = found.count(chosen)
    caption = f"{count:,}{' or more' if more else ''} attempt{'' if count == 1 else 's'}"
    following = first = None
    if after:
        address = links.of_run("attempts", chosen.query(after=after))
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
        attempts_table(attempts, links, chosen, caption),
        below,
    ]
    return el(
        "div",
        el("h1", "Attempts"),
        _progress(found, of_steps),
        el("div", _form(found, chosen, links), el("div", content), class_="split"),
    )


def attempts_table(
    attempts: Sequence[Attempt],
    links: Links,
    chosen: Filter,
    caption: str,
    of_one_problem: bool = False,
) -> Html | None:
    """One attempt a row, linked to its page with the selection. Attempts ``of_one_problem`` do not
    name it, and cannot be sorted. Turns are shown where there are some."""
    left_out = {PROBLEM} if of_one_problem else set[str]()
    left_out |= set() if any(attempt.turns for attempt in attempts) else {TURNS}
    columns = [
        _column(name, None if of_one_problem else sort, text, chosen, links)
        for name, sort, text in _HEADS
        if name not in left_out
    ]
    rows: list[list[ReportCell | str]] = []
    for attempt in attempts:
        shown = el("span", link(links.task(attempt.task), attempt.title), class_="one")
        small = el("small", f"{attempt.kind} {attempt.source}", class_="one")
        note = el("span", attempt.note, class_="two")
        operators = attempt.operators.replace(",", " ")
        rows.append(
            [
                ReportCell(
                    attempt.place,
                    "" if attempt.baseline == NONE else attempt.baseline,
                    address=links.attempt(attempt, chosen.query()),
                ),
                ReportCell(outcome_chip(attempt), is_text=True),
                opinion_mark(attempt.judge),
                opinion_mark(attempt.gold),
                reward_cell(attempt.reward),
                format_value(attempt.advantage, "{:+.2f}".format),
                *([] if of_one_problem else [ReportCell(join([shown, small]), style="wide-cell")]),
                ReportCell(note, style="wide-cell"),
                ReportCell(el("span", operators, class_="two"), style="narrow-cell"),
                whole(attempt.calls),
                format_value(attempt.llm_tokens, amount),
                *([] if TURNS in left_out else [whole(attempt.turns)]),
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
    facets = facet_counts(found)
    has_turns = "stop" in facets or "turns" in values
    fields: list[Child] = [
        el("label", "Search", search, class_="wide-field"),
        _select("in", places, values),
        _input("step", values),
        *(
            _select(name, _options(name, counts), values)
            for name, counts in facets.items()
            if counts or name in values
        ),
        *(_input(name, values) for name in MEASURES if name != "turns" or has_turns),
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


# --- a group, and a problem over the run ----------------------------------------------------------

MOST_LINES = 600
"""Lines of two programs that are compared; longer ones are shown without a difference."""
MOST_PROGRAMS = 12
"""Groups whose programs are read and compared, the newest; the table names all."""


def group_body(attempts: Sequence[Attempt], records: Sequence[Record], links: Links) -> Html:
    """A group's attempts side by side. ``records`` are theirs, in the same order."""
    step, group = attempts[0].step, attempts[0].group
    task = object_of(records[0], "task")
    rewards = [value for value in map(reward_of, records) if value is not None]
    summary = "no attempt was scored: the group trains nothing"
    if rewards:
        spread = pstdev(rewards)
        summary = (
            f"{len(rewards)} of {len(records)} scored, mean reward {fmean(rewards):.3f}, "
            f"standard deviation {spread:.3f}"
        )
        summary += "" if spread else ": no spread, so there is nothing to learn from"
    return el(
        "div",
        el("h1", f"Group {step}/{group}"),
        el(
            "div",
            el("span", link(links.of_run("attempts", f"step={step}"), f"Step {step}")),
            el("span", link(links.task(str(task.get("id") or "")), "This problem over time")),
            el("span", summary),
            class_="bar",
        ),
        el("section", blocks_html(problem_blocks(records[0]), WHOLE)),
        attempts_table(attempts, links, Filter(), f"{len(attempts)} attempts", True),
        _best_and_worst(attempts, records, links),
        el("h2", "Programs"),
        el("div", [_card(*each, links) for each in zip(attempts, records, strict=True)],
           class_="cards"),
    )  # fmt: skip


def _best_and_worst(
    attempts: Sequence[Attempt], records: Sequence[Record], links: Links
) -> Html | None:
    """The best against the worst of those that were scored."""
    scored = [(r, n) for n, record in enumerate(records) if (r := reward_of(record)) is not None]
    if not scored:
        return None
    best, worst = max(scored, key=lambda each: (each[0], -each[1])), min(scored)
    if best[0] == worst[0]:
        return None
    title: list[Child] = []
    for word, (reward, n) in (("From the worst (", worst), (" to the best (", best)):
        attempt = attempts[n]
        title += [word, link(links.attempt(attempt), attempt.place), f", {reward:.2f})"]
    shown = difference(source_of(records[worst[1]]), source_of(records[best[1]]))
    return el("section", el("h2", title), shown)


def difference(before: str, after: str) -> Html:
    """The lines of two programs, removed ones marked with - and added ones with +."""
    old, new = (visible(source).splitlines() for source in (before, after))
    if old == new:
        return el("p", "the same program", class_="soft")
    if max(len(old), len(new)) > MOST_LINES:
        return el("p", f"longer than {MOST_LINES} lines: not compared", class_="soft")
    rows: list[Html] = []
    for line in list(difflib.unified_diff(old, new, lineterm="", n=30))[2:]:
        if not line.startswith("@"):
            class_ = {"+": "plus", "-": "minus"}.get(line[:1])
            rows.append(el("span", line[:2000], class_=class_))
    return el("pre", rows, class_="diff")


def _card(attempt: Attempt, record: Record, links: Links) -> Html:
    workflow = object_of(record, "workflow")
    calls = workflow.get("calls")
    bad_line = object_of(record, "failure").get("line") if workflow else None
    operators = tuple(map(str, calls)) if isinstance(calls, list) else ()
    chip = outcome_chip(attempt)
    return el(
        "article",
        el("h3", link(links.attempt(attempt), attempt.place), " ", chip),
        el("p", reward_arithmetic(record), class_="who"),
        turns_html(record, REPORT),
        code_block(source_of(record), bad_line, operators),
        class_="card",
    )


def _mean(attempts: Sequence[Attempt]) -> float | None:
    rewards = [a.reward for a in attempts if a.reward is not None]
    return fmean(rewards) if rewards else None


def _best(attempts: Sequence[Attempt]) -> Attempt:
    """The attempt of the highest reward."""
    scored = [a for a in attempts if a.reward is not None]
    return max(scored, key=lambda a: a.reward or 0.0) if scored else attempts[0]


def _right(attempts: Sequence[Attempt], by_gold: bool = False) -> int:
    """Count the right ones by the judge, or by gold."""
    return sum((a.gold if by_gold else a.outcome) == "right" for a in attempts)


def problem_body(
    found: AttemptSearch, task: str, links: Links, read: Callable[[Attempt], Record]
) -> Html | None:
    """A problem through the run, None where the run has no attempt at it. ``read`` gives the
    record of an attempt."""
    where = "a.task_id = (SELECT id FROM tasks WHERE task = ?)"
    groups: dict[tuple[int, int], list[Attempt]] = {}
    for attempt in found.attempts([where], (task,), "a.id"):
        groups.setdefault((attempt.step, attempt.group), []).append(attempt)
    visits = list(groups.values())
    if not visits:
        return None
    named = quote(escape_surrogates(task), safe="")
    shown = [_best(visit) for visit in visits[-MOST_PROGRAMS:]]
    records = [read(attempt) for attempt in shown]
    first = "never solved"
    for who, by_gold in (("the judge", False), ("gold", True)):
        if solved := next((visit[0] for visit in visits if _right(visit, by_gold)), None):
            first = f"first solved in step {solved.step} by {who}"
    means = [(visit[0].step, mean) for visit in visits if (mean := _mean(visit)) is not None]
    chart = LineChart(
        "Mean reward of its group",
        [Series("reward", "c1", means, marks=True)],
        "{:.2f}".format,
        0.0,
        1.0,
        address=lambda step: links.of_run("attempts", f"step={step}&task={named}"),
    )
    return el(
        "div",
        el("h1", "A problem over time"),
        el(
            "div",
            el("span", task, class_="soft"),
            el("span", f"{sum(map(len, visits)):,} attempts in {len(visits):,} groups; {first}"),
            class_="bar",
        ),
        el("section", blocks_html(problem_blocks(records[-1]), WHOLE)),
        chart_html(chart),
        _groups_table(visits, links),
        _programs(shown, records, links, len(visits)),
    )


def _groups_table(visits: Sequence[Sequence[Attempt]], links: Links) -> Html | None:
    columns = [
        ReportColumn("Group", is_text=True),
        *("Attempts", "Right, judge", "Right, gold", "Mean reward"),
        ReportColumn("Programs", tip="different ones"),
        ReportColumn("Best attempt", is_text=True),
    ]
    rows: list[list[ReportCell | str]] = []
    for visit in reversed(visits):
        place, best = f"{visit[0].step}/{visit[0].group}", _best(visit)
        rows.append(
            [
                ReportCell(place, address=links.of_run(f"group/{place}")),
                *map(str, (len(visit), _right(visit), _right(visit, by_gold=True))),
                number(_mean(visit)),
                str(len({attempt.program for attempt in visit})),
                ReportCell(best.place, is_text=True, address=links.attempt(best)),
            ]
        )
    return table_html(ReportTable(columns, rows, "Groups, the newest first", anchor="rows"))


def _programs(
    best: Sequence[Attempt], records: Sequence[Record], links: Links, of_all: int
) -> Html:
    """The best program of each group against that of the group before."""
    parts: list[Html] = []
    before: str | None = None
    for attempt, record in zip(best, records, strict=True):
        source = source_of(record)
        shown = difference(before, source) if before is not None else el("pre", source)
        where = link(links.attempt(attempt), attempt.place)
        title = el("h3", where, f", reward {number(attempt.reward)}")
        parts.append(el("section", title, shown))
        before = source
    cut = f", the last {len(best)} of {of_all} groups" if len(best) < of_all else ""
    lead = f"The best program of each group against that of the group before{cut}."
    return el("section", el("h2", "Changes of its workflow"), el("p", lead, class_="lead"), parts)
