"""The grader that the configuration names, opened: judge, sandbox, checkers; and what a dry run
asks of them. Who the judge's servers are is :mod:`flowright.simulation.opening`'s.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowright.config import SIMULATED, Config
from flowright.config.instructions import InstructionsSection
from flowright.constraints.language import missing
from flowright.environments.workflow import open_sandbox
from flowright.errors import UserError
from flowright.instructions.grades import (
    ConstraintGrader,
    Grader,
    RubricGrader,
    VerifGrader,
    judge_calls,
)
from flowright.instructions.tasks import InstructionTask
from flowright.judge.build import build_judge, caches
from flowright.judge.verdict import Criterion, Judge, JudgeQuery
from flowright.llm.chat import ChatModel
from flowright.llm.counters import Counters
from flowright.rubrics.asking import CriteriaCalls, criteria_judge
from flowright.rubrics.brackets import BracketJudge
from flowright.rubrics.reward import RubricReward
from flowright.rubrics.verif import VerifReward
from flowright.rubrics.wording import RubricWording, standard_wording, wording_from
from flowright.sandbox import Sandbox
from flowright.simulation.opening import Models, open_models

TRIAL = JudgeQuery(
    "[user] What is 6 * 7?",
    "It is 42.",
    "",
    criteria=(Criterion("It says 42.", 1.0),),
    key="trial",
)


@dataclass(frozen=True, slots=True)
class OpenGrader:
    """A grader that can be asked. ``judge`` and ``models`` are None where checkers decide."""

    grader: Grader
    judge: Judge | None = None
    models: Models | None = None
    sandbox: Sandbox | None = None

    @property
    def counters(self) -> Sequence[Counters]:
        """What the judge's servers were asked."""
        return self.models.counters if self.models is not None else ()

    def state(self, without: Sequence[str]) -> list[Any] | None:
        """What the judge's cache knows; None without one."""
        known = caches(self.judge) if self.judge is not None else []
        return [cache.state(without) for cache in known] or None

    def restore(self, state: Sequence[Sequence[Any]] | None) -> None:
        known = caches(self.judge) if self.judge is not None else []
        for cache, verdicts in zip(known, state or (), strict=False):
            cache.restore(verdicts)


def wording_of(section: InstructionsSection) -> RubricWording:
    """The words that judge and policy are told. Raises ConfigError."""
    return standard_wording() if section.wording is None else wording_from(Path(section.wording))


@asynccontextmanager
async def open_grader(config: Config) -> AsyncIterator[OpenGrader]:
    """The grader of a configuration. Raises UserError with a line for all that cannot be used."""
    section = config.instructions
    if section.reward == "constraints":
        check_packages()
        yield OpenGrader(ConstraintGrader(section))
        return
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(
            open_models(config.models, config.llm, config.simulated, None, ())
        )
        if lines := await models.check(_budgets(config)):
            raise UserError(*lines)
        sandbox = await stack.enter_async_context(open_sandbox(config))
        judge = judge_of(config, models.clients[config.judge_model or ""].as_role("judge"))
        grader = grader_of(config, judge, sandbox)
        yield OpenGrader(grader, judge, models, sandbox)


def grader_of(config: Config, judge: Judge, sandbox: Sandbox) -> Grader:
    """The grader of ``instructions.reward`` that asks this judge."""
    section, words, right = (
        config.instructions,
        wording_of(config.instructions),
        config.judge.right_from,
    )
    if section.reward == "rubric":
        reward = RubricReward(judge, sandbox, words.rubric, section.most_ungraded, _calls(section))
        return RubricGrader(reward, right)
    rules = section.rules or "run"
    return VerifGrader(VerifReward(judge, sandbox, rules, words.verif), rules, right)


def judge_of(config: Config, model: ChatModel) -> Judge:
    """The judge of criteria, in the cache and behind the breaker that ``judge`` says. What a gate
    or a second reading would do for others, the rewards do themselves."""
    section = config.instructions
    if section.reward == "verif" and section.reply == "brackets":
        asked: Judge = BracketJudge(model, config.judge)
    else:
        asked = criteria_judge(model, config.judge, _calls(section))
    return build_judge(
        config.judge.model_copy(update={"ask": "rubric", "gate": False, "second_reading": False}),
        asked,
    )


def _calls(section: InstructionsSection) -> CriteriaCalls:
    return "each" if section.criteria_calls == "each" else "together"


def _budgets(config: Config) -> dict[str, dict[str, int]]:
    """By model, the tokens of a reply by the key that sets them."""
    return {name: {"judge.max_tokens": config.judge.max_tokens} for name in config.models}


# The dry run's.


def planned_calls(config: Config, tasks: Sequence[InstructionTask]) -> float:
    """How often the judge is asked about an answer where all goes well, a mean over the tasks."""
    section = config.instructions
    if not tasks:
        return 0.0
    return sum(judge_calls(task.row, section) for task in tasks) / len(tasks)


def check_packages() -> str:
    """What the checkers stand on. Raises UserError where it is not installed."""
    if lacking := missing():
        raise UserError(
            f"instructions.reward: constraints needs {', '.join(lacking)}: pip install --no-deps "
            "-r requirements-constraints.txt"
        )
    return "all that they need is installed"


async def check_judge(config: Config) -> str:
    """Asks the judge, but for the embedded one, which is started with the run, one question about
    a criterion: a line about who it is. Raises UserError where it cannot be used."""
    name = config.judge_model or ""
    if name == SIMULATED:
        return f"{SIMULATED}: started with the run on a free loopback port"
    async with open_models({name}, config.llm, config.simulated, None, ()) as models:
        if lines := await models.check(_budgets(config)):
            raise UserError(*lines)
        client = models.clients[name]
        verdict = await judge_of(config, client).judge(TRIAL)
        if verdict.status != "ok":
            raise UserError(
                f"judge: {name} gave no verdict on a trial criterion ({verdict.status}: "
                f"{verdict.reason})"
            )
        return f"{name} at {', '.join(client.entry.base_urls)}"
