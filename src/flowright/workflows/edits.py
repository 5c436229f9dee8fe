"""Edits of a program's text by its syntax tree. Which edits to make is not known here."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace a span of the text, given as the syntax tree gives it: 1-based lines, offsets in
    UTF-8 bytes. ``expect`` is what must stand there, where that can be told (positions inside
    f-strings are not always right before Python 3.12)."""

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
