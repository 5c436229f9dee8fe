"""The program in a completion: out of its fences, its chatter, its indentation."""

import re
import textwrap

from flowright.core.errors import FailureError, Reason
from flowright.llm.replies import code_blocks, spoken_answer
from flowright.workflows.aflow import EARLY_CLASS_NAME
from flowright.workflows.language import CLASS_NAME, FUNCTION_NAME, parse

_ENTRY = re.compile(
    rf"^[ \t]*(?:class\s+(?:{CLASS_NAME}|{EARLY_CLASS_NAME})\b|async\s+def\s+{FUNCTION_NAME}\b)",
    re.MULTILINE,
)
_CODE_START = re.compile(
    r"(?:import|from|class|async\s+def|def|@)\b|@\w|[A-Za-z_]\w*\s*(?::[^=]*)?="
)
_PROSE_LINES = 50  # at most so many lines behind a program are taken for prose
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
