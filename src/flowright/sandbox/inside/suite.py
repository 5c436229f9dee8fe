"""The tests' side of a check: runs the tests, with stand-ins for the solution's names.

It owns the expected values and, alone, the descriptor of the verdict; from the solution it takes
plain data. Part of the isolated side: standard library only, no import of the package.
"""

import builtins
import contextlib
import json
import linecache
import math
import os
import reprlib
import types
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import codec  # type: ignore[import-not-found]


class Gone(BaseException):
    """The solution's process is gone or broke the protocol: no test can pass any more."""


class SolutionError(Exception):
    """An exception of a type that only the solution knows."""


class _Session:
    """The conversation with the solution; ``last`` describes the last call, for messages."""

    def __init__(self, descriptor: int) -> None:
        self._link = codec.Link(descriptor)
        self._remotes: dict[int, Remote] = {}
        self.broken = ""
        self.last = ""
        self.names: dict[Remote, str] = {}

    def open(self) -> dict[str, Any]:
        """The solution's values by name. Raises Gone when it did not load."""
        try:
            kind, *rest = self._link.receive()
            if kind == "ready":
                (values,) = rest
                found = {str(name): self._decode(value) for name, value in values.items()}
                self.names = {v: name for name, v in found.items() if type(v) is Remote}
                return found
            name, trace = rest
            # Its exit status shows whether memory ran out: were this process the first to end, the
            # other would be killed before it has one.
            with contextlib.suppress(codec.ProtocolError):
                self._link.receive()
            self._break(f"the solution did not load: {name}\n{trace}".strip())
        except (codec.ProtocolError, ValueError, TypeError, AttributeError):
            self._break("the solution ended before the tests began")

    def ask(self, operation: str, target: "Remote", *operands: Any) -> Any:
        """The result of an operation on one of the solution's objects, as plain data.

        What a call did to its arguments is seen here only if it returned None, as a function does
        that works in place: otherwise emptying ``x`` would satisfy ``f(x) == sorted(x)``.
        """
        try:
            encoded = [codec.encode(item, _refer) for item in (target, *operands)]
            self._link.send([operation, *encoded])
        except codec.Unsendable as error:
            raise TypeError(f"cannot hand {error} to the solution") from None
        except codec.ProtocolError:
            self._break("the solution's process ended")
        try:
            kind, first, second = self._link.receive()
            if kind == "value":
                if second is not None and operation == "call" and first is None:
                    _write_back(list(operands), [self._decode(item) for item in second])
                return self._decode(first)
            name, *kinds = first
            if not all(type(text) is str for text in (name, *kinds, second)):
                raise ValueError
        except (codec.ProtocolError, ValueError, TypeError):
            self._break("the solution's process ended during a call")
        self.last = f"{self.last} raised {name}" if operation == "call" else self.last
        raise _exception(name, kinds, second)

    def _break(self, reason: str) -> NoReturn:
        self.broken = self.broken or reason[:4000]
        raise Gone(self.broken)

    def _decode(self, item: Any) -> Any:
        return codec.decode(item, self._remote)

    def _remote(self, number: Any) -> "Remote":
        if type(number) is not int:
            raise codec.ProtocolError("a reference is a number")
        if number not in self._remotes:
            self._remotes[number] = Remote(self, number)
        return self._remotes[number]


def _refer(value: object) -> Any:
    if type(value) is Remote:
        return ["r", object.__getattribute__(value, "_number")]
    raise codec.Unsendable(f"a value of type {type(value).__name__}")


_ENDS = (StopIteration, StopAsyncIteration)


def _exception(name: str, kinds: list[str], text: str) -> Exception:
    """The first of these built-in exceptions that a text alone can make, so that a solution's own
    kind of ValueError is one here, too. What is an Exception and no more, or would end an iteration
    or the interpreter instead of failing the test, becomes a SolutionError."""
    for known in kinds:
        kind = getattr(builtins, known, None)
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            continue
        if not issubclass(kind, _ENDS) and (kind is not Exception or name == known):
            with contextlib.suppress(TypeError):
                return kind(text)
    return SolutionError(f"{name}: {text}")


def _write_back(old: Any, new: Any) -> Any:
    """Make the caller's containers look like the copies that the call changed."""
    if type(old) is not type(new):
        return new
    if type(old) is list:
        old[:] = [_write_back(o, n) for o, n in zip(old, new, strict=False)] + new[len(old) :]
    elif type(old) is dict:
        merged = {key: _write_back(old.get(key), value) for key, value in new.items()}
        old.clear()
        old.update(merged)
    elif type(old) is set:
        old.clear()
        old.update(new)
    elif type(old) is bytearray:
        old[:] = new
    elif type(old) is tuple and len(old) == len(new):
        return tuple(_write_back(o, n) for o, n in zip(old, new, strict=True))
    else:
        return new
    return old


class Remote:
    """Stands in the tests for a function or object of the solution's.

    Every operation is carried out over there and yields plain data or another stand-in. Equality,
    order and arithmetic are not among them: comparing is the tests' business, so a stand-in equals
    itself alone.
    """

    __slots__ = ("_number", "_session")

    def __init__(self, session: _Session, number: int) -> None:
        object.__setattr__(self, "_session", session)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        session = object.__getattribute__(self, "_session")
        shown = [*map(_short, arguments), *(f"{k}={_short(v)}" for k, v in keywords.items())]
        session.last = f"{session.names.get(self, 'its result')}({', '.join(shown)})"
        result = session.ask("call", self, list(arguments), keywords)
        session.last = f"{session.last} returned {_short(result)}"
        return result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _ask(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "set", name, value)

    def __getitem__(self, key: Any) -> Any:
        return _ask(self, "item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _ask(self, "setitem", key, value)

    def __iter__(self) -> "Remote":
        return _ask(self, "iter")

    def __next__(self) -> Any:
        found = _ask(self, "next")
        if not found:
            raise StopIteration
        return found[0]

    def __len__(self) -> int:
        return _exactly(int, _ask(self, "len"))

    def __bool__(self) -> bool:
        return _exactly(bool, _ask(self, "bool"))

    def __str__(self) -> str:
        return _exactly(str, _ask(self, "str"))

    def __repr__(self) -> str:
        return _exactly(str, _ask(self, "repr"))


def _ask(remote: Remote, operation: str, *operands: Any) -> Any:
    return object.__getattribute__(remote, "_session").ask(operation, remote, *operands)


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"the solution gave {type(value).__name__} for {kind.__name__}")
    return value


_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = _shortener.maxlong = 200
_shortener.maxlist = _shortener.maxtuple = _shortener.maxset = _shortener.maxdict = 20


def _short(value: object) -> str:
    """A value for a message; a stand-in is not asked."""
    if type(value) is Remote:
        return "<object of the solution>"
    try:
        return _shortener.repr(value)[:500]
    except ValueError:  # an integer of too many digits
        return f"<{type(value).__name__}>"


def run_suite(job: dict[str, Any], channel: int, verdict: int) -> int:
    """Run setup and tests; write one JSON line ``[passed, message]`` per test to ``verdict``,
    then ``["end", why the solution's process was lost or empty]``."""
    setup = _ready(job["setup"], "setup")  # while the solution still loads
    tests = [_ready(source, f"test {index + 1}") for index, source in enumerate(job["tests"])]
    session = _Session(channel)
    module = types.ModuleType("tests")
    namespace = module.__dict__
    failure = _attempt(session, partial(_prepare, session, job, setup, namespace))
    for test in tests:
        message = failure or _attempt(session, partial(test, namespace))
        _write_line(verdict, [not message, message])
    _write_line(verdict, ["end", session.broken])
    os.close(channel)  # lets the solution's process end at the same time as this one
    return 0


_Part = Callable[[dict[str, Any]], None]


def _ready(source: str, name: str) -> _Part:
    """Return a function that executes a part of the tests in their namespace; a compiler error is
    raised when it is called."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        code = compile(source, name, "exec", dont_inherit=True)
    except Exception as error:  # noqa: BLE001  too deep, too large or not Python
        return partial(_fail, error)
    return partial(exec, code)


def _fail(error: Exception, namespace: dict[str, Any]) -> NoReturn:
    raise error


def _same_value(found: Any, expected: Any) -> bool:
    """Equality with a value from JSON: a tuple is a list, a key its text, and numbers with a
    point agree within 1e-9 of their size or, where five places are given, to these."""
    if isinstance(expected, list):
        return (
            type(found) in (list, tuple)
            and len(found) == len(expected)
            and all(map(_same_value, found, expected))
        )
    if isinstance(expected, dict):
        if type(found) is not dict:
            return False
        texts = {str(key): value for key, value in found.items()}
        return texts.keys() == expected.keys() and all(
            _same_value(texts[key], value) for key, value in expected.items()
        )
    if type(expected) is float and type(found) in (int, float):
        near = math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12)
        return near or round(expected, 4) != expected == round(found, 5)
    return type(found) is not Remote and found == expected


def _prepare(
    session: _Session, job: dict[str, Any], setup: _Part, namespace: dict[str, Any]
) -> None:
    values = session.open()
    for name in job["modules"]:
        namespace[name] = __import__(name)
    entry_point = job["entry_point"]
    if entry_point is not None and entry_point not in values:
        raise NameError(f"the solution does not define {entry_point}")
    namespace.update({name: value for name, value in values.items() if name in job["names"]})
    namespace["_same_value"] = _same_value
    try:
        setup(namespace)
    except Exception as error:
        raise RuntimeError(f"setup: {type(error).__name__}: {error}") from error


def _attempt(session: _Session, work: Callable[[], None]) -> str:
    """Return why ``work`` failed, empty for success. Once the solution is gone, nothing passes,
    even if a test swallowed the exception."""
    session.last = ""
    message = ""
    try:
        work()
    except Gone as error:
        message = str(error)
    except BaseException as error:  # noqa: BLE001  a test may raise anything
        message = _explain(error, session.last)
    return session.broken or message


def _explain(error: BaseException, last: str) -> str:
    trace, line = error.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(("test ", "setup")):
            line = linecache.getline(name, trace.tb_lineno).strip() or line
        trace = trace.tb_next
    text = str(error)[:1000]
    what = type(error).__name__ + (f": {text}" if text else "")
    parts = [what, f"at: {line[:500]}" if line else "", last[:1000]]
    return "; ".join(part for part in parts if part)


def _write_line(descriptor: int, message: Any) -> None:
    rest = memoryview(json.dumps(message).encode("ascii") + b"\n")
    while rest:
        rest = rest[os.write(descriptor, rest) :]
