"""Plain data between a solution and its tests: what may cross, and how.

One side is hostile. A message is JSON in a frame of bounded size; decoding makes exact built-in
types only, so no method of the other side's ever runs here. Part of the isolated side: standard
library only, no import of the package.
"""

import contextlib
import json
import os
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_BYTES = 8 << 20
MAX_DEPTH = 100


class ProtocolError(Exception):
    """The other side did not speak the protocol, or is gone."""


class Unsendable(Exception):
    """A value that cannot cross: too deep, too large, or of a kind that only its maker can use."""


def _no_reference(value: object) -> Any:
    raise Unsendable(f"a value of type {type(value).__name__} is not plain data")


def encode(value: object, refer: Callable[[object], Any] = _no_reference, depth: int = 0) -> Any:
    """``value`` as JSON; ``refer`` gives what stands for a value that is not plain data.

    A subclass of a built-in type crosses as its built-in value: what it overrides stays behind.
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
    if kind is Decimal or kind is Fraction:
        return [_TAGS[kind], str(value)]
    if kind is type and value.__name__ in _TYPES and value is _TYPES[value.__name__]:  # type: ignore[attr-defined]
        return ["y", value.__name__]  # type: ignore[attr-defined]
    return _encode_other(value, refer, depth)


def _encode_other(value: object, refer: Callable[[object], Any], depth: int) -> Any:
    for base, plain in _PLAIN:
        if isinstance(value, base):
            return encode(plain(value), refer, depth)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return encode(value.item(), refer, depth)  # type: ignore[attr-defined]
    return refer(value)


def _long(value: int) -> list[str]:
    if value.bit_length() > 4 * MAX_BYTES:
        raise Unsendable("an integer that is too large")
    return ["i", hex(value)]


_TAGS: dict[type, str] = {
    list: "l", tuple: "t", set: "s", frozenset: "z", bytes: "b", bytearray: "a",
    Decimal: "D", Fraction: "F",
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
_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "l": list, "t": tuple, "s": set, "z": frozenset,
}  # fmt: skip
_TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
}
_TEXTS: dict[str, Callable[[str], Any]] = {
    "b": lambda text: text.encode("latin-1"),
    "a": lambda text: bytearray(text, "latin-1"),
    "i": lambda text: int(text, 16),
    "D": Decimal,
    "F": Fraction,
    "y": lambda text: _TYPES[text],
}  # fmt: skip


def decode(item: Any, dereference: Callable[[Any], object]) -> Any:
    """The value of an encoded ``item``. Raises ProtocolError on anything but an encoding."""
    try:
        return _decode(item, dereference)
    except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        raise ProtocolError(f"not an encoded value: {type(error).__name__}") from None


def _decode(item: Any, dereference: Callable[[Any], object]) -> Any:
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
        if type(text) is not str or (tag in "DF" and len(text) > 10_000):
            raise ProtocolError("not an encoded value")
        return _TEXTS[tag](text)
    if tag == "c":
        return complex(*rest)
    if tag == "r":
        (reference,) = rest
        return dereference(reference)
    raise ProtocolError("unknown tag")


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
