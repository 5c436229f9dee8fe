"""Operators: their type, the decorator that makes one of a function, sets, and their arguments.

A set is passed to its readers; there is no global registry, so that two runs in one process do not
share operators.
"""

import builtins
import inspect
import keyword
import re
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any

from flowright.core.errors import ConfigError, FailureError, Reason
from flowright.core.plugins import load_module
from flowright.data.task import KINDS, Kind
from flowright.llm.context import most_tokens
from flowright.workflows.language import CLASS_NAME, FORGOTTEN, FUNCTION_NAME, PREDEFINED

ALLOWED = "str, int, float, bool, list[str], dict (or a TypedDict), each also as `... | None`"

# A name that only the stubs define: a program that starts by calling it is checked, never run.
STOP = "stop_before_running"
# What a program finds beside the operators, as names and their types.
VALUES: Mapping[str, str] = {"problem": "str", "entry_point": "str | None"}
_TAKEN = frozenset({STOP, *VALUES, *PREDEFINED, *FORGOTTEN, CLASS_NAME, FUNCTION_NAME})
_TAKEN |= frozenset(dir(builtins)) - {"format"}  # which is an operator here, and Python's is rare

REQUIRED = inspect.Parameter.empty
"""Stands for the default of a parameter that has none."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of the workflow language: ``kind`` is str, int, float, bool, list (of strings) or
    dict; ``keys`` are the types by key of a dict that a TypedDict describes."""

    kind: type
    optional: bool = False
    keys: "Mapping[str, ValueType] | None" = field(default=None, hash=False)

    @classmethod
    def of(cls, annotation: Any) -> "ValueType":
        """The type that a resolved annotation means. Raises ValueError."""
        members = [annotation]
        if typing.get_origin(annotation) in (UnionType, typing.Union):
            members = [m for m in typing.get_args(annotation) if m is not NoneType]
        optional = annotation not in members
        if len(members) == 1:
            (member,) = members
            if member in (str, int, float, bool):
                return cls(member, optional)
            if member == list[str]:
                return cls(list, optional)
            if typing.is_typeddict(member):
                fields = typing.get_type_hints(member).items()
                return cls(dict, optional, {name: cls.of(hint) for name, hint in fields})
            if member is dict or typing.get_origin(member) is dict:
                return cls(dict, optional)
        shown = annotation.__name__ if isinstance(annotation, type) else annotation
        raise ValueError(f"{shown} is no type of the workflow language; it has {ALLOWED}")

    def __str__(self) -> str:
        name = "list[str]" if self.kind is list else self.kind.__name__
        return f"{name} | None" if self.optional else name


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as the workflow language has it; ``default`` is REQUIRED where it has none."""

    name: str
    type: ValueType
    default: Any = REQUIRED

    def __str__(self) -> str:
        default = "" if self.default is REQUIRED else f" = {self.default!r}"
        return f"{self.name}: {self.type}{default}"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator. ``kinds``: kinds of problem that it is documented for; it can be called for
    any. ``llm_calls``: questions that one call puts to the model, as text; one that ``asks_model``
    puts at least one. ``run`` gets values by name, checked against ``parameters``. An operator that
    ``ends`` a workflow takes the return value and returns it in another form."""

    name: str
    parameters: tuple[Parameter, ...]
    returns: ValueType
    summary: str
    doc: str
    example: str
    kinds: tuple[Kind, ...]
    llm_calls: str
    run: Callable[..., Awaitable[Any]]
    ends: bool = False

    @property
    def asks_model(self) -> bool:
        return not self.llm_calls.startswith("0")

    @property
    def call_signature(self) -> inspect.Signature:
        """The signature that binds the arguments of a call."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature(
            [inspect.Parameter(p.name, kind, default=p.default) for p in self.parameters]
        )

    @property
    def signature(self) -> str:
        """The signature as text: ``answer(problem: str) -> str``."""
        return f"{self.name}({', '.join(map(str, self.parameters))}) -> {self.returns}"


def operator(
    *,
    summary: str,
    example: str,
    kinds: tuple[Kind, ...] = KINDS,
    llm_calls: str = "1",
    ends: bool = False,
) -> Callable[[Callable[..., Awaitable[Any]]], Operator]:
    """Make an operator of an ``async def``. Its first parameter is the host's
    :class:`~flowright.workflows.context.CallContext`; the others, with their annotations and
    defaults, are its signature in the workflow language; its docstring is its documentation; a
    trailing underscore of its name goes. ``ends``: it takes a string that a workflow would return,
    and returns one; the embedded policy's cold start ends some workflows with it. Raises
    ConfigError for what the language cannot have.
    """

    def make(run: Callable[..., Awaitable[Any]]) -> Operator:
        name = run.__name__.rstrip("_")
        problems: list[str] = []
        if not inspect.iscoroutinefunction(run):
            problems.append("an operator is an `async def`")
        if name in _TAKEN or keyword.iskeyword(name) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            problems.append("a workflow cannot use this name: take another, in lower case")
        if not run.__doc__:
            problems.append("it has no docstring, from which the policy learns what it does")
        parameters, returns = _signature(run, problems)
        if ends and not _is_an_ending(parameters, returns):
            problems.append(
                "what ends a workflow takes one string, all else by default, and gives one"
            )
        if problems or returns is None:
            raise ConfigError(*(f"operator {name}: {problem}" for problem in problems))
        doc = inspect.cleandoc(run.__doc__ or "")
        return Operator(
            name, parameters, returns, summary, doc, example, kinds, llm_calls, run, ends
        )

    return make


def _is_an_ending(parameters: Sequence[Parameter], returns: ValueType | None) -> bool:
    needed = [parameter for parameter in parameters if parameter.default is REQUIRED]
    text = ValueType(str)
    return returns == text and len(needed) == 1 and parameters[0].type == text


def _signature(
    run: Callable[..., Any], problems: list[str]
) -> tuple[tuple[Parameter, ...], ValueType | None]:
    """Parameters behind the first, and the type of the result. What does not fit goes into
    ``problems``."""
    try:
        hints = typing.get_type_hints(run)
    except NameError as error:
        problems.append(f"its annotations cannot be read ({error}): import {error.name} outright")
        return (), None

    def read(what: str, name: str) -> ValueType | None:
        try:
            return ValueType.of(hints[name])
        except KeyError:
            problems.append(f"{what} has no annotation; write one of {ALLOWED}")
        except ValueError as error:
            problems.append(f"{what}: {error}")
        return None

    declared = list(inspect.signature(run).parameters.values())
    if not declared:
        problems.append("its first parameter must be the call's context: (call: CallContext, ...)")
    parameters = []
    for p in declared[1:]:
        if p.kind is not p.POSITIONAL_OR_KEYWORD:
            problems.append(f"{p}: only plain parameters can be given by a workflow")
        elif (found := read(p.name, p.name)) is not None:
            parameters.append(Parameter(p.name, found, p.default))
            if p.default is not REQUIRED and not holds(found, p.default):
                problems.append(f"{p.name}: its default {p.default!r} is not of type {found}")
    return tuple(parameters), read("what it returns", "return")


def holds(type: ValueType, value: object) -> bool:
    """Return whether a host value has a type of the language, as Python's type checkers see it: an
    int is also a float."""
    if value is None:
        return type.optional
    if type.kind is list:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return isinstance(value, (int, float) if type.kind is float else type.kind)


class Operators(dict[str, Operator]):
    """The operators that a workflow can call, by name. Raises ConfigError where two different ones
    have the same name."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        super().__init__()
        for one in operators:
            known = self.setdefault(one.name, one)
            if known is not one:
                places = " and ".join(o.run.__module__ for o in (known, one))
                raise ConfigError(f"operator {one.name}: {places} have one each; rename one")

    def with_modules(self, modules: Sequence[str]) -> "Operators":
        """These and the operators in modules of a user's own, such as ``("my_package.tools",)``.
        Raises ConfigError where one cannot be imported or has no operator."""
        if not modules:
            return self
        found = list(self.values())
        for name in modules:
            module = load_module(name, "workflow.operators:")
            own = defined_in(vars(module))
            if not own:
                raise ConfigError(
                    f"workflow.operators: {name} has no operator; put @operator(...) of "
                    "flowright.workflows.registry on an `async def` in it"
                )
            found += own
        return Operators(found)


def defined_in(namespace: Mapping[str, object]) -> list[Operator]:
    """The operators among the values of a module."""
    return [value for value in namespace.values() if isinstance(value, Operator)]


MAX_LIST_ITEMS = 256
MAX_DICT_ITEMS = 4096
MAX_DEPTH = 8  # of lists and dicts in a dict
MAX_NUMBER = 2**63

_NUMBERS = (float, int, bool)
# What is taken for a type beside strings, and what messages call it.
_ACCEPTED_TYPES: Mapping[type, tuple[tuple[type, ...], str]] = {
    list: ((list, tuple), "a list of strings"),
    dict: ((dict,), "a dict"),
    bool: ((bool,), "True or False"),
    int: ((int, bool), "a whole number"),
    float: (_NUMBERS, "a number"),
}

_NO_VALUE = re.compile(r"<(?:coroutine|function|bound method|built-in)\b[^\n]*>")


def is_no_value(text: str) -> bool:
    """Return whether a text is the interpreter's repr of an unawaited call or of a function, passed
    on as a value."""
    return _NO_VALUE.fullmatch(text) is not None


def bind(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], max_chars: int
) -> dict[str, Any]:
    """Return arguments by parameter name, with defaults; copies of exact built-in types.

    Raises FailureError: TYPE for a call that does not fit the signature, BAD_ARGUMENT for a value
    of another type, SIZE_BUDGET when all texts together may have more than ``max_chars`` tokens
    (:func:`~flowright.llm.context.most_tokens`).
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
    taken, called = _ACCEPTED_TYPES[wanted.kind]
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
    """Return the size of all texts in a value; a number counts as one."""
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
