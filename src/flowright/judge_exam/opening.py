"""Opening the judge that is examined, and its twin that compares two answers. Nothing is asked."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from flowright.config import JudgeSection, JudgeServerConfig
from flowright.errors import UserError
from flowright.judge.opening import OpenJudge, open_judge
from flowright.judge.verdict import Judge
from flowright.judge_exam.asking import JudgeDown
from flowright.simulation.opening import open_models


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
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(
            open_models(config.models, config.llm, config.simulated, None, ())
        )

        async def opened(section: JudgeSection) -> OpenJudge:
            return await stack.enter_async_context(
                open_judge(section, section.model, models.clients)
            )

        judge = await opened(asked)
        if problems := [*await models.check(), *await judge.check()]:
            raise JudgeDown(*problems, "nothing was measured")
        twin = await opened(_comparing(asked)) if pairs and asked.mode != "rules" else None
        yield Examinee(judge.judge, twin.judge if twin else None, judge.simulated)


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
