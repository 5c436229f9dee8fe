"""Text in and out of the large model: fences round foreign text, substitution, extraction.

No prompts of operators here (they stand with their operators), no transport.
"""

import re

_BACKTICKS = re.compile(r"`{3,}")
_FIELD = re.compile(r"\{([a-z_]+)\}")
_BLOCK = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^\n]*\n"
    r"(?P<body>.*?)"
    r"(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_MARKER = re.compile(r"^[ \t>*#_-]*(?:final\s+)?answer[ \t*_]*[:：][ \t*_]*", re.I | re.M)
_THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.I)
_PYTHON = frozenset({"", "python", "python3", "py", "python3.11", "ipython"})


def fenced(text: str, language: str = "") -> str:
    """``text`` between fences that it cannot close: longer than any run of backticks in it."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def fill(template: str, **values: str) -> str:
    """Put values into ``{name}`` fields, in one pass: what a value contains is never expanded.

    Raises KeyError for a field without a value.
    """
    return _FIELD.sub(lambda match: values[match[1]], template)


def without_thinking(text: str) -> str:
    """``text`` less the ``<think>`` blocks that some servers leave in the content."""
    return _THINKING.sub("", text)


def code_blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a reply as pairs of language (lower case) and body, in order. A fence
    that is never closed runs to the end."""
    return [(m["language"].lower(), m["body"]) for m in _BLOCK.finditer(text)]


def extract_code(text: str) -> str:
    """The program in a model's reply: the last fenced block that is or may be Python, else the
    whole text, without surrounding blank lines."""
    text = without_thinking(text)
    bodies = [body for language, body in code_blocks(text) if language in _PYTHON]
    return (bodies[-1] if bodies else text).strip("\n").rstrip()


def final_answer(text: str) -> str:
    """What stands behind the last ``Answer:`` marker of a reply, else the whole reply, stripped."""
    text = without_thinking(text)
    marks = list(_MARKER.finditer(text))
    tail = text[marks[-1].end() :] if marks else text
    return (tail.strip() or text.strip()).strip("*_ \n\t") or text.strip()
