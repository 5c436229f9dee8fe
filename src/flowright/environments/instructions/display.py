"""The presentation of answers to prompts: the criteria of each, and who graded them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowright.core.errors import Reason
from flowright.core.report import Block, Fact, Text
from flowright.environments.display import Curve, Display


@dataclass(frozen=True)
class InstructionsDisplay(Display):
    """Shows records that hold ``instructions``
    (:mod:`flowright.environments.instructions.reward`)."""

    def blocks(self, record: Mapping[str, Any]) -> Sequence[Block]:
        graded: Mapping[str, Any] = record.get("instructions") or {}
        answer = Text("Answer", str(record.get("completion") or ""))
        facts: list[Block] = [_fact(part) for part in graded.get("parts") or ()]
        if graded.get("floored"):
            facts.append(Fact("Floored", str(graded.get("reason") or "the answer is empty")))
        facts += [Fact("Fault of a rule", str(fault)) for fault in graded.get("faults") or ()]
        return [answer, *facts]


def _fact(part: Mapping[str, Any]) -> Fact:
    met = part.get("met")
    state = "ungraded" if met is None else "holds" if met else "does not hold"
    points = part.get("points")
    worth = f", {points:+g} points" if isinstance(points, int | float) else ""
    alarm = "ungraded" if met is None else ""
    return Fact(state, str(part.get("text") or ""), f"by {part.get('by')}{worth}", alarm)


DISPLAY = InstructionsDisplay(
    completion="answer",
    compared="Policy",
    kinds=("instructions",),
    curves=(
        Curve("Criteria that hold", "instructions/met", "met"),
        Curve("Words of an answer", "instructions/words", "words"),
        Curve("Ungraded criteria", "instructions/ungraded"),
        Curve("Answers cut at the token limit", "instructions/cut"),
    ),
    shares=(("floored", "instructions/floored"),),
    seconds=("judge",),
    models=("policy", "judge"),
    labels=("data", "reward", "split"),
    meanings={
        Reason.JUDGE_FAILED: "the judge gave no verdict, and not because of the answer",
        Reason.SANDBOX_LOST: "the sandbox that runs the rules was lost",
    },
)
