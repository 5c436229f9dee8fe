"""What becomes of an answer that keeps its judge from a verdict: a second reading, and a control.

The second reading is one that the answer can hardly steer; where it fails too, the control tells
whose fault that is. A policy that is not scored where it is wrong gains by it, so no text may turn
"wrong" into "unscored" (law 1). Nor may a breakdown of ours become "wrong". How a model is asked is
not known here.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flowright.core.off_loop import off_loop
from flowright.grading.text import extract_answer
from flowright.judging.schemas import normalised
from flowright.judging.verdict import Judge, JudgeQuery, Source, Status, Verdict, Wrapper
from flowright.llm.chat import Usage
from flowright.llm.context import last_tokens
from flowright.llm.fences import sanitise
from flowright.llm.replies import spoken_answer

STEERABLE: frozenset[Status] = frozenset(
    {"abstain", "declined", "parse_error", "refused", "truncated"}
)
"""How a verdict can be missing because of the answer. That a backend is down
(:data:`~flowright.judging.verdict.DOWN`) is our fault, whatever the answer."""

SHORT = 300  # bytes of UTF-8 of an answer that is a number, a label, a name
LONG = 2000  # of a text, of code

NO_ANSWER = "I do not know."
"""The control's answer where there is no reference."""


@dataclass(eq=False)
class SecondReading(Wrapper):
    """Decides what ``inner`` left without a verdict in a way that the answer can bring about.

    1. ``reader``, the same judges asking more strictly, is shown the final answer alone
       (:func:`shortened`): its verdict has ``source="second_reading"``.
    2. ``reader`` is put a control: the same question with the reference as the answer
       (:func:`neutral`). Without a verdict on that the fault is ours, and the sample stays
       unscored.
    3. ``rules``, if there are any, decide where they can: ``source="rule_fallback"``.
    4. ``reader`` is shown the answer once more, now that it is known to judge. If it fails again,
       the failure follows the answer, and the sample gets the floor: wrong, ``source="floor"``.

    ``steerable`` are the statuses that this is done for. A server that fails or takes too long at
    any step ends it: unscored. Between two answers an
    abstention is a finding, and stays.

    The floor takes a failure before and after a control that passed, so that a server that was out
    of order for a while floors nobody. A judge that is empty at random, 13 % of the time, floors a
    right answer with a probability below 1e-6 where first reading and the two of the reader make
    seven attempts or more, as they do with one attempt of the first
    (:data:`flowright.judging.retries.READING_ATTEMPTS`).
    """

    reader: Judge
    rules: Judge | None = None
    steerable: frozenset[Status] = STEERABLE

    async def judge(self, query: JudgeQuery) -> Verdict:
        first = await self.inner.judge(query)
        if not self._is_steerable(first, query):
            return first
        told = [first]

        async def ask(judge: Judge, asked: JudgeQuery, step: str) -> Verdict:
            verdict = await judge.judge(replace(asked, key=f"{query.key}/{step}"))
            told.append(verdict)
            return verdict

        short = await off_loop(lambda: shortened(query), query.answer, query.rival or "")
        again = await ask(self.reader, short, "second reading")
        if not self._is_steerable(again, query):
            return _ended(again, told, "second_reading")
        control = await ask(self.reader, neutral(query), "control")
        if control.status != "ok":
            reason = f"the reference is not judged either: {control.reason}"
            lost = Verdict(None, None, control.source, control.status, reason, judge=self.name)
            return _ended(lost, told)
        if self.rules is not None:
            ruled = await ask(self.rules, query, "rules")
            if ruled.status == "ok":
                return _ended(ruled, told, "rule_fallback")
        last = await ask(self.reader, short, "third reading")
        if not self._is_steerable(last, query):
            return _ended(last, told, "second_reading")
        reason = f"{last.reason}; read again it fails again, and the reference does not"
        floor = Verdict(0.0, False, "floor", "ok", reason, judge=self.name)
        return _ended(floor, told)

    def _is_steerable(self, verdict: Verdict, query: JudgeQuery) -> bool:
        is_finding = verdict.status == "abstain" and query.rival is not None
        return verdict.status in self.steerable and not is_finding


def _ended(verdict: Verdict, told: Sequence[Verdict], source: Source | None = None) -> Verdict:
    """The verdict with what all steps cost, and the first one's failure kept; one that says
    something with its ``source``."""
    first = told[0]
    return replace(
        verdict,
        source=source if source and verdict.status == "ok" else verdict.source,
        reason=f"{verdict.reason} (first reading: {first.status}: {first.reason})",
        attempts=sum(each.attempts for each in told),
        usage=sum((each.usage for each in told), Usage()),
        seconds=sum(each.seconds for each in told),
        members=verdict.members or (first,),
        replies=tuple(reply for each in told for reply in each.replies),
    )


def shortened(query: JudgeQuery) -> JudgeQuery:
    """The query with as little of the answer as a verdict takes: the final answer that the gold
    check finds, at most :data:`SHORT`, or of a text or code the end, at most :data:`LONG`; without
    what cannot be seen. Evidence is cut to its first clause: what follows may quote the program."""
    evidence = None if query.evidence is None else query.evidence.partition(";")[0][:SHORT]
    is_long = bool(query.criteria) or query.answer_type in ("code", "free_text")
    rival = None if query.rival is None else _end(query.rival, is_long)
    return replace(query, answer=_end(query.answer, is_long), rival=rival, evidence=evidence)


def _end(answer: str, is_long: bool) -> str:
    spoken, most = spoken_answer(answer), LONG if is_long else SHORT
    if not is_long:
        spoken = " ".join(extract_answer(spoken).split())
    return last_tokens(_seen(last_tokens(spoken, most)), most)


def _seen(text: str) -> str:
    """Without controls, format characters and unassigned ones; composed, with at most two marks on
    a character."""
    kept: list[str] = []
    marks = 0
    for character in normalised("NFC", sanitise(text)):
        marks = marks + 1 if unicodedata.category(character)[0] == "M" else 0
        if marks <= 2 and (character in "\n\t" or unicodedata.category(character)[0] != "C"):
            kept.append(character)
    return "".join(kept)


def neutral(query: JudgeQuery) -> JudgeQuery:
    """The control: nothing of it is the policy's. The rival, if there is one, stays."""
    answer = query.reference if query.reference.strip() else NO_ANSWER
    return replace(query, answer=answer, evidence=None)
