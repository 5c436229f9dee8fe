"""Answers as values: reading one out of a text, comparing two, and a task's popular wrong ones.

Good enough for the simulator, which knows how its own answers look; ``flowright.grading`` is the
real thing and sits above this layer.
"""

import re
from collections.abc import Sequence
from fractions import Fraction

from flowright.data.task import Problem
from flowright.llm.replies import boxed
from flowright.simulation.draws import unit

_TAGGED = re.compile(r"<(?:final_)?answer>(.*?)</(?:final_)?answer>", re.I | re.S)
_CLOSED = re.compile(r"</(?:final_)?answer>", re.I)
_MARKED = re.compile(r"(?:^|\n)[ \t>*#_-]*(?:final\s+)?answer[ \t*_]*[:：][ \t*_]*(.+)", re.I)
_SAID = re.compile(r"\banswer is:?\s*(.+?)(?:\.\s|\.$|\n|$)", re.I)
_HASHES = re.compile(r"####\s*(.+)")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?|[-+]?\.\d+")
_LABEL = re.compile(r"^\(?([A-Z])(?:\)|[.:]\s|[.:]?$)")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NOT_WORD = re.compile(r"[^\w\s.+/-]")
_SWAPS = (
    ("yes", "no"), ("true", "false"), ("left", "right"), ("knight", "knave"), ("up", "down"),
    ("north", "south"), ("east", "west"), ("before", "after"), ("odd", "even"),
)  # fmt: skip


def _last_closed(text: str) -> int:
    """Where the last tag ends that closes an answer: what opens behind it is never closed."""
    return max((closing.end() for closing in _CLOSED.finditer(text)), default=0)


def final_answer(text: str) -> str:
    """The answer that a reply ends in: boxed, tagged, marked, said, or its last line."""
    if inside := boxed(text):
        return inside.strip()
    for pattern in (_TAGGED, _MARKED, _HASHES, _SAID):
        end = _last_closed(text) if pattern is _TAGGED else len(text)
        if found := pattern.findall(text[:end]):
            return found[-1].strip().strip("*_$ ").rstrip(".")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].strip("*_$ ") if lines else ""


def number(text: str) -> Fraction | None:
    """The last number in a text."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    try:
        return Fraction(found[-1].replace(",", "").replace(" ", ""))
    except (ValueError, ZeroDivisionError):
        return None


def normal_text(text: str) -> str:
    text = _NOT_WORD.sub(" ", text.lower())
    return " ".join(_ARTICLES.sub(" ", text).split()).strip(". ")


def is_number(text: str) -> bool:
    bare = text.strip().strip("$%").replace(" ", "")
    return bool(bare) and _NUMBER.fullmatch(bare) is not None


def same(given: str, references: Sequence[str], choices: Sequence[tuple[str, str]] = ()) -> bool:
    """Whether ``given`` says the same as one of ``references``: number, label, or text."""
    text = normal_text(given)
    for reference in references:
        if text and text == normal_text(reference):
            return True
        if is_number(reference) and number(given) == number(reference):
            return True
    labels = dict(choices)
    if labels and references[0] in labels:
        found = _LABEL.match(given.strip())
        if found:
            return found[1] == references[0]
        return bool(text) and text == normal_text(labels[references[0]])
    return False


def says(text: str, references: Sequence[str], choices: Sequence[tuple[str, str]] = ()) -> bool:
    """Whether a reply ends in one of ``references``, or is one word for word."""
    whole = normal_text(text)
    return same(final_answer(text), references, choices) or (
        bool(whole) and whole in map(normal_text, references)
    )


def right_value(task: Problem, text: str) -> bool:
    """Whether the final answer of a text is the task's."""
    return says(text, (task.reference, *task.alternatives), task.choices)


def wrong_values(task: Problem, pool: Sequence[str], seed: int, count: int) -> tuple[str, ...]:
    """A task's popular wrong answers, the most popular first; fixed by the seed and the task.

    ``pool`` holds answers to other tasks of the same source.
    """
    if task.choices:
        candidates = [label for label, _ in task.choices if label != task.reference]
        candidates.sort(key=lambda label: unit(seed, task.id, "popular", label))
    else:
        candidates = [*_swapped(task.reference), *_perturbed(task, seed)]
        if not is_number(task.reference):
            others = sorted(set(pool), key=lambda other: unit(seed, task.id, "popular", other))
            candidates += others[:12]
    distinct: dict[str, str] = {}
    for candidate in candidates:
        if candidate.strip() and not right_value(task, candidate):
            distinct.setdefault(normal_text(candidate), candidate)
    found = tuple(distinct.values())[:count]
    return found or ("unknown",)


def _swapped(reference: str) -> list[str]:
    """The opposite, where the answer has one."""
    for one, other in _SWAPS:
        pattern = re.compile(rf"\b(?:{one}|{other})", re.I)
        if pattern.search(reference):
            return [pattern.sub(lambda m, a=one, b=other: _swap_word(m[0], a, b), reference, 1)]
    return []


def _swap_word(word: str, one: str, other: str) -> str:
    new = other if word.lower() == one else one
    return new.capitalize() if word[0].isupper() else new


def _perturbed(task: Problem, seed: int) -> list[str]:
    """The reference with one of its numbers changed as people (and models) get numbers wrong; a
    list with two items exchanged."""
    reference = task.reference
    results: list[str] = []
    found = list(re.finditer(r"\d+(?:\.\d+)?", reference))
    if found:
        spot = found[int(unit(seed, task.id, "spot") * len(found))]
        results = [
            reference[: spot.start()] + new + reference[spot.end() :]
            for new in _near(spot[0], task, seed)
        ]
    parts = reference.split(", ")
    if len(parts) > 1:
        for index in range(min(len(parts) - 1, 3)):
            swapped = [*parts]
            swapped[index], swapped[index + 1] = swapped[index + 1], swapped[index]
            results.append(", ".join(swapped))
    return results


def _near(digits: str, task: Problem, seed: int) -> list[str]:
    _, dot, decimals = digits.partition(".")
    step = 10 ** len(decimals)
    value = int(digits.replace(".", ""))
    others = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", task.question)][:6]
    changes = [value + step, value - step, value * 2, value + 10 * step, value - 10 * step]
    changes += [value // 2, value + 2 * step, *(value + step * n for n in others)]
    changes += [value - step * n for n in others] + [int(str(value)[::-1])]
    distinct = [n for n in dict.fromkeys(changes) if n >= 0 and n != value]
    distinct.sort(key=lambda n: unit(seed, task.id, "near", n))
    return [f"{n // step}.{n % step:0{len(decimals)}d}" if dot else str(n) for n in distinct[:6]]
