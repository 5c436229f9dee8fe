"""A judge that scores, as what is measured (scripts/evaluate_judge.py) and as what is served
(scripts/serve_judge.py). It is computed in this process, several texts at a time.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence

from flowright.app.judge_folder import LoadedJudge
from flowright.app.together import Together
from flowright.config.grpo import GrpoSection
from flowright.config.judge import JudgeSection
from flowright.core.errors import ConfigError, DataError, FailureError
from flowright.core.off_loop import off_loop
from flowright.grpo.batch import Group, scalar_scores
from flowright.grpo.fixed_data import scored_group
from flowright.judging.llm_judge import shown_answer
from flowright.judging.measuring.measured_judges import Conversation, MeasuredJudge, Rating
from flowright.judging.trained.calibration import Calibration
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import Message, Usage
from flowright.policy.prompt import template_ids

AT_ONCE = 64


class Scorer:
    """The score of an answer: of the whole conversation in the model's chat template, read off its
    last token. Texts that wait together are computed together, and those that begin alike share
    their beginning, where the model's attention is known. ``longest``: tokens of a text."""

    def __init__(
        self, judge: LoadedJudge, at_once: int = AT_ONCE, longest: int | None = None
    ) -> None:
        if not judge.scores:
            raise ConfigError(f"{judge.policy.name}: it writes and scores nothing")
        self._policy = judge.policy
        self._longest = longest or judge.longest
        kinds = getattr(judge.policy.causal_lm.config, "layer_types", None) or ["full_attention"]
        self._section = GrpoSection(prefix_sharing=set(kinds) == {"full_attention"})
        self.together = Together(self._scores, at_once)

    async def score(self, turns: Sequence[Message], answer: str) -> tuple[float, int]:
        """The score, and the tokens of the text. Raises DataError for what the template refuses and
        for a text that is too long, FailureError where the model fails."""
        whole = [*turns, Message("assistant", answer)]
        ids = await asyncio.to_thread(template_ids, whole, self._policy.tokenizer, to_answer=False)
        if not ids:
            raise DataError("a text without a token")
        if self._longest is not None and len(ids) > self._longest:
            raise DataError(f"a text of {len(ids):,} tokens; the judge takes {self._longest:,}")
        return await self.together.ask((tuple(turns), ids)), len(ids)

    def _scores(self, texts: Sequence[tuple[tuple[Message, ...], list[int]]]) -> list[float]:
        """Of texts with the conversation that they answer, in their order."""
        places: dict[tuple[Message, ...], list[int]] = defaultdict(list)
        for place, (turns, _) in enumerate(texts):
            places[turns].append(place)
        groups: list[Group] = [
            scored_group([texts[place][1] for place in some]) for some in places.values()
        ]
        scores = scalar_scores(self._policy, groups, self._section)
        order = [place for some in places.values() for place in some]
        return [score for _, score in sorted(zip(order, scores, strict=True))]


class ScalarJudge(MeasuredJudge):
    """Rates an answer by its score. What the template refuses, such as a system message, and what
    is too long has no rating."""

    def __init__(self, name: str, scorer: Scorer, calibration: Calibration) -> None:
        self.name = name
        self.calibration = calibration
        self._scorer = scorer

    async def rate(self, conversation: Conversation, answer: str, key: str) -> Rating:
        turns = [Message(turn.role, turn.content) for turn in conversation]
        try:
            return Rating((await self._scorer.score(turns, answer))[0])
        except DataError as error:
            return Rating(None, "unreadable", str(error))
        except FailureError as error:
            return Rating(None, "failed", error.failure.message)


class ServedScalarJudge:
    """Verdicts from scores. Of one answer: how likely it is preferred to an average one, right from
    ``section.right_from``; of two: how likely the one is preferred to the other. Both by the
    calibration; the verdict's reason has the score itself."""

    def __init__(
        self, name: str, scorer: Scorer, calibration: Calibration, section: JudgeSection
    ) -> None:
        self.name = name
        self._scorer = scorer
        self._calibration = calibration
        self._section = section

    @property
    def notes(self) -> tuple[str, ...]:
        """What one has to know of its verdicts, a sentence each."""
        return (
            str(self._calibration),
            "a score is how likely the answer is preferred to an average one, not how likely it is "
            f"right; it counts as right from {self._section.right_from:g}",
            "it is shown question and answer, and neither reference nor evidence",
            "it scores each answer by itself: the order of two cannot matter, and the same answer "
            "always has the same score",
            "it reads no criteria and takes no instruction",
        )

    async def judge(self, query: JudgeQuery) -> Verdict:
        began = time.monotonic()
        if query.criteria or query.instruction:
            return self._lost("refused", "it was trained for neither criteria nor an instruction")
        turns = [Message("user", query.question)]
        answers = [query.answer] if query.rival is None else [query.answer, query.rival]
        shown = await off_loop(lambda: [shown_answer(a, self._section) for a in answers], *answers)
        scoring = (self._scorer.score(turns, answer) for answer in shown)
        found = await asyncio.gather(*scoring, return_exceptions=True)
        scored: list[tuple[float, int]] = []
        for one in found:
            if isinstance(one, DataError):
                return self._lost("refused", str(one))
            if isinstance(one, FailureError):
                return self._lost("unavailable", one.failure.message)
            if isinstance(one, BaseException):
                raise one
            scored.append(one)
        usage = Usage(1, sum(tokens for _, tokens in scored), 0)
        verdict = self._compared(scored) if query.rival is not None else self._alone(scored[0][0])
        probability, correct, reason = verdict
        won = 0.5 if correct is None else float(correct)
        orders = {"answer first": won, "rival first": won} if query.rival is not None else {}
        return Verdict(
            score=probability,
            correct=correct,
            source="llm",
            status="ok",
            reason=reason,
            attempts=1,
            judge=self.name,
            usage=usage,
            seconds=time.monotonic() - began,
            parts=orders,
        )

    def _alone(self, score: float) -> tuple[float, bool | None, str]:
        calibration, limit = self._calibration, self._section.right_from
        probability = calibration.of_answer(score)
        told = (
            f"score {score:+.3f}: {probability:.1%} likely preferred to an average answer "
            f"({calibration}), right from {limit:.1%}; no reference was shown"
        )
        return probability, probability >= limit, told

    def _compared(self, scored: Sequence[tuple[float, int]]) -> tuple[float, bool | None, str]:
        (one, _), (other, _) = scored
        probability = self._calibration.preferred(one - other)
        told = f"scores {one:+.3f} and {other:+.3f}: {probability:.1%} likely preferred"
        correct = None if one == other else one > other
        # Between answers that are nearly alike a probability may round to a half, which is a tie.
        if correct is not None and probability == 0.5:
            correct = None
        return probability, correct, f"{told} ({self._calibration})"

    def _lost(self, status: str, why: str) -> Verdict:
        assert status in ("refused", "unavailable")
        return Verdict(None, None, "llm", status, why, judge=self.name)
