"""The judge: a verdict by comparison with the reference, then its errors and its planted biases."""

import json
import re
from collections.abc import Mapping
from typing import Any

from flowright.config import SimulatedSection, suggest
from flowright.errors import ConfigError
from flowright.llm.simulation.cues import Judgement
from flowright.llm.simulation.draws import Draws
from flowright.llm.simulation.solver import Solver
from flowright.llm.simulation.values import says

BIASES = ("verbosity", "authority", "master_key", "self_preference", "position")
"""Planted biases. Each weight is added to P(True) (``position``: to P(first of two is better)) in
full where its trigger is in full: an answer of 200 words or more, a cited authority, an answer that
only announces a solution, this server's own turns of phrase."""

_MASTER_KEYS = frozenset(
    {"", ".", ",", ":", "thought process", "let's solve this problem step by step", "solution",
     "解", "かいせつ", "respuesta"}
)  # fmt: skip
_AUTHORITY = re.compile(
    r"\baccording to\b|\bexperts?\b|\bprofessor\b|\bofficial\b|\bverified\b|\bconfirmed by\b"
    r"|\bpeer[- ]reviewed\b|\btextbook\b|\bcertified\b|\bwikipedia\b",
    re.I,
)
_OWN_STYLE = re.compile(
    r"Let me work through this carefully|Let's break the problem into parts|"
    r"First I restate what is asked|I will go through the information in order"
)
_PASSED = re.compile(
    r"passed\s+(?:all\s+)?(\d+)\s*(?:of|/|out of)\s*(\d+)"
    r"|(\d+)\s*(?:of|/|out of)\s*(\d+)\s+(?:\w+\s+)?tests?\s+pass",
    re.I,
)


def check_biases(section: SimulatedSection) -> None:
    """Raises ConfigError for a bias that this judge does not have."""
    unknown = [name for name in section.judge_biases if name not in BIASES]
    if unknown:
        raise ConfigError(
            *(
                f"simulated.judge_biases.{name}: there is no such bias; there are "
                f"{', '.join(BIASES)}{suggest(name, BIASES)}"
                for name in unknown
            )
        )


class Assessor:
    """Gives verdicts with the true and false positive rates of the config."""

    def __init__(self, section: SimulatedSection, solver: Solver) -> None:
        self._section = section
        self._solver = solver

    def reply(self, asked: Judgement, draws: Draws, form: Mapping[str, Any] | None) -> str:
        """The reply to a judge's prompt, in the form that ``response_format`` asks for."""
        if asked.rival is not None:
            return self._compare(asked, asked.rival, draws, form)
        right = self.is_right(asked, asked.answer)
        verdict = draws.chance("verdict", self._probability(right, asked.answer))
        stated = "states the same as" if verdict else "differs from"
        reason = f"The final answer {stated} the reference answer. (simulated judge)"
        return _worded(reason, verdict, form)

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
        weights = section.judge_biases
        if weights:
            base += weights.get("verbosity", 0.0) * min(1.0, len(answer.split()) / 200)
            base += weights.get("authority", 0.0) * bool(_AUTHORITY.search(answer))
            base += weights.get("master_key", 0.0) * is_master_key(answer)
            base += weights.get("self_preference", 0.0) * bool(_OWN_STYLE.search(answer))
        return min(1.0, max(0.0, base))

    def _compare(
        self, asked: Judgement, rival: str, draws: Draws, form: Mapping[str, Any] | None
    ) -> str:
        first = self._probability(self.is_right(asked, asked.answer), asked.answer)
        second = self._probability(self.is_right(asked, rival), rival)
        share = 0.5 + (first - second) / 2 + self._section.judge_biases.get("position", 0.0) / 2
        winner = "A" if draws.chance("winner", min(1.0, max(0.0, share))) else "B"
        reason = f"Answer {winner} is closer to what the problem asks for. (simulated judge)"
        return _worded(reason, winner, form)


def is_master_key(answer: str) -> bool:
    """An answer that only announces one (Zhao et al. 2025, arXiv 2507.08794)."""
    return answer.strip().lower().strip(" .:,") in _MASTER_KEYS


def _worded(reason: str, verdict: bool | str, form: Mapping[str, Any] | None) -> str:
    kind = form.get("type") if form else None
    if kind == "json_schema":
        return json.dumps(_by_schema(form or {}, reason, verdict))
    if kind == "json_object":
        return json.dumps({"reason": reason, "verdict": verdict})
    return f"{reason}\nVerdict: {verdict}"


def _by_schema(form: Mapping[str, Any], reason: str, verdict: bool | str) -> dict[str, Any]:
    """An object with the schema's properties: the verdict where a boolean, a menu or a score
    stands, the reason in every other string."""
    wrapper = form.get("json_schema")
    schema = wrapper.get("schema") if isinstance(wrapper, Mapping) else None
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {"reason": reason, "verdict": verdict}
    return {str(name): _value(rule, reason, verdict) for name, rule in properties.items()}


def _value(rule: Any, reason: str, verdict: bool | str) -> Any:
    rule = rule if isinstance(rule, Mapping) else {}
    menu = rule.get("enum")
    if isinstance(menu, list) and menu:
        word = str(verdict).lower()
        synonyms = {"true": ("true", "yes", "correct"), "false": ("false", "no", "incorrect")}
        wanted = synonyms.get(word, (word, {"a": "first", "b": "second"}.get(word, word)))
        found = [item for item in menu if str(item).lower() in wanted]
        return found[0] if found else menu[0 if verdict in (True, "A") else -1]
    kind = rule.get("type")
    if kind == "boolean":
        return verdict in (True, "A")
    if kind in ("number", "integer"):
        return int(verdict in (True, "A"))
    return reason
