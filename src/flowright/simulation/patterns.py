"""A text that a regular expression matches. No searching."""

import re
from collections.abc import Iterator, Sequence
from re import _constants as parts, _parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

from flowright.simulation.validity import Unfillable


def matching(pattern: str, longer: int = 0) -> str:
    """The shortest one that is found, or its first repetition ``longer`` by so much. What a
    pattern says by looking around or back is not understood. Raises Unfillable."""
    try:
        parsed = _parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unfillable(f"its pattern {pattern[:60]!r} is none: {error}") from None
    return "".join(_written(parsed, [longer]))


def _written(parsed: Any, longer: list[int]) -> Iterator[str]:
    for what, value in parsed:
        match what:
            case parts.LITERAL:
                yield chr(value)
            case parts.NOT_LITERAL:
                yield "b" if value == ord("a") else "a"
            case parts.ANY:
                yield "a"
            case parts.IN:
                yield _of_class(value)
            case parts.MAX_REPEAT | parts.MIN_REPEAT | parts.POSSESSIVE_REPEAT:
                least, most, inner = value
                count, longer[0] = (
                    min(most, least + longer[0]),
                    max(0, longer[0] - int(most) + least),
                )
                for _ in range(count):
                    yield from _written(inner, [0])
            case parts.SUBPATTERN:
                yield from _written(value[-1], longer)
            case parts.BRANCH:
                yield from _written(value[1][0], longer)
            case parts.AT:
                pass
            case _:
                raise Unfillable("its pattern is too much for this simulated server")


def _of_class(items: Sequence[tuple[Any, Any]]) -> str:
    """A character of a class such as ``[^a-f]``: of the usual ones, or of its own."""
    negated = items[0][0] is parts.NEGATE
    tests = {
        parts.CATEGORY_DIGIT: str.isdigit, parts.CATEGORY_SPACE: str.isspace,
        parts.CATEGORY_WORD: lambda c: c.isalnum() or c == "_",
        parts.CATEGORY_NOT_DIGIT: lambda c: not c.isdigit(),
        parts.CATEGORY_NOT_SPACE: lambda c: not c.isspace(),
        parts.CATEGORY_NOT_WORD: lambda c: not c.isalnum() and c != "_",
    }  # fmt: skip

    def holds(character: str) -> bool:
        return any(
            (what is parts.LITERAL and ord(character) == value)
            or (what is parts.RANGE and value[0] <= ord(character) <= value[1])
            or (what is parts.CATEGORY and tests[value](character))
            for what, value in items
        )

    own = [chr(v if w is parts.LITERAL else v[0]) for w, v in items
           if w in (parts.LITERAL, parts.RANGE)]  # fmt: skip
    usual = "aA0 -_.,:;/!?#*+=()[]{}<>|~@$%^&'\"\\\tzé中"
    found = next((c for c in (*own, *usual) if holds(c) != negated), None)
    if found is None:
        raise Unfillable("its pattern is too much for this simulated server")
    return found
