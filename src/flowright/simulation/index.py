"""Which task a prompt is about: rare word shingles of the question, looked up in one pass.

A prompt may quote the problem anywhere, with other text around it, cut in the middle or without
its context. No understanding: a paraphrase is an unknown question.
"""

from collections.abc import Iterable, Sequence

from flowright.data.task import Problem

_SHINGLE = 4  # words
_CONTEXT_SHINGLES = 48  # of a task's context and choices, evenly spaced: they only break ties
_MIN_SHARE = 0.5  # of the question's shingles, weighted by rarity, that must be found
_COMMON = 16  # a shingle of more questions than this is boilerplate of a source
_EDGE = "\"'`.,;:!?*_~#<>|()[]{}"


def words(text: str) -> list[str]:
    """Lower-case words without the punctuation around them; a bare operator is a word."""
    return [word.strip(_EDGE) or word for word in text.lower().split()]


class TaskIndex:
    """Finds the task that a prompt quotes, in time linear in the prompt. Built once."""

    def __init__(self, tasks: Sequence[Problem]) -> None:
        self.tasks = tuple(tasks)
        self._owners: dict[tuple[str, ...], list[int]] = {}
        self._context_owners: dict[tuple[str, ...], list[int]] = {}
        self._short: dict[tuple[str, ...], list[int]] = {}
        own: list[set[tuple[str, ...]]] = []
        for number, task in enumerate(self.tasks):
            tokens = words(task.question)
            own.append(_shingles(tokens))
            if not own[number]:
                self._short.setdefault(tuple(tokens), []).append(number)
            for shingle in own[number]:
                self._owners.setdefault(shingle, []).append(number)
            context = sorted(_shingles(words(_context(task))) - own[number])
            step = max(1, len(context) // _CONTEXT_SHINGLES)
            for shingle in context[::step][:_CONTEXT_SHINGLES]:
                self._context_owners.setdefault(shingle, []).append(number)
        self._weight = {s: 1.0 / len(o) for s, o in self._owners.items() if len(o) <= _COMMON}
        for shingles in own:  # a question that many tasks ask, each of another context
            if not any(shingle in self._weight for shingle in shingles):
                self._weight.update((s, 1.0 / len(self._owners[s])) for s in shingles)
        self._total = [sum(self._weight.get(s, 0.0) for s in shingles) for shingles in own]

    def find(self, prompt: str) -> Problem | None:
        """The task whose question is in the prompt, at least half of it; None if there is none."""
        asked = words(prompt)
        shingles = _shingles(asked)
        scores: dict[int, float] = {}
        for shingle in self._weight.keys() & shingles:
            weight = self._weight[shingle]
            for number in self._owners[shingle]:
                scores[number] = scores.get(number, 0.0) + weight / self._total[number]
        likely = {number: score for number, score in scores.items() if score > _MIN_SHARE - 1e-6}
        if not likely and self._short:
            likely = dict.fromkeys(self._find_short(asked), 1.0)
        if not likely:
            return None
        if len(likely) > 1:
            verbatim = {n: s for n, s in likely.items() if self.tasks[n].problem in prompt}
            likely = verbatim or likely
            for shingle in self._context_owners.keys() & shingles:
                for number in self._context_owners[shingle]:
                    if number in likely:
                        likely[number] += 1.0 / _CONTEXT_SHINGLES
        # Rounded: the order in which a set is summed differs from process to process.
        best = max(likely, key=lambda number: (round(likely[number], 6), self.tasks[number].id))
        return self.tasks[best]

    def _find_short(self, asked: Sequence[str]) -> list[int]:
        for length in range(_SHINGLE - 1, 0, -1):
            for window in zip(*(asked[i:] for i in range(length)), strict=False):
                if window in self._short:
                    return self._short[window]
        return []


def _context(task: Problem) -> str:
    """What tells tasks with the same question apart."""
    return "\n".join([*(f"{label}. {text}" for label, text in task.choices), task.context or ""])


def _shingles(tokens: Sequence[str]) -> set[tuple[str, ...]]:
    return set(zip(*(tokens[i:] for i in range(_SHINGLE)), strict=False))


def without(prompt: str, task: Problem) -> str:
    """The prompt without the problem's own text, so that its words are not taken for cues."""
    for part in _parts(task):
        if len(part) > 3:
            prompt = prompt.replace(part, " … ")
    return prompt


def _parts(task: Problem) -> Iterable[str]:
    yield task.problem
    yield task.question
    if task.context:
        yield task.context
    for label, text in task.choices:
        yield f"{label}. {text}"
    # A question that was re-wrapped or cut: line by line.
    yield from (line for line in task.question.splitlines() if len(line) > 30)
