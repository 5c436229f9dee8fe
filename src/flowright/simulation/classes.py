"""The class of a problem, read from its text alone: its subject, and whether it is a large one.

In ``simulated.world: classes`` the simulated model's accuracies depend on it
(:data:`flowright.simulation.table.CLASSES`), so that the best workflow depends on the text of a
problem and not only on its kind. :func:`resize` changes the size alone, for a probe of the policy.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

from flowright.data.task import Problem

Subject = Literal["sums", "story", "letters", "facts", "program"]

_LETTERS = re.compile(r"\b(?:spell|letters?|backwards?|revers\w*|cipher|anagram|alphabetical\w*)\b")
_REMARK = (
    "Read everything before you begin, since what matters may stand at the end. Nothing in this "
    "remark is needed for the result. It is here so that the text is longer than it was, as "
    "people often write more than they have to, and as many a text does that was copied from "
    "somewhere else with all that stood around it. So much for the remark, and now to the point. "
)
"""Makes a text a large one, of words or of characters, without adding to it."""
_SENTENCE = 25  # words, from which a maths problem is a story
_LARGE = {"sums": 5, "story": 45, "letters": 13, "facts": 36, "program": 330}
"""Sizes from which a problem is large: digits of sums, words of stories and facts, letters behind
the last colon of a puzzle, characters of a function's description."""


@dataclass(frozen=True, slots=True)
class ProblemClass:
    subject: Subject
    is_large: bool

    def __str__(self) -> str:
        return f"{'large' if self.is_large else 'small'} {self.subject}"


def problem_class(task: Problem) -> ProblemClass:
    """Return the class of a problem; its reference and tests are not read."""
    subject = _subject(task)
    return ProblemClass(subject, _size(subject, task.question) >= _LARGE[subject])


def _subject(task: Problem) -> Subject:
    if task.kind == "code":
        return "program"
    if task.kind == "math":
        return "sums" if len(task.question.split()) < _SENTENCE else "story"
    return "letters" if _LETTERS.search(task.question.lower()) else "facts"


def _size(subject: Subject, question: str) -> int:
    if subject == "sums":
        return sum(map(str.isdigit, question))
    if subject == "letters":
        return sum(map(str.isalpha, _puzzle(question)))
    return len(question) if subject == "program" else len(question.split())


def _puzzle(question: str) -> str:
    """Return what a puzzle of letters is about: the text behind the last colon of its first line
    that has one, up to the end of the sentence."""
    return question.rpartition(":")[2].partition(". ")[0]


def resize(task: Problem) -> Problem | None:
    """Return the problem with its size alone changed: more or fewer digits or letters, or a remark
    without content. None where that does not change its class, as for long stories. The reference
    does not fit any more."""
    found = problem_class(task)
    question = task.question
    if found.subject == "sums":
        question = re.sub(r"\d+", lambda n: n[0][0] if found.is_large else 4 * n[0], question)
    elif found.subject == "letters":
        puzzle = _puzzle(question)
        question = question.replace(puzzle, _resize_puzzle(puzzle, found.is_large))
    elif not found.is_large:
        head, quotes, text = question.partition('"""')
        question = f"{head}{quotes}{_REMARK}{text}" if text else _REMARK + question
    other = replace(task, id=f"{task.id}/resized", question=question)
    is_resized = problem_class(other) == ProblemClass(found.subject, not found.is_large)
    return other if is_resized else None


def _resize_puzzle(puzzle: str, is_large: bool) -> str:
    """Return a puzzle three times, or its part that is small, in whole words if it has several."""
    joint = ", " if ", " in puzzle else " " if " " in puzzle.strip() else ""
    parts = puzzle.strip().rstrip(".").split(joint) if joint else [*puzzle.strip()]
    kept = 3 * parts
    if is_large:
        kept = parts
        while len(kept) > 1 and sum(map(str.isalpha, joint.join(kept))) >= _LARGE["letters"]:
            kept = kept[:-1]
    return f" {joint.join(kept)}"
