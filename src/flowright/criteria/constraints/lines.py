"""Searches in lines, each the same as a regular expression that would take quadratic time."""

import re
from collections.abc import Iterator

# As with ``^\s*``, whose white space crosses lines: the last of those lines is what is found.
_STARS = re.compile(r"^[^\S\n]*\*[^*].*$", re.MULTILINE)


def bullets(text: str) -> int:
    """How often ``^\\s*\\*[^\\*].*$`` and ``^\\s*-.*$`` are found, line by line."""
    stars = len(_STARS.findall(text)) if "*" in text else 0
    return stars + sum(line.lstrip().startswith("-") for line in text.split("\n"))


def titles(text: str) -> Iterator[str]:
    """What ``<<[^\\n]+>>`` finds: from a line's first ``<<`` to its last ``>>``."""
    if "<<" not in text:
        return
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if start >= 0 and end > start + 2:
            yield line[start : end + 2]


def bracketed(text: str) -> Iterator[str]:
    """What ``\\[.*?\\]`` finds: from a ``[`` to the next ``]`` of its line, less both."""
    if "[" not in text:
        return
    for line in text.split("\n"):
        start = line.find("[")
        while start >= 0:
            end = line.find("]", start)
            if end < 0:
                break
            yield line[start + 1 : end]
            start = line.find("[", end)
