"""HTML that no text can break out of: elements, and the parts of a page.

:func:`el` makes every element and escapes each child that is not :class:`Html`. A page loads
nothing, and its policy admits one script by hash, so that markup that slipped in could not run
either.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files

from flowright.core.untrusted import visible

_VOID = frozenset({"meta", "br", "hr", "img", "link", "input", "wbr", "col"})


class Html(str):
    """Markup that is complete and safe as it stands."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]
Attribute = str | int | float | bool | None


def el(tag: str, *children: Child, **attributes: Attribute) -> Html:
    """Make an element. In attribute names a last ``_`` is dropped (``class_``) and others become
    ``-`` (``stroke_width``); None and False leave an attribute out, True writes it bare."""
    opening = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.removesuffix("_").replace("_", "-")
        opening.append(key if value is True else f'{key}="{_text(value)}"')
    start = Html(f"<{' '.join(opening)}>")
    return start if tag in _VOID else Html(f"{start}{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Html:
    """Join children: markup as it is, everything else escaped."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, str | int | float):
            parts.append(_text(child))
        else:
            parts.append(join(child))
    return Html("".join(parts))


def _text(value: str | int | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else escape(visible(value))


# --- a page and its parts -------------------------------------------------------------------------


@cache
def asset(name: str, package: str = "flowright.viewer.rendering") -> str:
    """Read a style sheet or script of a package."""
    return (files(package) / name).read_text(encoding="utf-8")


def content_policy(script: str, style: str = "'unsafe-inline'", form: str = "'none'") -> str:
    """Build the content security policy of a page with one script."""
    return (
        f"default-src 'none'; style-src {style}; script-src {source_hash(script)}; "
        f"base-uri 'none'; form-action {form}"
    )


def source_hash(text: str) -> str:
    """Hash a script or style as a content security policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def document(
    title: str, body: Child, style: str, script: str, policy: str, class_: str | None = None
) -> str:
    """Render a whole HTML document."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title),
        el("style", Html(style)),
    )
    read_out = el("div", id="readout", role="status")
    content = el("body", body, read_out, el("script", Html(script)), class_=class_)
    return f"<!doctype html>\n{el('html', head, content, lang='en')}\n"


def page(title: str, body: Child) -> str:
    """Render a self-contained document in the style of the reports."""
    script = asset("charts.js")
    style = asset("charts.css") + asset("page.css")
    return document(title, body, style, script, content_policy(script))


def section(anchor: str, title: str, lead: str, *content: Child) -> Html:
    """A section of the page under a heading that links can reach."""
    introduction = el("p", lead, class_="lead") if lead else None
    return el("section", el("h2", title, id=anchor or None), introduction, content)


def strip(label: str, text: str, alarm: bool = False) -> Html:
    """A warning above the page; the first one stays in sight."""
    content = [el("b", label) if label else None, " " if label else None, text]
    return el("div", el("div", content), class_="strip alarm" if alarm else "strip")


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


def facts(rows: Sequence[tuple[Child, Child]]) -> Html:
    """Names and values."""
    return el("dl", [[el("dt", name), el("dd", value)] for name, value in rows])


def folded(title: str, *content: Child, open: bool = False) -> Html:
    """Content that is shown when a reader opens it."""
    return el("details", el("summary", title), content, open=open)
