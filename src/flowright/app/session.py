"""A training run, on samples or on fixed data, or an evaluation, from configuration to table."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from flowright.app.comparison_tables import run_comparison
from flowright.app.measuring import Evaluation, kept_as, selection_of
from flowright.app.open_policies import (
    check_samplers,
    fit_memory,
    fitted,
    local_sampler,
    open_policy,
    open_samplers,
    policy_in_turn,
)
from flowright.app.preflight_checks import Start, position_warnings
from flowright.app.ray_cluster import starter_on_ray
from flowright.app.terminal import StepProgress, introduce, note_best, show_outages, stage_progress
from flowright.app.time_plan import compare_with_plan, keep_plan
from flowright.config.grpo import GrpoSection
from flowright.config.root import Config
from flowright.core.command_line import on_signal, say
from flowright.core.errors import RunPaused, UserError
from flowright.core.files import write_json
from flowright.data.mixture import Mixture
from flowright.data.task import Task
from flowright.environments.base import Environment, TaskSets
from flowright.environments.remote import with_workers
from flowright.environments.rollout import Rollout
from flowright.environments.workflow.environment import WorkflowEnvironment
from flowright.evaluation.comparison import TRAINED, UNTRAINED, Comparison, Measure
from flowright.evaluation.evaluator import (
    Evaluator,
    TableRow,
    Validation,
    keep_answers,
    keep_attempts,
    keep_baseline,
    make_evaluator,
    scored_row,
)
from flowright.evaluation.perplexity import (
    HeldOutText,
    TextValidation,
    before_and_after,
    open_text,
)
from flowright.evaluation.probe import probe
from flowright.evaluation.trained_judge import calibrate_run
from flowright.evaluation.writer import ChatWriter
from flowright.grpo.checkpoint import Saves, load_weights
from flowright.grpo.episodes import Player
from flowright.grpo.fixed_data import FixedData, FixedDataValidation
from flowright.grpo.learner import Learner
from flowright.grpo.objectives import choices_of, resolved
from flowright.grpo.order import Order
from flowright.grpo.pipeline import Pipeline
from flowright.grpo.ranks import ONE, Follower, Ranks, Reporter, peers_of_passes
from flowright.grpo.selfcheck import check_adapter, check_sampler, check_sharing
from flowright.grpo.step_record import added
from flowright.grpo.teacher import Teacher, open_teacher
from flowright.grpo.trainer import Trainer
from flowright.llm.client import ChatClient
from flowright.llm.counters import Counters, metrics_since
from flowright.policy.head import ScalarHead
from flowright.policy.model import Policy, choose_device
from flowright.policy.model_thread import on_model_thread
from flowright.policy.sampling import Sampler, TokenTexts, fitting
from flowright.runs.directory import RunDirectory
from flowright.runs.run_files import EVALUATION, VALIDATION, read_config, saved_checkpoints
from flowright.simulation.large_models import open_models


async def run_training(start: Start, console: Console, ranks: Ranks) -> int:
    """Train, compare, and leave everything in the run directory, as one rank of the run; return
    the exit status, 128 and more where a signal stopped the run.

    Raises UserError for what the user can mend, RunPaused when the run stopped itself.
    """
    config = start.config
    path = config.run.output_dir / config.run.name
    config = resolved(config, choose_device(config.policy).type, start.environment)
    config = await fit_memory(config, ranks, read_config(path) if start.resume else None)
    start = replace(start, config=config)
    run: RunDirectory | Follower = Follower(path)
    if ranks.is_first:
        run = RunDirectory(path, config, start.resume, partial(say, console))

    def interrupted() -> None:
        run.state(status="interrupted", message=f"stopped at once; {_resume_hint(path)}")

    try:
        with on_signal(partial(_resume_hint, path), interrupted), peers_of_passes():
            run.state(status="running", stage="start", step=0, steps=config.grpo.steps)
            fixed = choices_of(config.grpo).objective.fixed_data
            return await (_run_on_fixed_data if fixed else _run)(start, run, console, ranks)
    except RunPaused as error:
        run.state(status="paused", message="\n".join(error.problems))
        raise
    except UserError as error:
        run.state(status="failed", message="\n".join(error.problems))
        raise
    except (KeyboardInterrupt, asyncio.CancelledError):
        interrupted()
        raise
    except BaseException as error:
        run.state(status="failed", message=f"{type(error).__name__}: {error}"[:500])
        raise
    finally:
        run.close()


def _resume_hint(path: Path) -> str:
    """Return the message for a run that is stopped at once."""
    saved = saved_checkpoints(path / "checkpoints")
    if saved:
        return f"{saved[-1].name} is saved, go on: --resume"
    return "nothing was trained yet, start again"


async def _prepare_policy(
    start: Start, console: Console, ranks: Ranks, sampled: bool
) -> tuple[Start, Policy, HeldOutText | None]:
    """Open and check the policy; return the start with what it decides, and the held-out text."""
    config = start.config
    gpus = await ranks.gpus_per_node() if config.policy.sharded else 1
    policy = await policy_in_turn(
        config, start.environment, start.tasks.train, console, ranks, gpus
    )
    start = fitted(start, policy)
    await on_model_thread(_check, policy, start.config, sampled)
    return start, policy, open_text(start.config, policy, ranks)


async def _reporter(
    stack: ExitStack,
    start: Start,
    run: RunDirectory | Follower,
    policy: Policy,
    console: Console,
    ranks: Ranks,
    text: HeldOutText | None,
) -> Reporter:
    """Introduce the run, and show the progress of its steps until the stack is closed; nothing on
    other ranks than the first."""
    config = start.config
    if not isinstance(run, RunDirectory):
        return Follower(run.path)
    introduce(config, run, start.environment, policy, console, ranks, text)
    sampled = not choices_of(config.grpo).objective.fixed_data
    if sampled:
        planned = await keep_plan(
            run.path, config, start.environment, start.tasks, policy.tokenizer
        )
        if planned:
            say(console, planned)
    return stack.enter_context(StepProgress(console, config.grpo.steps))


async def _run(start: Start, run: RunDirectory | Follower, console: Console, ranks: Ranks) -> int:
    environment = with_workers(
        start.environment,
        start.config.rollout,
        partial(say, console),
        starter_on_ray(start.config),
        ranks=ranks.size,
    )
    start = replace(start, environment=environment)
    config, tasks = start.config, start.tasks
    await check_samplers(config)
    async with AsyncExitStack() as opened:
        await opened.enter_async_context(environment.open([*tasks.train, *tasks.val]))
        start, policy, text = await _prepare_policy(start, console, ranks, sampled=True)
        config, tasks = start.config, start.tasks
        teacher = await opened.enter_async_context(open_teacher(config, policy, ranks.size))
        samplers = open_samplers(config, policy, ranks=ranks)
        sampler, before = await opened.enter_async_context(samplers)
        askers = [sampler, before, *([teacher] if teacher else [])]
        owners = partial(_counters, environment, *askers)
        with ExitStack() as stack:
            reporter = await _reporter(stack, start, run, policy, console, ranks, text)
            trainer = make_trainer(
                config, run, reporter, environment, tasks, policy, sampler, ranks, text, teacher
            )
            async with show_outages(owners, reporter.say):
                step = await trainer.train(start.resume)
            note_best(run.path, trainer.saves.best, step, reporter)
        if step < config.grpo.steps:
            return trainer.exit_status(step)
        run.state(status="running", stage="evaluate", step=step)
        first_text, last_text = await before_and_after(text)
        console = console if ranks.is_first else Console(quiet=True)
        evaluator = make_evaluator(config, environment, policy, ranks)
        measure = partial(Evaluator.row, draw=step + 1, samples=config.evaluation.final_samples)
        keep = partial(keep_attempts, run, environment, EVALUATION)

        def keep_last(key: str, groups: Sequence[Sequence[Rollout]]) -> None:
            keep(step, key, groups)
            if ranks.is_first:
                keep_answers(run.path, environment, groups)

        first, last = replace(evaluator, keep=partial(keep, 0)), replace(evaluator, keep=keep_last)
        policies = {
            UNTRAINED: partial(measure, first, UNTRAINED, before, text=first_text),
            TRAINED: partial(measure, last, TRAINED, sampler, text=last_text),
        }
        measured = Mixture(tasks.val, config.seed).distinct(config.evaluation.final_problems)
        probing = partial(probe, evaluator, sampler, measured, step + 2)
        began = time.perf_counter()
        async with show_outages(owners, partial(say, console)):
            comparison = await run_comparison(
                config,
                environment,
                policies,
                measured,
                selection_of(tasks, config),
                console,
                keep=partial(keep_baseline, run, environment),
                probing=probing if ranks.is_first else None,
                ranks=ranks,
            )
        requests = added(await ranks.all_gather(metrics_since(owners())))
        if not ranks.is_first:
            return 0
        _keep_comparison(run.path, comparison, began, requests)
        for line in compare_with_plan(run.path, config):
            say(console, line)
        run.state(status="finished")
    return 0


def _keep_comparison(
    run: Path, comparison: Comparison, began: float, requests: Mapping[str, float]
) -> None:
    """Write the before/after table of a run, with the seconds and the requests that it took."""
    spent = {"seconds": time.perf_counter() - began, "servers": requests}
    write_json(run / "evaluation.json", comparison.to_json() | spent)


async def _run_on_fixed_data(
    start: Start, run: RunDirectory | Follower, console: Console, ranks: Ranks
) -> int:
    """Train, and measure on all held-out tasks before and after. No sampler and no large model."""
    start, policy, text = await _prepare_policy(start, console, ranks, sampled=False)
    config, environment, tasks = start.config, start.environment, start.tasks
    source = FixedData(config, environment, policy, tasks.train)
    learner = Learner(policy, config.grpo, 1.0, config.seed, ranks)
    validate = FixedDataValidation(learner, source, tasks.val)
    if text is not None:
        validate = TextValidation(validate, text)
    with ExitStack() as stack:
        reporter = await _reporter(stack, start, run, policy, console, ranks, text)
        saves = Saves(config, run, policy, learner, source, reporter, ranks)
        trainer = Trainer(config, run, reporter, source, learner, saves, validate, ranks)
        step = await trainer.train(start.resume)
        note_best(run.path, saves.best, step, reporter)
    if step < config.grpo.steps:
        return trainer.exit_status(step)
    run.state(status="running", stage="evaluate", step=step)
    if environment.rolls_out:
        began = time.perf_counter()
        comparison = await _compare(start, policy, source, text, console)
        if ranks.is_first:
            _keep_comparison(run.path, comparison, began, metrics_since(environment.counters()))
    if isinstance(policy.output, ScalarHead):
        await calibrate_run(saves, source, tasks.val, step)
    run.state(status="finished")
    return 0


async def _compare(
    start: Start,
    policy: Policy,
    source: FixedData,
    text: HeldOutText | None,
    console: Console,
) -> Comparison:
    """The judge untrained and trained, on all held-out pairs. All ranks measure alike."""
    config, environment, tasks = start.config, start.environment, start.tasks.val
    rows = dict[str, Measure]()
    reads = await before_and_after(text)
    for name, trained, read in zip((UNTRAINED, TRAINED), (False, True), reads, strict=True):
        if isinstance(policy.output, ScalarHead):
            rows[name] = partial(_scored, name, trained, policy, source, config.grpo)
        else:
            sampler = local_sampler(config, policy, trained)
            await sampler.refresh(0)  # of split weights all ranks gather what they decode with
            evaluator = make_evaluator(config, environment, policy)
            rows[name] = partial(evaluator.row, name, sampler, text=read)
    selection = selection_of(start.tasks, config)
    return await run_comparison(config, environment, rows, tasks, selection, console)


async def _scored(
    name: str,
    trained: bool,
    policy: Policy,
    source: FixedData,
    section: GrpoSection,
    tasks: Sequence[Task],
) -> TableRow:
    with nullcontext() if trained else policy.reference():
        return await scored_row(name, tasks, policy, source, section)


def make_trainer(
    config: Config,
    run: RunDirectory | Follower,
    reporter: Reporter,
    environment: Environment,
    tasks: TaskSets,
    policy: Policy,
    sampler: Sampler,
    ranks: Ranks = ONE,
    text: HeldOutText | None = None,
    teacher: Teacher | None = None,
) -> Trainer:
    """Put together the trainer of a run that samples."""
    assert config.grpo.has_teacher == (teacher is not None)
    sampled = config.policy
    learner = Learner(
        policy, config.grpo, sampled.temperature, config.seed, ranks, top_p=sampled.top_p
    )
    evaluator = make_evaluator(config, environment, policy, ranks)
    longest = config.policy.max_prompt_tokens
    fits = partial(fitting, tokenizer=policy.tokenizer, max_tokens=longest)
    texts = TokenTexts(policy.tokenizer, policy.end_ids) if config.run.keep_logprobs else None
    player = Player(environment, sampler, evaluator.contexts)
    order = Order(run.path) if config.pipeline.order == "ready" else None
    pipeline = Pipeline(
        config, player, evaluator.encode, fits, tasks.train, ranks, texts, teacher, order
    )
    held_out = Mixture(tasks.val, config.seed).distinct(config.evaluation.problems)
    saves = Saves(config, run, policy, learner, pipeline, reporter, ranks)
    keep = partial(keep_attempts, run, environment, VALIDATION)
    validation = Validation(evaluator, sampler, held_out, keep)
    if text is not None:
        validation = TextValidation(validation, text)
    return Trainer(config, run, reporter, pipeline, learner, saves, validation, ranks)


async def run_evaluation(evaluation: Evaluation, console: Console) -> Comparison:
    """Compare checkpoints, the untrained policy and the environment's baselines.

    On the validation set; or on other problems, with the best baselines chosen on validation. In
    one process, which has the whole policy, sharded in training or not.
    """
    given, tasks = evaluation.config, evaluation.tasks
    environment = with_workers(evaluation.environment, given.rollout, partial(say, console))
    config = resolved(given, choose_device(given.policy).type, environment)
    config = await fit_memory(config)
    async with AsyncExitStack() as opened:
        opened.enter_context(on_signal(evaluation.ledger.summary))
        with stage_progress(console, "making the policy") as progress:
            policy = open_policy(config, environment, tasks.train, progress)
        for line in position_warnings(config.policy, policy.causal_lm.config.to_dict()):
            say(console, line)
        for path in evaluation.checkpoints:  # what does not fit is named before servers are asked
            load_weights(path, policy)
        await on_model_thread(_check, policy, config)
        await check_samplers(config)
        known = [*tasks.val, *evaluation.problems, *evaluation.selection]
        await opened.enter_async_context(environment.open(known))
        evaluator, text = make_evaluator(config, environment, policy), open_text(config, policy)
        keep = partial(keep_attempts, evaluation.ledger, environment, EVALUATION)
        evaluation.ledger.begin(given.model_dump(mode="json"))
        for line in text.notes if text else ():
            say(console, line)
        folder = f"evaluation-{secrets.token_hex(4)}"  # the run itself may be training
        after, before = await opened.enter_async_context(open_samplers(config, policy, folder))
        samples, steps = config.evaluation.final_samples, kept_as(evaluation.checkpoints)

        async def measure(name: str, path: Path | None, some: Sequence[Task]) -> TableRow:
            if path is not None:
                load_weights(path, policy)
                await after.refresh(after.version + 1)
            read = await text.score(trained=path is not None) if text else None
            kept = replace(evaluator, keep=partial(keep, steps[path] if path else 0))
            sampler = after if path else before
            return await kept.row(name, sampler, some, samples=samples, text=read)

        policies: dict[str, Measure] = {UNTRAINED: partial(measure, UNTRAINED, None)}
        askers: list[Sampler | ChatWriter] = [after, before]
        if (model := evaluation.writer) is not None:
            assert isinstance(environment, WorkflowEnvironment)
            client = await opened.enter_async_context(_open_writer(config, model))
            number, name = max(steps.values(), default=0) + 1, f"untrained {model}"
            writer = ChatWriter(environment, client, partial(keep, number))
            policies[name] = partial(writer.row, name, samples=samples)
            askers.append(writer)
        for path in evaluation.checkpoints:
            name = TRAINED if len(evaluation.checkpoints) == 1 else f"{TRAINED}: {path}"
            policies[name] = partial(measure, name, path)
        async with show_outages(partial(_counters, environment, *askers), partial(say, console)):
            return await run_comparison(
                config,
                environment,
                policies,
                evaluation.problems,
                evaluation.selection,
                console,
                evaluation.ledger,
                partial(keep_baseline, evaluation.ledger, environment),
                partial(probe, evaluator, after, evaluation.problems, 1),
            )


@asynccontextmanager
async def _open_writer(config: Config, name: str) -> AsyncIterator[ChatClient]:
    """Open the client of a model that writes workflows. Raises UserError where its servers cannot
    be used."""
    async with open_models({name}, config.llm, config.simulated, None, ()) as models:
        if lines := await models.check():
            raise UserError(*lines)
        yield models.clients[name].as_role("policy")


def _counters(environment: Environment, *askers: Sampler | Teacher | ChatWriter) -> list[Counters]:
    """Return the counters of all requests to servers."""
    return [*environment.counters(), *(c for asker in askers for c in asker.counters)]


def _check(policy: Policy, config: Config, sampled: bool = True) -> None:
    """Raise UserError where this model can't be trained or sampled as configured."""
    check_sharing(policy, config.grpo)
    check_adapter(policy, config.grpo.learning_rate)
    if sampled and config.policy.sampler == "local":  # servers prove every version
        check_sampler(policy, config.grpo, config.policy.temperature)
