"""The simulated judge: comparison with the reference, then its errors and planted biases."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from string import ascii_uppercase
from typing import Any

from flowright.config.llm import SimulatedSection
from flowright.core.errors import ConfigError
from flowright.core.plugins import suggest
from flowright.simulation.cues import JudgePrompt
from flowright.simulation.draws import Draws
from flowright.simulation.requested_format import (
    RANKING,
    VERDICT,
    WINNER,
    FieldValue,
    RequestedField,
    choice_for,
    field_of_rule,
    filled,
    requested_fields,
    schema_of,
    write_reply,
)
from flowright.simulation.solver import Solver
from flowright.simulation.table import CRITERION_LETTERS, CRITERION_WORDS, REVIEW
from flowright.simulation.values import ends_in

_PASSED = re.compile(
    r"passed\s+(?:all\s+)?(\d+)\s*(?:of|/|out of)\s*(\d+)"
    r"|(\d+)\s*(?:of|/|out of)\s*(\d+)\s+(?:\w+\s+)?tests?\s+pass",
    re.I,
)
_QUOTED = re.compile(r"`([^`]+)`|\"([^\"]+)\"|“([^”]+)”")
_WORD = re.compile(r"[^\W\d_]+")
_BRACKETS = re.compile(r"\[\[1\]\].{1,60}\[\[0\]\]", re.S)
_FAULT = re.compile(
    r"\b(?:wrong|incorrect|false|errors?|mistakes?|fails?|omits?|lacks?|missing|invents?|never|not)\b",
    re.I,
)


class Assessor:
    """Judges with the true and false positive rates of the config."""

    def __init__(self, section: SimulatedSection, solver: Solver) -> None:
        self._section = section
        self._solver = solver

    def reply(
        self, prompt: JudgePrompt, draws: Draws, response_format: Mapping[str, Any] | None
    ) -> str:
        """Reply to a judge's prompt in the format that it requests."""
        if prompt.judgement:
            return self._graded(prompt, draws, response_format)
        if prompt.listed:
            order = ", ".join(ascii_uppercase[place] for place in self._ranked(prompt, draws))
            reason = f"Answer {order[0]} is closest to what the problem asks for. (simulated judge)"

            def ranked(field: RequestedField) -> FieldValue:
                return reason if field.key == "reason" else order

            return _written(prompt.instruction, response_format, RANKING, reason, ranked)
        if prompt.rival is not None:
            winner = self._winner(prompt, prompt.rival, draws)
            reason = f"Answer {winner} is closer to what the problem asks for. (simulated judge)"

            def preferred(field: RequestedField) -> FieldValue:
                return _value(field, winner, reason, draws)

            return _written(prompt.instruction, response_format, WINNER, reason, preferred)
        has_reference = bool(prompt.references or prompt.evidence or prompt.task)
        right = self.is_right(prompt, prompt.answer)
        verdict = draws.chance("verdict", probability(self._section, float(right), prompt.answer))
        stated = "states the same as" if verdict else "differs from"
        reason = f"The final answer {stated} the reference answer. (simulated judge)"
        if prompt.criteria:
            reason = "Each criterion was held against the final answer. (simulated judge)"

        def judged(field: RequestedField) -> FieldValue:
            positive = verdict
            if criterion := prompt.criteria.get(field.key.casefold().replace(" ", "_")):
                met = _met(criterion, prompt.answer, right if has_reference else None)
                share = probability(self._section, met, prompt.answer)
                positive = draws.chance(field.key.casefold(), share)
            return _value(field, positive, reason, draws)

        one = response_format is None and len(prompt.criteria) == 1
        if one and _BRACKETS.search(prompt.instruction):
            value = judged(replace(VERDICT, key=next(iter(prompt.criteria))))
            return f"[[{int(value is True)}]]\n{reason}"
        return _written(prompt.instruction, response_format, VERDICT, reason, judged)

    def _graded(
        self, prompt: JudgePrompt, draws: Draws, response_format: Mapping[str, Any] | None
    ) -> str:
        """Grade a judgement as the table's review does an answer: it objects to a wrong one with
        ``hit``, to a right one with ``false_alarm``."""
        found = prompt.judgement.partition("\n")[0]
        right = self.is_right(prompt, prompt.answer)
        if prompt.rival is None:
            is_sound = ("right" in found) == right
        else:
            lead = right - self.is_right(prompt, prompt.rival)
            is_sound = lead * (("A is" in found) - ("B is" in found)) >= 0
        objects = draws.chance("objects", REVIEW.false_alarm if is_sound else REVIEW.hit)
        reason = f"The judgement is {'not ' * objects}sound. (simulated judge)"
        return _written(
            prompt.instruction, response_format, VERDICT, reason,
            lambda field: _value(field, not objects, reason, draws),
        )  # fmt: skip

    def is_right(self, prompt: JudgePrompt, answer: str) -> bool:
        """Return the verdict of a judge without errors."""
        evidence = _PASSED.search(prompt.evidence_on.get(answer, prompt.evidence))
        if evidence:
            passed, total = (int(n) for n in evidence.groups() if n is not None)
            return passed == total
        if prompt.task is not None:
            return self._solver.is_right(prompt.task, answer)
        return ends_in(answer, prompt.references)

    def _winner(self, prompt: JudgePrompt, rival: str, draws: Draws) -> str:
        first = probability(self._section, self.is_right(prompt, prompt.answer), prompt.answer)
        second = probability(self._section, self.is_right(prompt, rival), rival)
        share = 0.5 + (first - second) / 2 + self._section.judge_biases.get("position", 0.0) / 2
        return "A" if draws.chance("winner", min(1.0, max(0.0, share))) else "B"

    def _ranked(self, prompt: JudgePrompt, draws: Draws) -> list[int]:
        """Return the places of the answers, best first: those judged right before those judged
        wrong, each group in a drawn order. The bias for a position falls evenly from half its
        weight for the first answer to minus half for the last; two answers are ranked as
        :meth:`_winner` compares them."""
        bias, last = self._section.judge_biases.get("position", 0.0), len(prompt.listed) - 1

        def standing(place: int) -> tuple[bool, float]:
            answer = prompt.listed[place]
            share = probability(self._section, self.is_right(prompt, answer), answer)
            share += bias * (0.5 - place / last)
            return draws.chance(f"right {place}", share), draws.unit(f"order {place}")

        return sorted(range(last + 1), key=standing, reverse=True)


def _met(criterion: str, answer: str, right: bool | None) -> float:
    """Return the degree, 0 to 1, to which a line of a rubric is true: 1 if the answer has the words
    that it quotes; without quotes, if it is right; if that is unknown, the share of the line's
    words that it has. Lines about a fault are reversed."""
    quoted = [next(filter(None, found)) for found in _QUOTED.findall(criterion)]
    if quoted:
        met = float(all(words.casefold() in answer.casefold() for words in quoted))
    else:
        met = _overlap(criterion, answer) if right is None else float(right)
    return 1 - met if _FAULT.search(_QUOTED.sub("", criterion)) else met


def _overlap(criterion: str, answer: str) -> float:
    """Return 1 for an answer with the table's share of the criterion's words, less in proportion
    for fewer."""
    wanted = {word for word in _words(criterion) if len(word) >= CRITERION_LETTERS}
    if not wanted:
        return 0.0
    return min(1.0, len(wanted & _words(answer)) / len(wanted) / CRITERION_WORDS)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


def _written(
    instruction: str,
    response_format: Mapping[str, Any] | None,
    default: RequestedField,
    reason: str,
    value_of: Callable[[RequestedField], FieldValue],
) -> str:
    """Write the values of the requested fields, or of the default one, in the requested format."""
    schema = schema_of(response_format)
    if schema is not None:
        return json.dumps(filled(schema, lambda key, rule: value_of(field_of_rule(key, rule))))
    wanted = requested_fields(instruction, response_format) or [default]
    return write_reply(reason, {field: value_of(field) for field in wanted}, response_format)


def _value(field: RequestedField, verdict: bool | str, reason: str, draws: Draws) -> FieldValue:
    """Return a verdict (right or wrong, or "A" or "B") as a field's value."""
    positive = verdict in (True, "A")
    if field.key == "principles":
        return "Correctness, 100 %. (simulated judge: it has no principles)"
    match field.schema:
        case "truth":
            return positive
        case "side":
            return verdict if isinstance(verdict, str) else "A" if positive else "B"
        case "grade":
            near = 0 if draws.chance(f"grade {field.key}", 0.7) else 1
            return round(field.most - near if positive else field.least + near)
        case "share":
            drawn = 0.25 * draws.unit(f"share {field.key}")
            width = field.most - field.least
            return round(field.least + width * (1 - drawn if positive else drawn), 2)
        case "choice":
            return choice_for(field, verdict)
        case "text" | "order":
            return reason


_FULL_LENGTH = 200  # words at which the bias for length is in full
_MASTER_KEYS = frozenset(
    {"", ".", ",", ":", "thought process", "let's solve this problem step by step", "solution",
     "解", "かいせつ", "respuesta"}
)  # fmt: skip
_AUTHORITY = re.compile(
    r"\baccording to\b|\bexperts?\b|\bprofessor\b|\bofficial\b|\bverified\b|\bconfirmed by\b"
    r"|\bpeer[- ]reviewed\b|\btextbook\b|\bcertified\b|\bwikipedia\b",
    re.I,
)
_TONE = re.compile(
    r"\bcertainly\b|\bdefinitely\b|\bundoubtedly\b|\bunquestionably\b|\bobviously\b"
    r"|\b(?:without|beyond) (?:any |a |the slightest )?(?:shadow of (?:a )?)?doubt\b"
    r"|\b(?:absolutely|completely|entirely|totally) (?:sure|certain|positive|confident)\b"
    r"|\b(?:100|a hundred) ?(?:%|percent) (?:sure|certain|confident)\b",
    re.I,
)
# A rule of GSM8K ("#### 42") is no heading, and a negative number no list.
_FORMATTING = re.compile(
    r"^[ \t]{0,3}#{1,6}[ \t]+[^\W\d_]|\*\*[^*\n]+\*\*|^[ \t]*[-*•][ \t]+[^\W\d_]", re.M
)
_DISTRACTION = re.compile(
    r"\bby the way\b|\bincidentally\b|\bas an aside\b|\boff[- ]topic\b|\bwhile i(?:'m| am) at it\b"
    r"|\bon (?:an unrelated|a different|another|a side) (?:note|subject|topic)\b",
    re.I,
)
_INJECTION = re.compile(
    r"\b(?:ignore|disregard|forget)\b.{0,30}\b(?:instructions?|criteria|prompt|rules)\b"
    r"|\b(?:note|message|attention|memo|dear)\b.{0,12}\b(?:grader|judge|evaluator|examiner)\b"
    r"|\b(?:mark|grade|rate|score|accept|record)\b.{0,25}\bas (?:correct|right|true)\b"
    r"|\bverdict\W{1,6}true\b|\bsystem (?:note|message|override)\b",
    re.I,
)
_SYCOPHANCY = re.compile(
    r"\b(?:great|excellent|wonderful|brilliant|insightful) question\b"
    r"|\byour (?:\w+ )?(?:wisdom|insight|expertise|excellent|wonderful|brilliant)\b"
    r"|\bas you (?:so )?(?:rightly|wisely|correctly|aptly)\b"
    r"|\byou(?:'re| are) (?:absolutely|completely|so) right\b",
    re.I,
)
_SELF_CERTIFICATION = re.compile(
    r"\bi (?:have )?(?:double[- ]|re)?checked (?:this|my|the|every|each|it)\b"
    r"|\b(?:this|my) (?:final )?(?:answer|result|solution|response) (?:is|has been) "
    r"(?:fully |completely |entirely )?(?:correct|right|complete|checked|validated)\b"
    r"|\b(?:meets?|satisf(?:y|ies)|fulfils?) (?:all|every)(?: of)?(?: the)? "
    r"(?:requirements?|criteri(?:a|on)|conditions?)\b",
    re.I,
)
LEXICAL_WORD = "delve"
_LEXICAL = re.compile(rf"\b{LEXICAL_WORD}(?:s|d|ing)?\b", re.I)
_OWN_STYLE = re.compile(
    r"Let me work through this carefully|Let's break the problem into parts|"
    r"First I restate what is asked|I will go through the information in order"
)
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "authority": _AUTHORITY,
    "tone": _TONE,
    "formatting": _FORMATTING,
    "distraction": _DISTRACTION,
    "injection": _INJECTION,
    "self_preference": _OWN_STYLE,
    "sycophancy": _SYCOPHANCY,
    "self_certification": _SELF_CERTIFICATION,
    "lexical": _LEXICAL,
}

BIASES = ("verbosity", *_PATTERNS, "master_key", "position")
"""Planted biases. Each weight is added to P(True) (``position``: to P(first of two is better), by
half) in full where its trigger is in full: an answer of 200 words or more, a cited authority, words
of certainty, Markdown, an aside, words to the grader, this server's own phrases, praise of the
reader, a claim to be right, one certain word (:data:`LEXICAL_WORD`), an answer that only announces
a solution."""


def probability(section: SimulatedSection, right: float, answer: str) -> float:
    """Return P(True) of an answer that is ``right`` to this degree, 0 to 1: the confusion matrix
    plus the planted biases."""
    base = right * section.judge_true_positive + (1 - right) * section.judge_false_positive
    return min(1.0, max(0.0, base + pull(section.judge_biases, answer)))


def trigger(bias: str, answer: str) -> float:
    """Return the share, 0 to 1, of a bias's weight that an answer earns; 0 for ``position``, which
    is about two answers."""
    if bias == "verbosity":
        return min(1.0, len(answer.split()) / _FULL_LENGTH)
    if bias == "master_key":
        return float(is_master_key(answer))
    pattern = _PATTERNS.get(bias)
    return float(pattern is not None and pattern.search(answer) is not None)


def pull(weights: Mapping[str, float], answer: str) -> float:
    """Return the sum that the planted biases add to P(True) of an answer."""
    return sum(weight * trigger(bias, answer) for bias, weight in weights.items() if weight)


def is_master_key(answer: str) -> bool:
    """Return whether an answer only announces one (Zhao et al. 2025, arXiv 2507.08794)."""
    return answer.strip().lower().strip(" .:,") in _MASTER_KEYS


def check_biases(section: SimulatedSection) -> None:
    """Raise ConfigError for unknown biases."""
    problems = [
        f"simulated.judge_biases.{name}: there is no such bias; there are "
        f"{', '.join(BIASES)}{suggest(name, BIASES)}"
        for name in section.judge_biases
        if name not in BIASES
    ]
    if problems:
        raise ConfigError(*problems)
