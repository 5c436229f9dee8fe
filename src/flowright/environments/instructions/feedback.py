"""The text behind an answer that does not meet all criteria, before the policy answers again."""

from flowright.criteria.constraints.checkers import InstructedPrompt
from flowright.criteria.constraints.drawable import sentence_of
from flowright.environments.episode import Observation
from flowright.environments.instructions.config import Feedback
from flowright.environments.instructions.reward import InstructionGrade
from flowright.environments.instructions.tasks import Row


def observation_of(row: Row, grade: InstructionGrade, feedback: Feedback) -> Observation | None:
    """Return the criteria that an answer does not meet, or their number; None if it meets all.
    They are of the row's texts and arguments alone."""
    if grade.meets_all:
        return None
    if not grade.unmet:
        text = "Your answer is empty or cannot be read."
    elif feedback == "count":
        text = f"Your answer does not meet {len(grade.unmet)} of {len(grade.parts)} criteria."
    else:
        lines = [f"- {_sentence(row, grade, number)}" for number in grade.unmet]
        text = "\n".join(["Your answer does not meet this:", *lines])
    return Observation(f"{text}\nWrite the whole answer again.", memory=grade.outcome)


def _sentence(row: Row, grade: InstructionGrade, number: int) -> str:
    if isinstance(row, InstructedPrompt):
        return sentence_of(row.ids[number], row.arguments[number])
    part = grade.parts[number]
    lines = part.text.splitlines()
    text = f"At least one of these: {' '.join(lines)}" if len(lines) > 1 else part.text
    return f"Avoid: {text}" if part.is_penalty else text
