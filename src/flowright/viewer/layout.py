"""The frame of the viewer's pages: addresses, head, navigation, warnings, tables, marks.

A page loads nothing: its style and its one script stand in it and are allowed by their hashes, so
that a page is the same served, saved and exported, and markup that slipped in could not run.
"""

from dataclasses import dataclass, replace
from functools import cache
from urllib.parse import quote

from flowright.core.formatting import NOTHING, format_value
from flowright.core.report import ReportCell, ReportTable
from flowright.viewer.rendering.markup import (
    Child,
    Html,
    asset,
    content_policy,
    document,
    el,
    source_hash,
    strip,
)
from flowright.viewer.rendering.report import table_html
from flowright.viewer.rollout_records import Attempt, escape_surrogates
from flowright.viewer.run_list import ViewedRun
from flowright.viewer.run_report import strips


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses of the pages, served under a root or exported into a folder. A page that an export
    leaves out has no address (None). ``parts`` are titles and names of the run and its parts."""

    run: str = ""
    exported: bool = False
    held: frozenset[str] = frozenset()
    parts: tuple[tuple[str, str], ...] = ()

    def home(self) -> str:
        return "index.html" if self.exported else "/"

    def of_run(self, page: str, query: str = "") -> str | None:
        """Address a page of the run: attempts, problem, group/3/1, attempt/3/1/0; empty: the
        run's."""
        if self.exported:
            name = page_file(self.run, page)
            return None if query or name not in self.held else quote(name)
        return f"/run/{quote(escape_surrogates(self.run), safe='')}/{page}{query and '?'}{query}"

    def attempt(self, attempt: Attempt, query: str = "") -> str | None:
        return self.of_run(f"attempt/{attempt.place}", query)

    def task(self, name: str) -> str | None:
        task = quote(escape_surrogates(name), safe="")
        return None if self.exported else self.of_run("problem", f"task={task}")


def page_file(run: str, page: str) -> str:
    """The file of an exported page; ``index.html`` is that of all runs."""
    stem = f"{run}{page and '-'}{page.replace('/', '-')}"
    return f"{'index-run' if stem == 'index' else stem}.html"


def link(address: str | None, *content: Child, **attributes: str | None) -> Child:
    """A link, or its text alone where there is nothing to go to."""
    return el("a", *content, href=address, **attributes) if address else list(content)


def _style() -> str:
    own = asset("viewer.css", "flowright.viewer")
    return asset("charts.css") + asset("page.css") + own


def _script() -> str:
    return asset("charts.js") + asset("viewer.js", "flowright.viewer")


@cache
def policy() -> str:
    """The content security policy of every page."""
    return content_policy(_script(), source_hash(_style()), "'self'")


def viewer_page(title: str, body: Child, links: Links, here: str = "", notes: Child = None) -> str:
    """Render a whole page. ``here`` is its name among the run's pages; ``notes`` stand above it."""
    content = [
        el("a", "To the content", href="#content", class_="skip"),
        _navigation(links, here),
        notes,
        el("main", body, id="content"),
        _help(),
    ]
    return document(title, content, _style(), _script(), policy(), "viewer")


def notes_of(run: ViewedRun) -> list[Html]:
    """The report's warnings, and the reason why the index is not up to date where it is not."""
    found = strips(run.snapshot())
    return [*found, strip("", run.trouble, alarm=True)] if run.trouble else found


def _navigation(links: Links, here: str) -> Html:
    parts = links.parts or ((("Attempts", links.run),) if links.run else ())
    marked = [
        link(
            replace(links, run=run).of_run("attempts"),
            name,
            aria_current="page" if here == "attempts" and run == links.run else None,
            data_go=name[0].lower(),
        )
        for name, run in parts
    ]
    if parts:
        whole_run = replace(links, run=parts[0][1]).of_run("")
        current = "page" if here == "run" else None
        marked.insert(0, link(whole_run, "Run", aria_current=current, data_go="r"))
    home = link(links.home(), "Runs", aria_current="page" if here == "runs" else None)
    run = el("b", links.run, class_="name") if links.run else None
    keys = el("button", "?", type="button", id="keys", title="Keys", aria_label="Show the keys")
    return el("nav", home, run, marked, keys, class_="top", aria_label="Pages")


KEYS = (
    ("j, k", "next, previous row or attempt"),
    ("Enter, o", "open the row"),
    ("u", "up: from an attempt to its list"),
    ("n, p", "next page, back"),
    ("/", "search"),
    ("g r, g a", "the run, its attempts"),
    ("g v, g e, g b", "attempts at held-out problems: validation, evaluation, baselines"),
    ("e", "open or close all texts"),
    ("?", "these keys"),
)


def _help() -> Html:
    listed = table_html(ReportTable(("", ""), KEYS, "Keys"))
    close = el("form", el("button", "Close"), method="dialog")
    return el("dialog", listed, close, id="help", aria_label="Keys")


def number(value: float | None, digits: int = 2) -> str:
    """A number for a cell."""
    return format_value(value, f"{{:.{digits}f}}".format)


def whole(value: float | None) -> str:
    """A count for a cell."""
    return format_value(value, "{:,.0f}".format)


STYLES = {"right": "good", "wrong": "plain", "failed": "alarm", "unscored": "warn"}


def outcome_chip(attempt: Attempt) -> Html:
    """The outcome of an attempt in a word; a failure by its reason."""
    by_reason = attempt.outcome in ("failed", "unscored") and attempt.failure != NOTHING
    text = attempt.failure if by_reason else attempt.outcome
    return el("span", text, class_=f"tag {STYLES.get(attempt.outcome, 'plain')}")


def opinion_mark(opinion: str) -> Html:
    """Right, wrong or nothing, as a mark that is also a word."""
    mark = {"right": "✓", "wrong": "✗"}.get(opinion, NOTHING)
    class_ = f"mark-{opinion}" if mark != NOTHING else "soft"
    return el("span", mark, class_=class_, title=opinion)


def reward_cell(value: float | None) -> ReportCell:
    """A reward, or that there is none."""
    if value is None:
        return ReportCell(el("span", "none", class_="soft", title="unscored: not a 0"))
    return ReportCell(number(value), style="high" if value > 0.5 else "")
