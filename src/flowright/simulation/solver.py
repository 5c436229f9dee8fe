"""The simulated model: replies to recognised prompts, right or wrong by the table."""

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from flowright.config.llm import World
from flowright.data.task import Problem
from flowright.llm.replies import extract_code
from flowright.simulation.classes import problem_class
from flowright.simulation.cues import Style, TaskPrompt, finds_fault
from flowright.simulation.draws import Draws, normal
from flowright.simulation.table import CLASSES, CRASH_SHARE, REVIEW, TABLE, KindTable, Way
from flowright.simulation.values import (
    WrongSolutions,
    final_answer,
    is_number,
    normal_text,
    number,
    right_value,
    shape,
    wrong_values,
)

_OPENINGS = (
    "Let me work through this carefully.",
    "Let's break the problem into parts.",
    "First I restate what is asked.",
    "I will go through the information in order.",
)
_MIDDLES = (
    "The quantities that matter here are {given}.",
    "From the text we have {given}.",
    "What is known: {given}.",
)
_LINKS = (
    "Next, I relate these to what the question asks for, one relation at a time, and keep track "
    "of what each intermediate result stands for.",
    "Each of them enters once, so I combine them in the order in which the text introduces them "
    "and carry the intermediate result along.",
    "Some of the details do not change the outcome; leaving them aside, the remaining relations "
    "determine it.",
)
_CHECKS = (
    "Checking this against the conditions in the text, nothing contradicts it.",
    "A quick check: putting the result back into the statement is consistent with it.",
    "I compared this with the alternatives that come to mind, and it fits best.",
)
_NUMBERS = re.compile(r"\d[\d,.]*\d|\d")


def conclude(value: str, style: Style, draws: Draws, free: tuple[str, ...] = ()) -> str:
    """Write the final answer in the requested form, or in one of several."""
    if style == "boxed":
        return f"\\boxed{{{value}}}"
    if style == "tagged":
        return f"<answer>{value}</answer>"
    if style == "marked":
        return f"Answer: {value}"
    forms = free or ("The answer is {}.", "Answer: {}", "Therefore, the final answer is {}.")
    if not free and is_number(value):
        forms = (*forms, "\\boxed{{{}}}", "#### {}")
    return draws.pick("form", forms).format(value)


def direct(value: str, style: Style, draws: Draws) -> str:
    """Write the answer alone."""
    return conclude(value, style, draws, free=("{}",))


def reasoned(value: str, task: Problem, style: Style, draws: Draws) -> str:
    """Write reasoning of about a hundred tokens, then the answer."""
    return f"{reasoning(task, draws)}\n\n{conclude(value, style, draws)}"


def reasoning(task: Problem, draws: Draws) -> str:
    given = list(dict.fromkeys(_NUMBERS.findall(task.question)))[:5]
    if not given:
        given = [word for word in task.question.split() if word[:1].isupper()][:5] or ["the facts"]
    middle = draws.pick("middle", _MIDDLES).format(given=", ".join(given))
    return "\n".join(
        (
            draws.pick("opening", _OPENINGS),
            f"1. {middle}",
            f"2. {draws.pick('link', _LINKS)}",
            f"3. {draws.pick('check', _CHECKS)}",
        )
    )


def program(value: str, draws: Draws, crash: bool, as_function: bool) -> str:
    """Write a Python program that prints ``value``; one that crashes uses an unassigned name."""
    lines = _computation(value, draws)
    if crash:
        lines[-1] = "result = total_amount + first"
        lines.insert(0, "first = 1")
    if as_function:
        body = "\n".join(f"    {line}" for line in lines)
        return f"def solve():\n{body}\n    return result\n\n\nprint(solve())"
    return "\n".join((*lines, "print(result)"))


def _computation(value: str, draws: Draws) -> list[str]:
    """Write assignments that leave ``value`` in ``result``, by a small computation if it is a
    number that Python prints in the same way."""
    text = value.strip()
    if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", text):
        whole = int(text)
        second = int(draws.unit("split") * max(2, min(abs(whole), 1000)))
        return [f"first = {whole - second}", f"second = {second}", "result = first + second"]
    if re.fullmatch(r"-?\d{1,12}\.\d{1,6}", text):
        decimals = len(text.partition(".")[2])
        scaled = text.replace(".", "")
        sign = "-" if text.startswith("-") else ""
        digits = scaled.lstrip("-").lstrip("0") or "0"
        return [f"total = {sign}{digits}", f'result = f"{{total / {10**decimals}:.{decimals}f}}"']
    return [f"result = {text!r}"]


def fence(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def review(flagged: bool, draws: Draws) -> str:
    """Write a review, whose first word is its verdict."""
    return draws.pick("review", _OBJECTIONS if flagged else _APPROVALS)


_OBJECTIONS = (
    "Incorrect. There is a mistake in this solution. Going through it again, one step does not "
    "follow from the one before it, so the result is not reliable and should be worked out anew.",
    "Incorrect. There is a mistake in this solution. It overlooks a condition in the problem; with "
    "that condition the result changes.",
)
_APPROVALS = (
    "Correct. I followed each step and found nothing to change.",
    "Correct. The result satisfies every condition that the problem states.",
)


UNKNOWN = (
    "This is a simulated model. It knows the problems that its server was started with, and this "
    "is none of them."
)

_shape = lru_cache(maxsize=8192)(shape)


NO_SKILLS: Mapping[str, float] = {}


class Solver:
    """Answers prompts about tasks. ``seed`` fixes difficulties and popular mistakes; ``world`` is
    ``simulated.world``, ``skills`` those of a model beside the usual one."""

    def __init__(
        self,
        tasks: tuple[Problem, ...],
        seed: int,
        wrong_code: WrongSolutions,
        world: World = "kinds",
        skills: Mapping[str, float] = NO_SKILLS,
    ) -> None:
        self._seed = seed
        self._world: World = world
        self._skills = skills
        self._wrong_code = wrong_code
        self._wrong: dict[str, tuple[str, ...]] = {}
        self._pools: dict[str, list[str]] = {}
        for task in tasks:
            if task.kind != "code":
                self._pools.setdefault(task.source, []).append(task.reference)

    def table(self, task: Problem) -> KindTable:
        """Return the accuracies that hold for a task."""
        if self._world == "kinds":
            return TABLE[task.kind]
        found = problem_class(task)
        return CLASSES[found.subject, found.is_large]

    def difficulty(self, task: Problem) -> float:
        return normal(self._seed, "difficulty", task.id) * self.table(task).spread

    async def reply(self, ask: TaskPrompt, draws: Draws) -> str:
        if ask.task is None:
            return _without_task(ask)
        if ask.way is Way.REVIEW:
            return self._review(ask, ask.task, draws)
        if ask.way is Way.CHOOSE:
            return self._choose(ask, ask.task, draws)
        if ask.way is Way.FORMAT:
            return self._format(ask, ask.task)
        if ask.way is Way.REVISE and ask.candidates and not finds_fault(ask.feedback):
            return self._present(ask.candidates[0], ask, ask.task, draws)
        if ask.task.kind == "code":
            return await self._code(ask, ask.task, draws)
        return self._answer(ask, ask.task, draws)

    def is_right(self, task: Problem, candidate: str) -> bool:
        """Return whether a candidate solves the task; exact for this model's own replies."""
        if task.kind == "code":
            given = _shape(extract_code(candidate, task.entry_point))
            return given is not None and given == _shape(task.reference)
        return right_value(task, candidate)

    def popular_mistakes(self, task: Problem) -> tuple[str, ...]:
        """Return the wrong answers to a task of maths or QA, the most popular first."""
        if task.id not in self._wrong:
            pool, count = self._pools.get(task.source, ()), len(self.table(task).popularity)
            self._wrong[task.id] = wrong_values(task, pool, self._seed, count)
        return self._wrong[task.id]

    def _is_drawn_right(self, task: Problem, way: Way, draws: Draws) -> bool:
        difficulty = self.difficulty(task) - self._skill(task)
        return draws.chance("right", self.table(task).probability(way, difficulty))

    def _skill(self, task: Problem) -> float:
        """Return the model's skill above the usual one's."""
        if not self._skills:
            return 0.0
        found = problem_class(task)
        names = (str(found), found.subject, task.kind)
        return next((self._skills[name] for name in names if name in self._skills), 0.0)

    def _answer(self, ask: TaskPrompt, task: Problem, draws: Draws) -> str:
        right = self._is_drawn_right(task, ask.way, draws)
        value = task.reference if right else self._mistake(task, ask, draws)
        if ask.way in (Way.PROGRAM, Way.FIX_PROGRAM, Way.CODE, Way.FIX_CODE):
            crash = not right and draws.chance("crash", CRASH_SHARE)
            as_function = ask.way in (Way.CODE, Way.FIX_CODE)
            return fence(program(value, draws, crash, as_function))
        if ask.way is Way.STEPS:
            return reasoned(value, task, ask.style, draws)
        return direct(value, ask.style, draws)

    def _mistake(self, task: Problem, ask: TaskPrompt, draws: Draws) -> str:
        mistakes = self.popular_mistakes(task)
        if ask.way is Way.REVISE and ask.candidates:  # a revision does not repeat what was refused
            refused = normal_text(final_answer(ask.candidates[0]))
            mistakes = tuple(m for m in mistakes if normal_text(m) != refused) or mistakes
        shares = self.table(task).popularity
        return mistakes[draws.popular("mistake", len(mistakes), shares)]

    async def _code(self, ask: TaskPrompt, task: Problem, draws: Draws) -> str:
        way = ask.way
        if way is Way.FIX_CODE and ask.candidates and self.is_right(task, ask.candidates[0]):
            way = Way.REVISE  # the failure shown is not this solution's
        if self._is_drawn_right(task, way, draws):
            return self._present(task.reference, ask, task, draws)
        mistakes = await self._wrong_code.of(task)
        if ask.candidates:
            refused = _shape(extract_code(ask.candidates[0], task.entry_point))
            mistakes = tuple(m for m in mistakes if _shape(m) != refused) or mistakes
        shares = self.table(task).popularity
        index = draws.popular("mistake", len(mistakes), shares)
        return self._present(mistakes[index], ask, task, draws)

    def _present(self, solution: str, ask: TaskPrompt, task: Problem, draws: Draws) -> str:
        """Write a solution as the prompt's way of asking wants it."""
        if task.kind != "code":
            return direct(final_answer(solution), ask.style, draws)
        block = fence(extract_code(solution, task.entry_point))
        lead = reasoning(task, draws) + "\n\n" if ask.way is Way.STEPS else ""
        return f"{lead}Answer:\n{block}" if ask.style == "marked" else lead + block

    def _review(self, ask: TaskPrompt, task: Problem, draws: Draws) -> str:
        right = bool(ask.candidates) and self.is_right(task, ask.candidates[-1])
        flagged = draws.chance("flag", REVIEW.false_alarm if right else REVIEW.hit)
        return review(flagged, draws)

    def _choose(self, ask: TaskPrompt, task: Problem, draws: Draws) -> str:
        right = [i for i, text in enumerate(ask.candidates) if self.is_right(task, text)]
        wrong = [i for i in range(len(ask.candidates)) if i not in right]
        if right and (not wrong or self._is_drawn_right(task, Way.CHOOSE, draws)):
            chosen = draws.pick("which", right)
        else:
            chosen = _most_common(ask.candidates, wrong)
        return f"{reasoning(task, draws)}\n\nChoice: {chosen + 1}"

    def _format(self, ask: TaskPrompt, task: Problem) -> str:
        given = ask.candidates[-1] if ask.candidates else ""
        if task.kind == "code":
            return fence(extract_code(given, task.entry_point))
        if right_value(task, given):
            return f"Answer: {task.reference}"
        value = final_answer(given)
        found = number(value) if is_number(task.reference) else None
        if found is not None and not is_number(value):
            value = str(found.numerator if found.denominator == 1 else float(found))
        return f"Answer: {value}"


def _without_task(ask: TaskPrompt) -> str:
    """Reply without knowing the task: format an answer, or choose the most common candidate."""
    if ask.way is Way.FORMAT and ask.candidates:
        return f"Answer: {final_answer(ask.candidates[-1])}"
    if ask.way is Way.CHOOSE:
        chosen = _most_common(ask.candidates, list(range(len(ask.candidates))))
        return f"Choice: {chosen + 1}"
    return UNKNOWN


def _most_common(candidates: tuple[str, ...], indices: list[int]) -> int:
    """Return the first candidate with the most common answer."""
    names = {i: normal_text(final_answer(candidates[i])) for i in indices}
    counts = Counter(names.values())
    return max(indices, key=lambda i: (counts[names[i]], -i))
