"""Hostile texts: what a policy wrote is shown, and neither a terminal nor a browser obeys it."""

import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, strategies as st

from flowright.core.untrusted import cut, one_line, visible
from flowright.viewer.rendering.markup import Html, el, join
from flowright.viewer.rendering.record_blocks import code_block

ANY_TEXT = st.text(alphabet=st.characters(), max_size=200)  # surrogates included


class Page(HTMLParser):
    """What a browser would make of some markup: its elements, attributes and text."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.opened: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", "␛[31mred␇"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202egnp.exe", "a\\u{202e}gnp.exe"),
        ("a\u200bb\ufeff", "a\\u{200b}b\\u{feff}"),
        ("half \ud800", "half \\u{d800}"),
        ("tag \U000e0041", "tag \\u{e0041}"),
        ("one\r\ntwo\rthree", "one\ntwo␍three"),
        ("\tx", "    x"),
        ("café 漢字 👩‍🔬", "café 漢字 👩‍🔬"),
    ],
)
def test_what_a_screen_would_obey_is_spelt_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(ANY_TEXT)
@example("\x1b]0;title\x07")
def test_visible_text_can_be_written_and_controls_nothing(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    assert all(c == "\n" or unicodedata.category(c) != "Cc" for c in shown)
    assert visible(shown) == shown


@given(ANY_TEXT, st.integers(5, 60))
def test_one_line_is_one_line_of_the_length_asked_for(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert "\n" not in line
    assert len(line) <= limit


def test_a_cut_names_what_it_left_out() -> None:
    text = "a" * 70 + "b" * 1000 + "c" * 30
    assert cut(text, 90) == "a" * 60 + "\n[… 1,010 characters left out here …]\n" + "c" * 30
    assert cut(text, 1100) == text


@given(ANY_TEXT)
@example("</script><script>alert(1)</script>")
@example("<!--")
@example("&lt;b&gt;")
def test_text_stays_text_in_an_element(text: str) -> None:
    page = Page(el("p", text))
    assert page.opened == ["p"]
    assert page.text == visible(text)


@given(ANY_TEXT)
@example('" onmouseover="alert(1)')
def test_text_stays_a_value_in_an_attribute(text: str) -> None:
    page = Page(el("a", "x", title=text))
    assert page.attributes == [("title", visible(text))]


def test_only_markup_that_was_built_is_markup() -> None:
    assert el("p", el("b", "<i>"), ["&", None, 3]) == "<p><b>&lt;i&gt;</b>&amp;3</p>"
    assert join([Html("<br>"), "<br>"]) == "<br>&lt;br&gt;"
    assert el("input", class_="x", disabled=True, data_chart=None) == '<input class="x" disabled>'


@given(ANY_TEXT)
@example("```\n</pre><script>")
@example("def f(:\n  '''")
def test_code_shows_the_program_whatever_it_is(text: str) -> None:
    page = Page(code_block(text))
    assert set(page.opened) <= {"pre", "span"}
    assert page.text == visible(text).rstrip("\n").replace("\n", "")


def test_the_failing_line_is_marked() -> None:
    marked = code_block("\nx = 1\ny = solve(x)\n", bad_line=3, operators=("solve",))
    lines = marked.split('<span class="bad">')
    assert len(lines) == 2
    assert Page(lines[1]).text == "y = solve(x)"
    assert '<span class="tf">solve</span>' in marked
