"""Text put into prompts: untrusted text between fences that it cannot close, fields filled in once.

Untrusted is what this package did not write: problems, answers, replies of models. Both directions
of a fence are here, because the one that is put around a text is the one that is looked for in an
echo of it. What a reply says is :mod:`flowright.llm.replies`'s.
"""

import re
from collections.abc import Iterable
from typing import Literal

from flowright.llm.replies import THINKING_TAGS

Mark = Literal["`", "~"]
"""What a fence is made of: backticks as in Markdown, or tildes, which hardly any text holds."""

LEAST: dict[Mark, int] = {"`": 3, "~": 5}
"""How long a fence is at least."""

_LOOKALIKES = "～∼〜˜"  # full-width tilde, tilde operator, wave dash, small tilde
_RUNS: dict[Mark, re.Pattern[str]] = {"`": re.compile("`+"), "~": re.compile(f"[~{_LOOKALIKES}]+")}
_MAX_RUN = 32


def fence_for(texts: Iterable[str], mark: Mark = "`") -> str:
    """A fence longer than any run of its mark, or of what looks like it, in the texts."""
    runs = (len(run[0]) for text in texts for run in _RUNS[mark].finditer(text))
    return mark * max(LEAST[mark], max(runs, default=0) + 1)


def fenced(text: str, info: str = "", fence: str | None = None) -> str:
    """``text`` between two lines of a fence that it cannot close; ``info`` (a language, a title)
    stands behind the first."""
    fence = fence or fence_for([text])
    return f"{fence}{info}\n{text}\n{fence}"


def without_echoes(text: str, mark: Mark = "~") -> str:
    """The lines outside such fences; all that follows a fence left open is dropped."""
    kept: list[str] = []
    open_fence = 0
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        run = len(bare) - len(bare.lstrip(mark))
        if open_fence:
            if run >= open_fence and run == len(bare):
                open_fence = 0
        elif run >= LEAST[mark]:
            open_fence = run
        else:
            kept.append(line)
    return "".join(kept)


_FIELD = re.compile(r"\{([a-z_]+)\}")


def fill(template: str, **values: str) -> str:
    """Put values into ``{name}`` fields, in one pass: what a value contains is never expanded.

    Raises KeyError for a field without a value.
    """
    return _FIELD.sub(lambda match: values[match[1]], template)


_LINE_BREAKS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# Controls, bidirectional overrides and the invisible tag characters that can smuggle ASCII.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_CHAT_TAGS = (*THINKING_TAGS, "s", "bos", "eos", "pad", "unk", "start_of_turn", "end_of_turn")
_CONTROL_TOKEN = re.compile(
    rf"<(?=[|｜]|/?(?:{'|'.join(_CHAT_TAGS)})(?:\s[^<>\n]{{0,200}})?>|<SYS>>|</SYS>>)"
    r"|\[(?=/?(?:INST|THINK)\])|◁(?=/?think▷)",
    re.IGNORECASE,
)


def sanitise(text: str) -> str:
    """Untrusted text that can't act as anything else.

    Line breaks become ``\\n``; unseen characters go; lone surrogates, which no request can carry,
    become U+FFFD; a space after its first character breaks a control token such as ``<|im_end|>``,
    which a server would otherwise read as the end of the message; runs of tildes end at 32, so
    that no fence grows without bound.
    """
    text = _UNSEEN.sub("", _LINE_BREAKS.sub("\n", text))
    text = _SURROGATE.sub("\ufffd", text)
    text = _CONTROL_TOKEN.sub(lambda token: token[0] + " ", text)
    return _RUNS["~"].sub(lambda run: run[0][:_MAX_RUN], text)
