"""The boundary of operators: arguments out of a workflow become plain values, or its failure."""

import re
from typing import Any

from flowright.errors import FailureError, Reason
from flowright.workflows.operators import Operator, Parameter

MAX_LIST_ITEMS = 256

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
    that is not what the signature says, SIZE_BUDGET when there are more than ``max_chars``
    characters in all.
    """
    parameters = operator.parameters
    if len(args) > len(parameters):
        message = f"{operator.name} takes {len(parameters)} arguments, {len(args)} were given"
        raise FailureError(Reason.TYPE, message)
    given = dict(zip((p.name for p in parameters), args, strict=False))
    known = {p.name for p in parameters}
    for name, value in kwargs.items():
        if name not in known or name in given:
            trouble = "twice" if name in given else "which it does not have"
            raise FailureError(
                Reason.TYPE, f"{operator.name} was given {str(name)[:50]!r}, {trouble}"
            )
        given[name] = value
    values: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name in given:
            values[parameter.name] = _value(operator, parameter, given[parameter.name])
        elif parameter.default is not None:
            values[parameter.name] = parameter.default
        else:
            raise FailureError(Reason.TYPE, f"{operator.name} needs {parameter.name!r}")
    size = sum(len(v) if isinstance(v, str) else sum(map(len, v)) for v in values.values())
    if size > max_chars:
        message = f"{operator.name} takes {max_chars} characters, {size} were given"
        raise FailureError(Reason.SIZE_BUDGET, message)
    return values


def _value(operator: Operator, parameter: Parameter, value: Any) -> Any:
    where = f"{operator.name}({parameter.name})"
    if parameter.type is str:
        return _text(where, value)
    if type(value) not in (list, tuple):
        raise _wrong(where, "a list of strings", value)
    if len(value) > MAX_LIST_ITEMS:
        message = f"{where} takes {MAX_LIST_ITEMS} items, {len(value)} were given"
        raise FailureError(Reason.SIZE_BUDGET, message)
    return [_text(where, item) for item in value]


def _text(where: str, value: Any) -> str:
    if type(value) is not str:
        raise _wrong(where, "a string", value)
    if is_no_value(value):
        message = f"{where} was given {value[:100]}; was an `await` forgotten?"
        raise FailureError(Reason.BAD_ARGUMENT, message)
    try:
        value.encode()
    except UnicodeEncodeError:
        message = f"{where} was given a lone surrogate, which is not text"
        raise FailureError(Reason.BAD_ARGUMENT, message) from None
    return value


def _wrong(where: str, wanted: str, value: Any) -> FailureError:
    shown = "None" if value is None else f"a value of type {type(value).__name__}"
    return FailureError(Reason.BAD_ARGUMENT, f"{where} takes {wanted}, not {shown}")
