"""Untrusted text in prompts: fences that it cannot close, sanitising, fields filled in once.

Untrusted is all that this package did not write: problems, answers, replies of models.
"""

import re
from collections.abc import Iterable
from typing import Literal

from flowright.llm.control_tokens import broken

Mark = Literal["`", "~"]
"""The character of a fence: backticks as in Markdown, or tildes, which hardly any text holds."""

LEAST: dict[Mark, int] = {"`": 3, "~": 5}
"""The shortest fence."""

_LOOKALIKES = "～∼〜˜⁓∽〰"  # full-width tilde, tilde operator, wave dash, small tilde, swung dash
# What takes no room of its own, so that a run with it inside looks like the run without it:
# combining marks, variation selectors, zero-width characters.
_HIDDEN = (
    "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f"
    "\U000e0100-\U000e01ef\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f"
    "\u3164\ufff9-\ufffb"
)
_MARKS: dict[Mark, str] = {"`": "`｀", "~": f"~{_LOOKALIKES}"}
_RUNS = {m: re.compile(f"[{any_}](?:[{_HIDDEN}]*[{any_}])*") for m, any_ in _MARKS.items()}
_HIDDEN_ONE = re.compile(f"[{_HIDDEN}]")
_MAX_RUN = 32


def fence_for(texts: Iterable[str], mark: Mark = "`") -> str:
    """Return a fence longer than any run of its mark, or of lookalikes, in the texts."""
    found = (run[0] for text in texts for run in _RUNS[mark].finditer(text))
    longest = max((len(_HIDDEN_ONE.sub("", run)) for run in found), default=0)
    return mark * max(LEAST[mark], longest + 1)


def fenced(text: str, info: str = "", fence: str | None = None) -> str:
    """Return ``text`` between two lines of a fence that it cannot close; ``info`` (a language, a
    title) follows the first."""
    fence = fence or fence_for([text])
    return f"{fence}{info}\n{text}\n{fence}"


def without_echoes(text: str, mark: Mark = "~") -> str:
    """Return the lines outside fences, with a rule in the place of each block, so that its lead-in
    does not run on into the next text. An unclosed fence is dropped to the end."""
    kept: list[str] = []
    open_fence = 0
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        run = len(bare) - len(bare.lstrip(mark))
        if open_fence:
            if run >= open_fence and run == len(bare):
                open_fence = 0
                kept.append("---\n" if kept else "")
        elif run >= LEAST[mark]:
            open_fence = run
        else:
            kept.append(line)
    return "".join(kept)


_FIELD = re.compile(r"\{([a-z_]+)\}")


def fill(template: str, **values: str) -> str:
    """Fill the ``{name}`` fields in one pass; fields inside values are not expanded.

    Raises KeyError for a field without a value.
    """
    return _FIELD.sub(lambda match: values[match[1]], template)


_LINE_BREAKS = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# Controls, bidirectional overrides and the invisible tag characters that can smuggle ASCII.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def sanitise(text: str) -> str:
    """Return untrusted text that cannot act as markup, control token or fence.

    Line breaks become ``\\n``; unseen characters go; lone surrogates, which no request can carry,
    become U+FFFD; a space after its first character breaks a control token such as ``<|im_end|>``,
    which a server would otherwise read as the end of the message; runs of tildes end at 32, and
    what is hidden in them goes, so that no fence grows without bound.
    """
    text = _UNSEEN.sub("", _LINE_BREAKS.sub("\n", text))
    text = broken(_SURROGATE.sub("\ufffd", text))
    return _RUNS["~"].sub(lambda run: _HIDDEN_ONE.sub("", run[0])[:_MAX_RUN], text)
