"""Objects as models write them, and what is no object."""

from hypothesis import given, strategies as st

from flowright.llm.loose_json import CutText, NestedObject, Pairs, read_object

READ: list[tuple[str, Pairs]] = [
    ('{"a": 1, "a": -2.5e3}', [("a", 1), ("a", -2500.0)]),
    (r'{"a": "\(x\) \u0041 \underline \"q\" \n"}', [("a", '\\(x\\) A \\underline "q" \n')]),
    ("{'a': True, b: None, \"c\": [1, 'x',],}", [("a", True), ("b", None), ("c", [1, "x"])]),
    ('{"a": {"b": "a "b"", "c": FALSE}}', [("a", NestedObject([("b", 'a "b"'), ("c", False)]))]),
    ("{“a”: “b”,}", [("a", "b")]),
    ("{\"a\": 'It's', 'b': 'x'}", [("a", "It's"), ("b", "x")]),
]  # fmt: skip
UNREAD = [
    "", "x", "{", '{"a"', '{"a": }', '{"a": 1 "b": 2}', '{"a": 01x}', '{"a": +1,}', "{a b: 1}",
    '{"a": "b" c": 1}', '{"a": ' * 40 + "x,}", '{"a": tru,}', '{"a": 1;}', "{'a', 'b'}",
]  # fmt: skip


def test_objects() -> None:
    for text, pairs in READ:
        found = read_object(f"x{text} behind", 1)
        assert found is not None, text
        assert (found.start, found.end, found.pairs) == (1, len(text) + 1, pairs), text
    assert [text for text in UNREAD if read_object(text) is not None] == []


def test_a_text_that_ends_inside_an_object() -> None:
    cut: list[tuple[str, Pairs]] = [
        ('{"a": 1, "b": tr', [("a", 1)]),
        ('{"a": true', [("a", True)]),
        ('{"a": 1', []),
        ('{"a": "b', [("a", "b")]),
        ('{"a": {"b": [1, "x', [("a", NestedObject([("b", [1])]))]),
        ('{"a": 1, "b', [("a", 1)]),
    ]  # fmt: skip
    for text, pairs in cut:
        assert read_object(text) is None
        found = read_object(text, may_end=True)
        assert found is not None, text
        assert (found.pairs, found.exact) == (pairs, False), text
    found = read_object('{"a": "b', may_end=True)
    assert found is not None
    assert isinstance(found.pairs[0][1], CutText)
    assert read_object('{"a": "b" c", "d": true', may_end=True) is None


@given(st.text(alphabet="{}[]\"'“”:,\\ntrue1 ", max_size=60), st.booleans())
def test_no_text_breaks_it(text: str, may_end: bool) -> None:
    found = read_object("{" + text, may_end=may_end)
    assert found is None or 0 < found.end <= len(text) + 1
