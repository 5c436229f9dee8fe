"""Text that a policy or a model wrote, made safe to look at. No HTML escaping here (see markup).

Such text can hold terminal escape sequences, characters that reorder or hide what follows them,
and halves of surrogate pairs that no file accepts. They are shown, not obeyed and not dropped: a
reader should see what the policy tried.
"""

import re

# Soft hyphen, zero-width and direction marks, line and paragraph separators, byte-order mark,
# surrogates, variation selectors' supplement and the tag characters. The joiners U+200C and
# U+200D stay: several scripts and emoji need them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


def visible(text: object) -> str:
    """``text`` with everything that a screen would obey or hide spelt out; tabs become spaces."""
    plain = str(text).replace("\r\n", "\n").expandtabs(4)
    return _HIDDEN.sub(_spell, plain)


def one_line(text: object, limit: int = 200) -> str:
    """The text as a single visible line of at most ``limit`` characters."""
    line = visible(" ".join(str(text)[: 4 * limit].split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def cut(text: object, limit: int) -> str:
    """At most ``limit`` characters of a text, its middle left out and the loss named."""
    whole = str(text)
    if len(whole) <= limit:
        return whole
    head, tail = limit * 2 // 3, limit // 3
    left_out = len(whole) - head - tail
    return f"{whole[:head]}\n[… {left_out:,} characters left out here …]\n{whole[-tail:]}"


def _spell(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)  # the control pictures: ␛ for escape
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{{{code:x}}}"
