"""Plausible wrong answers to a task: what a solver who erred might have said. Nothing is graded
here; whoever uses one has it graded first."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence

from flowright.data.task import Problem
from flowright.judge.query import answer_type_of

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SWAPS = (
    ("yes", "no"), ("true", "false"), ("left", "right"), ("north", "south"), ("east", "west"),
    ("before", "after"), ("odd", "even"), ("increase", "decrease"), ("valid", "invalid"),
)  # fmt: skip
# One small slip in a program each; the first that its tests notice is used.
_SLIPS = (
    (" + ", " - "), (" - ", " + "), (" <= ", " < "), (" < ", " <= "), (" >= ", " > "),
    (" > ", " >= "), (" == ", " != "), (" and ", " or "), ("min(", "max("), ("max(", "min("),
    (" * ", " + "), (" % ", " // "), ("True", "False"), ("[0]", "[1]"), ("[1:]", "[2:]"),
    (" + 1", ""), (" - 1", ""), ("*", "+"), ("+", "-"),
)  # fmt: skip
_LAST_RESORT = ("return ", "return not ")


def mistakes(task: Problem, pools: Mapping[tuple[str, str], Sequence[str]], seed: int) -> list[str]:
    """Wrong answers to try, the most plausible first; fixed by the seed and the task."""
    draw = random.Random(f"{seed}/mistakes/{task.id}")
    if task.kind == "code":
        return list(_slips(task.reference, draw))
    if task.reference in dict(task.choices):
        others = [label for label, _ in task.choices if label != task.reference]
        return draw.sample(others, len(others))
    found = [*_opposite(task.reference), *_other_numbers(task.reference, task.question, draw)]
    if answer_type_of(task) not in ("number", "math_expression"):
        pool = [other for other in pools.get(pool_of(task), ()) if other != task.reference]
        pool.sort(key=lambda other: abs(len(other.split()) - len(task.reference.split())))
        near = pool[:40]
        found += draw.sample(near, min(8, len(near)))
        found += _shuffled(task.reference, draw)
    return list(dict.fromkeys(found))


def pool_of(task: Problem) -> tuple[str, str]:
    """Tasks whose answers could be taken for each other's: of one source and one look."""
    reference = task.reference
    look = "digits" if reference[:1].isdigit() else "name" if reference[:1].isupper() else "words"
    return task.source, look


def _slips(code: str, draw: random.Random) -> Iterator[str]:
    for old, new in (*draw.sample(_SLIPS, len(_SLIPS)), _LAST_RESORT):
        places = [match.start() for match in re.finditer(re.escape(old), code)]
        if places:
            place = draw.choice(places)
            yield code[:place] + new + code[place + len(old) :]


def _opposite(reference: str) -> list[str]:
    for pair in _SWAPS:
        for old, new in (pair, pair[::-1]):
            match = re.search(rf"\b{old}\b", reference, re.I)
            if match:
                word = new.capitalize() if match[0][0].isupper() else new
                return [reference[: match.start()] + word + reference[match.end() :]]
    return []


def _other_numbers(reference: str, question: str, draw: random.Random) -> list[str]:
    """The reference with one of its numbers changed as people get numbers wrong: off by one or by
    a step, doubled, halved, two digits exchanged, a number of the question too much or missing."""
    found = list(_NUMBER.finditer(reference))
    if not found:
        return []
    spot = draw.choice(found)
    _, dot, decimals = spot[0].partition(".")
    scale = 10 ** len(decimals)
    value = int(spot[0].replace(".", ""))
    given = [int(n.replace(",", "")) * scale for n in re.findall(r"\d[\d,]*", question)[:6]]
    changed = [value + scale, value - scale, value + 10 * scale, 2 * value, value // 2]
    changed += [value + n for n in given] + [value - n for n in given] + [_exchanged(value)]
    others = [n for n in dict.fromkeys(changed) if n >= 0 and n != value]
    draw.shuffle(others)
    written = [f"{n // scale}.{n % scale:0{len(decimals)}d}" if dot else str(n) for n in others]
    return [reference[: spot.start()] + new + reference[spot.end() :] for new in written]


def _exchanged(value: int) -> int:
    digits = str(value)
    return int(digits[:-2] + digits[-1] + digits[-2]) if len(digits) > 1 else value + 2


def _shuffled(reference: str, draw: random.Random) -> list[str]:
    """Its words, or the letters of its one word, with two neighbours exchanged."""
    words = reference.split()
    parts, glue = (words, " ") if len(words) > 1 else (list(reference), "")
    if len(parts) < 2:
        return []
    place = draw.randrange(len(parts) - 1)
    parts[place], parts[place + 1] = parts[place + 1], parts[place]
    return [glue.join(parts)]
