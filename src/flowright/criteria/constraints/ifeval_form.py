"""IFEval's checkers of form: what an answer holds, starts and ends with, and consists of."""

import json
import re
from collections.abc import Iterator

from flowright.criteria.constraints.table import Arguments, CheckerTable, Met, compiled

# As with ``^\s*``, whose white space crosses lines: the last of those lines is what is found.
_STARS = re.compile(r"^[^\S\n]*\*[^*].*$", re.MULTILINE)


def bullets(text: str) -> int:
    r"""Count the matches of ``^\s*\*[^\*].*$`` and ``^\s*-.*$``, line by line, in linear time."""
    stars = len(_STARS.findall(text)) if "*" in text else 0
    return stars + sum(line.lstrip().startswith("-") for line in text.split("\n"))


def titles(text: str) -> Iterator[str]:
    r"""Yield the matches of ``<<[^\n]+>>`` in linear time: from a line's first ``<<`` to its last
    ``>>``."""
    if "<<" not in text:
        return
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if start >= 0 and end > start + 2:
            yield line[start : end + 2]


def bracketed(text: str) -> Iterator[str]:
    r"""Yield the insides of the matches of ``\[.*?\]`` in linear time: from a ``[`` to the next
    ``]`` of its line."""
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


TABLE = CheckerTable()

_DIVIDER = re.compile(r"\s?\*\*\*\s?")
_DIVIDER_LINE = re.compile(r"^[ \t]*\*\*\*[ \t]*$", re.MULTILINE)
_SINGLE = re.compile(r"\*[^\n*]*\*")
_DOUBLE = re.compile(r"\*\*[^\n*]*\*\*")
_HIGHLIGHT = re.compile(r"(?<!\*)(\*{1,3})([^\n*]+)\1(?!\*)")
_BULLET = re.compile(r"^[ \t]*[*-][ \t]+\S", re.MULTILINE)
_RULE = re.compile(r"^[ \t]*(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,})$", re.MULTILINE)
_TITLE = re.compile(r"<<(?=[^\S\n]*[^\s<>])[^\n<>]+>>")
_POSTSCRIPTS = {
    "P.P.S": re.compile(r"p\.\s?p\.\s?s"),
    "P.S.": re.compile(r"p\.\s?s\."),
}
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_FENCES = ("```json", "```Json", "```JSON", "```")


@TABLE.plain("punctuation:no_comma")
def _no_comma(text: str) -> bool:
    return "," not in text


# What it holds.


@TABLE.add("detectable_content:number_placeholders")
def _placeholders(arguments: Arguments) -> Met:
    least = arguments.whole("num_placeholders")
    return lambda text: sum(1 for _ in bracketed(text)) >= least


@TABLE.fix("detectable_content:number_placeholders", "[] and [ ] are placeholders")
def _named_placeholders(arguments: Arguments) -> Met:
    least = arguments.whole("num_placeholders")
    return lambda text: sum(1 for inside in bracketed(text) if inside.strip()) >= least


@TABLE.add("detectable_content:postscript")
def _postscript(arguments: Arguments) -> Met:
    marker = arguments.text("postscript_marker").strip()
    pattern = _POSTSCRIPTS.get(marker) or compiled(marker.lower(), re.NOFLAG)
    return lambda text: pattern.search(text.lower()) is not None


@TABLE.fix("detectable_content:postscript", "finds the marker amid a line, and P.P.S for P.S.")
def _postscript_line(arguments: Arguments) -> Met:
    letters = re.findall(r"\w", arguments.text("postscript_marker"))
    marker = r"\.[^\S\n]?".join(map(re.escape, letters))
    pattern = re.compile(rf"^[^\w\n]*{marker}(?!\w)", re.IGNORECASE | re.MULTILINE)
    return lambda text: pattern.search(text) is not None


# What it consists of.


@TABLE.add("detectable_format:number_bullet_lists")
def _bullets(arguments: Arguments) -> Met:
    count = arguments.whole("num_bullets")
    return lambda text: bullets(text) == count


@TABLE.fix("detectable_format:number_bullet_lists", "a rule (---) and -5 degrees are bullets")
def _spaced_bullets(arguments: Arguments) -> Met:
    count = arguments.whole("num_bullets")
    return lambda text: sum(1 for _ in _BULLET.finditer(_RULE.sub("", text))) == count


@TABLE.plain("detectable_format:constrained_response")
def _constrained(text: str) -> bool:
    return any(answer in text for answer in _ANSWERS)


@TABLE.plain_fix("detectable_format:constrained_response", "an answer that gives all three passes")
def _constrained_to_one(text: str) -> bool:
    return sum(answer in text for answer in _ANSWERS) == 1


@TABLE.add("detectable_format:number_highlighted_sections")
def _highlights(arguments: Arguments) -> Met:
    least = arguments.whole("num_highlights")

    def met(text: str) -> bool:
        single = sum(1 for found in _SINGLE.finditer(text) if found[0].strip("*").strip())
        double = sum(1 for found in _DOUBLE.finditer(text) if found[0][2:-2].strip())
        return single + double >= least

    return met


@TABLE.fix("detectable_format:number_highlighted_sections", "counts ***one*** twice, and what "
           "stands between the stars of two bullets")  # fmt: skip
def _whole_highlights(arguments: Arguments) -> Met:
    least = arguments.whole("num_highlights")

    def met(text: str) -> bool:
        marked = (
            inside
            for found in _HIGHLIGHT.finditer(text)
            if (inside := found[2]) and not (inside[0].isspace() or inside[-1].isspace())
        )
        return sum(1 for _ in marked) >= least

    return met


@TABLE.add("detectable_format:multiple_sections")
def _sections(arguments: Arguments) -> Met:
    least = arguments.whole("num_sections")
    heading = compiled(arguments.text("section_spliter").strip() + r"\s?\d+", re.NOFLAG)
    return lambda text: sum(1 for _ in heading.finditer(text)) >= least


@TABLE.fix("detectable_format:multiple_sections", "counts a section that is referred to as another")
def _headed_sections(arguments: Arguments) -> Met:
    least = arguments.whole("num_sections")
    name = re.escape(arguments.text("section_spliter").strip())
    heading = re.compile(rf"^[^\w\n]*{name}[^\S\n]?(\d+)", re.IGNORECASE | re.MULTILINE)
    return lambda text: len({found[1] for found in heading.finditer(text)}) >= least


@TABLE.add("length_constraints:number_paragraphs")
def _paragraphs(arguments: Arguments) -> Met:
    count = arguments.whole("num_paragraphs")
    return lambda text: _between(_divided(_DIVIDER, text)) == count


@TABLE.fix("length_constraints:number_paragraphs", "the stars of ***bold italics*** divide")
def _divided_paragraphs(arguments: Arguments) -> Met:
    count = arguments.whole("num_paragraphs")
    return lambda text: _between(_divided(_DIVIDER_LINE, text)) == count


def _divided(divider: re.Pattern[str], text: str) -> list[str]:
    return divider.split(text) if "***" in text else [text]


def _between(paragraphs: list[str]) -> int | None:
    """Count the parts; None if one other than the first and the last is empty."""
    if not all(paragraph.strip() for paragraph in paragraphs[1:-1]):
        return None
    return sum(1 for paragraph in paragraphs if paragraph.strip())


@TABLE.plain("detectable_format:title")
def _title(text: str) -> bool:
    return any(title.lstrip("<").rstrip(">").strip() for title in titles(text))


@TABLE.plain_fix("detectable_format:title", "<<a> and > b>> is one title")
def _closed_title(text: str) -> bool:
    return any(_TITLE.search(line) for line in text.split("\n"))


def _json(text: str) -> object:
    """Raises ValueError, and RecursionError for what nests without end."""
    text = text.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    return json.loads(text.removesuffix("```").strip())


@TABLE.plain("detectable_format:json_format")
def _is_json(text: str) -> bool:
    try:
        _json(text)
    except (ValueError, RecursionError):
        return False
    return True


@TABLE.plain_fix("detectable_format:json_format", "a number or a quoted text is JSON")
def _is_json_value(text: str) -> bool:
    try:
        return isinstance(_json(text), dict | list)
    except (ValueError, RecursionError):
        return False


# Combinations, starts and ends.


@TABLE.plain("combination:two_responses")
def _two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    full = [part for part in parts if part]
    return all(parts[1:-1]) and len(full) == 2 and full[0] != full[1]


@TABLE.add("combination:repeat_prompt")
def _repeats(arguments: Arguments) -> Met:
    repeated = arguments.text("prompt_to_repeat").strip().lower()
    return lambda text: text.strip().lower().startswith(repeated)


@TABLE.add("startend:end_checker")
def _ends(arguments: Arguments) -> Met:
    phrase = arguments.text("end_phrase").strip().lower()
    return lambda text: text.strip().strip('"').lower().endswith(phrase)


@TABLE.plain("startend:quotation")
def _quoted(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'
