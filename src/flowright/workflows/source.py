"""From a completion to a program: extract, repair, validate. Nothing is run here.

What only the interpreter and its type checker can tell (:mod:`flowright.workflows.checker`) comes
after; the rules here are those whose breach can be explained better than they do.
"""

import ast
import re
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from flowright.core.errors import FailureError, Reason
from flowright.llm.replies import code_blocks, spoken_answer
from flowright.workflows import aflow
from flowright.workflows.aflow import EARLY_CLASS_NAME
from flowright.workflows.language import (
    CLASS_NAME,
    FUNCTION_NAME,
    Function,
    check_language,
    nodes,
    parse,
)
from flowright.workflows.operators import OPERATORS
from flowright.workflows.registry import Operators
from flowright.workflows.repair import repair

_ENTRY = re.compile(
    rf"^[ \t]*(?:class\s+(?:{CLASS_NAME}|{EARLY_CLASS_NAME})\b|async\s+def\s+{FUNCTION_NAME}\b)",
    re.MULTILINE,
)
_CODE_START = re.compile(
    r"(?:import|from|class|async\s+def|def|@)\b|@\w|[A-Za-z_]\w*\s*(?::[^=]*)?="
)
_PROSE_LINES = 50  # most lines behind a program that count as prose
_LONGEST_PARSED = 20_000  # characters, as any program may have: Python's parser is not linear
_MOST_PARSED = 30_000  # characters, of all that is tried while looking for the end of a program
_TAG = re.compile(r"</?(?:graph|code|workflow|answer|program)>")


def extract(text: str) -> tuple[str, tuple[str, ...]]:
    """The program in a completion and the names of what had to be done to get at it. Raises
    FailureError(NO_PROGRAM)."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")
    text = text.encode("utf-8", "replace").decode()  # lone surrogates
    plain = spoken_answer(text)
    repairs: list[str] = []
    blocks = [body for _, body in code_blocks(plain)]
    entries = [body for body in blocks if _ENTRY.search(body)]
    if entries:
        program = entries[-1]
        repairs.append("fences_removed")
    elif _ENTRY.search(plain):
        program = plain if _parses(plain) else _without_chatter(_TAG.sub("", plain))
        if "".join(program.split()) != "".join(plain.split()):
            repairs.append("chatter_removed")
    else:
        raise FailureError(
            Reason.NO_PROGRAM,
            f"no `class {CLASS_NAME}` or `async def {FUNCTION_NAME}(problem)` in the completion",
        )
    program = textwrap.dedent(program.strip("\n").rstrip())
    if program not in text:
        repairs.append("dedented")
    return program, tuple(repairs)


def source_in(text: str) -> str | None:
    """Return the program in a completion, valid or not; None if there is none."""
    if len(text) > MAX_COMPLETION_CHARS:
        return None
    with suppress(FailureError):
        source, _ = extract(text)
        return source if len(source) <= MAX_SOURCE_CHARS else None
    return None


def _without_chatter(text: str) -> str:
    """``text`` without the prose before its first and behind its last line of code, dedented."""
    if _parses(textwrap.dedent(text)):
        return textwrap.dedent(text)
    lines = text.split("\n")
    entry = next((i for i, line in enumerate(lines) if _ENTRY.match(line)), 0)
    start = entry
    for index in range(entry - 1, -1, -1):
        line = lines[index]
        if _CODE_START.match(line.strip()):
            start = index
        elif line.strip() and not line.startswith((" ", "\t", "#", ")", "]", "}", '"', "'")):
            break
    margin = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
    lines = [line.removeprefix(margin) for line in lines[start:]]
    if _parses("\n".join(lines)):
        return "\n".join(lines)
    # Prose stands at the left margin; cut at the last such line that leaves a program.
    outer = [i for i, line in enumerate(lines) if line[:1].strip(" \t#") and i > entry - start]
    left = _MOST_PARSED
    for index in reversed(outer[-_PROSE_LINES:]):
        program = "\n".join(lines[:index])
        if _CODE_START.match(lines[index]) or len(program) > _LONGEST_PARSED:
            continue
        left -= len(program)
        if left < 0:
            break
        if _parses(program):
            return program
    return "\n".join(lines)


def _parses(text: str) -> bool:
    if len(text) > _LONGEST_PARSED:
        return False
    try:
        parse(text)
    except SyntaxError:
        return False
    return True


MAX_SOURCE_CHARS = 20_000
MAX_COMPLETION_CHARS = 10 * MAX_SOURCE_CHARS

# Parameters of the entry point that the host can fill beside the problem, and with what.
HOST_PARAMETERS = {"entry_point": "entry_point"}


@dataclass(frozen=True, slots=True)
class Workflow:
    """A program that may be run.

    ``source`` is the program as the completion has it; failures name its lines. ``program`` is run:
    ``source`` after ``repairs`` (names, in the order of application, none twice), with a last line
    that starts it; ``inserted`` are the 1-based lines of ``program`` that repairs added. ``calls``
    are the operators called, in the order of the text. ``concurrent``: the program has coroutines
    of its own beside the entry point, so that the order of replies could reach its logic.
    """

    source: str
    program: str
    entry: Literal["class", "function"]
    repairs: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    inserted: tuple[int, ...] = ()
    concurrent: bool = False

    def source_line(self, line: int | None) -> int | None:
        """The line of ``source`` that a line of ``program`` came from: for an inserted one, the
        line that it was put before; None for None and for the line that starts the program."""
        line = source_line(line, self.inserted)
        return line if line is None or line <= self.source.count("\n") + 1 else None


def source_line(line: int | None, inserted: tuple[int, ...]) -> int | None:
    """A line of the repaired program as a line of the source; see :class:`Workflow`."""
    return None if line is None else max(1, line - sum(added < line for added in inserted))


def read_workflow(
    text: str, finish_reason: str = "stop", operators: Operators = OPERATORS
) -> Workflow:
    """The workflow in a completion that may call ``operators``.

    Raises FailureError: TRUNCATED when the completion was cut at its token limit and what there is
    does not make a program, else NO_PROGRAM, SYNTAX, UNSUPPORTED, TYPE or SIZE_BUDGET.
    """
    try:
        return _read(text, operators)
    except FailureError as error:
        failure = error.failure
        if finish_reason == "length" and failure.reason in (Reason.NO_PROGRAM, Reason.SYNTAX):
            message = f"the completion ended at its token limit: {failure.message}"
            raise FailureError(Reason.TRUNCATED, message, failure.line) from None
        raise


def _read(text: str, operators: Operators) -> Workflow:
    if len(text) > MAX_COMPLETION_CHARS:
        raise FailureError(
            Reason.SIZE_BUDGET,
            f"a completion may have {MAX_COMPLETION_CHARS} characters, this one has {len(text)}",
        )
    source, repairs = extract(text)
    if len(source) > MAX_SOURCE_CHARS:
        message = f"a program may have {MAX_SOURCE_CHARS} characters, this one has {len(source)}"
        raise FailureError(Reason.SIZE_BUDGET, message)
    try:
        parse(source)
    except SyntaxError as error:
        raise FailureError(Reason.SYNTAX, error.msg, error.lineno) from None
    repaired = repair(source, operators)
    translated = aflow.NAME in repaired.repairs
    tree = parse(repaired.text)
    try:
        check_language(tree)
        entry, start = _entry(tree, translated)
    except FailureError as error:
        raise error.at(source_line(error.failure.line, repaired.inserted)) from None
    return Workflow(
        source=source,
        program=f"{repaired.text.rstrip()}\n{start}\n",
        entry=entry,
        repairs=(*repairs, *repaired.repairs),
        calls=aflow.operator_calls(tree) if translated else _operator_calls(tree, operators),
        inserted=repaired.inserted,
        concurrent=translated or _is_concurrent(tree),
    )


def _entry(tree: ast.Module, translated: bool) -> tuple[Literal["class", "function"], str]:
    """Return the kind of entry point and the call that starts it."""
    for node in reversed(tree.body):
        if isinstance(node, ast.ClassDef) and node.name == CLASS_NAME:
            methods = {n.name: n for n in node.body if isinstance(n, Function)}
            call = methods.get("__call__")
            if call is None:
                raise FailureError(
                    Reason.NO_PROGRAM,
                    f"class {CLASS_NAME} has no `async def __call__(self, problem)`",
                    node.lineno,
                )
            init = methods.get("__init__")
            made = _filled(init, 1, aflow.INIT_PARAMETERS if translated else {}) if init else []
            start = f"await {CLASS_NAME}({', '.join(made)})({_arguments(call, bound=1)})"
            return "class", aflow.start(tree, start) if translated else start
    for node in reversed(tree.body):
        if isinstance(node, Function) and node.name == FUNCTION_NAME:
            return "function", f"await {FUNCTION_NAME}({_arguments(node, bound=0)})"
    raise FailureError(
        Reason.NO_PROGRAM,
        f"no `class {CLASS_NAME}` or `async def {FUNCTION_NAME}(problem)` at the top level",
    )


def _arguments(function: Function, bound: int) -> str:
    """The arguments of the call that starts the program: the problem, and what else the host can
    fill. ``bound`` is 1 for a method."""
    if not isinstance(function, ast.AsyncFunctionDef):
        raise _misfit(function, "must be `async def`")
    a = function.args
    if len(a.posonlyargs) + len(a.args) <= bound and a.vararg is None:
        raise _misfit(function, "must take the problem")
    return ", ".join(["problem", *_filled(function, bound + 1, HOST_PARAMETERS)])


def _misfit(function: Function, why: str) -> FailureError:
    return FailureError(Reason.TYPE, f"`{function.name}` {why}", function.lineno)


def _filled(function: Function, positional: int, values: Mapping[str, str]) -> list[str]:
    """The keyword arguments that a function takes of ``values``, beside ``positional`` others.
    Raises TYPE when it needs more than these."""
    a = function.args
    arguments = [*a.posonlyargs, *a.args]
    required = [arg.arg for arg in arguments[: len(arguments) - len(a.defaults)]][positional:]
    keywords = zip(a.kwonlyargs, a.kw_defaults, strict=True)
    required += [arg.arg for arg, default in keywords if default is None]
    missing = [name for name in required if name not in values]
    if missing:
        raise _misfit(function, f"has parameters without a value: {', '.join(missing)}")
    names = [argument.arg for argument in (*a.args, *a.kwonlyargs)][positional:]
    return [f"{name}={values[name]}" for name in names if name in values]


def _operator_calls(tree: ast.Module, operators: Operators) -> tuple[str, ...]:
    """The operators called by name, in the order of the text; a function of the program's own
    hides the operator of its name."""
    own = {n.name for n in tree.body if isinstance(n, Function | ast.ClassDef)}
    calls = [
        (n.lineno, n.col_offset, n.func.id)
        for n in nodes(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in operators
    ]
    return tuple(name for _, _, name in sorted(calls) if name not in own)


def _is_concurrent(tree: ast.Module) -> bool:
    """Return whether two coroutines of the program can run at a time: not with the entry point as
    the only one and nothing that could call it again."""
    coroutines = 0
    for node in nodes(tree):
        match node:
            case ast.AsyncFunctionDef():
                coroutines += 1
            case ast.Name(id="Workflow" | "workflow", ctx=ast.Load()):
                return True
            case ast.Call(func=ast.Name(id="self")) | ast.Attribute(attr="__call__"):
                return True
    return coroutines > 1
