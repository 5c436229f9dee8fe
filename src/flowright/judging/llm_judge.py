"""Judge with a large model: the questions for each ``judge.ask``, and the score of the replies.

A failing backend is a verdict with a status, never an exception.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_uppercase

from flowright.config.judge import ASK, JudgeSection
from flowright.core.errors import ConfigError
from flowright.core.off_loop import off_loop
from flowright.criteria.rubrics.points import earned_share
from flowright.judging.attempts import QuestionResult, RetryingAsker, reading_section
from flowright.judging.prompts import Answered, Block, Question, wording_of
from flowright.judging.schemas import (
    BETTER,
    GRADE,
    PRINCIPLES,
    SHARE,
    TOP_GRADE,
    TRUTH,
    Field,
    Value,
)
from flowright.judging.verdict import DOWN, JudgeQuery, Verdict
from flowright.llm.chat import ChatModel, Usage
from flowright.llm.context import last_tokens
from flowright.llm.control_tokens import sanitise
from flowright.llm.replies import spoken_answer

Replies = Sequence[Mapping[str, Value]]
"""The values read for each question, by field; some may be missing."""


@dataclass(frozen=True, slots=True)
class JudgeScore:
    """Score of the replies in [0, 1], None if too much is missing. ``each``: scores of the single
    questions, where they are verdicts of their own."""

    score: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    each: tuple[float | None, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """One ``judge.ask``: its questions about a query (blocks and fields), and their score. It fits
    queries with a rival if it ``compares``, and with criteria if it ``reads_criteria``."""

    questions: Callable[[JudgeQuery, JudgeSection], Sequence[Question]]
    score: Callable[[JudgeQuery, JudgeSection, Replies], JudgeScore]
    compares: bool = False
    reads_criteria: bool = False

    def unfit(self, query: JudgeQuery) -> str | None:
        """Return the reason why a query does not fit, None if it does."""
        if (query.rival is not None) != self.compares:
            return "the query has " + ("one answer" if query.rival is None else "two answers")
        if bool(query.criteria) != self.reads_criteria:
            return "the query has " + ("criteria" if query.criteria else "no criteria")
        if query.criteria and all(criterion.points < 0 for criterion in query.criteria):
            return "no criterion has points above 0, so there is nothing to earn"
        return None


FIRST_PRINCIPLES = Field("principles", PRINCIPLES)
_PRINCIPLED = (
    "Before you judge, write the principles that matter for this very question: two to five, each "
    "with its weight in percent, all weights together 100. Then criticise what you judge by each "
    "of them, and decide last, by the weights."
)

WAYS = ASK.table({name: f"flowright.judging.llm_judge:{name.upper()}" for name in ASK})
"""An :class:`Ask` each."""


class Questions:
    """The configured questions in the configured wording.

    Raises ConfigError, with a line for each mistake in the wording.
    """

    def __init__(self, section: JudgeSection) -> None:
        self.ask: Ask = WAYS.load(section.ask)
        self._section = section
        wording = wording_of(section)
        self._criteria = wording.criteria
        self._wording = wording.for_ask(section.ask, section.wording)
        self._principled = section.principles and not self.ask.reads_criteria
        if self._principled and self._wording.examples:
            raise ConfigError(
                f"{section.wording}: questions.{section.ask}.examples have no principles; leave "
                "them out, or judge.principles"
            )
        self._examples: tuple[Answered, ...] = ()  # while they are rendered themselves
        self._examples = tuple(map(self._answered, range(len(self._wording.examples))))

    def about(self, query: JudgeQuery) -> list[Question]:
        """Return the questions about a query that fits."""
        return [self._worded(q, query) for q in self.ask.questions(query, self._section)]

    def _worded(self, question: Question, query: JudgeQuery) -> Question:
        aspects = self._section.aspects.items()
        listed = "\n".join(f"- {name}: {' '.join(what.split())}" for name, what in aspects)
        wording, text, examples = self._wording, self._wording.instruction, self._examples
        if query.instruction:  # the examples answer another one
            text, examples = sanitise(query.instruction), ()
        elif "{criteria}" in text:
            text = text.replace("{criteria}", self._criteria[query.answer_type])
        text = text.replace("{aspects}", listed)
        if self._principled:
            text = f"{text}\n\n{_PRINCIPLED}"
            question = replace(question, fields=(FIRST_PRINCIPLES, *question.fields))
        return replace(question, system=wording.system, instruction=text, examples=examples)

    def _answered(self, number: int) -> Answered:
        """Render an example of the wording: the answer first, all criteria at once."""
        example = self._wording.examples[number]
        where = f"{self._section.wording}: questions.{self._section.ask}.examples.{number}"
        problem = self.ask.unfit(example.query)
        if problem is not None:
            raise ConfigError(f"{where}: {problem}, and judge.ask is {self._section.ask}")
        whole = {"both_orders": True, "criteria_per_call": max(1, len(example.criteria))}
        section = self._section.model_copy(update=whole)
        question = self._worded(self.ask.questions(example.query, section)[0], example.query)
        schemas = {field.key: field.schema for field in question.fields}
        values = example.says
        problems = [f"{where}.says.{key}: unknown key" for key in values if key not in schemas]
        for key, schema in schemas.items():
            if key not in values:
                problems.append(f"{where}.says.{key}: missing")
            elif schema.read(values[key]) is None:
                problems.append(f"{where}.says.{key}: {values[key]!r} is not {schema.words}")
        if problems:
            raise ConfigError(*problems)
        return Answered(question, example.reason, example.says)


# One answer.


def _of_one(
    query: JudgeQuery,
    section: JudgeSection,
    fields: tuple[Field, ...],
    *more: Block,
    name: str = "",
) -> Question:
    answer = Block("FINAL ANSWER", shown_answer(query.answer, section))
    return Question((*task_blocks(query), *more, answer), fields, name)


def shown_answer(answer: str, section: JudgeSection) -> str:
    """Return an answer without its thinking, and of a long one the end."""
    return last_tokens(spoken_answer(answer), section.max_answer_chars)


def _one_value(field: Field, top: int = 1) -> Ask:
    """Return the ask of one question with one value, scored as a share of ``top``."""

    def scored(query: JudgeQuery, section: JudgeSection, replies: Replies) -> JudgeScore:
        value = replies[0].get(field.key)
        return JudgeScore(None if value is None else float(value) / top)

    return Ask(lambda query, section: [_of_one(query, section, (field,))], scored)


TRUE_FALSE = _one_value(Field("verdict", TRUTH))
SCORE = _one_value(Field("score", SHARE, tagged=True))
POINTWISE = _one_value(Field("score", GRADE, tagged=True), TOP_GRADE)
OVERALL = "overall"


def _each_aspect(query: JudgeQuery, section: JudgeSection) -> Sequence[Question]:
    fields = tuple(Field(name, GRADE) for name in (*section.aspects, OVERALL))
    return [_of_one(query, section, fields)]


def _overall(query: JudgeQuery, section: JudgeSection, replies: Replies) -> JudgeScore:
    shares = {name: float(grade) / TOP_GRADE for name, grade in replies[0].items()}
    is_whole = len(shares) == len(section.aspects) + 1
    return JudgeScore(shares.pop(OVERALL), shares) if is_whole else JudgeScore(None)


MULTI_ASPECT = Ask(_each_aspect, _overall)


# Criteria.


def _each_criterion(query: JudgeQuery, section: JudgeSection) -> Sequence[Question]:
    """Return questions about a batch of criteria each, which keep their numbers. Points are not
    shown: they must not affect whether a criterion is met."""
    size = section.criteria_per_call
    asked: list[Question] = []
    for start in range(0, len(query.criteria), size):
        batch = list(enumerate(query.criteria[start : start + size], start + 1))
        fields = tuple(Field(f"criterion_{number}", TRUTH) for number, _ in batch)
        blocks = (Block(f"CRITERION {n}", what.text, f"criterion_{n}") for n, what in batch)
        name = f"criteria from {start + 1}"
        asked.append(_of_one(query, section, fields, *blocks, name=name))
    return asked


def _earned(query: JudgeQuery, section: JudgeSection, replies: Replies) -> JudgeScore:
    """Return :func:`earned_share` of the criteria, clipped at 0."""
    met = {key: float(value) for reply in replies for key, value in reply.items()}
    keys = [f"criterion_{number}" for number in range(1, len(query.criteria) + 1)]
    parts = {key.replace("_", " "): met[key] for key in keys if key in met}
    if len(parts) < len(keys):
        return JudgeScore(None, parts)
    pairs = zip(query.criteria, keys, strict=True)
    share = earned_share((criterion.points, met[key]) for criterion, key in pairs)
    return JudgeScore(None if share is None else max(0.0, share), parts)


RUBRIC = Ask(_each_criterion, _earned, reads_criteria=True)


# Pairs.

ORDERS = ("answer first", "rival first")
"""Orders of two answers; a verdict on both has a member for each."""


def orders(query: JudgeQuery, section: JudgeSection) -> Sequence[str]:
    """Return the orders in which two answers are shown: both, since judges favour a position, or
    one drawn from the query. With "answer first" the query's own answer is A."""
    if section.both_orders:
        return ORDERS
    drawn = "\0".join([query.key, query.question, query.answer, query.rival or ""])
    return [ORDERS[hashlib.sha256(drawn.encode("utf-8", "replace")).digest()[0] & 1]]


def _which_better(query: JudgeQuery, section: JudgeSection) -> Sequence[Question]:
    asked: list[Question] = []
    for order in orders(query, section):
        answers = [(query.answer, query.evidence), (query.rival or "", query.rival_evidence)]
        if order == "rival first":
            answers.reverse()
        has_evidence = query.rival_evidence is not None
        blocks = lettered_blocks(
            answers if has_evidence else [(a, None) for a, _ in answers], section
        )
        better = Field("better", BETTER, tagged=True)
        asked.append(Question((*task_blocks(query), *blocks), (better,), name=order))
    return asked


def lettered_blocks(
    answers: Sequence[tuple[str, str | None]], section: JudgeSection
) -> list[Block]:
    """Return the blocks of answers, each with the evidence on it, that are lettered from A."""
    return [
        block
        for letter, (answer, evidence) in zip(ascii_uppercase, answers, strict=False)
        for block in (
            Block(f"ANSWER {letter}", shown_answer(answer, section)),
            Block(_EVIDENCE.format(f" ON ANSWER {letter}"), evidence or "", optional=True),
        )
    ]


def _won(query: JudgeQuery, section: JudgeSection, replies: Replies) -> JudgeScore:
    """Score 1 if the answer is better, 0 if its rival is, 0.5 for a tie."""
    wins: list[float | None] = []
    for order, values in zip(orders(query, section), replies, strict=True):
        better = values.get("better")
        won = 0.5 if better == "tie" else float((better == "A") == (order == "answer first"))
        wins.append(None if better is None else won)
    if None in wins or len(set(wins)) == 1:
        return JudgeScore(None if None in wins else wins[0], each=tuple(wins))
    score = 0.5 if section.on_disagreement == "tie" else None
    return JudgeScore(score, each=tuple(wins), note="which is better depends on the order; ")


PAIRWISE = Ask(_which_better, _won, compares=True)


_EVIDENCE = "EVIDENCE{}, OBSERVED BY THE GRADING SYSTEM"


def task_blocks(query: JudgeQuery) -> list[Block]:
    """Return the problem, its accepted answers and the evidence on the only answer."""
    evidence = query.evidence if query.rival_evidence is None else None
    return [
        Block("PROBLEM", query.question, optional=True),
        Block("REFERENCE ANSWER", query.reference, optional=True),
        *(Block("ALSO ACCEPTED", text, optional=True) for text in query.alternatives),
        Block(_EVIDENCE.format(""), evidence or "", optional=True),
    ]


class LlmJudge:
    """Judge that asks a chat model ``section.ask`` in the words of ``section.wording``.

    The questions of one verdict (both orders of a pair, batches of a rubric) are asked
    concurrently, each with the whole ``section.deadline_seconds`` and ``section.max_attempts``.
    Criteria of a query are asked about whatever ``section.ask`` is, if the wording covers rubrics.
    Raises ConfigError for a wording with mistakes.
    """

    def __init__(self, model: ChatModel, section: JudgeSection) -> None:
        self.name = model.name
        self._model = model
        self._section = section
        self._questions = self._rubric = Questions(section)
        if not self._questions.ask.reads_criteria and "rubric" in wording_of(section).questions:
            self._rubric = Questions(section.model_copy(update={"ask": "rubric"}))
        self._asker = RetryingAsker(model, section)

    def strictly(self) -> "LlmJudge":
        """Return the same judge for a second reading: with the strictest form that its server is
        known to serve, and with a larger budget."""
        reader = LlmJudge(self._model, reading_section(self._section))
        reader._asker = RetryingAsker(
            self._model, reader._section, forms=self._asker.forms, strict=True
        )
        return reader

    async def judge(self, query: JudgeQuery) -> Verdict:
        questions = self._rubric if query.criteria else self._questions
        problem = questions.ask.unfit(query)
        if problem is not None:
            problem = f"{problem}, and judge.ask is {self._section.ask}"
            return Verdict(None, None, "llm", "abstain", problem, judge=self.name)
        began = time.monotonic()
        answers = query.answer, query.rival or ""
        asked = await off_loop(lambda: questions.about(query), *answers)
        results = await asyncio.gather(
            *(self._asker.ask(q, f"{query.key}/{q.name}" if q.name else query.key) for q in asked)
        )
        results = [_with_principles(result) for result in results]
        replies = [result.values for result in results]
        scored = questions.ask.score(query, self._section, replies)
        verdict = self._verdict(query, results, scored, began)
        if not scored.each:
            return verdict
        members = tuple(
            self._verdict(query, [result], JudgeScore(share), began)
            for result, share in zip(results, scored.each, strict=True)
        )
        reasons = (f"{q.name}: {member.reason}" for q, member in zip(asked, members, strict=True))
        return replace(verdict, members=members, reason=scored.note + "; ".join(reasons))

    def _verdict(
        self, query: JudgeQuery, results: Sequence[QuestionResult], scored: JudgeScore, began: float
    ) -> Verdict:
        score = scored.score
        correct = None if score is None else score >= self._section.right_from
        if query.rival is not None:
            correct = None if score is None or score == 0.5 else score > 0.5
        failed = [result for result in results if result.status != "ok"]
        failed.sort(key=lambda result: result.status not in DOWN)  # an outage explains the others
        return Verdict(
            score=score,
            correct=correct,
            source="llm",
            status="ok" if score is not None else failed[0].status if failed else "abstain",
            reason="\n".join(result.reason for result in failed or results if result.reason),
            attempts=sum(result.attempts for result in results),
            judge=self.name,
            usage=sum((result.usage for result in results), Usage()),
            seconds=time.monotonic() - began,
            parts=scored.parts,
            replies=tuple(reply for result in results for reply in result.replies),
        )


def _with_principles(result: QuestionResult) -> QuestionResult:
    """Move the principles from the values to the beginning of the reason."""
    values = dict(result.values)
    principles = values.pop(FIRST_PRINCIPLES.key, None)
    if principles is None or result.status != "ok":
        return replace(result, values=values)
    return replace(result, values=values, reason=f"Principles: {principles}\n{result.reason}")
