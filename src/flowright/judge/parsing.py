"""Reading a judge's reply: an anchored parser that would rather find no verdict than a wrong one.

The reply is all it reads: what the judge was shown cannot change how its reply is understood. No
prompts and no calls here.

A reply is read in this order. Thinking is cut off; a reply that ends inside its thinking holds no
verdict. Blocks between the fences that the prompt puts around foreign text are an echo of the
prompt and are cut off. Of what is left the last verdict counts, and only where a verdict can
stand: on the last or the first line (text), or as an object alone on its lines or at an end of
the reply (JSON). A last verdict that is not on the menu is a parse error; the parser never goes
back to an earlier one.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Form = Literal["json_schema", "json_object", "text"]
"""How a verdict is asked for: a JSON object held to a schema by the server, a JSON object that the
server only guarantees to be JSON, or a last line in plain text."""

Fault = Literal["empty", "unclosed_thinking", "no_verdict", "off_menu", "misplaced"]

FENCE = "~"
MIN_FENCE = 5
"""Foreign text stands between lines of at least this many :data:`FENCE` characters."""

MAX_READ_CHARS = 16_000
"""Only the end of a longer reply is read; a verdict stands at the end."""

_MAX_REASON_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reply says. ``correct`` is None exactly when ``fault`` says why. ``reason`` is the
    judge's own explanation, or a description of the fault."""

    correct: bool | None
    reason: str
    fault: Fault | None = None

    def __post_init__(self) -> None:
        if (self.correct is None) != (self.fault is not None):
            raise ValueError(f"correct {self.correct} with fault {self.fault}")


def parse_verdict(text: str, form: Form) -> Reading:
    """Read a True/False verdict out of a judge's reply to a request of this form."""
    if not text.strip():
        return _none("empty", "the reply is empty")
    if form != "text" and (whole := _whole_object(text)) is not None:
        return _read_object(whole)
    spoken = strip_thinking(text)
    if spoken is None:
        return _none("unclosed_thinking", "the reply ends inside its thinking")
    spoken = _without_end_tokens(_without_echoes(spoken))[-MAX_READ_CHARS:].strip()
    if not spoken:
        return _none("empty", "nothing is left of the reply without thinking and echoes")
    return _read_text(spoken) if form == "text" else _read_json(spoken)


# Thinking.

THINKING_TAGS = ("think", "thinking", "thought", "reasoning")
_THINKING = re.compile(rf"<(/?)(?:{'|'.join(THINKING_TAGS)})>|\[(/?)THINK\]", re.IGNORECASE)
_CHANNEL = re.compile(r"<\|channel\|>\s?(\w{1,20})[^<]{0,80}<\|message\|>")
_END_TOKEN = re.compile(r"(?:<\|\w{1,20}\|>|</s>)\Z")


def strip_thinking(text: str) -> str | None:
    """The text without its thinking blocks; None when it ends inside one.

    Knows tags such as ``<think>``, also without an opening tag (chat templates that put it into
    the prompt), and the raw channels of GPT-OSS, of which the final one counts.
    """
    channels = list(_CHANNEL.finditer(text))
    if channels:
        if channels[-1][1] != "final":
            return None
        text = text[channels[-1].end() :]
    kept: list[str] = []
    position = 0
    inside = False
    for tag in _THINKING.finditer(text):
        closing = bool(tag[1] or tag[2])
        if closing:
            if not inside:
                kept.clear()
            inside = False
            position = tag.end()
        elif not inside:
            kept.append(text[position : tag.start()])
            inside = True
    return None if inside else "".join(kept) + text[position:]


def _without_end_tokens(text: str) -> str:
    text = text.rstrip()
    while token := _END_TOKEN.search(text, max(0, len(text) - 24)):
        text = text[: token.start()].rstrip()
    return text


def _without_echoes(text: str) -> str:
    """The lines outside the prompt's fences; all that follows a fence left open is dropped."""
    kept: list[str] = []
    open_fence = 0
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        run = len(bare) - len(bare.lstrip(FENCE))
        if open_fence:
            if run >= open_fence and run == len(bare):
                open_fence = 0
        elif run >= MIN_FENCE:
            open_fence = run
        else:
            kept.append(line)
    return "".join(kept)


# Plain text.

_LEAD = r"(?:#{1,6}\s+|[-*+]\s+|\d{1,2}[.)]\s+)?"
_WRAP = r"[*_`\"'“”‘’]*"
_KEY_LINE = re.compile(rf"{_LEAD}{_WRAP}\s*(?:final\s+)?verdict\s*{_WRAP}\s*:(.*)", re.IGNORECASE)
_MENU_ECHO = re.compile(
    rf"[<\[({{]?\s*{_WRAP}true{_WRAP}\s*(?:\||/|or)\s*{_WRAP}false{_WRAP}\s*[>\])}}]?",
    re.IGNORECASE,
)
_FENCE_LINE = re.compile(r"`{3,}\s*\w*")
_WRAPPING = " \t*_`\"'“”‘’"


def _read_text(text: str) -> Reading:
    lines = [_folded(line) for line in text.splitlines()]
    lines = [line for line in lines if line and not _FENCE_LINE.fullmatch(line)]
    marked = [(i, value) for i, line in enumerate(lines) if (value := _after_key(line)) is not None]
    # The request's own `Verdict: True|False`, repeated, is not a verdict.
    echoes = {i for i, value in marked if len(value) < 40 and _MENU_ECHO.fullmatch(value)}
    marked = [(i, value) for i, value in marked if i not in echoes]
    if not marked:
        return _none("no_verdict", "no line begins with 'Verdict:'")
    first = last = marked[-1][0]
    value = marked[-1][1]
    if not value and last + 1 < len(lines):
        last += 1
        value = lines[last]
    below = [line for i, line in enumerate(lines) if i > last and i not in echoes]
    above = [line for i, line in enumerate(lines) if i < first and i not in echoes]
    if below and above:
        return _none("misplaced", "text stands before and after the line with the verdict")
    correct = _menu_word(value)
    if correct is None:
        return _none("off_menu", f"the verdict is {value[:80]!r}, not True or False")
    return Reading(correct, _shortened("\n".join(above or below)))


def _folded(line: str) -> str:
    """Full-width letters and colons as their plain forms."""
    return unicodedata.normalize("NFKC", line).strip()


def _after_key(line: str) -> str | None:
    match = _KEY_LINE.fullmatch(line)
    return match[1].strip(_WRAPPING) if match else None


def _menu_word(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    word = _folded(value).strip(_WRAPPING).rstrip(".!。").strip(_WRAPPING).casefold()
    return {"true": True, "false": False}.get(word)


# JSON.

_DECODER = json.JSONDecoder(strict=False)
_BACKTICKS = re.compile(r"`{3,}(?:json)?|`", re.IGNORECASE)


def _read_json(text: str) -> Reading:
    found = [span for span in _objects(text) if _verdict_key(span[2]) is not None]
    if not found:
        return _none("no_verdict", "no JSON object with the key 'verdict'")
    start, end, value = found[-1]
    before, after = text[:start], text[end:]
    if '"verdict"' in after.casefold():
        return _none("misplaced", "a broken object follows the last whole one")
    alone = _blank(before.rpartition("\n")[2]) and _blank(after.partition("\n")[0])
    if not (alone or _blank(before) or _blank(after)):
        return _none("misplaced", "the object stands inside a sentence")
    return _read_object(value)


def _read_object(value: dict[str, Any]) -> Reading:
    key = _verdict_key(value)
    if key is None:
        return _none("no_verdict", "the JSON object has no key 'verdict'")
    correct = _menu_word(value[key])
    if correct is None:
        return _none("off_menu", f"the verdict is {str(value[key])[:80]!r}, not true or false")
    reason = value.get("reason", "")
    return Reading(correct, _shortened(reason) if isinstance(reason, str) else "")


def _verdict_key(value: dict[str, Any]) -> str | None:
    return next((key for key in reversed(value) if key.strip().casefold() == "verdict"), None)


def _blank(text: str) -> bool:
    """Whether a text holds nothing but the marks of a code fence."""
    return not _BACKTICKS.sub("", text).strip()


def _whole_object(text: str) -> dict[str, Any] | None:
    """The object that the whole text is, with no thinking or chatter around it."""
    stripped = text.strip().removeprefix("\ufeff")
    decoded = _decode(stripped, 0)
    return decoded[0] if decoded is not None and decoded[1] == len(stripped) else None


def _objects(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """The outermost JSON objects in a text, left to right, with their spans."""
    position = text.find("{")
    while position >= 0:
        decoded = _decode(text, position)
        if decoded is None:
            position = text.find("{", position + 1)
            continue
        value, end = decoded
        yield position, end, value
        position = text.find("{", end)


def _decode(text: str, start: int) -> tuple[dict[str, Any], int] | None:
    if not text.startswith("{", start):
        return None
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _none(fault: Fault, reason: str) -> Reading:
    return Reading(None, reason, fault)


def _shortened(text: str) -> str:
    text = text.strip().encode("utf-8", "replace").decode()  # JSON can hold lone surrogates
    return text if len(text) <= _MAX_REASON_CHARS else text[: _MAX_REASON_CHARS - 1] + "…"
