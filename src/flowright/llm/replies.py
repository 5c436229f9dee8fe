"""Text of model replies: thinking stripped, code, the final answer.

Pure functions in time linear in the text: a model may write anything at any length.
"""

import re

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
    or may be Python, else the whole text. With an ``entry_point``: the last block that defines it,
    else all such blocks together."""
    text = spoken_answer(text)
    programs = [body for language, body in code_blocks(text) if language in _PYTHON]
    if entry_point is not None:
        defines = re.compile(rf"^(?:async )?def {re.escape(entry_point)}\b", re.MULTILINE)
        found = [program for program in programs if defines.search(program)]
        programs = found or ["\n\n".join(programs)] * bool(programs)
    return (programs[-1] if programs else text).strip("\n").rstrip()


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
