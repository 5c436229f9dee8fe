"""Weighted terms beside a judge: functions of a user's own, rules, and aspects that it grades.

The score of an answer is the sum of weights times values, not normalised, as by TRL's
``reward_weights``. A term without a value leaves the answer unscored (law 1), where TRL adds up the
others.
"""

import asyncio
import hashlib
import inspect
import numbers
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flowright.config.reward import LARGEST_REWARD, TermSection, TermsSection
from flowright.core.errors import ConfigError, boundary
from flowright.core.off_loop import call_user_function, off_loop, plain_numbers
from flowright.core.plugins import load
from flowright.criteria.constraints.checkers import make
from flowright.criteria.constraints.language import missing
from flowright.criteria.constraints.table import Arguments, BadArguments, Met
from flowright.judging.verdict import Judge, JudgeQuery, Status, Verdict, Wrapper
from flowright.llm.chat import Usage
from flowright.llm.replies import spoken_answer

KIND = "reward function"
GOLD, WORDS = "gold", "words"


@dataclass(frozen=True, slots=True)
class TermSample:
    """An answer to be scored. ``prompt`` is a text or, as the row has it, a list of messages; the
    completion has the same form. ``columns`` are further arguments of functions."""

    query: JudgeQuery
    prompt: str | Sequence[Mapping[str, Any]]
    columns: Mapping[str, Any]

    @classmethod
    def of_query(cls, query: JudgeQuery) -> "TermSample":
        columns = {"id": query.key, "answer": query.reference, "answer_type": query.answer_type}
        return cls(query, query.question, {**columns, "evidence": query.evidence})

    @property
    def completion(self) -> object:
        """The answer as TRL gives it to a function."""
        text = self.query.answer
        return text if isinstance(self.prompt, str) else [{"role": "assistant", "content": text}]


@dataclass(frozen=True, slots=True)
class TermScores:
    """Values of the terms of an answer by name, before weights. ``status`` and ``reason`` are of
    the first term without a value; ``usage`` is that of the aspects."""

    values: Mapping[str, float]
    status: Status = "ok"
    reason: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class _Lost:
    """The reason why a term has no value for an answer."""

    status: Status
    reason: str


_Values = Sequence[float | _Lost]
_Scorer = Callable[[Sequence[TermSample]], Awaitable[_Values]]


class RewardTerms:
    """The terms of a section, ready to score. ``gold`` decides the rule of that name, ``aspects``
    grades the section's aspects, all in one question; ``without_reference`` is its instruction for
    queries that have none.

    Raises ConfigError for functions and rules that cannot be used.
    """

    def __init__(
        self,
        section: TermsSection,
        gold: Judge,
        aspects: Judge | None = None,
        without_reference: str = "",
    ) -> None:
        self.section, self.aspects = section, aspects
        self._gold, self._without_reference = gold, without_reference
        self._thread = ThreadPoolExecutor(1, "reward-function")  # one call at a time, as in TRL
        self._scorers: dict[str, _Scorer] = {}
        problems: list[str] = []
        for term in section.terms:
            try:
                if term.function is not None:
                    self._scorers[term.name] = partial(self._call, load_function(term.function))
                elif term.rule is not None:
                    self._scorers[term.name] = partial(self._apply, self._rule(term))
            except ConfigError as error:
                problems += [f"reward.terms: {term.name}: {line}" for line in error.problems]
        if problems:
            raise ConfigError(*problems)

    async def score(self, samples: Sequence[TermSample]) -> list[TermScores]:
        """Score answers, of which a function gets all in one call."""
        names = [*self._scorers]
        graded, *found = await asyncio.gather(
            self._grade(samples), *(scorer(samples) for scorer in self._scorers.values())
        )
        scores: list[TermScores] = []
        for verdict, *each in zip(graded, *found, strict=True):
            known: dict[str, float | _Lost] = dict(zip(names, each, strict=True))
            if verdict is not None and verdict.score is not None:
                # A gate or a floor decides without parts: its score is that of every aspect.
                known |= {n: verdict.parts.get(n, verdict.score) for n in self.section.aspects}
            elif verdict is not None:
                reason = f"aspects: {verdict.cause}"
                known |= dict.fromkeys(self.section.aspects, _Lost(verdict.status, reason))
            usage = verdict.usage if verdict is not None else Usage()
            lost = next((each for each in known.values() if isinstance(each, _Lost)), None)
            if lost is not None:
                scores.append(TermScores({}, lost.status, lost.reason, usage))
                continue
            ordered = ((term.name, known[term.name]) for term in self.section.terms)
            values = {name: value for name, value in ordered if not isinstance(value, _Lost)}
            scores.append(TermScores(values, usage=usage))
        return scores

    def weighted(self, scores: TermScores) -> dict[str, float]:
        """Return the terms' parts of the sum."""
        return {term.name: term.weight * scores.values[term.name] for term in self.section.terms}

    async def _grade(self, samples: Sequence[TermSample]) -> Sequence[Verdict | None]:
        judge = self.aspects
        if judge is None:
            return [None] * len(samples)
        queries = []
        for query in (sample.query for sample in samples):
            instruction = "" if query.reference.strip() else self._without_reference
            key = f"{query.key}/aspects"
            queries.append(replace(query, criteria=(), instruction=instruction, key=key))
        return await asyncio.gather(*map(judge.judge, queries))

    async def _call(self, function: Callable[..., Any], samples: Sequence[TermSample]) -> _Values:
        where = f"{KIND} {function.__module__}:{getattr(function, '__name__', 'function')}"
        if not samples:
            return []
        given: dict[str, Any] = {
            **{name: [s.columns[name] for s in samples] for name in samples[0].columns},
            "prompts": [sample.prompt for sample in samples],
            "completions": [sample.completion for sample in samples],
        }
        taken = inspect.signature(function).parameters
        if all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in taken.values()):
            given = {name: values for name, values in given.items() if name in taken}
        with boundary(where) as caught:
            found = await call_user_function(partial(function, **given), lambda: self._thread)
            return _read(found, len(samples), where)
        assert caught.failure is not None
        return [_Lost("unavailable", caught.failure.message)] * len(samples)

    async def _apply(
        self,
        rule: Callable[[JudgeQuery], Awaitable[float | _Lost]],
        samples: Sequence[TermSample],
    ) -> _Values:
        return await asyncio.gather(*(rule(sample.query) for sample in samples))

    def _rule(self, term: TermSection) -> Callable[[JudgeQuery], Awaitable[float | _Lost]]:
        if term.rule == GOLD:
            _require(not term.arguments, "rule gold takes no arguments")
            return self._by_gold
        try:
            measure = _measure_of(str(term.rule), term.arguments)
        except BadArguments as error:
            raise ConfigError(f"{error}; or {GOLD}, {WORDS}") from None

        async def measured(query: JudgeQuery) -> float:
            return await off_loop(lambda: measure(spoken_answer(query.answer)), query.answer)

        return measured

    async def _by_gold(self, query: JudgeQuery) -> float | _Lost:
        verdict = await self._gold.judge(query)
        if verdict.score is None:
            return _Lost(verdict.status, f"rule {GOLD}: {verdict.reason}")
        return verdict.score


def load_function(path: str) -> Callable[..., Any]:
    """Import a reward function. Raises ConfigError."""
    found = load(path, KIND)
    _require(callable(found), f"{KIND} {path}: not a function")
    return found


def terms_hash(section: TermsSection) -> str:
    """Hash the terms, and the modules of their functions. Raises ConfigError."""
    digest = hashlib.sha256(section.model_dump_json(include={"judge_weight", "terms"}).encode())
    for function in (term.function for term in section.terms if term.function is not None):
        module = inspect.getmodule(load_function(function))
        digest.update(inspect.getsource(module).encode() if module is not None else b"")
    return digest.hexdigest()


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        raise ConfigError(message)


def _measure_of(rule: str, arguments: Mapping[str, Any]) -> Callable[[str], float]:
    """Return the value of an answer by a rule. Raises BadArguments."""
    if rule == WORDS:
        read = Arguments(arguments)
        most = read.whole("most", 1)
        read.end()
        return lambda answer: min(1.0, len(answer.split()) / most)
    if lacking := missing():
        raise ConfigError(
            f"rule {rule} needs {', '.join(lacking)}: pip install --no-deps -r "
            "requirements-constraints.txt"
        )
    met: Met = make(rule, arguments, "fixed").met
    return lambda answer: float(met(answer))


def _read(found: object, count: int, where: str) -> _Values:
    """Return the values that a function returned for ``count`` completions."""
    if hasattr(found, "tolist"):  # an array
        found = found.tolist()  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(found, list | tuple) or len(found) != count:
        is_list = isinstance(found, list | tuple)
        got = f"{len(found)} values" if is_list else f"a {type(found).__name__}"
        reason = f"{where}: returned {got} for {count} completions; return a list of one each"
        return [_Lost("unavailable", reason)] * count
    return [_number(plain_numbers(value), where) for value in found]


def _number(value: object, where: str) -> float | _Lost:
    if value is None:
        return _Lost("abstain", f"{where}: returned None")
    if not isinstance(value, numbers.Real):
        return _Lost("unavailable", f"{where}: returned a {type(value).__name__}, not a number")
    number = float(value)
    if not abs(number) <= LARGEST_REWARD:  # nan, too
        return _Lost("unavailable", f"{where}: returned {number:g}; return None for no reward")
    return number


class NoJudge:
    """The judge that is not asked (``reward.judge_weight: 0``)."""

    name = "terms"

    async def judge(self, query: JudgeQuery) -> Verdict:
        return Verdict(None, None, "rule", "abstain", "reward.judge_weight: 0", judge=self.name)


@dataclass(eq=False)
class WithTerms(Wrapper):
    """Scores single answers by the judge's score and ``terms``. A verdict's ``parts`` have the
    terms and ``judge``, its score before the weight; ``correct`` stays the judge's, and follows
    ``right_from`` where it is not asked. ``bounded``: scores outside of [0, 1] are failures."""

    terms: RewardTerms
    right_from: float = 0.5
    bounded: bool = False

    async def judge(self, query: JudgeQuery) -> Verdict:
        if query.rival is not None:
            reason = "reward.terms: score one answer, and the query has two"
            return Verdict(None, None, "rule", "refused", reason, judge=self.name)
        began = time.monotonic()
        weight, scoring = self.terms.section.judge_weight, self.terms.score
        if not weight:
            source = "llm" if self.terms.aspects is not None else "rule"
            judged = Verdict(0.0, False, source, "ok", judge=self.name)
            (scores,) = await scoring([TermSample.of_query(query)])
        else:
            judged, (scores,) = await asyncio.gather(
                self.inner.judge(query), scoring([TermSample.of_query(query)])
            )
        spent = {"usage": judged.usage + scores.usage, "seconds": time.monotonic() - began}
        if judged.score is None:
            return replace(judged, **spent)
        if scores.status != "ok":
            lost = Verdict(None, None, "rule", scores.status, scores.reason, judge=self.name)
            return replace(lost, **spent, members=(judged,))
        score = weight * judged.score + sum(self.terms.weighted(scores).values())
        if self.bounded and not 0 <= score <= 1:
            reason = f"reward.terms: score {score:g}; values of a service's terms are from 0 to 1"
            return Verdict(None, None, "rule", "unavailable", reason, judge=self.name)
        judge_part = {"judge": judged.score} if weight else {}
        return replace(
            judged,
            score=score,
            correct=judged.correct if weight else score >= self.right_from,
            parts={**judged.parts, **judge_part, **scores.values},
            **spent,
        )
