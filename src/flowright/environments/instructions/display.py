"""How screens show answers to prompts: what each was to do, and who says whether it does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowright.core.blocks import Block, Fact, Text
from flowright.core.errors import Reason
from flowright.environments.display import Curve, Display


@dataclass(frozen=True)
class InstructionsDisplay(Display):
    """Of records that hold ``instructions`` (:mod:`flowright.environments.instructions.environment`)."""

    def blocks(self, record: Mapping[str, Any]) -> Sequence[Block]:
        told: Mapping[str, Any] = record.get("instructions") or {}
        answer = Text("Answer", str(record.get("completion") or ""))
        facts: list[Block] = [_fact(part) for part in told.get("parts") or ()]
        if told.get("floored"):
            facts.append(Fact("Floored", str(told.get("reason") or "the answer is empty")))
        facts += [Fact("Fault of a rule", str(fault)) for fault in told.get("faults") or ()]
        return [answer, *facts]


def _fact(part: Mapping[str, Any]) -> Fact:
    met = part.get("met")
    said = "ungraded" if met is None else "holds" if met else "does not hold"
    points = part.get("points")
    worth = f", {points:+g} points" if isinstance(points, int | float) else ""
    alarm = "ungraded" if met is None else ""
    return Fact(said, str(part.get("text") or ""), f"by {part.get('by')}{worth}", alarm)


DISPLAY = InstructionsDisplay(
    completion="answer",
    compared="Policy",
    kinds=("instructions",),
    curves=(
        Curve("Criteria that hold", "instructions/met", "met"),
        Curve("Words of an answer", "instructions/words", "words"),
        Curve("Criteria that nobody graded", "instructions/ungraded"),
        Curve("Answers cut at the token limit", "instructions/cut"),
    ),
    shares=(("floored", "instructions/floored"),),
    seconds=("judge",),
    models=("policy", "judge"),
    labels=("data", "reward", "split"),
    meanings={
        Reason.JUDGE_FAILED: "the judge gave no word on it, and not because of the answer",
        Reason.SANDBOX_LOST: "the sandbox that runs the rules was lost",
    },
)
