"""The tests' side of a check: runs the tests, with stand-ins for the solution's names.

It owns the expected values and, alone, the descriptor of the verdict; from the solution it takes
plain data. Part of the isolated side: standard library only, no import of the package.
"""

import builtins
import collections
import contextlib
import enum
import json
import linecache
import math
import os
import reprlib
import sys
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
    """The conversation with the solution; ``last`` describes the last call, for messages.

    ``differed``: a call left its arguments otherwise than the reference leaves them. From then on,
    ``expected`` selects the state that the tests see: the reference's or the solution's.
    """

    def __init__(self, descriptor: int, job: dict[str, Any]) -> None:
        self._link = codec.Link(descriptor)
        self._remotes: dict[int, Remote] = {}
        self._source: str = job["reference"]
        self._pure: dict[str, Any] | None = None
        self.shared: dict[str, Any] = {}
        self._classes = frozenset(job["classes"])
        self._made: set[Any] = set()
        self.broken = ""
        self.last = ""
        self.names: dict[Remote, str] = {}
        self.differed = self.expected = False

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

        What a call did to its arguments is seen here if it returned None, as a function does that
        works in place, or if the reference changes them, too: otherwise emptying ``x`` would
        satisfy ``f(x) == sorted(x)``.
        """
        try:
            encoded = [codec.encode(item, self._refer) for item in (target, *operands)]
            self._link.send([operation, *encoded])
        except codec.Unsendable as error:
            raise TypeError(f"cannot hand {error} to the solution") from None
        except codec.ProtocolError:
            self._break("the solution's process ended")
        try:
            kind, first, second, *details = self._link.receive()
            if kind == "value":
                if second is not None and operation == "call":
                    self._change(target, operands, second, first is None)
                return self._new(target, self._decode(first), operation)
            names = [name for name in (*first, second) if type(name) is str]
            if len(names) != len(first) + 1 or len(names) < 2:
                raise ValueError
            known = self._decode(details[0])
        except (codec.ProtocolError, ValueError, TypeError, LookupError):
            self._break("the solution's process ended during a call")
        self.last = f"{self.last} raised {names[0]}" if operation == "call" else self.last
        raise self._exception(names[0], names[1:-1], second, known)

    def _new(self, target: "Remote", result: Any, operation: str) -> Any:
        """A result. A class that gives the same object again would make different ones equal."""
        if operation == "call" and self.names.get(target) in self._classes:
            if result in self._made:
                raise TypeError("the solution's class returned the same object twice")
            self._made.add(result)
        return result

    def _change(
        self, target: "Remote", operands: tuple[Any, ...], changed: list[Any], in_place: bool
    ) -> None:
        if not in_place:
            expected = self._state_after(target, operands)
            if expected is None:
                return
            self.differed = self.differed or expected != changed
            changed = expected if self.expected else changed
        _write_back(list(operands), [self._decode(item) for item in changed])

    def _state_after(self, target: "Remote", operands: tuple[Any, ...]) -> list[Any] | None:
        """The encoded arguments after a call of the reference; None where it changes nothing or
        cannot be had."""
        try:
            if self._pure is None:
                self._pure = load_reference(self._source)
            before = [codec.encode(operand, self._refer) for operand in operands]
            copies = [self._decode(item) for item in before]
            self._pure[self.names[target]](*copies[0], **copies[1])
            after = [codec.encode(copy, self._refer) for copy in copies]
            return after if after != before else None
        except Exception:  # noqa: BLE001  a reference may raise anything
            return None

    def _break(self, reason: str) -> NoReturn:
        self.broken = self.broken or reason[:4000]
        raise Gone(self.broken)

    def _decode(self, item: Any) -> Any:
        return codec.decode(item, self._dereference)

    def _dereference(self, tag: str, key: Any, *rest: Any) -> Any:
        if tag in "eo":
            return codec.decode_shared(self.shared[key], tag, *rest)
        if type(key) is not int:
            raise codec.ProtocolError("a reference is a number")
        if key not in self._remotes:
            self._remotes[key] = Remote(self, key)
        remote = self._remotes[key]
        return remote if tag == "r" else _awaited(remote) if tag == "w" else _items(remote)

    def _refer(self, value: object, depth: int) -> Any:
        kind = type(value)
        if kind is Remote:
            return ["r", object.__getattribute__(value, "_number")]
        if self.shared.get(kind.__name__) is kind:
            return codec.encode_shared(value, self._refer, depth)
        if isinstance(value, enum.Enum) and isinstance(value, (int, float, str)):
            return None
        raise codec.Unsendable(f"a value of type {kind.__name__}")

    def _exception(self, name: str, kinds: list[str], text: str, details: Any) -> Exception:
        """The first of these exceptions that the reference or Python defines, so that a solution's
        own kind of ValueError is one here, too. What is an Exception and no more, or would end an
        iteration or the interpreter instead of failing the test, becomes a SolutionError."""
        arguments, state = details if type(details) is list else ([text], {})
        for known in kinds:
            kind = self.shared.get(known) or getattr(builtins, known, None)
            if not isinstance(kind, type) or not issubclass(kind, Exception):
                continue
            if not issubclass(kind, _ENDS) and (kind is not Exception or name == known):
                with contextlib.suppress(Exception):
                    if known in self.shared:
                        error = kind.__new__(kind, *arguments)
                        codec.set_state(error, state)
                        return error
                    error = kind(*arguments)
                    return error if str(error) == text else kind(text)
                with contextlib.suppress(TypeError):
                    return kind(text)
        return SolutionError(f"{name}: {text}")


_ENDS = (StopIteration, StopAsyncIteration)


def load_reference(source: str, **replaced: Any) -> dict[str, Any]:
    """The names of a reference solution; ``replaced`` are put in the place of its own."""
    module = types.ModuleType("reference")
    sys.modules["reference"] = module
    exec(compile(source, "reference", "exec", dont_inherit=True), module.__dict__)
    module.__dict__.update(replaced)
    return module.__dict__


async def _awaited(remote: "Remote") -> Any:
    return _ask(remote, "await")


async def _items(remote: "Remote") -> Any:
    while found := _ask(remote, "anext"):
        yield found[0]


def _write_back(old: Any, new: Any) -> Any:
    """Make the caller's containers look like the copies that the call changed."""
    if type(old) is not type(new):
        return new
    if type(old) is list:
        old[:] = [_write_back(o, n) for o, n in zip(old, new, strict=False)] + new[len(old) :]
    elif isinstance(old, dict):
        merged = {key: _write_back(old.get(key), value) for key, value in new.items()}
        old.clear()
        old.update(merged)
    elif type(old) is set:
        old.clear()
        old.update(new)
    elif type(old) is bytearray:
        old[:] = new
    elif type(old) is collections.deque:
        old.clear()
        old.extend(new)
    elif type(old).__module__ == "numpy" and old.shape == new.shape:
        old[...] = new
    elif hasattr(old, "__dict__"):
        vars(old).update(vars(new))
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

    def __contains__(self, item: Any) -> bool:
        return _exactly(bool, _ask(self, "contains", item))

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
    session = _Session(channel, job)
    module = types.ModuleType("tests")
    namespace = module.__dict__
    failure = _attempt(session, partial(_prepare, session, job, setup, namespace))
    for test in tests:
        session.differed = session.expected = False
        message = failure or _attempt(session, partial(test, namespace))
        if session.differed and not message:  # it must hold for the state that is right, too
            session.expected = True
            message = _attempt(session, partial(test, namespace))
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
    if job["own"]:
        own = _own_names(job, values)
        namespace.update(own)
        session.shared = {name: own[name] for name in job["shared"] if name in own}
    namespace["_same_value"] = _same_value
    try:
        setup(namespace)
    except Exception as error:
        raise RuntimeError(f"setup: {type(error).__name__}: {error}") from error


def _own_names(job: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The names that the tests have of the reference, whose functions call the solution's entry
    point."""
    entry_point = job["entry_point"]
    solution = {entry_point: values[entry_point]} if entry_point else {}
    try:
        found = load_reference(job["reference"], **solution)
    except Exception:  # noqa: BLE001  a reference may raise anything: the solution's remain
        return {}
    return {name: found[name] for name in job["own"] if name in found}


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
