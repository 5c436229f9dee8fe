"""A judge that answers in VerIF's format, ``[[1]]`` or ``[[0]]`` at the head of its reply, for
models that were trained on it, such as THU-KEG/IF-Verifier-7B.

Only the form of the reply is another one: prompt, fences, retries and deadline are
:mod:`flowright.judging`'s.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from flowright.config.judge import JudgeSection
from flowright.core.off_loop import off_loop
from flowright.criteria.rubrics.replies import read_bracketed
from flowright.judging.attempts import RetryingAsker
from flowright.judging.parsing import Form, Reading
from flowright.judging.questions import Questions
from flowright.judging.schemas import Field
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import ChatModel

ASKS = """\
Begin your reply with the verdict in double square brackets: [[1]] if the value is true, and [[0]] \
if it is false. Your reasons may follow."""

_REASON_CHARS = 2_000


def read_verdict(text: str, form: Form, fields: Sequence[Field]) -> Reading:
    """The one field of a reply that begins with ``[[1]]`` or ``[[0]]``, whatever the form."""
    verdict = read_bracketed(text)
    if verdict is not None:
        return Reading({fields[0].key: verdict}, text.strip()[:_REASON_CHARS])
    why = f"it begins with {text.strip()[:80]!r}, not with [[1]] or [[0]] alone"
    return Reading({}, why, "no_verdict" if text.strip() else "empty")


class BracketJudge:
    """Judges one criterion, which may be a list of constraints, by asking a chat model for
    ``[[1]]`` or ``[[0]]``; a query with another number of criteria is not judged (``abstain``).
    Made for :class:`~flowright.judging.rubrics.verif.VerifReward`. Raises ConfigError for a wording without
    words for rubrics."""

    def __init__(self, model: ChatModel, section: JudgeSection) -> None:
        self.name = model.name
        self._questions = Questions(section.model_copy(update={"ask": "rubric"}))
        self._asker = RetryingAsker(model, section, read=read_verdict)

    async def judge(self, query: JudgeQuery) -> Verdict:
        if len(query.criteria) != 1:
            why = f"{len(query.criteria)} criteria, and one verdict is asked for"
            return Verdict(None, None, "llm", "abstain", why, judge=self.name)
        began = time.monotonic()
        (question,) = await off_loop(lambda: self._questions.about(query), query.answer)
        question = replace(question, asks=ASKS, examples=())
        result = await self._asker.ask(question, query.key)
        verdict = result.values.get(question.fields[0].key)
        met = None if verdict is None else verdict is True
        return Verdict(
            score=None if met is None else float(met),
            correct=met,
            source="llm",
            status=result.status,
            reason=result.reason,
            attempts=result.attempts,
            judge=self.name,
            usage=result.usage,
            seconds=time.monotonic() - began,
            parts={} if met is None else {"criterion 1": float(met)},
            replies=result.replies,
        )
