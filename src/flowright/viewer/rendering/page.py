"""A page of its own, the policy that fences it in, and what its sections are made of.

The page loads nothing and talks to nobody: its content security policy names no source but its own
style and the one script by hash, so markup that slipped in could not run either.
"""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from flowright.viewer.rendering.markup import Child, Html, el


def asset(name: str) -> str:
    """A style sheet or script of this folder."""
    return (files("flowright.viewer.rendering") / name).read_text(encoding="utf-8")


def page(title: str, body: Child) -> str:
    """A whole HTML document."""
    script = asset("charts.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title),
        el("style", Html(asset("charts.css") + asset("page.css"))),
    )
    read_out = el("div", id="told", role="status")
    content = el("body", body, read_out, el("script", Html(script)))
    return f"<!doctype html>\n{el('html', head, content, lang='en')}\n"


def section(anchor: str, title: str, lead: str, *content: Child) -> Html:
    """A section of the page under a heading that links can reach."""
    told = el("p", lead, class_="lead") if lead else None
    return el("section", el("h2", title, id=anchor), told, content)


def grid(figures: Sequence[Html | None], class_: str = "charts") -> Html | None:
    """Figures beside and below each other, None without any."""
    drawn = [figure for figure in figures if figure is not None]
    return el("div", drawn, class_=class_) if drawn else None


def strip(label: str, text: str, alarm: bool = False) -> Html:
    """What must be known before a number is believed; the first one stays in sight."""
    told = [el("b", label) if label else None, " " if label else None, text]
    return el("div", el("div", told), class_="strip alarm" if alarm else "strip")


def header(eyebrow: str, title: str, chips: Sequence[Child], note: str) -> Html:
    """The head of a page. ``chips`` are texts, or elements of a list."""
    items = [chip if isinstance(chip, Html) else el("li", chip) for chip in chips]
    return el(
        "header",
        el("p", eyebrow, class_="eyebrow"),
        el("h1", title),
        el("ul", items, class_="chips"),
        el("p", note, class_="eyebrow"),
    )


def tile(title: str, big: str, note: str, style: str | None = None) -> Html:
    """A number of the first screen; ``style`` is good, warn or alarm."""
    class_ = f"tile {style}" if style else "tile"
    return el("div", el("span", title), el("b", big), el("span", note), class_=class_)


def table(head: Sequence[str], body: Sequence[Html]) -> Html:
    """Rows under their heads, which scroll where the page is narrow. Heads may be elements."""
    heads = [name if isinstance(name, Html) else el("th", name) for name in head]
    top = el("thead", el("tr", heads)) if heads else None
    return el("div", el("table", top, el("tbody", body)), class_="wide")


def facts(rows: Sequence[tuple[Child, Child]]) -> Html:
    """Names and what there is to say of each."""
    return el("dl", [[el("dt", name), el("dd", value)] for name, value in rows])


def folded(title: str, *content: Child, open: bool = False) -> Html:
    """Something that is shown when a reader asks for it."""
    return el("details", el("summary", title), content, open=open)
