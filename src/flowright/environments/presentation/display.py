"""The presentation of presented answers on screens: the choice, and the text that was judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowright.core.errors import Reason
from flowright.core.report import Block, Fact, Text
from flowright.environments.display import Curve, Display
from flowright.environments.presentation.tasks import KINDS, PRESENTATIONS


@dataclass(frozen=True)
class PresentationDisplay(Display):
    """Shows records that hold ``presentation``
    (:mod:`flowright.environments.presentation.reward`)."""

    def blocks(self, record: Mapping[str, Any]) -> Sequence[Block]:
        found: list[Block] = [Text("Choice", str(record.get("completion") or ""))]
        if record.get("text"):
            found.append(Text("What the judge read", str(record["text"])))
        if record.get("garbled"):
            found.append(Fact("Garbled", "a right answer came out wrong in its elaboration"))
        if record.get("audited"):
            found.append(Fact("Audited", "gold is its reward"))
        return found


DISPLAY = PresentationDisplay(
    completion="choice",
    compared="Policy",
    kinds=KINDS,
    curves=(
        Curve("Right by the judge", "reward/right_frac", "judge"),
        Curve("Judge less gold", "judge/drift", "gap"),
        Curve("Way that is right most often", "presentation/best_way", "best way"),
        *(Curve(f"Share: {name}", f"presentation/share/{name}", name) for name in PRESENTATIONS),
        Curve("Words of a text", "presentation/words", "words"),
    ),
    shares=(("audited", "presentation/audited"),),
    seconds=(),
    labels=("reward", "biases"),
    meanings={
        Reason.NO_PROGRAM: "names no way of solving",
        Reason.SYNTAX: "more than two presentations",
        Reason.JUDGE_FAILED: "the judge gave no verdict, and not because of the answer",
    },
)
