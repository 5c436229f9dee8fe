"""What an exception inside a workflow's program amounts to: a failure with its reason and line.

Whether a limit was the machine's doing is :mod:`flowright.workflows.runtime`'s to know.
"""

import builtins
import re
from collections.abc import Callable
from typing import Any, NoReturn

from pydantic_monty import MontyRuntimeError, MontySyntaxError

from flowright.core.errors import FailureError, Reason

TOO_LONG = "the program's own computing takes too long"


def says_time_limit(error: MontyRuntimeError | MontySyntaxError) -> bool:
    """Whether an exception has the words of the interpreter's own limit. A program can say them."""
    message = error.display(format="type-msg")
    return message.startswith("TimeoutError") and "time limit exceeded" in message


def crossed(read: Callable[[], Any], reason: Reason) -> Any:
    """A value out of the interpreter; one that has no counterpart here is the program's fault."""
    try:
        return read()
    except (ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise FailureError(reason, f"a value that cannot leave the workflow: {error}") from None


def raise_failure(
    error: MontyRuntimeError | MontySyntaxError, is_time_limit: bool = False
) -> NoReturn:
    """Raise the FailureError that an exception of the program's amounts to."""
    kind = type(error.exception()).__name__
    message = error.display(format="type-msg")[:500]
    frames = error.traceback()
    line = frames[-1].line if frames else None
    reason = Reason.CRASHED
    if is_time_limit:
        reason, message = Reason.TIME_BUDGET, TOO_LONG
    elif kind == "MemoryError":
        reason = Reason.MEMORY_BUDGET
    elif kind == "SyntaxError":
        reason = Reason.SYNTAX
    elif (
        kind in ("NotImplementedError", "ModuleNotFoundError")
        or "not yet support" in message
        or (kind == "AttributeError" and _is_python(message))
    ):
        reason = Reason.UNSUPPORTED
    raise FailureError(reason, message, line) from None


def _is_python(message: str) -> bool:
    """Whether the attribute that the interpreter misses on a built-in object is there in Python."""
    found = re.search(r"'(\w+)' object has no attribute '(\w+)'", message)
    kind = getattr(builtins, found[1], None) if found else None
    return isinstance(kind, type) and found is not None and hasattr(kind, found[2])
