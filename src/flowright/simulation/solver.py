"""The large model: a reply to a prompt that has been understood, right or wrong by the table."""

from collections import Counter
from functools import lru_cache

from flowright.data.task import Problem
from flowright.llm.replies import extract_code
from flowright.simulation import phrasing
from flowright.simulation.cues import Ask, objects
from flowright.simulation.draws import Draws, normal
from flowright.simulation.mutants import WrongSolutions, shape
from flowright.simulation.table import CRASH_SHARE, REVIEW, TABLE, Way
from flowright.simulation.values import (
    final_answer,
    is_number,
    normal_text,
    number,
    right_value,
    wrong_values,
)

UNKNOWN = (
    "This is a simulated model. It knows the problems that its server was started with, and this "
    "is none of them."
)

_shape = lru_cache(maxsize=8192)(shape)


class Solver:
    """Answers prompts about tasks. ``seed`` fixes difficulties and popular mistakes."""

    def __init__(self, tasks: tuple[Problem, ...], seed: int, wrong_code: WrongSolutions) -> None:
        self._seed = seed
        self._wrong_code = wrong_code
        self._wrong: dict[str, tuple[str, ...]] = {}
        self._pools: dict[str, list[str]] = {}
        for task in tasks:
            if task.kind != "code":
                self._pools.setdefault(task.source, []).append(task.reference)

    def difficulty(self, task: Problem) -> float:
        return normal(self._seed, "difficulty", task.id) * TABLE[task.kind].spread

    async def reply(self, ask: Ask, draws: Draws) -> str:
        if ask.task is None:
            return _without_task(ask)
        if ask.way is Way.REVIEW:
            return self._review(ask, ask.task, draws)
        if ask.way is Way.CHOOSE:
            return self._choose(ask, ask.task, draws)
        if ask.way is Way.FORMAT:
            return self._format(ask, ask.task)
        if ask.way is Way.REVISE and ask.candidates and not objects(ask.feedback):
            return self._present(ask.candidates[0], ask, ask.task, draws)
        if ask.task.kind == "code":
            return await self._code(ask, ask.task, draws)
        return self._answer(ask, ask.task, draws)

    def is_right(self, task: Problem, candidate: str) -> bool:
        """Whether a candidate is the task's solution, as far as this model's own replies go."""
        if task.kind == "code":
            given = _shape(extract_code(candidate, task.entry_point))
            return given is not None and given == _shape(task.reference)
        return right_value(task, candidate)

    def popular_mistakes(self, task: Problem) -> tuple[str, ...]:
        """The wrong answers to a task of maths or QA, the most popular first."""
        if task.id not in self._wrong:
            pool, count = self._pools.get(task.source, ()), len(TABLE[task.kind].popularity)
            self._wrong[task.id] = wrong_values(task, pool, self._seed, count)
        return self._wrong[task.id]

    def _is_drawn_right(self, task: Problem, way: Way, draws: Draws) -> bool:
        return draws.chance("right", TABLE[task.kind].probability(way, self.difficulty(task)))

    def _answer(self, ask: Ask, task: Problem, draws: Draws) -> str:
        right = self._is_drawn_right(task, ask.way, draws)
        value = task.reference if right else self._mistake(task, ask, draws)
        if ask.way in (Way.PROGRAM, Way.FIX_PROGRAM, Way.CODE, Way.FIX_CODE):
            crash = not right and draws.chance("crash", CRASH_SHARE)
            as_function = ask.way in (Way.CODE, Way.FIX_CODE)
            return phrasing.fence(phrasing.program(value, draws, crash, as_function))
        if ask.way is Way.STEPS:
            return phrasing.reasoned(value, task, ask.style, draws)
        return phrasing.direct(value, ask.style, draws)

    def _mistake(self, task: Problem, ask: Ask, draws: Draws) -> str:
        mistakes = self.popular_mistakes(task)
        if ask.way is Way.REVISE and ask.candidates:  # a revision does not repeat what was refused
            refused = normal_text(final_answer(ask.candidates[0]))
            mistakes = tuple(m for m in mistakes if normal_text(m) != refused) or mistakes
        shares = TABLE[task.kind].popularity
        return mistakes[draws.popular("mistake", len(mistakes), shares)]

    async def _code(self, ask: Ask, task: Problem, draws: Draws) -> str:
        way = ask.way
        if way is Way.FIX_CODE and ask.candidates and self.is_right(task, ask.candidates[0]):
            way = Way.REVISE  # the failure shown is not this solution's
        if self._is_drawn_right(task, way, draws):
            return self._present(task.reference, ask, task, draws)
        mistakes = await self._wrong_code.of(task)
        if ask.candidates:
            refused = _shape(extract_code(ask.candidates[0], task.entry_point))
            mistakes = tuple(m for m in mistakes if _shape(m) != refused) or mistakes
        shares = TABLE[task.kind].popularity
        index = draws.popular("mistake", len(mistakes), shares)
        return self._present(mistakes[index], ask, task, draws)

    def _present(self, solution: str, ask: Ask, task: Problem, draws: Draws) -> str:
        """A solution in the words of the way that was asked."""
        if task.kind != "code":
            return phrasing.direct(final_answer(solution), ask.style, draws)
        block = phrasing.fence(extract_code(solution, task.entry_point))
        lead = phrasing.reasoning(task, draws) + "\n\n" if ask.way is Way.STEPS else ""
        return f"{lead}Answer:\n{block}" if ask.style == "marked" else lead + block

    def _review(self, ask: Ask, task: Problem, draws: Draws) -> str:
        right = bool(ask.candidates) and self.is_right(task, ask.candidates[-1])
        flagged = draws.chance("flag", REVIEW.false_alarm if right else REVIEW.hit)
        return phrasing.review(flagged, draws)

    def _choose(self, ask: Ask, task: Problem, draws: Draws) -> str:
        right = [i for i, text in enumerate(ask.candidates) if self.is_right(task, text)]
        wrong = [i for i in range(len(ask.candidates)) if i not in right]
        if right and (not wrong or self._is_drawn_right(task, Way.CHOOSE, draws)):
            chosen = draws.pick("which", right)
        else:
            chosen = _most_common(ask.candidates, wrong)
        return f"{phrasing.reasoning(task, draws)}\n\nChoice: {chosen + 1}"

    def _format(self, ask: Ask, task: Problem) -> str:
        given = ask.candidates[-1] if ask.candidates else ""
        if task.kind == "code":
            return phrasing.fence(extract_code(given, task.entry_point))
        if right_value(task, given):
            return f"Answer: {task.reference}"
        value = final_answer(given)
        found = number(value) if is_number(task.reference) else None
        if found is not None and not is_number(value):
            value = str(found.numerator if found.denominator == 1 else float(found))
        return f"Answer: {value}"


def _without_task(ask: Ask) -> str:
    """What needs no knowledge: forming an answer, choosing what most candidates say."""
    if ask.way is Way.FORMAT and ask.candidates:
        return f"Answer: {final_answer(ask.candidates[-1])}"
    if ask.way is Way.CHOOSE:
        chosen = _most_common(ask.candidates, list(range(len(ask.candidates))))
        return f"Choice: {chosen + 1}"
    return UNKNOWN


def _most_common(candidates: tuple[str, ...], indices: list[int]) -> int:
    """The first of those candidates whose answer most of them share."""
    names = {i: normal_text(final_answer(candidates[i])) for i in indices}
    counts = Counter(names.values())
    return max(indices, key=lambda i: (counts[names[i]], -i))
