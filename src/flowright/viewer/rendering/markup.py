"""Building HTML and SVG so that no text can become markup. No layout and no colours here.

Everything on a page is made by :func:`el`. A child that is not already :class:`Html` is escaped,
so a caller cannot forget to: the only way to write markup by hand is to spell ``Html(...)``.
"""

from collections.abc import Iterable
from html import escape

from flowright.core.untrusted import visible

_VOID = frozenset({"meta", "br", "hr", "img", "link", "input", "wbr", "col"})


class Html(str):
    """Markup that is complete and safe as it stands."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]
Attribute = str | int | float | bool | None


def el(tag: str, *children: Child, **attributes: Attribute) -> Html:
    """An element. In attribute names a last ``_`` is dropped (``class_``) and others become ``-``
    (``stroke_width``); None and False leave an attribute out, True writes it bare."""
    opening = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.removesuffix("_").replace("_", "-")
        opening.append(key if value is True else f'{key}="{_text(value)}"')
    start = Html(f"<{' '.join(opening)}>")
    return start if tag in _VOID else Html(f"{start}{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Html:
    """Children one after the other: markup as it is, everything else escaped."""
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
    if isinstance(value, float):
        return f"{value:.6g}"
    return escape(visible(value))
