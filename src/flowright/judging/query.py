"""From a task to what a judge is asked about an answer to it. No prompts, nothing is run."""

from collections.abc import Mapping
from typing import Literal

from flowright.data.task import Problem
from flowright.grading.numbers import lone_number
from flowright.judging.verdict import AnswerType, JudgeQuery

_LONGEST_SPAN = 8  # words


def query_of(
    task: Problem,
    answer: str,
    key: str,
    evidence: str | None = None,
    verified: bool | None = None,
) -> JudgeQuery:
    """``evidence`` is for code, which is judged by what was seen of its test run; other answers
    are judged by what they say. ``verified`` is the outcome of the gold check, of use where the
    task has a verifier of its own."""
    return JudgeQuery(
        question=task.problem,
        answer=answer,
        reference=task.reference,
        answer_type=answer_type_of(task),
        alternatives=task.alternatives,
        evidence=evidence if task.kind == "code" else None,
        key=key,
        own_check=None if task.verifier is None else _OUTCOMES[verified],
    )


_OUTCOMES: Mapping[bool | None, Literal["right", "wrong", "open"]] = {
    True: "right",
    False: "wrong",
    None: "open",
}


def answer_type_of(task: Problem) -> AnswerType:
    """What a task's reference is."""
    if task.kind == "code":
        return "code"
    accepted = (task.reference, *task.alternatives)
    if task.kind == "math":
        is_number = all(lone_number(text) is not None for text in accepted)
        return "number" if is_number else "math_expression"
    if task.reference in dict(task.choices):
        return "multiple_choice"
    longest = max(len(text.split()) for text in accepted)
    return "span" if longest <= _LONGEST_SPAN else "free_text"
