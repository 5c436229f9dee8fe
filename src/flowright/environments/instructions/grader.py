"""The grader that the configuration names, opened: judge, sandbox, checkers; and what a dry run
asks of them. Who the judge's servers are is :mod:`flowright.simulation.large_models`'s.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowright.config.judge import WORDING, JudgeSection
from flowright.config.llm import SIMULATED
from flowright.config.root import Config
from flowright.core.errors import UserError
from flowright.criteria.constraints.language import missing
from flowright.criteria.rubrics.scaffolding import RubricWording, standard_wording, wording_from
from flowright.environments.instructions.config import CHECKED, InstructionsSection
from flowright.environments.instructions.reward import (
    ConstraintGrader,
    Grader,
    JudgedGrader,
    RankingGrader,
    RubricGrader,
    TermsGrader,
    VerifGrader,
    judge_calls,
)
from flowright.environments.instructions.tasks import InstructionTask
from flowright.environments.workflow.environment import open_sandbox
from flowright.judging.build import OpenJudge, build_judge, caches_of, open_judge, open_terms
from flowright.judging.group_judge import planned_calls as group_calls
from flowright.judging.prompts import WITHOUT_REFERENCE
from flowright.judging.rubrics.criteria_judge import BracketJudge, CriteriaCalls, criteria_judge
from flowright.judging.rubrics.rewards import RubricReward, VerifReward
from flowright.judging.terms import RewardTerms
from flowright.judging.verdict import Criterion, Judge, JudgeQuery
from flowright.judging.wrappers import Cached
from flowright.llm.chat import ChatModel
from flowright.llm.client import ChatClient
from flowright.llm.counters import Counters
from flowright.sandbox import Sandbox
from flowright.simulation.large_models import open_models

TRIAL = JudgeQuery(
    "[user] What is 6 * 7?",
    "It is 42.",
    "",
    criteria=(Criterion("It says 42.", 1.0),),
    key="trial",
)


ALONE = JudgeQuery("What is 6 * 7?", "It is 42.", "", key="trial")


@dataclass(frozen=True, slots=True)
class OpenGrader:
    """A grader that can be asked. ``judge`` is None where checkers decide alone; ``counters`` are
    of what its servers were asked."""

    grader: Grader
    judge: OpenJudge | None = None
    counters: Sequence[Counters] = ()
    sandbox: Sandbox | None = None
    terms: RewardTerms | None = None

    def state(self, without: Sequence[str]) -> list[Any] | None:
        """Return the content of the judge's caches; None without one."""
        return [cache.state(without) for cache in self._caches()] or None

    def restore(self, state: Sequence[Sequence[Any]] | None) -> None:
        for cache, known in zip(self._caches(), state or (), strict=False):
            cache.restore(known)

    def _caches(self) -> list[Cached]:
        return caches_of(self.judge.judge if self.judge is not None else None, self.terms)


def wording_of(section: InstructionsSection) -> RubricWording:
    """Return the words of the prompts to judge and policy. Raises ConfigError."""
    return standard_wording() if section.wording is None else wording_from(Path(section.wording))


@asynccontextmanager
async def open_grader(config: Config) -> AsyncIterator[OpenGrader]:
    """The grader of a configuration. Raises UserError with a line for all that cannot be used."""
    section = config.own(InstructionsSection)
    if section.reward in CHECKED:
        check_packages()
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(
            open_models(config.models, config.llm, config.simulated, None, ())
        )
        asked = models.clients.get(config.judge_model or "")
        asked = asked and asked.as_role("judge")
        terms = open_terms(config.reward, config.judge, asked, seed=config.seed)
        if section.reward in ("constraints", "own"):
            if lines := await models.check(_budgets(config)):
                raise UserError(*lines)
            grader = ConstraintGrader(section) if section.reward != "own" else TermsGrader()
            yield OpenGrader(grader, None, models.counters, terms=terms)
            return
        judge = await stack.enter_async_context(_judge(config, models.clients))
        if lines := [*await models.check(_budgets(config)), *await judge.check()]:
            raise UserError(*lines)
        counters = (*models.counters, *judge.counters)
        if section.reward == "judge":
            grader: Grader = (
                single := JudgedGrader(judge.judge, section, _instruction(config.judge))
            )
            if judge.ranking is not None:
                grader = RankingGrader(judge.ranking, single)
            yield OpenGrader(grader, judge, counters, terms=terms)
            return
        sandbox = await stack.enter_async_context(open_sandbox(config))
        yield OpenGrader(grader_of(config, judge.judge, sandbox), judge, counters, sandbox, terms)


@asynccontextmanager
async def _judge(config: Config, clients: Mapping[str, ChatClient]) -> AsyncIterator[OpenJudge]:
    """The judge of answers, or of criteria, that asks these models."""
    if config.own(InstructionsSection).reward == "judge":
        async with open_judge(config.judge, config.judge_model, clients, seed=config.seed) as judge:
            yield judge
        return
    name = config.judge_model or ""
    client = clients[name].as_role("judge")
    yield OpenJudge(judge_of(config, client), None, (name,), clients=(client,))


def _instruction(section: JudgeSection) -> str:
    """Return the question about an answer without a reference, with a built-in wording. A service
    has a wording of its own."""
    if section.service is not None or section.wording not in WORDING:
        return ""
    return WITHOUT_REFERENCE.get(section.ask, "")


def grader_of(config: Config, judge: Judge, sandbox: Sandbox) -> Grader:
    """The grader of ``instructions.reward`` that asks this judge."""
    section, words, right = (
        config.own(InstructionsSection),
        wording_of(config.own(InstructionsSection)),
        config.judge.right_from,
    )
    if section.reward == "rubric":
        reward = RubricReward(judge, sandbox, words.rubric, section.most_ungraded, _calls(section))
        return RubricGrader(reward, right)
    rules = section.rules or "run"
    return VerifGrader(VerifReward(judge, sandbox, rules, words.verif), rules, right)


def judge_of(config: Config, model: ChatModel) -> Judge:
    """Return the judge of criteria, with the cache and the breaker of section ``judge``. The
    rewards themselves do the work of gate and second reading."""
    section = config.own(InstructionsSection)
    if section.reward == "verif" and section.reply == "brackets":
        asked: Judge = BracketJudge(model, config.judge)
    else:
        asked = criteria_judge(model, config.judge, _calls(section))
    return build_judge(
        config.judge.model_copy(update={"ask": "rubric", "gate": False, "second_reading": False}),
        asked,
        seed=config.seed,
    )


def _calls(section: InstructionsSection) -> CriteriaCalls:
    return "each" if section.criteria_calls == "each" else "together"


def _budgets(config: Config) -> dict[str, dict[str, int]]:
    """By model, the tokens of a reply by the key that sets them."""
    return {name: {"judge.max_tokens": config.judge.max_tokens} for name in config.models}


# The dry run's.


def planned_calls(config: Config, tasks: Sequence[InstructionTask]) -> float:
    """Return the mean calls of the judge per answer without failures."""
    section = config.own(InstructionsSection)
    if not tasks:
        return 0.0
    aspects = bool(config.reward.aspects)
    if config.judge.group.method != "none":
        size = config.grpo.group_size
        return group_calls(config.judge, size) / size + aspects
    return sum(judge_calls(task.row, section) for task in tasks) / len(tasks) + aspects


def check_packages() -> str:
    """Return a line on the checkers' packages. Raises UserError if some are not installed."""
    if lacking := missing():
        raise UserError(
            f"instructions.reward: the checkers need {', '.join(lacking)}: pip install --no-deps "
            "-r requirements-constraints.txt"
        )
    return "all that they need is installed"


async def check_judge(config: Config) -> str:
    """Asks the judge, but for the embedded one, which is started with the run, one question: a line
    about who it is. Raises UserError where it cannot be used."""
    names, whole = config.models - {SIMULATED}, config.own(InstructionsSection).reward == "judge"
    if SIMULATED in config.models:
        return f"{SIMULATED}: started with the run on a free loopback port"
    async with (
        open_models(names, config.llm, config.simulated, None, ()) as models,
        _judge(config, models.clients) as judge,
    ):
        if lines := [*await models.check(_budgets(config)), *await judge.check()]:
            raise UserError(*lines)
        alone = ALONE if judge.ranking is None else replace(ALONE, rival="It is 41.")
        verdict = await judge.judge.judge(alone if whole else TRIAL)
        if verdict.status != "ok":
            asked = "a trial answer" if whole else "a trial criterion"
            raise UserError(
                f"judge: {', '.join(config.judge_names)} gave no verdict on {asked} "
                f"({verdict.cause})"
            )
        where = [
            f"{name} at {', '.join(client.entry.base_urls)}" + " (simulated)" * client.simulated
            for name, client in models.clients.items()
        ]
        return "; ".join(where) or f"judge service at {config.judge_names[0]}"
