"""The boundary of operators: arguments out of a workflow become plain values, or its failure."""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from flowright.core.errors import FailureError, Reason
from flowright.llm.context import most_tokens
from flowright.workflows.registry import Operator, ValueType

MAX_LIST_ITEMS = 256
MAX_DICT_ITEMS = 4096
MAX_DEPTH = 8  # of lists and dicts in a dict
MAX_NUMBER = 2**63

_NUMBERS = (float, int, bool)
# What is taken for a type beside strings, and what messages call it.
_TAKEN: Mapping[type, tuple[tuple[type, ...], str]] = {
    list: ((list, tuple), "a list of strings"),
    dict: ((dict,), "a dict"),
    bool: ((bool,), "True or False"),
    int: ((int, bool), "a whole number"),
    float: (_NUMBERS, "a number"),
}

_NO_VALUE = re.compile(r"<(?:coroutine|function|bound method|built-in)\b[^\n]*>")


def is_no_value(text: str) -> bool:
    """Whether a text is how the interpreter spells the result of a call that was not awaited, or a
    function, that left it as a value."""
    return _NO_VALUE.fullmatch(text) is not None


def bind(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], max_chars: int
) -> dict[str, Any]:
    """Arguments by parameter name, defaults filled in; copies of exact built-in types.

    Raises FailureError: TYPE for a call that does not fit the signature, BAD_ARGUMENT for a value
    that is not what the signature says, SIZE_BUDGET when all texts together may have more than
    ``max_chars`` tokens (:func:`~flowright.llm.context.most_tokens`).
    """
    try:
        given = operator.call_signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise FailureError(Reason.TYPE, f"{operator.name}: {error}"[:200]) from None
    values = {
        p.name: _value(f"{operator.name}({p.name})", p.type, given[p.name])
        if p.name in given
        else deepcopy(p.default)
        for p in operator.parameters
    }
    size = sum(map(_size, values.values()))
    if size > max_chars:
        message = f"{operator.name} takes {max_chars} characters (as UTF-8 bytes), not {size}"
        raise FailureError(Reason.SIZE_BUDGET, message)
    return values


def _value(where: str, wanted: ValueType, value: Any) -> Any:
    if wanted.optional and value is None:
        return None
    if wanted.kind is str:
        return _text(where, value)
    taken, called = _TAKEN[wanted.kind]
    if type(value) not in taken:
        raise _bad(f"{where} takes {called}, not {_shown(value)}")
    if wanted.kind is list:
        if len(value) > MAX_LIST_ITEMS:
            raise _too_many(where, MAX_LIST_ITEMS)
        return [_text(where, item) for item in value]
    if wanted.kind is dict:
        return _plain(where, value, MAX_DEPTH, iter(range(MAX_DICT_ITEMS)))
    return wanted.kind(_number(where, value))


def _plain(where: str, value: Any, depth: int, room: Iterator[int]) -> Any:
    """A copy of what a dict holds, if it could be JSON; ``room`` runs out with its last item."""
    if next(room, None) is None:
        raise _too_many(where, MAX_DICT_ITEMS)
    if value is None:
        return None
    if type(value) in _NUMBERS:
        return _number(where, value)
    if type(value) not in (dict, list, tuple):
        return _text(where, value)
    if depth == 0:
        raise _bad(f"{where} nests more than {MAX_DEPTH} deep")
    if type(value) is dict:
        return {_text(where, k): _plain(where, v, depth - 1, room) for k, v in value.items()}
    return [_plain(where, item, depth - 1, room) for item in value]


def _number(where: str, value: int | float) -> int | float:
    """A number that takes no time to print, and that JSON has."""
    if not (-MAX_NUMBER < value < MAX_NUMBER):  # which NaN is not
        raise _bad(f"{where} takes numbers between -2**63 and 2**63")
    return value


def _size(value: Any) -> int:
    """Of all texts in a value; a number counts as one."""
    if isinstance(value, dict):
        return sum(_size(k) + _size(v) for k, v in value.items())
    if isinstance(value, list):
        return sum(map(_size, value))
    return most_tokens(value) if isinstance(value, str) else 1


def _text(where: str, value: Any) -> str:
    if type(value) is not str:
        raise _bad(f"{where} takes a string, not {_shown(value)}")
    if is_no_value(value):
        raise _bad(f"{where} was given {value[:100]}; was an `await` forgotten?")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _bad(f"{where} was given a lone surrogate, which is not text") from None
    return value


def _shown(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _bad(message: str) -> FailureError:
    return FailureError(Reason.BAD_ARGUMENT, message)


def _too_many(where: str, most: int) -> FailureError:
    return FailureError(Reason.SIZE_BUDGET, f"{where} takes {most} items, more were given")
