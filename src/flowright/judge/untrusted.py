"""Text that this package did not write: how it is fenced, defused and freed of its thinking.

Both directions are here, what goes into a prompt and what comes back in a reply, because the fence
that is put around a text is the one that is looked for in an echo of it.
"""

import re
from collections.abc import Iterable

# Thinking.

THINKING_TAGS = ("think", "thinking", "thought", "reasoning")
_THINKING = re.compile(rf"<(/?)(?:{'|'.join(THINKING_TAGS)})>|\[(/?)THINK\]", re.IGNORECASE)
_OPENS_THINKING = re.compile(
    rf"\s*(?:<(?:{'|'.join(THINKING_TAGS)})>|\[THINK\]|<\|channel\|>)", re.IGNORECASE
)
_CHANNEL = re.compile(r"<\|channel\|>\s?(\w{1,20})[^<]{0,80}<\|message\|>")


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


def spoken_answer(answer: str) -> str:
    """The answer without the thinking it opens with; empty when it never stopped thinking."""
    if not _OPENS_THINKING.match(answer):
        return answer
    return strip_thinking(answer) or ""


# Fences.

FENCE = "~"
MIN_FENCE = 5
"""Foreign text stands between lines of at least this many :data:`FENCE` characters."""

_LOOKALIKES = "～∼〜˜"  # full-width tilde, tilde operator, wave dash, small tilde
_RUN = re.compile(f"[{FENCE}{_LOOKALIKES}]+")
_MAX_RUN = 32


def fence_for(texts: Iterable[str]) -> str:
    """A fence longer than any run of fence characters, or of what looks like them, in the texts."""
    longest = max((len(run[0]) for text in texts for run in _RUN.finditer(text)), default=0)
    return FENCE * max(MIN_FENCE, longest + 1)


def without_echoes(text: str) -> str:
    """The lines outside such fences; all that follows a fence left open is dropped."""
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


# Defusing.

_LINE_BREAKS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# Controls, bidirectional overrides and the invisible tag characters that can smuggle ASCII.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_CHAT_TAGS = (*THINKING_TAGS, "s", "bos", "eos", "pad", "unk", "start_of_turn", "end_of_turn")
_CONTROL_TOKEN = re.compile(
    rf"<(?=[|｜]|/?(?:{'|'.join(_CHAT_TAGS)})>|<SYS>>|</SYS>>)|\[(?=/?(?:INST|THINK)\])",
    re.IGNORECASE,
)


def defuse(text: str) -> str:
    """Foreign text that can't act as anything else.

    Line breaks become ``\\n``; unseen characters go; lone surrogates, which no request can carry,
    become U+FFFD; a space after its first character breaks a control token such as ``<|im_end|>``,
    which a server would otherwise read as the end of the message; runs of fence characters end at
    32, so that no fence grows without bound.
    """
    text = _UNSEEN.sub("", _LINE_BREAKS.sub("\n", text))
    text = _SURROGATE.sub("\ufffd", text)
    text = _CONTROL_TOKEN.sub(lambda token: token[0] + " ", text)
    return _RUN.sub(lambda run: run[0][:_MAX_RUN], text)
