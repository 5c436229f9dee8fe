"""Text of model replies: thinking stripped, code, the final answer.

Pure functions in time linear in the text: a model may write anything at any length.
"""

import builtins
import keyword
import re
from dataclasses import dataclass
from functools import cached_property
from textwrap import dedent

# Thinking.

THINKING_TAG = (
    r"(?:[a-z]{1,12}[:_-])?(?:think(?:ing)?(?:_process)?|thoughts?(?:_process)?"
    r"|reasoning(?:_content|_process)?|scratchpad)"
)
"""Pattern of the names of thinking tags: ``think``, ``seed:think``, ``reasoning``."""
_OPENING = (
    rf"<{THINKING_TAG}(?:\s[^<>\n]{{0,200}})?>|\[THINK\]|◁think▷|<\|channel>(?:thought|analysis)\b"
    r"|<[|｜](?:begin|start)[_▁](?:of[_▁])?(?:thought|thinking|reasoning)[|｜]>"
)
_CLOSING = (
    rf"</{THINKING_TAG}>|\[/THINK\]|◁/think▷|<channel\|>"
    r"|<[|｜]end[_▁](?:of[_▁])?(?:thought|thinking|reasoning)[|｜]>"
)
# A tag behind a backtick is spoken of, not used; so is one in a block of code.
_MARK = re.compile(
    rf"(?P<opening>(?<!`)(?:{_OPENING}))|(?P<closing>{_CLOSING})"
    r"|^[ \t]*(?P<fence>`{3,}|~{3,})(?P<bare>(?=[ \t]*$))?",
    re.IGNORECASE | re.MULTILINE,
)
_CHANNEL = re.compile(r"<\|channel\|>\s?(\w{1,20})[^<]{0,80}(?:<\|message\|>|\Z)")
_MESSAGE_END = re.compile(r"<\|(?:end|return|call|start)\|>")
# The channels of GPT-OSS from a server that drops special tokens: "analysisWe ... assistantfinal4".
_BARE_FINAL = "assistantfinal"
_BARE_CHANNELS = re.compile(
    rf"\s*(?:assistant)?(?:analysis|commentary)(?=[A-Z0-9]|.*{_BARE_FINAL})", re.DOTALL
)
_OPENS_THINKING = re.compile(
    rf"\s*(?:{_OPENING}|<\|channel\|>|<\|start\|>assistant<\|channel\|>)", re.IGNORECASE
)


def strip_thinking(text: str) -> str | None:
    """Return the text without its thinking; None if it ends inside.

    Knows tags such as ``<think>``, also without an opening one (chat templates that put it into
    the prompt), and the channels of GPT-OSS, of which the final one counts. Tags in a block of code
    that was opened outside of the thinking are part of the code.
    """
    spoken = _final_channel(text)
    if spoken is None:
        return None
    kept: list[str] = []
    position = 0
    inside = False
    fence = ""
    for mark in _MARK.finditer(spoken):
        if mark["closing"]:
            if not inside:
                if fence and not _is_line(spoken, mark):
                    continue
                kept.clear()
                fence = ""
            inside = False
            position = mark.end()
        elif inside:
            continue
        elif not mark["fence"]:
            if not fence:
                kept.append(spoken[position : mark.start()])
                inside = True
        elif not fence:
            fence = mark["fence"]
        elif mark["fence"].startswith(fence) and mark["bare"] is not None:
            fence = ""
    return None if inside else "".join(kept) + spoken[position:]


def _final_channel(text: str) -> str | None:
    """Return the text of GPT-OSS's final channels if the last one is final, else None; a text
    without channels is returned as it is."""
    channels = list(_CHANNEL.finditer(text))
    if channels:
        ends = [*(channel.start() for channel in channels[1:]), len(text)]
        final = [
            _MESSAGE_END.split(text[channel.end() : end], 1)[0]
            for channel, end in zip(channels, ends, strict=True)
            if channel[1] == "final"
        ]
        return "\n".join(final) if channels[-1][1] == "final" else None
    if _BARE_CHANNELS.match(text):
        _, mark, final = text.rpartition(_BARE_FINAL)
        return final if mark else None
    return text


def _is_line(text: str, mark: re.Match[str]) -> bool:
    before, after = mark.start(), mark.end()
    return text[max(0, before - 1) : before] in ("", "\n") and text[after : after + 1] in "\r\n"


def spoken_answer(answer: str) -> str:
    """Return the answer without the thinking that it opens with; empty if the thinking never ends.
    Later tags are part of it: an answer may be about them."""
    if not _OPENS_THINKING.match(answer) and not _BARE_CHANNELS.match(answer):
        return answer
    return strip_thinking(answer) or ""


# Code.

_FENCE_LINE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([\w+#.-]*)")
_PYTHON = frozenset({"", "python", "python3", "py", "python3.11", "ipython"})


def code_blocks(text: str) -> list[tuple[str, str]]:
    """Return the fenced blocks as pairs of language (lower case) and body, in order. An unclosed
    fence runs to the end."""
    blocks: list[tuple[str, str]] = []
    fence = language = ""
    body: list[str] = []
    *lines, last = text.split("\n")
    for line in lines:
        if not fence:
            if opening := _FENCE_LINE.match(line):
                fence, language, body = opening[1], opening[2].lower(), []
        elif _closes(line, fence):
            blocks.append((language, "".join(body)))
            fence = ""
        else:
            body.append(f"{line}\n")
    if fence:
        blocks.append((language, "".join(body) + ("" if _closes(last, fence) else last)))
    return blocks


def _closes(line: str, fence: str) -> bool:
    bare = line.strip()
    return bare.startswith(fence) and not bare.strip("`~")


def extract_code(text: str, entry_point: str | None = None) -> str:
    """Return the program in a text, without surrounding blank lines: the last fenced block that is
    or may be Python, behind those imports, functions, classes and values of the other blocks that
    it uses and does not have; the whole text where there is no such block.

    With an ``entry_point``: the last block that defines it, else all such blocks together. Without
    one: the last that does something, or that reads its input if one does.
    """
    text = spoken_answer(text)
    found = [(language, body) for language, body in code_blocks(text) if language in _PYTHON]
    found = [(language, dedent(b) if _INDENTED.match(b) else b) for language, b in found]
    if not found:
        return text.strip("\n").rstrip()
    blocks = [body for _, body in found]
    main = _main_block(found, entry_point)
    code = "\n\n".join(blocks) if main is None else _complete(blocks, main)
    return code.strip("\n").rstrip()


_INDENTED = re.compile(
    r"\s*\n[ \t]|[ \t]"
)  # dedent also empties lines of spaces: only where needed
_READS = re.compile(r"\binput\b|\bstdin\b|\bopen\(0|\bfileinput\b|\bos\.read\b")
_STARTS = re.compile(r"__main__|^\w+\(\)[ \t]*$", re.MULTILINE)
_ACTS = re.compile(r"\b(?:print|write|import|def|class)\b|^\w+\(\)[ \t]*$", re.MULTILINE)


def _main_block(blocks: list[tuple[str, str]], entry_point: str | None) -> int | None:
    """Return the number of the block that is the program; None if none defines the entry point."""
    if entry_point is not None:
        name = re.escape(entry_point)
        for indent in ("", "[ \\t]+"):  # a method of a class Solution, else
            form = rf"^{indent}(?:(?:async )?def|class) {name}\b|^{indent}{name} *="
            defines = re.compile(form, re.MULTILINE)
            found = [n for n, (_, body) in enumerate(blocks) if defines.search(body)]
            if found:
                return found[-1]
        return None
    labelled = [n for n, (language, _) in enumerate(blocks) if language] or range(len(blocks))
    acting = [n for n in labelled if _ACTS.search(blocks[n][1])] or labelled
    last = acting[-1]
    reading = [n for n in acting if _READS.search(blocks[n][1])]
    return reading[-1] if reading and not _STARTS.search(blocks[last][1]) else last


# A program in several blocks. It is read by patterns: what a model wrote is never parsed here.

_PARTS = re.compile(
    r"(?P<comment>#[^\n]*)"
    r"|(?P<prefix>\b[A-Za-z]{1,2})?(?P<string>\"\"\"(?:[^\\]|\\.)*?(?:\"\"\"|\Z)"
    r"|'''(?:[^\\]|\\.)*?(?:'''|\Z)|\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?)"
    r"|(?P<opening>[(\[{])|(?P<closing>[)\]}])"
    r"|(?P<end>\n(?=[^\s#)\]}])(?!(?:else|elif|except|finally)\b))",
    re.DOTALL,
)
_FIELDS = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*")
_KNOWN = frozenset([*keyword.kwlist, *dir(builtins)])
_DEFINED = re.compile(r"^(?:async\s+)?(?:def|class)\s+(\w+)", re.MULTILINE)
_IMPORTED = re.compile(r"^[ \t]*(?:from\s+\S+\s+)?import\b\s*(\([^)]*\)?|[^\n;]*)", re.MULTILINE)
_TARGETS = re.compile(r"([\w\s.,*:\[\]\"]*?)(?:[-+*/%&|^@]|//|\*\*|<<|>>)?=(?!=)")
_ASSIGNED = re.compile(r"^[ \t]+(\w+)\s*=(?!=)", re.MULTILINE)
_CHANGED = re.compile(
    r"^[ \t]+(\w+)\s*(?:[-+*/|&]=|\[|\.(?:append|add|extend|update|insert)\b)", re.MULTILINE
)
_LOCAL = re.compile(
    r"^[ \t]+(\w[\w, *]*?)(?::[^=\n]*)?=(?!=)|\bfor[ \t]+(\(?\w[^\n:]{0,200}?)[ \t]in\b"
    r"|\bdef\s+\w+\s*\(([^()]{0,2000})|\blambda\b([^:\n]{0,200}):",
    re.MULTILINE,
)
_COMPOUND = ("for ", "while ", "if ", "try:", "with ")
_EXAMPLE = re.compile(r"\b(?:print|input|stdin|assert|__name__)\b")
_FUTURE = re.compile(r"^from __future__ import [^\n]*\n?", re.MULTILINE)
_MOST_TARGETS = 400


@dataclass(frozen=True)
class _Statement:
    """A statement of a block, not of a function: ``code`` is its text without comments and strings.
    ``names`` are bound or changed by it, a star for those that an import does not name. ``waits``:
    it only defines or imports."""

    text: str
    code: str

    @cached_property
    def bound(self) -> set[str]:
        code = self.code
        if code.startswith(("@", "def ", "async ", "class ")):
            return set(_DEFINED.findall(code))
        words = [w.split() for part in _IMPORTED.findall(code) for w in part.strip("()").split(",")]
        found = {w[-1] if "as" in w else w[0].partition(".")[0] for w in words if w}
        if code.startswith(_COMPOUND):
            return found | set(_ASSIGNED.findall(code))
        targets = _TARGETS.match(code[:_MOST_TARGETS])
        parts = targets[1].partition(":")[0].split(",") if targets else []
        return found | {part.strip(" *") for part in parts if part.strip(" *").isidentifier()}

    @cached_property
    def names(self) -> set[str]:
        if self.code.startswith(_COMPOUND):
            return self.bound | set(_CHANGED.findall(self.code))
        changed = None if self.waits else re.match(r"(\w+)(?:[.\[]|\s*[^\w\s=]{1,2}=)", self.code)
        return self.bound | ({changed[1]} if changed else set())

    @property
    def waits(self) -> bool:
        return self.code.startswith(("@", "def ", "async ", "class ", "import ", "from "))

    @cached_property
    def used(self) -> set[str]:
        return set(_NAME.findall(self.code)) - _KNOWN

    @cached_property
    def local(self) -> set[str]:
        found = [name for groups in _LOCAL.findall(self.code) for text in groups
                 for name in _NAME.findall(re.sub(r"[:=][^,]*", "", text))]  # fmt: skip
        return set(found)


def _statements(body: str) -> list[_Statement]:
    found: list[_Statement] = []
    depth = start = position = 0
    code: list[str] = []
    for part in _PARTS.finditer(body):
        code.append(body[position : part.start()])
        position = part.end()
        if part["string"]:
            is_format = "f" in (part["prefix"] or "").lower()
            code.append(" ".join(_FIELDS.findall(part[0])) if is_format else '""')
        elif not part["comment"]:
            depth = max(0, depth + bool(part["opening"]) - bool(part["closing"]))
            code.append(part[0])
        if part["end"] and not depth and not _is_decorator(code):
            found.append(_Statement(body[start:position].rstrip(), "".join(code).strip()))
            start, code = position, []
    code.append(body[position:])
    return [*found, _Statement(body[start:].rstrip(), "".join(code).strip())]


def _is_decorator(code: list[str]) -> bool:
    text = "".join(code).strip() if len(code) < 20 else ""
    return text.startswith("@") and not _DEFINED.search(text)


def _complete(blocks: list[str], main: int) -> str:
    """Return a block behind what it takes from the others: the last of several definitions before
    it, else one behind it. What would run at once is taken only if it sets a value that no function
    of its own sets, prints and reads nothing, and does not use what the block defines: an example
    of its use does."""
    program = _statements(blocks[main])
    defined = set[str]().union(*(statement.bound for statement in program))
    waiting = [(name, s.local) for s in program for name in s.used if name not in defined]
    if len(blocks) == 1 or not waiting:
        return blocks[main]
    order = [*range(main + 1, len(blocks)), *range(main)]
    parts = {n: _statements(blocks[n]) for n in order}
    sources: dict[str, list[tuple[int, int]]] = {}
    for n in order:
        own: dict[str, list[tuple[int, int]]] = {}
        for place, statement in enumerate(parts[n]):
            for name in statement.names:
                own.setdefault(name, []).append((n, place))
        sources |= own
    chosen: set[tuple[int, int]] = set()
    unknown = False
    while waiting:
        name, local = waiting.pop()
        unknown = unknown or (name not in sources and name not in local)
        for n, place in sources.get(name, ()):
            part = parts[n][place]
            if (n, place) in chosen or name in defined:
                continue
            if part.waits or not (
                name in local or part.used & defined or _EXAMPLE.search(part.code)
            ):
                chosen.add((n, place))
                waiting += [(other, part.local) for other in part.used]
    if unknown:
        chosen |= {at for at in sources.get("*", ()) if parts[at[0]][at[1]].waits}
    taken = [parts[n][place].text for n, place in sorted(chosen)]
    return with_source(taken, blocks[main])


def with_source(parts: list[str], code: str) -> str:
    """Return a program behind other source; its imports from ``__future__`` stay first."""
    if not parts:
        return code
    return "".join(_FUTURE.findall(code)) + "\n\n".join([*parts, _FUTURE.sub("", code)])


# Answers.

_MARKER = re.compile(r"^[ \t>*#_-]*(?:final\s+)?answer[ \t*_]*[:：][ \t*_]*", re.I | re.M)


def final_answer(text: str) -> str:
    """Return the text after the last ``Answer:`` marker of a reply, else the whole, stripped."""
    end = 0
    for marker in _MARKER.finditer(text):
        end = marker.end()
    return (text[end:].strip() or text.strip()).strip("*_ \n\t") or text.strip()


_BRACE = re.compile(r"\\boxed\{|[{}]")


def boxed(text: str) -> str | None:
    """Return the content of the last ``\\boxed{...}`` whose braces balance."""
    last: tuple[int, int] | None = None
    pending: list[int] = []  # where the contents of open braces begin; -1 where they are not boxed
    for brace in _BRACE.finditer(text):
        if brace[0] != "}":
            pending.append(brace.end() if len(brace[0]) > 1 else -1)
        elif pending and (start := pending.pop()) > (last[0] if last else -1):
            last = start, brace.start()
    return text[slice(*last)] if last else None
