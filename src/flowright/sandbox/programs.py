"""Tests of input and output: their form, and when two outputs are the same.

A test is a JSON object ``{"input": ..., "output": ...}``. A text as input is the standard input of
a program, whose output is compared; a list holds the arguments of the function asked for.
"""

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True, slots=True)
class IOTest:
    """``input`` is the text on standard input, or the list of arguments."""

    input: str | list[Any]
    output: Any

    def __str__(self) -> str:
        """The form that a task file holds."""
        return json.dumps({"input": self.input, "output": self.output}, ensure_ascii=False)

    @property
    def is_program(self) -> bool:
        return isinstance(self.input, str)


@lru_cache(1024)
def parse_io_test(source: str) -> IOTest | None:
    """Return the test of input and output that ``source`` is; None for any other."""
    if not source.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(source)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.keys() != {"input", "output"}:
        return None
    given, output = value["input"], value["output"]
    is_text = isinstance(given, str) and isinstance(output, str)
    return IOTest(given, output) if is_text or isinstance(given, list) else None


def as_python(source: str, entry_point: str | None) -> str:
    """Return a test as Python: one of arguments calls the entry point and compares by
    ``_same_value``, a name of the tests' process; any other is returned as it is."""
    test = parse_io_test(source)
    if test is None or test.is_program:
        return source
    if entry_point is None:
        return "raise NameError('the task does not name the function')"
    arguments = ", ".join(map(repr, test.input))
    return f"assert _same_value({entry_point}({arguments}), {test.output!r})"


_NUMBER = re.compile(r"[-+]?(\d+(?:\.\d*)?|\.\d+)(e[-+]?\d{1,3})?", re.ASCII | re.I)
_LONGEST_NUMBER = 400
_PLACES = 5
_RELATIVE = Decimal("1e-9")


def same_output(expected: str, printed: str) -> bool:
    """Compare what a program printed, line by line: white space at line ends and blank lines at the
    end do not count, nor does spacing in a line of numbers. Numbers are compared by value: whole
    ones exactly; one with a decimal point within 1e-9 of its size or, where both have five places
    or more, within one unit of the shorter's last place."""
    pairs = zip_longest(_lines(expected), _lines(printed))
    return all(None not in pair and _same_line(*pair) for pair in pairs)


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_line(expected: str, printed: str) -> bool:
    if expected == printed:
        return True
    wanted, given = expected.split(), printed.split()
    if not all(map(_NUMBER.fullmatch, wanted)):  # in text, spacing counts
        wanted, given = re.split(r"(\s+)", expected), re.split(r"(\s+)", printed)
    return len(wanted) == len(given) and all(map(_same_token, wanted, given))


def _same_token(expected: str, printed: str) -> bool:
    if expected == printed:
        return True
    if max(len(expected), len(printed)) > _LONGEST_NUMBER:
        return False
    if not (_NUMBER.fullmatch(expected) and _NUMBER.fullmatch(printed)):
        return False
    wanted, given = Decimal(expected), Decimal(printed)
    if wanted == given or not _places(expected):
        return wanted == given
    places = min(_places(expected), _places(printed))
    unit = Decimal(1).scaleb(-places) if places >= _PLACES else Decimal(0)
    return abs(wanted - given) <= max(unit, _RELATIVE * abs(wanted))


def _places(number: str) -> int:
    """Return the decimal places of a number; those of 1.5e-7 are 8."""
    return max(0, -int(Decimal(number).as_tuple().exponent))
