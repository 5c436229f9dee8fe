"""Which of the labelled choices an answer picks."""

import re
from collections.abc import Sequence
from itertools import islice

from flowright.grading.text import bare, exact_match, tokens

Choices = Sequence[tuple[str, str]]

_NAMED = r"(?:(?:option|choice|answer)\s+)?[(\[]?([A-Z0-9])[)\]]?"
_LABEL = re.compile(rf"{_NAMED}\s*[.:)]?", re.IGNORECASE)
_LABELLED = re.compile(
    rf"{_NAMED}(?:[.:,]?\s+[-‐-―−]+\s+|[).:,]{{1,2}}\s+|\s+(?=because\b|since\b))(\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_MARKS = re.compile(r"\\(?:text|textbf|mathbf|mathrm)\s?\{([^{}]{0,500})\}|[*_`$]")
_TAKEN_BACK = re.compile(
    r"\b(?:wrong|incorrect|false|maybe|perhaps|possibly|either|both|isn't|actually)\b",
    re.IGNORECASE,
)
_DENIAL = {"not", "or", "no", "nor"}
_WORD = re.compile(r"\w+")


def chosen_label(answer: str, choices: Choices) -> str | None:
    """The label that an answer picks: ``B``, ``(B)``, ``Option B``, ``B. text``, ``B, because ..``,
    or the text of one choice alone. None where it picks none, a label with the text of another, or
    takes it back, and where it is longer than
    :data:`_LONGEST`: that is prose."""
    labels = {label.upper(): label for label, _ in choices}
    if len(answer) > _LONGEST:
        return None
    answer = bare(_MARKS.sub(lambda mark: mark[1] or "", answer))
    alone = _LABEL.fullmatch(answer)
    if alone and alone[1].upper() in labels:
        return labels[alone[1].upper()]
    both = _LABELLED.fullmatch(answer)
    if both and both[1].upper() in labels:
        label = labels[both[1].upper()]
        return label if _belongs(both[2], label, choices) else None
    named = {label for label, text in choices if exact_match(answer, text)}
    return named.pop() if len(named) == 1 else None


_LONGEST = 2_000  # characters of a choice and of what is said about it


def _belongs(rest: str, label: str, choices: Choices) -> bool:
    """Whether what follows a label is its text or a remark, and names no other choice."""
    named = {other for other, text in choices if exact_match(rest, text)}
    if named:
        return label in named
    said = f" {' '.join(tokens(rest))} "
    texts = {other: f" {' '.join(tokens(text))} " in said for other, text in choices}
    others = [re.escape(other) for other, _ in choices if other not in (label, "A", "I")]
    by_label = others and re.search(rf"\b(?:{'|'.join(others)})\b(?!['’])|\(A\)", rest)
    by_text = not texts[label] and any(texts.values())
    first = {word[0].lower() for word in islice(_WORD.finditer(rest), 3)}
    return not (first & _DENIAL or _TAKEN_BACK.search(rest) or by_label or by_text)
