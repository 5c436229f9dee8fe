"""Train, validation and test tasks, and the check that they are disjoint.

Two tasks are the same problem if they have the same id, or the same text after normalisation.
Normalisation ignores Unicode form, case, white space, typographic quotes and dashes and punctuation
at the end, and nothing else: ``3 + 4`` and ``3 - 4`` are two problems.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flowright.core.errors import DataError
from flowright.data.contamination import folded
from flowright.data.sources.programs import mbpp_description
from flowright.data.task import Problem

_ASCII = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "−": "-"})


@dataclass(frozen=True, slots=True)
class Splits:
    """The three task lists of a run; see :func:`check_disjoint`."""

    train: tuple[Problem, ...]
    val: tuple[Problem, ...]
    test: tuple[Problem, ...]


def normalise(text: str) -> str:
    """The text with everything removed that does not make two problems different; idempotent, in
    time that is linear in it."""
    return folded(text).translate(_ASCII).rstrip(" .?!:;,")


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
        found = self.find(task)
        if found is None:
            self._first[task.id] = self._first[problem_key(task)] = task
        return found

    def find(self, task: Problem) -> Problem | None:
        """The task met before that is the same problem."""
        return self._first.get(task.id) or self._first.get(problem_key(task))


def check_disjoint(splits: Splits) -> None:
    """Raise DataError if a problem occurs in two of the splits."""
    problems = []
    for name, other in (("train", "val"), ("train", "test"), ("val", "test")):
        seen = Seen(getattr(splits, other))
        tasks = getattr(splits, name)
        pairs = [f"{task.id} = {found.id}" for task in tasks if (found := seen.find(task))]
        if pairs:
            problems.append(
                f"{name} and {other} share {len(pairs)} problems ({', '.join(pairs[:3])}): "
                f"take them out of {name} or make both with scripts/create_mixed_dataset.py"
            )
    if problems:
        raise DataError(*problems)
