"""Opening the judge that is examined, and its twin that compares two answers. Nothing is asked."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from flowright.config import JudgeSection, JudgeServerConfig
from flowright.errors import UserError
from flowright.judge.verdict import Judge
from flowright.judge_exam.asking import JudgeDown
from flowright.judge_service.serve import OpenJudge, open_judge


@dataclass(frozen=True, slots=True)
class Examinee:
    """``pair_judge`` is None where nobody compares two answers: rules do not."""

    judge: Judge
    pair_judge: Judge | None
    simulated: bool


@asynccontextmanager
async def open_examinee(config: JudgeServerConfig, pairs: bool) -> AsyncIterator[Examinee]:
    """The judge of a service's configuration, asked anew for every query: without its cache, which
    would make repetitions look stable, and without its breaker, which would answer for it.

    Raises ConfigError for a way of asking that cannot be examined, JudgeDown where a server does
    not answer.
    """
    asked = examined_section(config.judge)
    pairs = pairs and asked.mode != "rules"
    async with AsyncExitStack() as stack:
        opened = await _opened(stack, config, asked)
        pair_judge = None
        if pairs:
            twin = await _opened(stack, config, _comparing(asked))
            pair_judge = twin.judge
        yield Examinee(opened.judge, pair_judge, opened.simulated)


def examined_section(section: JudgeSection) -> JudgeSection:
    """The section as it is examined. Raises UserError."""
    if section.ask in ("pairwise", "rubric"):
        why = {
            "pairwise": "it does not call one answer right or wrong, and pairs are asked anyway",
            "rubric": "it needs criteria, and a labelled answer has a reference",
        }[section.ask]
        raise UserError(
            f"judge.ask: {section.ask} cannot be examined: {why}; "
            "add judge.ask=true_false (or score, pointwise, multi_aspect) to the command line"
        )
    return section.model_copy(update={"cache_size": 0, "breaker_threshold": 0})


def _comparing(section: JudgeSection) -> JudgeSection:
    """The same model as a judge of two answers in both orders: its verdict's two members are the
    orders, so nothing else may have members."""
    alone: dict[str, Any] = {"panel": (), "weights": (), "quorum": 1, "samples": 1}
    return section.model_copy(
        update={
            "ask": "pairwise",
            "both_orders": True,
            "mode": "judge",
            "min_confidence": 0.0,
            **alone,
        }
    )


async def _opened(
    stack: AsyncExitStack, config: JudgeServerConfig, section: JudgeSection
) -> OpenJudge:
    opened = await stack.enter_async_context(
        open_judge(config.model_copy(update={"judge": section}))
    )
    problems = await opened.ready() if opened.ready is not None else []
    if problems:
        raise JudgeDown(*problems, "nothing was measured")
    return opened
