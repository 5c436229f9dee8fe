"""Plain data between a solution and its tests: what may cross, and how.

One side is hostile. A message is JSON in a frame of bounded size; decoding makes exact types of
the standard library and arrays of numpy only, so no method of the other side's ever runs here. Part
of the isolated side: standard library only, no import of the package.
"""

import collections
import contextlib
import enum
import json
import os
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

MAX_BYTES = 8 << 20
MAX_DEPTH = 100


class ProtocolError(Exception):
    """The other side did not speak the protocol, or is gone."""


class Unsendable(Exception):
    """A value that cannot cross: too deep, too large, or of a kind that only its maker can use."""


def _no_reference(value: object, depth: int) -> Any:
    raise Unsendable(f"a value of type {type(value).__name__} is not plain data")


def encode(
    value: object, refer: Callable[[object, int], Any] = _no_reference, depth: int = 0
) -> Any:
    """``value`` as JSON; ``refer`` gives what stands for a value that is not plain data, at a
    depth: a list that begins with one of :data:`OWNED`; None for a member of an enumeration that
    is to cross as its number or text.

    A subclass of a built-in type crosses as its built-in value: what it overrides stays behind. A
    named tuple keeps its names.
    """
    kind = type(value)
    if value is None or kind is bool or kind is float or kind is str:
        return value
    if kind is int:
        small = -(1 << 200) < value < 1 << 200  # type: ignore[operator]
        return value if small else _long(value)  # type: ignore[arg-type]
    if depth >= MAX_DEPTH:
        raise Unsendable(f"nested deeper than {MAX_DEPTH}")
    depth += 1
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        items = [encode(item, refer, depth) for item in value]  # type: ignore[attr-defined]
        return [_TAGS[kind], items]
    if kind is dict:
        pairs = value.items()  # type: ignore[attr-defined]
        return ["d", [[encode(k, refer, depth), encode(v, refer, depth)] for k, v in pairs]]
    if kind is bytes or kind is bytearray:
        return [_TAGS[kind], value.decode("latin-1")]  # type: ignore[attr-defined]
    if kind is complex:
        return ["c", value.real, value.imag]  # type: ignore[attr-defined]
    if kind is type and value.__name__ in _TYPES and value is _TYPES[value.__name__]:  # type: ignore[attr-defined]
        return ["y", value.__name__]  # type: ignore[attr-defined]
    return _encode_other(value, refer, depth)


def _encode_other(value: Any, refer: Callable[[object, int], Any], depth: int) -> Any:
    kind = type(value)
    name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    if name in _VALUES:
        return ["v", name, [encode(item, refer, depth) for item in _VALUES[name](value)]]
    if name == "numpy.ndarray" and value.dtype.kind in "biufc" and value.ndim:
        items = [encode(item) for item in value.ravel().tolist()]
        return ["N", value.dtype.str, list(value.shape), items]
    if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return encode(value.item(), refer, depth)
    if kind in _VIEWS:
        return [_VIEWS[kind], [encode(item, refer, depth) for item in value]]
    if isinstance(value, enum.Enum) and (owned := refer(value, depth)) is not None:
        return owned
    if isinstance(value, tuple) and type(fields := getattr(kind, "_fields", None)) is tuple:
        items = tuple.__getitem__(value, slice(None))
        return ["n", kind.__name__, list(fields), [encode(item, refer, depth) for item in items]]
    for base, plain in _PLAIN:
        if isinstance(value, base):
            return encode(plain(value), refer, depth)
    return refer(value, depth)


def _long(value: int) -> list[str]:
    if value.bit_length() > 4 * MAX_BYTES:
        raise Unsendable("an integer that is too large")
    return ["i", hex(value)]


_TAGS: dict[type, str] = {
    list: "l", tuple: "t", set: "s", frozenset: "z", bytes: "b", bytearray: "a",
}  # fmt: skip
_PLAIN: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__pos__),
    (float, float.__pos__),
    (str, str.__str__),
    (complex, complex.__pos__),
    (bytes, lambda value: bytes.__getitem__(value, slice(None))),
    (tuple, lambda value: tuple.__getitem__(value, slice(None))),
    (list, lambda value: list.__getitem__(value, slice(None))),
    (dict, dict.copy),
    (set, lambda value: {*set.__iter__(value)}),
    (frozenset, lambda value: frozenset({*frozenset.__iter__(value)})),
)
_VIEWS: dict[type, str] = {type({}.keys()): "K", type({}.items()): "I"}
_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "l": list, "t": tuple, "s": set, "z": frozenset,
    "K": lambda items: dict.fromkeys(items).keys(), "I": lambda items: dict(items).items(),
}  # fmt: skip
_TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
}
_TEXTS: dict[str, Callable[[str], Any]] = {
    "b": lambda text: text.encode("latin-1"),
    "a": lambda text: bytearray(text, "latin-1"),
    "i": lambda text: int(text, 16),
    "y": lambda text: _TYPES[text],
}  # fmt: skip


def _texts(*names: str) -> dict[str, Callable[[Any], list[Any]]]:
    return dict.fromkeys(names, lambda value: [str(value)])


def _attributes(*names: str) -> Callable[[Any], list[Any]]:
    return lambda value: [getattr(value, name) for name in names]


_DAY = ("year", "month", "day")
_TIME = ("hour", "minute", "second", "microsecond", "tzinfo")
# Values of the standard library: what their class is called with to make them again.
_VALUES: dict[str, Callable[[Any], list[Any]]] = {
    **_texts("decimal.Decimal", "uuid.UUID", "pathlib.PurePosixPath", "pathlib.PosixPath"),
    **_texts("pathlib.PureWindowsPath", "ipaddress.IPv4Address", "ipaddress.IPv6Address"),
    **_texts("ipaddress.IPv4Network", "ipaddress.IPv6Network", "zoneinfo.ZoneInfo"),
    "fractions.Fraction": _attributes("numerator", "denominator"),
    "datetime.date": _attributes(*_DAY),
    "datetime.time": _attributes(*_TIME),
    "datetime.datetime": _attributes(*_DAY, *_TIME),
    "datetime.timedelta": _attributes("days", "seconds", "microseconds"),
    "datetime.timezone": lambda value: [value.utcoffset(None)],
    "builtins.range": _attributes("start", "stop", "step"),
    "builtins.slice": _attributes("start", "stop", "step"),
    "collections.deque": lambda value: [list(value), value.maxlen],
    "collections.Counter": lambda value: [dict(value)],
    "collections.OrderedDict": lambda value: [list(value.items())],
    "collections.defaultdict": lambda value: [value.default_factory, dict(value)],
    "array.array": lambda value: [value.typecode, value.tolist()],
}
OWNED = frozenset("reowg")
"""Tags of what only its side can use: a reference to an object, a member of an enumeration, the
state of an object of a class that both sides have, a coroutine, an asynchronous generator."""


def state_of(value: object) -> dict[str, Any]:
    """The attributes of an object, those in slots too."""
    slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def encode_shared(value: Any, refer: Callable[[object, int], Any], depth: int) -> list[Any]:
    """An object of a class that both sides have: a member by its name, another by its state."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        known = value.name in kind.__members__
        content = None if known else encode(value.value, refer, depth + 1)
        return ["e", kind.__name__, value.name if known else None, content]
    return ["o", kind.__name__, encode(state_of(value), refer, depth + 1)]


def decode_shared(kind: Any, tag: str, *rest: Any) -> Any:
    """The member, or a new object, of this side's class ``kind``."""
    if tag == "e":
        name, content = rest
        return kind[name] if name is not None else kind(content)
    (state,) = rest
    value = object.__new__(kind)
    set_state(value, state)
    return value


def set_state(value: object, state: dict[str, Any]) -> None:
    """Give an object attributes; none can take the place of a method."""
    for name, content in state.items():
        if not name.startswith("__") and not callable(getattr(type(value), name, None)):
            object.__setattr__(value, name, content)


_NUMBERS = re.compile(r"[<>|=][biufc]\d{1,2}")
_LONGEST_TEXT = 10_000
_MOST_FIELDS = 200


@lru_cache(256)
def _named_tuple(name: str, fields: tuple[str, ...]) -> Callable[..., Any]:
    if len(fields) > _MOST_FIELDS:
        raise ValueError("too many fields")
    return collections.namedtuple(name, fields)


def decode(item: Any, dereference: Callable[..., object]) -> Any:
    """The value of an encoded ``item``; ``dereference`` makes one of a tag of :data:`OWNED` and
    its values. Raises ProtocolError on anything but an encoding."""
    try:
        return _decode(item, dereference)
    except (
        TypeError, ValueError, LookupError, ArithmeticError, RecursionError, AttributeError,
        ImportError,
    ) as error:  # fmt: skip
        raise ProtocolError(f"not an encoded value: {type(error).__name__}") from None


def _decode(item: Any, dereference: Callable[..., object]) -> Any:
    if type(item) is not list:
        if type(item) is dict:
            raise ProtocolError("not an encoded value")
        return item
    tag, *rest = item
    if tag in _COLLECTIONS:
        (items,) = rest
        return _COLLECTIONS[tag]([_decode(part, dereference) for part in items])
    if tag == "d":
        (pairs,) = rest
        return {_decode(k, dereference): _decode(v, dereference) for k, v in pairs}
    if tag in _TEXTS:
        (text,) = rest
        if type(text) is not str:
            raise ProtocolError("not an encoded value")
        return _TEXTS[tag](text)
    if tag == "c":
        return complex(*rest)
    if tag == "n":
        name, fields, items = rest
        return _named_tuple(name, tuple(fields))(*(_decode(part, dereference) for part in items))
    if tag == "v":
        name, items = rest
        return _value(name, items, dereference)
    if tag == "N":
        kind, shape, items = rest
        numbers = [_decode(part, dereference) for part in items]
        if not _NUMBERS.fullmatch(kind) or not {*map(type, numbers)} <= {bool, int, float, complex}:
            raise ProtocolError("not an array of numbers")
        return __import__("numpy").array(numbers, dtype=kind).reshape(shape)
    if tag in OWNED:
        return dereference(tag, *(_decode(part, dereference) for part in rest))
    raise ProtocolError("unknown tag")


def _value(name: str, items: list[Any], dereference: Callable[..., object]) -> Any:
    """A value of the standard library, made anew by its class."""
    if name not in _VALUES:
        raise ProtocolError("an unknown class")
    arguments = [_decode(part, dereference) for part in items]
    if any(type(part) is str and len(part) > _LONGEST_TEXT for part in arguments):
        raise ProtocolError("a value that is too long")
    module, _, kind = name.partition(".")
    return getattr(__import__(module), kind)(*arguments)


class Link:
    """Frames over one descriptor, both ways. Blocking; raises ProtocolError at its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, message: Any) -> None:
        """Raises Unsendable when the message is too large for a frame; nothing is sent then."""
        try:
            body = json.dumps(message).encode("ascii")
        except RecursionError:
            raise Unsendable("nested too deeply") from None
        if len(body) > MAX_BYTES:
            raise Unsendable(f"more than {MAX_BYTES >> 20} MiB")
        rest = memoryview(len(body).to_bytes(4, "big") + body)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise ProtocolError(f"the other side is gone ({error.strerror})") from None

    def receive(self) -> Any:
        size = int.from_bytes(self._exactly(4), "big")
        if size > MAX_BYTES:
            raise ProtocolError("a message that is too large")
        try:
            return json.loads(self._exactly(size))
        except (ValueError, RecursionError):
            raise ProtocolError("a message that is not JSON") from None

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = b""
            with contextlib.suppress(OSError):
                part = os.read(self._descriptor, min(count, 1 << 20))
            if not part:
                raise ProtocolError("the other side is gone")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
