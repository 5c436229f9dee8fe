"""Train, validation and test, and what keeps them apart. No sampling here.

Two tasks are the same problem if they have the same id, or the same text after normalisation.
Normalisation ignores Unicode form, case, white space,
typographic quotes and dashes and punctuation at the end, and nothing else: ``3 + 4`` and ``3 - 4``
are two problems.
"""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flowright.data.sources.programs import mbpp_description
from flowright.data.task import Problem
from flowright.errors import DataError

_ASCII = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "−": "-"})


@dataclass(frozen=True, slots=True)
class Splits:
    """The three task lists of a run. :func:`check_disjoint` says whether they are apart."""

    train: tuple[Problem, ...]
    val: tuple[Problem, ...]
    test: tuple[Problem, ...]


def normalise(text: str) -> str:
    """The text with everything removed that does not make two problems different; idempotent."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    plain = unicodedata.normalize("NFKC", folded).translate(_ASCII)
    return re.sub(r"\s+", " ", plain).strip().rstrip(" .?!:;,")


def whole_problem(task: Problem) -> str:
    """Context, question and choices in any order."""
    choices = sorted(text for _, text in task.choices)
    return "\n".join([task.context or "", task.question, *choices])


# What makes two problems of a source the same, where that is not the whole problem: HotpotQA has
# the same question with other passages, MBPP the same description with another signature.
_IDENTITY: Mapping[str, Callable[[Problem], str]] = {
    "hotpotqa": lambda task: task.question,
    "mbpp": mbpp_description,
}


def problem_key(task: Problem) -> bytes:
    """A hash (16 bytes) of the normalised text that a task is known by."""
    text = _IDENTITY.get(task.source, whole_problem)(task)
    return hashlib.blake2b(normalise(text).encode(), digest_size=16).digest()


class Seen:
    """Problems met so far."""

    def __init__(self, tasks: Iterable[Problem] = ()) -> None:
        self._first: dict[str | bytes, Problem] = {}
        for task in tasks:
            self.meet(task)

    def meet(self, task: Problem) -> Problem | None:
        """The task met before that is the same problem; None, and now it has been met."""
        return self._look(task, remember=True)

    def find(self, task: Problem) -> Problem | None:
        """The task met before that is the same problem."""
        return self._look(task, remember=False)

    def _look(self, task: Problem, *, remember: bool) -> Problem | None:
        key = problem_key(task)
        found = self._first.get(task.id) or self._first.get(key)
        if found is None and remember:
            self._first[task.id] = self._first[key] = task
        return found


def check_disjoint(splits: Splits) -> None:
    """Raise DataError if a problem occurs in two of the splits."""
    problems = []
    named = (("val", splits.val), ("test", splits.test))
    for name, evaluation in named:
        problems += _overlap("train", splits.train, name, evaluation)
    problems += _overlap("val", splits.val, "test", splits.test)
    if problems:
        raise DataError(*problems)


def _overlap(
    name: str, tasks: Sequence[Problem], other_name: str, others: Sequence[Problem]
) -> list[str]:
    seen = Seen(others)
    pairs = [(task, found) for task in tasks if (found := seen.find(task)) is not None]
    if not pairs:
        return []
    shown = ", ".join(f"{task.id} = {found.id}" for task, found in pairs[:3])
    return [
        f"{name} and {other_name} share {len(pairs)} problems ({shown}): "
        f"take them out of {name} or make both with scripts/create_mixed_dataset.py"
    ]
