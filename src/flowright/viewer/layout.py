"""What all pages of the viewer share: head, navigation, the policy that fences them in, tables.

A page loads nothing: its style and its one script stand in it and are allowed by their hashes, so
that a page means the same served, saved and exported, and markup that slipped in could not run.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from urllib.parse import quote

from flowright.core.formatting import NOTHING
from flowright.viewer.rendering.markup import Child, Html, asset, el
from flowright.viewer.rollout_records import safe
from flowright.viewer.search import Attempt


@dataclass(frozen=True, slots=True)
class Links:
    """Where the pages are, from one of them: served under a root, or exported into a folder. A
    page that an export leaves out has no address (None). ``run`` is a name; ``parts`` are names of
    the run itself and of its parts that there are, by what they are called."""

    run: str = ""
    exported: bool = False
    held: frozenset[str] = frozenset()
    parts: tuple[tuple[str, str], ...] = ()

    def home(self) -> str:
        return "index.html" if self.exported else "/"

    def of_run(self, page: str, query: str = "") -> str | None:
        """A page of the run: attempts, problem, group/3/1, attempt/3/1/0; empty: the run's."""
        if self.exported:
            name = page_file(self.run, page)
            return None if query or name not in self.held else quote(name)
        return f"/run/{quote(safe(self.run), safe='')}/{page}{query and '?'}{query}"

    def attempt(self, attempt: Attempt, query: str = "") -> str | None:
        return self.of_run(f"attempt/{attempt.place}", query)

    def task(self, name: str) -> str | None:
        return (
            None if self.exported else self.of_run("problem", f"task={quote(safe(name), safe='')}")
        )


def page_file(run: str, page: str) -> str:
    """The file of an exported page; ``index.html`` is that of all runs."""
    stem = f"{run}{page and '-'}{page.replace('/', '-')}"
    return f"{'index-run' if stem == 'index' else stem}.html"


def link(address: str | None, *content: Child, **attributes: str | None) -> Child:
    """A link, or its text alone where there is nothing to go to."""
    return el("a", *content, href=address, **attributes) if address else list(content)


@cache
def _assets() -> tuple[str, str]:
    here = files("flowright.viewer")
    style = asset("charts.css") + asset("page.css") + (here / "viewer.css").read_text("utf-8")
    return style, asset("charts.js") + (here / "viewer.js").read_text("utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def policy() -> str:
    """The content security policy of every page."""
    style, script = _assets()
    return (
        f"default-src 'none'; style-src 'sha256-{_hash(style)}'; "
        f"script-src 'sha256-{_hash(script)}'; base-uri 'none'; form-action 'self'"
    )


def document(title: str, body: Child, links: Links, here: str = "", notes: Child = None) -> str:
    """A whole page. ``here`` is which of the run's pages it is; ``notes`` must be seen first."""
    style, script = _assets()
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy()),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title),
        el("style", Html(style)),
    )
    content = el(
        "body",
        el("a", "To the content", href="#content", class_="skip"),
        _navigation(links, here),
        notes,
        el("main", body, id="content"),
        _help(),
        el("div", id="told", role="status"),
        el("script", Html(script)),
        class_="viewer",
    )
    return f"<!doctype html>\n{el('html', head, content, lang='en')}\n"


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
    ("g v, g e", "attempts at held-out problems: validation, evaluation"),
    ("e", "open or close all texts"),
    ("?", "these keys"),
)


def _help() -> Html:
    rows = [el("tr", el("th", keys, scope="row"), el("td", what)) for keys, what in KEYS]
    table = el("table", el("caption", "Keys"), el("tbody", rows))
    close = el("form", el("button", "Close"), method="dialog")
    return el("dialog", table, close, id="help", aria_label="Keys")


@dataclass(frozen=True, slots=True)
class Column:
    """A head of a table. ``sort`` is the address that sorts by it, ``sorted`` ascending or
    descending where it is what the table is sorted by."""

    name: str
    text: bool = False
    sort: str | None = None
    sorted: str | None = None
    told: str = ""


def data_table(caption: str, columns: Sequence[Column], rows: Sequence[Html], id: str = "") -> Html:
    """A table with a caption and heads that say what they are heads of."""
    heads = [
        el(
            "th",
            link(column.sort, column.name, rel="nofollow"),
            scope="col",
            class_="text" if column.text else None,
            aria_sort=column.sorted,
            title=column.told or None,
        )
        for column in columns
    ]
    table = el(
        "table",
        el("caption", caption),
        el("thead", el("tr", heads)),
        el("tbody", rows),
        id=id or None,
    )
    return el("div", table, class_="wide")


def number(value: float | None, digits: int = 2) -> str:
    """A number for a cell."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def whole(value: float | None) -> str:
    """A count for a cell."""
    return NOTHING if value is None else f"{value:,.0f}"


STYLES = {"right": "good", "wrong": "plain", "failed": "alarm", "unscored": "warn"}


def outcome_chip(outcome: str, failure: str = "") -> Html:
    """What became of an attempt, in a word; a failure by its reason."""
    told = (
        failure if outcome in ("failed", "unscored") and failure not in ("", NOTHING) else outcome
    )
    return el("span", told, class_=f"tag {STYLES.get(outcome, 'plain')}")


def opinion(said: str) -> Html:
    """Right, wrong or nothing, as a mark that is also a word."""
    mark = {"right": "✓", "wrong": "✗"}.get(said, NOTHING)
    return el("span", mark, class_=f"mark-{said}" if mark != NOTHING else "soft", title=said)


def reward_cell(value: float | None) -> Html:
    """A reward, or that there is none."""
    if value is None:
        return el("td", el("span", "none", class_="soft", title="unscored: not a 0"))
    return el("td", number(value), class_="high" if value > 0.5 else None)
