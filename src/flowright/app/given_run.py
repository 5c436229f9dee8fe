"""A training run on what the data gives (``grpo.loss: sft``, ``bradley_terry``), from configuration
to table. No sampler, and no large model is asked.
"""

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import partial

from rich.console import Console

from flowright.app.comparing import run_comparison
from flowright.app.first_look import Start
from flowright.app.introduction import introduce, say_best
from flowright.app.terminal import StepProgress
from flowright.app.world import fitted, local_sampler, policy_in_turn
from flowright.config.grpo import GrpoSection
from flowright.core.files import write_json
from flowright.data.task import Task
from flowright.environments.environment import prompt_encoder
from flowright.evaluation.comparison import TRAINED, UNTRAINED, Comparison, Measure
from flowright.evaluation.evaluator import Evaluator, Row, scored_row
from flowright.evaluation.judge_calibration import calibrate_run
from flowright.evaluation.perplexity import (
    HeldOutText,
    TextValidation,
    before_and_after,
    open_text,
)
from flowright.grpo.checkpoint import Saves
from flowright.grpo.fixed_data import FixedData, FixedDataValidation
from flowright.grpo.learner import Learner
from flowright.grpo.ranks import Follower, Ranks
from flowright.grpo.selfcheck import check_adapter, check_sharing
from flowright.grpo.trainer import Trainer
from flowright.policy.model import Policy
from flowright.policy.scalar import ScalarHead
from flowright.runs.directory import RunDirectory


async def run_given(
    start: Start, run: RunDirectory | Follower, console: Console, ranks: Ranks
) -> None:
    """Train, measure on all held-out tasks before and after, and leave everything in the run
    directory. Raises UserError for what the user can mend."""
    config, environment, tasks = start.config, start.environment, start.tasks
    gpus = await ranks.gpus_per_node() if config.policy.sharded else 1
    policy = await policy_in_turn(config, environment, tasks.train, console, ranks, gpus)
    start = fitted(start, policy)
    config, tasks = start.config, start.tasks
    check_sharing(policy, config.grpo)
    check_adapter(policy, config.grpo.learning_rate)
    batches = FixedData(config, environment, policy, tasks.train)
    learner = Learner(policy, config.grpo, 1.0, config.seed, ranks)
    text = open_text(config, policy, ranks)
    validate = FixedDataValidation(learner, batches, tasks.val)
    if text is not None:
        validate = TextValidation(validate, text)
    with ExitStack() as stack:
        reporter = Follower(run.path)
        if isinstance(run, RunDirectory):
            introduce(config, run, environment, policy, console, ranks, text)
            reporter = stack.enter_context(StepProgress(console, config.grpo.steps))
        saves = Saves(config, run, policy, learner, batches, reporter, ranks)
        trainer = Trainer(config, run, reporter, batches, learner, saves, validate, ranks)
        step = await trainer.train(start.resume)
        say_best(run.path, saves.best, step, reporter)
    if step < config.grpo.steps:
        return
    run.state(status="running", stage="evaluate", step=step)
    if environment.rolls_out:
        comparison = await _compare(start, policy, batches, text, console)
        if ranks.is_first:
            write_json(run.path / "evaluation.json", comparison.to_json())
    if isinstance(policy.output, ScalarHead):
        await calibrate_run(saves, batches, tasks.val, step)
    run.state(status="finished")


async def _compare(
    start: Start,
    policy: Policy,
    batches: FixedData,
    text: HeldOutText | None,
    console: Console,
) -> Comparison:
    """The judge untrained and trained, on all held-out pairs. All ranks measure alike."""
    config, environment, tasks = start.config, start.environment, start.tasks.val
    rows = dict[str, Measure]()
    reads = await before_and_after(text)
    for name, trained, read in zip((UNTRAINED, TRAINED), (False, True), reads, strict=True):
        if isinstance(policy.output, ScalarHead):
            rows[name] = partial(_scored, name, trained, policy, batches, config.grpo)
        else:
            encode = prompt_encoder(environment, policy.tokenizer, config.policy.max_prompt_tokens)
            sampler = local_sampler(config, policy, trained)
            evaluator = Evaluator(environment, encode, config)
            rows[name] = partial(evaluator.row, name, sampler, text=read)
    return await run_comparison(config, environment, rows, tasks, (), console)


async def _scored(
    name: str,
    trained: bool,
    policy: Policy,
    batches: FixedData,
    section: GrpoSection,
    tasks: Sequence[Task],
) -> Row:
    with nullcontext() if trained else policy.reference():
        return await scored_row(name, tasks, policy, batches, section)
