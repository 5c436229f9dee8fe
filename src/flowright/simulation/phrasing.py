"""Words around a value: how the simulated model answers, reasons, and writes programs.

The value is decided elsewhere. Programs really compute or print it.
"""

import re
from typing import Literal

from flowright.data.task import Problem
from flowright.simulation.draws import Draws
from flowright.simulation.values import is_number

Style = Literal["free", "boxed", "tagged", "marked"]
"""The form in which a prompt asks for the final answer."""

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
    """The final answer in the form asked for; in one of several where none was asked for."""
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
    """Just the answer."""
    return conclude(value, style, draws, free=("{}",))


def reasoned(value: str, task: Problem, style: Style, draws: Draws) -> str:
    """Some lines of reasoning, about a hundred tokens, then the answer."""
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
    """A Python program that prints ``value``; one that crashes uses a name it never assigned."""
    lines = _computation(value, draws)
    if crash:
        lines[-1] = "result = total_amount + first"
        lines.insert(0, "first = 1")
    if as_function:
        body = "\n".join(f"    {line}" for line in lines)
        return f"def solve():\n{body}\n    return result\n\n\nprint(solve())"
    return "\n".join((*lines, "print(result)"))


def _computation(value: str, draws: Draws) -> list[str]:
    """Assignments that leave ``value`` in ``result``, by a small computation where it is a number
    that Python prints in the same way."""
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
    """A review's text, whose first word is its verdict."""
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
