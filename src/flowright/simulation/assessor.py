"""The judge: verdicts by comparison with the reference, then its errors and its planted biases."""

import re
from collections.abc import Mapping
from typing import Any

from flowright.config import SimulatedSection
from flowright.simulation.biases import pull
from flowright.simulation.cues import Judgement
from flowright.simulation.draws import Draws
from flowright.simulation.requested_format import (
    VERDICT,
    WINNER,
    RequestedField,
    Said,
    chosen,
    requested_fields,
    worded,
)
from flowright.simulation.solver import Solver
from flowright.simulation.values import says

_PASSED = re.compile(
    r"passed\s+(?:all\s+)?(\d+)\s*(?:of|/|out of)\s*(\d+)"
    r"|(\d+)\s*(?:of|/|out of)\s*(\d+)\s+(?:\w+\s+)?tests?\s+pass",
    re.I,
)
_QUOTED = re.compile(r"`([^`]+)`|\"([^\"]+)\"|“([^”]+)”")
_FAULT = re.compile(
    r"\b(?:wrong|incorrect|false|errors?|mistakes?|fails?|omits?|lacks?|missing|invents?|never|not)\b",
    re.I,
)


class Assessor:
    """Gives verdicts with the true and false positive rates of the config."""

    def __init__(self, section: SimulatedSection, solver: Solver) -> None:
        self._section = section
        self._solver = solver

    def reply(
        self, asked: Judgement, draws: Draws, response_format: Mapping[str, Any] | None
    ) -> str:
        """The reply to a judge's prompt, with what it asks for in the format that it requests."""
        wanted = requested_fields(asked.said, response_format)
        if asked.rival is not None:
            winner = self._winner(asked, asked.rival, draws)
            reason = f"Answer {winner} is closer to what the problem asks for. (simulated judge)"
            told = {field: _told(field, winner, reason, draws) for field in wanted or [WINNER]}
            return worded(reason, told, response_format)
        right = self.is_right(asked, asked.answer)
        verdict = draws.chance("verdict", self._probability(right, asked.answer))
        stated = "states the same as" if verdict else "differs from"
        reason = f"The final answer {stated} the reference answer. (simulated judge)"
        if asked.criteria:
            reason = "Each criterion was held against the final answer. (simulated judge)"
        told: dict[RequestedField, Said] = {}
        for field in wanted or [VERDICT]:
            said = verdict
            if criterion := asked.criteria.get(field.key.casefold().replace(" ", "_")):
                met = _is_met(criterion, asked.answer, right)
                said = draws.chance(field.key.casefold(), self._probability(met, asked.answer))
            told[field] = _told(field, said, reason, draws)
        return worded(reason, told, response_format)

    def is_right(self, asked: Judgement, answer: str) -> bool:
        """What a judge without errors would say."""
        evidence = _PASSED.search(asked.evidence)
        if evidence:
            passed, total = (int(n) for n in evidence.groups() if n is not None)
            return passed == total
        if asked.task is not None:
            return self._solver.is_right(asked.task, answer)
        return says(answer, asked.references)

    def _probability(self, right: bool, answer: str) -> float:
        section = self._section
        base = section.judge_true_positive if right else section.judge_false_positive
        base += pull(section.judge_biases, answer)
        return min(1.0, max(0.0, base))

    def _winner(self, asked: Judgement, rival: str, draws: Draws) -> str:
        first = self._probability(self.is_right(asked, asked.answer), asked.answer)
        second = self._probability(self.is_right(asked, rival), rival)
        share = 0.5 + (first - second) / 2 + self._section.judge_biases.get("position", 0.0) / 2
        return "A" if draws.chance("winner", min(1.0, max(0.0, share))) else "B"


def _is_met(criterion: str, answer: str, right: bool) -> bool:
    """What a judge without errors would say of a line of a rubric: whether the answer has the words
    that it quotes, or else whether it is right; a line about a fault the other way round."""
    quoted = [next(filter(None, found)) for found in _QUOTED.findall(criterion)]
    said = all(words.casefold() in answer.casefold() for words in quoted) if quoted else right
    return said != (_FAULT.search(_QUOTED.sub("", criterion)) is not None)


def _told(field: RequestedField, verdict: bool | str, reason: str, draws: Draws) -> Said:
    """A verdict (right or wrong, or "A" or "B") as a field has it."""
    positive = verdict in (True, "A")
    match field.schema:
        case "truth":
            return positive
        case "side":
            return verdict if isinstance(verdict, str) else "A" if positive else "B"
        case "grade":
            far = draws.chance(f"grade {field.key}", 0.7)
            return (4 if far else 3) if positive else (0 if far else 1)
        case "share":
            drawn = 0.25 * draws.unit(f"share {field.key}")
            return round(1 - drawn if positive else drawn, 2)
        case "choice":
            return chosen(field, verdict)
        case "text":
            return reason
