"""The solution's side of a check, and a plain program's run: where the untrusted code executes.

Nothing here is trusted once that code has started: it can change everything in its process. The
tests' side believes nothing but plain data. Part of the isolated side: standard library only, no
import of the package.
"""

import builtins
import contextlib
import enum
import linecache
import os
import sys
import threading
import traceback
import types
from typing import Any, NoReturn

import codec  # type: ignore[import-not-found]

MEMORY_EXIT = 86  # exit status for MemoryError
_ASYNCHRONOUS: dict[type, str] = {types.CoroutineType: "w", types.AsyncGeneratorType: "g"}


def _load(source: str, name: str, module_name: str) -> types.ModuleType:
    """Execute ``source`` as a module whose tracebacks can quote its lines."""
    builtins.exit = builtins.quit = sys.exit  # as in an interpreter with ``site``
    module = types.ModuleType(module_name)
    sys.modules[module_name] = module
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
    return module


def _describe(error: BaseException, name: str) -> str:
    """A traceback that begins in the untrusted code, not in ours."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, limit=-12)
    return "".join(lines)


def run_program(source: str) -> int:
    """Run ``source`` as ``__main__`` and return its exit status."""
    name = "main.py"
    sys.argv[:] = [name]
    try:
        _load(source, name, "__main__")
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    except SystemExit as error:
        return _exit_status(error.code)
    except MemoryError:
        sys.stderr.write("MemoryError\n")
        return MEMORY_EXIT
    except BaseException as error:  # noqa: BLE001  untrusted code may raise anything
        sys.stderr.write(_describe(error, name))
        return 1
    return 0


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def serve_solution(job: dict[str, Any], descriptor: int) -> int:
    """Load a solution, say which of ``names`` it has, then answer calls until the tests hang up.
    The function ``method`` may be one of a class ``Solution``; objects of the classes ``shared``
    cross by value."""
    link = codec.Link(descriptor)
    names, method = job["names"], job["method"]
    try:
        module = _load(job["source"], "solution.py", "solution")
    except MemoryError:
        link.send(["failed", "MemoryError", ""])
        return MEMORY_EXIT
    except BaseException as error:  # noqa: BLE001
        link.send(["failed", type(error).__name__, _describe(error, "solution.py")[-4000:]])
        return 1
    service = _Service(vars(module), job["shared"])
    found = {name: getattr(module, name) for name in names if hasattr(module, name)}
    if method is not None and method not in found and hasattr(module, "Solution"):
        with contextlib.suppress(Exception):
            found[method] = getattr(module.Solution(), method)
    link.send(["ready", {name: service.encode(value) for name, value in found.items()}])
    try:
        while True:
            answer = service.answer(link.receive())
            try:
                link.send(answer)
            except codec.Unsendable as error:
                link.send(_refused(error))
    except codec.ProtocolError:
        return 0


class _Service:
    """The solution's objects by number, and the operations that the tests may ask for."""

    def __init__(self, namespace: dict[str, Any], shared: list[str]) -> None:
        self._namespace = namespace
        self._shared = frozenset(shared)
        self._loop: Any = None
        self._objects: list[object] = []
        self._numbers: dict[int, int] = {}
        self._operations = {
            "call": self._call,
            "get": lambda target, name: getattr(target, name),
            "set": setattr,
            "item": lambda target, key: target[key],
            "setitem": lambda target, key, value: target.__setitem__(key, value),
            "iter": iter,
            "next": self._next,
            "await": lambda target: self._finish(target),
            "anext": self._anext,
            "contains": lambda target, item: item in target,
            "len": len,
            "bool": bool,
            "str": str,
            "repr": repr,
        }

    def encode(self, value: object) -> Any:
        return codec.encode(value, self._refer)

    def _refer(self, value: object, depth: int) -> Any:
        kind = type(value)
        if kind.__name__ in self._shared and self._namespace.get(kind.__name__) is kind:
            return codec.encode_shared(value, self._refer, depth)
        if isinstance(value, enum.Enum) and isinstance(value, (int, float, str)):
            return None
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        return [_ASYNCHRONOUS.get(kind, "r"), number]

    def _decode(self, item: Any) -> Any:
        return codec.decode(item, self._dereference)

    def _dereference(self, tag: str, name: Any, *rest: Any) -> Any:
        if tag == "r":
            return self._objects[name]
        return codec.decode_shared(self._namespace[name], tag, *rest)

    def answer(self, request: list[Any]) -> Any:
        """``["value", v, the changed arguments or None]`` or ``["raised", [type name, *names of the
        types that it is], text, [arguments, attributes] or None]``."""
        operation, *encoded = request
        try:
            operands = [self._decode(item) for item in encoded]
            result = self._operations[operation](*operands)
            changed = self._changes(encoded[1:], operands[1:]) if operation == "call" else None
            return ["value", self.encode(result), changed]
        except codec.Unsendable as error:
            return _refused(error)
        except BaseException as error:  # noqa: BLE001
            return ["raised", _names(error), _text(error), self._details(error)]

    def _details(self, error: BaseException) -> Any:
        """The arguments and attributes of an exception, None if they cannot cross."""
        try:
            return self.encode([list(error.args), codec.state_of(error)])
        except BaseException:  # noqa: BLE001
            return None

    def _call(self, target: Any, arguments: list[Any], keywords: dict[str, Any]) -> object:
        return target(*arguments, **keywords)

    def _next(self, iterator: Any) -> object:
        try:
            return (next(iterator),)
        except StopIteration:
            return ()

    def _finish(self, awaitable: Any) -> object:
        import asyncio  # hardly any solution needs it

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(awaitable)

    def _anext(self, generator: Any) -> object:
        try:
            return (self._finish(anext(generator)),)
        except StopAsyncIteration:
            return ()

    def _changes(self, encoded: list[Any], operands: list[Any]) -> Any:
        """Return the call's changes to its arguments, for the caller's copies; None without any."""
        now = [self.encode(operand) for operand in operands]
        return None if now == encoded else now


def _refused(error: codec.Unsendable) -> list[Any]:
    return ["raised", ["ValueError", "ValueError"], f"the solution returned {error}", None]


def _names(error: BaseException) -> list[str]:
    kinds = type(error).__mro__
    known = [kind.__name__ for kind in kinds if vars(builtins).get(kind.__name__, kind) is kind]
    return [kinds[0].__name__, *known]


def _text(error: BaseException) -> str:
    try:
        text = str(error)[:2000]
    except BaseException:  # noqa: BLE001
        return "(its text cannot be had)"
    return text if type(text) is str else ""


def leave(status: int) -> NoReturn:
    """End the process now: no atexit hook, no finaliser, no thread holds it up."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass
    os._exit(status)
