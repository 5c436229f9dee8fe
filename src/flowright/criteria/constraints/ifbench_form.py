"""IFBench's checkers of form: brackets, quotes, lists, lines and templates."""

import re
from collections import defaultdict, deque
from itertools import pairwise

from flowright.criteria.constraints.ifbench_counts import trimmed
from flowright.criteria.constraints.language import (
    MARKS,
    is_emoji,
    sentences,
    tokens,
    without_punctuation,
)
from flowright.criteria.constraints.table import Arguments, CheckerTable, Met

TABLE = CheckerTable()

_CLOSED_BY = {"(": ")", "[": "]", "{": "}"}
_DEEPEST_BRACKETS, _DEEPEST_QUOTES = 5, 3
_DIGITS_AND_MARKS = "0123456789" + MARKS.replace('"', "")
_CURLY = str.maketrans("“”", '""')
_LETTERED = re.compile(r"\W*[aA]\W*[bB]\W*[cC]")
_OR = re.compile(r"\bor\b")
_TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")


# Brackets and quotes.


@TABLE.plain("format:parentheses")
def _nested(text: str) -> bool:
    levels: list[str] = []
    deepest = 0
    for mark in text:
        if mark in _CLOSED_BY:
            levels.append(_CLOSED_BY[mark])
            deepest = max(deepest, len(levels))
        elif mark in ")]}":
            if not levels or levels.pop() != mark:
                levels, deepest = [], 0
            elif deepest >= _DEEPEST_BRACKETS:
                return True
    return False


@TABLE.plain("format:quotes")
def _nested_quotes(text: str) -> bool:
    levels: list[str] = []
    deepest = 0
    for mark in text:
        if levels and mark == levels[-1]:
            levels.pop()
            if deepest - len(levels) >= _DEEPEST_QUOTES:
                return True
        elif mark in ('"', "'"):
            levels.append(mark)
            deepest = max(deepest, len(levels))
    return False


def _explained(text: str) -> bool:
    text = "".join(text.replace("'\"'", "").split())
    return '""' not in text and not text.strip(_DIGITS_AND_MARKS).endswith('"')


TABLE.plain("format:quote_unquote")(_explained)


@TABLE.plain_fix("format:quote_unquote", "curly quotes quote nothing")
def _explained_curly(text: str) -> bool:
    return _explained(text.translate(_CURLY))


# Choices and templates.


def _options(arguments: Arguments, either: re.Pattern[str]) -> Met:
    given = arguments.text("options")
    parts = given.split("/") if "/" in given else either.split(given)
    if len(parts) == 1:
        parts = given.split(",")
    exact = [part.strip() for part in parts]
    if _LETTERED.match(given):
        return lambda text: text in exact
    loose = {trimmed(option).lower() for option in exact}
    return lambda text: trimmed(text).lower() in loose


@TABLE.add("format:options")
def _one_option(arguments: Arguments) -> Met:
    return _options(arguments, re.compile("or"))


@TABLE.fix("format:options", "options are parted by the or within their words, such as color")
def _one_whole_option(arguments: Arguments) -> Met:
    return _options(arguments, _OR)


@TABLE.plain("format:output_template")
def _template(text: str) -> bool:
    return all(heading in text for heading in _TEMPLATE)


@TABLE.plain_fix("format:output_template", "the headings may stand in any order")
def _ordered_template(text: str) -> bool:
    places = [text.find(heading) for heading in _TEMPLATE]
    return places[0] >= 0 and places == sorted(places)


@TABLE.plain("format:no_whitespace")
def _no_whitespace(text: str) -> bool:
    return not any(map(str.isspace, text))


@TABLE.plain("format:title_case")
def _title_case(text: str) -> bool:
    for word in tokens(text):
        if word[0].isalpha() and word[0].islower():
            rest = word[1:]
            if not rest or rest.isupper() or rest.islower():
                return False
    return True


# Lines.


@TABLE.plain("format:newline")
def _word_a_line(text: str) -> bool:
    text = without_punctuation(text).strip()
    return sum(1 for line in text.split("\n") if line) == len(text.split())


@TABLE.plain_fix("format:newline", "a line of two words makes up for a line of spaces")
def _one_word_a_line(text: str) -> bool:
    lines = without_punctuation(text).split("\n")
    return all(len(words) < 2 for words in map(str.split, lines))


def _indents(lines: list[str]) -> bool:
    depths = (len(line) - len(line.lstrip(" ")) for line in lines)
    return all(one < other for one, other in pairwise(depths))


@TABLE.plain("format:line_indent")
def _stairs(text: str) -> bool:
    return _indents(_some_blank_lines_removed(text.split("\n")))


@TABLE.plain_fix("format:line_indent", "of blank lines in a row some are taken for stairs")
def _stairs_of_full_lines(text: str) -> bool:
    return _indents([line for line in text.split("\n") if line.strip()])


def _some_blank_lines_removed(lines: list[str]) -> list[str]:
    """Return the list that is left when, in a loop over it, ``lines.remove(line)`` is called for
    each blank line: the first equal line goes, and the loop skips the next one."""
    kept: list[str | None] = []
    blank: dict[str, deque[int]] = defaultdict(deque)  # where they are in kept

    def keep(line: str) -> None:
        if not line.strip():
            blank[line].append(len(kept))
        kept.append(line)

    at = 0
    while at < len(lines):
        line, unseen = lines[at], lines[at + 1 : at + 2]
        at += 1
        if line.strip():
            keep(line)
            continue
        if blank[line]:
            kept[blank[line].popleft()] = None
            keep(line)
        for passed in unseen:
            keep(passed)
        at += len(unseen)
    return [line for line in kept if line is not None]


# Lists.


@TABLE.add("format:list")
def _listed(arguments: Arguments) -> Met:
    separator = arguments.text("sep")
    return lambda text: text.count(separator) >= 2


@TABLE.fix("format:list", "the separator counts anywhere, in a sentence too")
def _listed_by_line(arguments: Arguments) -> Met:
    separator = arguments.text("sep").strip()

    def met(text: str) -> bool:
        return sum(line.strip().startswith(separator) for line in text.split("\n")) >= 2

    return met


@TABLE.plain("format:sub-bullets")
def _sub_bullets(text: str) -> bool:
    return all("-" in part for part in text.split("*")[1:])


@TABLE.plain_fix("format:sub-bullets", "an answer without a bullet passes, and bold text is one")
def _sub_bullets_by_line(text: str) -> bool:
    marks = [line.strip()[:2].rstrip() for line in text.split("\n")]
    points = [mark for mark in marks if mark in ("*", "-")]
    return "*" in points and points[-1] == "-" and ("*", "*") not in pairwise(points)


@TABLE.plain("format:no_bullets_bullets")
def _sentences_then_bullets(text: str) -> bool:
    statements, listed, before = 0, 0, True
    for line in map(str.strip, text.split("\n")):
        if line.startswith("*"):
            before = False
            if statements < 2:
                return False
            listed += 1
        elif before:
            found = len(sentences(line))
            statements, before = statements + found, found > 0
        else:
            return False
    return listed >= 2


@TABLE.plain_fix("format:no_bullets_bullets", "an empty line ends the sentences, and is no bullet; "
                 "sentences need no full stop")  # fmt: skip
def _full_stops_then_bullets(text: str) -> bool:
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    first = next((n for n, line in enumerate(lines) if line.startswith("*")), len(lines))
    statements = sentences(" ".join(lines[:first]))
    listed = lines[first:]
    return (
        sum(sentence.endswith(".") for sentence in statements) >= 2
        and len(listed) >= 2
        and all(line.startswith("*") for line in listed)
    )


@TABLE.plain("format:thesis")
def _thesis(text: str) -> bool:
    start = next((at for tag in ("<i>", "<em>") if (at := text.find(tag)) >= 0), -1)
    if start < 0:
        return False
    text = text[start:]
    end = next((at for tag in ("</i>", "</em>") if (at := text.find(tag)) >= 0), -1)
    return end >= 0 and bool(text[3:end].strip()) and bool(text[end + 4 :].strip())


@TABLE.plain_fix("format:thesis", "of </em> one character is left, which passes for a text")
def _thesis_and_text(text: str) -> bool:
    for tag in ("i", "em"):
        _, opened, rest = text.partition(f"<{tag}>")
        inside, closed, after = rest.partition(f"</{tag}>")
        if opened and closed and inside.strip() and after.strip():
            return True
    return False


# Emoji.


@TABLE.plain("format:emoji")
def _emoji(text: str) -> bool:
    each = [without_punctuation(sentence).strip() for sentence in sentences(text)]
    for sentence, after in zip(each, [*each[1:], None], strict=False):
        if not sentence:
            return False
        if not any(map(is_emoji, sentence[-2:])) and not (after and is_emoji(after[0])):
            return False
    return True
