"""The presentation of the training of a judge: its thought, its verdict, the label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowright.core.errors import Reason
from flowright.core.report import Block, Fact, Text
from flowright.environments.display import Curve, Display


@dataclass(frozen=True)
class JudgingDisplay(Display):
    """Shows records that hold ``judging`` (:mod:`flowright.environments.judging.environment`)."""

    def blocks(self, record: Mapping[str, Any]) -> Sequence[Block]:
        judging: Mapping[str, Any] = record.get("judging") or {}
        facts: list[Block] = [
            Fact(title, str(judging[name]))
            for title, name in (
                ("Says", "verdict"),
                ("Label", "label"),
                ("Confidence", "confidence"),
                ("Cannot be read", "unread"),
                ("Order", "order"),
            )
            if judging.get(name) is not None
        ]
        return [*facts, Text("Judgement", str(record.get("completion") or ""))]


DISPLAY = JudgingDisplay(
    completion="judgement",
    compared="Judge",
    kinds=("pointwise", "pairwise"),
    curves=(
        Curve("Verdicts that say the label", "judge/accuracy", "accuracy"),
        Curve("Position bias", "judge/position_bias", "position"),
        Curve("Same answer named in both orders", "judge/consistency"),
    ),
    shares=(("unreadable", "judge/unreadable"),),
    seconds=(),
    models=("policy",),
    labels=("data", "split"),
    meanings={
        Reason.TRUNCATED: "the judgement hit its token limit before its verdict",
        Reason.NO_ANSWER: "no verdict in the judge's form",
    },
)
