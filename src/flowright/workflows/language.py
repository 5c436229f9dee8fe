"""The workflow language: the subset of Python that the interpreter runs, and edits of its text.

The type checker and the interpreter decide; the rules here are those that the syntax tree explains
better.
"""

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

from flowright.core.errors import FailureError, Reason

CLASS_NAME, FUNCTION_NAME = "Workflow", "workflow"

Function = ast.FunctionDef | ast.AsyncFunctionDef

# What the interpreter of workflows can import (pydantic-monty 1.4.0), less what only touches files.
MODULES = frozenset({
    "asyncio", "base64", "binascii", "bisect", "collections", "copy", "csv", "dataclasses",
    "datetime", "decimal", "functools", "hashlib", "itertools", "json", "math", "random", "re",
    "sys", "time", "tomllib", "typing", "unicodedata",
})  # fmt: skip
# Names that a program may use without importing them: documented, so no repair.
PREDEFINED: Mapping[str, str] = {
    "asyncio": "import asyncio",
    "json": "import json",
    "math": "import math",
    "re": "import re",
    "Counter": "from collections import Counter",
}
# ... and those that programs forget to import.
FORGOTTEN: Mapping[str, str] = {
    **{name: f"import {name}" for name in sorted(MODULES - {"copy", "time"})},
    **{n: f"from collections import {n}" for n in ("Counter", "defaultdict", "deque")},
    **{
        n: f"from typing import {n}"
        for n in ("Any", "Callable", "Dict", "List", "Optional", "Tuple", "Union")
    },
}


# Python puts the combining marks of a name in order, in time that is quadratic in their number.
_MOST_MARKS = 300
_MARKS = re.compile(rf"(?:[^\w\s\x00-\x7f]|[\uff9e\uff9f]){{{_MOST_MARKS}}}")
MAX_DEPTH = 200
"""Levels of a syntax tree; the interpreter refuses deeper programs as well."""
MAX_LISTS, MAX_OPERANDS = 40, 100
"""Lists within lists, and operands of one chain of `and` or `or`: the type checker takes seconds
for more, and others wait for it."""
_WARNINGS = Lock()  # catch_warnings changes the process; long programs are parsed in threads


@lru_cache(maxsize=8)
def parse(text: str) -> ast.Module:
    """The syntax tree of a program, not to be changed. Raises SyntaxError, and nothing else, for
    what Python itself would refuse to compile, for what nests more than MAX_DEPTH levels, so that
    passes over the tree may recurse, and beyond MAX_LISTS and MAX_OPERANDS. The code is not run."""
    if _MARKS.search(text):
        raise SyntaxError(f"cannot be parsed: {_MOST_MARKS} marks or signs in a row")
    try:
        with _WARNINGS, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as for an unknown escape in a string
            tree = ast.parse(text)
            compile(tree, "workflow", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError:
        raise
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise SyntaxError(f"cannot be parsed: {error or 'it nests too deeply'}") from None
    level: list[tuple[ast.AST, int]] = [(tree, 0)]
    for _ in range(MAX_DEPTH):
        level = [
            (child, lists + isinstance(child, ast.List))
            for node, lists in level
            for child in ast.iter_child_nodes(node)
        ]
        if any(lists > MAX_LISTS for _, lists in level):
            raise SyntaxError(f"more than {MAX_LISTS} lists within lists")
        if any(isinstance(n, ast.BoolOp) and len(n.values) > MAX_OPERANDS for n, _ in level):
            raise SyntaxError(f"more than {MAX_OPERANDS} operands of `and` or `or`")
    if level:
        raise SyntaxError(f"it nests more than {MAX_DEPTH} levels; `elif` and `+` are one each")
    return tree


@lru_cache(maxsize=8)
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a tree; every pass over a program walks them, so they are kept."""
    return tuple(ast.walk(tree))


def top(module: str) -> str:
    """The package that a dotted module name begins with."""
    return module.partition(".")[0]


def bound_name(alias: ast.alias) -> str:
    """The name that an import binds."""
    return alias.asname or top(alias.name)


def binds(node: ast.AST) -> set[str]:
    """The names that a node itself binds, or unbinds, in whatever scope."""
    match node:
        case (
            ast.Name(id=str(name), ctx=ast.Store() | ast.Del())
            | ast.arg(arg=str(name))
            | ast.FunctionDef(name=str(name))
            | ast.AsyncFunctionDef(name=str(name))
            | ast.ClassDef(name=str(name))
            | ast.ExceptHandler(name=str(name))
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
            | ast.MatchMapping(rest=str(name))
        ):
            return {name}
        case ast.Import() | ast.ImportFrom():
            return set(map(bound_name, node.names))
    return set()


def is_here(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    """Return whether ``alias`` imports from a module of the language."""
    if isinstance(node, ast.Import):
        return top(alias.name) in MODULES
    return node.level == 0 and top(node.module or "") in MODULES


_ASYNCIO_HAS = ("gather", "run", "sleep")


def check_language(tree: ast.Module) -> None:
    """Raise UNSUPPORTED for the first piece of Python that the workflow language lacks."""
    found = [(getattr(at, "lineno", 0), what) for n in nodes(tree) for at, what in _lacking(n)]
    if found:
        line, what = min(found)
        raise FailureError(Reason.UNSUPPORTED, f"the workflow language has no {what}", line)


def _lacking(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Return the feature of a node that the language lacks, and its position."""
    match node:
        case ast.Yield() | ast.YieldFrom():
            yield node, "generators (yield); build a list"
        case ast.Delete():
            yield node, "del statement"
        case ast.AsyncWith():
            yield node, "async with"
        case ast.AsyncFor():
            yield node, "async for"
        case ast.TryStar():
            yield node, "except*"
        case ast.comprehension(is_async=1):
            yield node.target, "async comprehensions"
        case ast.ClassDef() if node.bases or node.keywords:
            yield node, "inheritance"
        case ast.ClassDef():
            for method in node.body:
                if isinstance(method, Function) and method.decorator_list:
                    yield method, "decorated methods"
        case ast.Attribute(value=ast.Name(id="asyncio"), attr=attr) if attr not in _ASYNCIO_HAS:
            yield node, f"asyncio.{attr}; use await asyncio.gather(...)"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="gather")):
            if any(keyword.arg == "return_exceptions" for keyword in node.keywords):
                yield node, "gather(return_exceptions=...); operators never raise"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr="sub"), args=args):
            if len(args) > 1 and isinstance(args[1], ast.Lambda):
                yield node, "re.sub with a function"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replacement of a span of the text, as the syntax tree gives it: 1-based lines, offsets in
    UTF-8 bytes. ``expect`` is the text to be replaced, if known: positions inside f-strings are not
    always right before Python 3.12."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str
    expect: str | None = None


def apply(text: str, edits: list[Edit]) -> str:
    """``text`` with all edits made, or unchanged where one does not find what it expects or two
    overlap."""
    lines = [line.encode() for line in text.split("\n")]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    data = b"\n".join(lines)
    free = len(data)
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        start = starts[edit.start[0] - 1] + edit.start[1]
        end = starts[edit.end[0] - 1] + edit.end[1]
        found = edit.expect is None or data[start:end] == edit.expect.encode()
        if not found or end > free:
            return text
        free = start
        data = data[:start] + edit.text.encode() + data[end:]
    return data.decode()


def keep_imports(node: ast.Import, kept: Sequence[ast.alias]) -> Edit:
    """Leave these modules of ``import a, b``."""
    return replace(node, "import " + ", ".join(map(ast.unparse, kept)) if kept else "pass")


def replace(node: ast.stmt | ast.expr | ast.arg, text: str, expect: str | None = None) -> Edit:
    """Put ``text`` in a node's place; a statement keeps its number of lines."""
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    start = (node.lineno, node.col_offset)
    if isinstance(node, ast.stmt):
        text += "\n" * (end_line - node.lineno)
    return Edit(start, (end_line, end_column), text, expect)
