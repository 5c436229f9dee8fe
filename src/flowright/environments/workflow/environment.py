"""Workflows: the policy writes a program, operators run it, a judge decides on the answer."""

import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from flowright.config.root import Config, EnvironmentSection
from flowright.core.command_line import progress_bars
from flowright.core.errors import DataError, FailureError, UserError
from flowright.core.tables import raise_problems
from flowright.data.build import Splits, check_disjoint
from flowright.data.loading import OFFLINE, load_problems
from flowright.data.mixture import tasks_by_kind
from flowright.data.sources.dataset import Split
from flowright.data.task import KINDS, Problem, Task
from flowright.environments.base import (
    SIMULATED_BY_ADDRESS,
    Baseline,
    Demonstration,
    Environment,
    EnvironmentStatus,
    TaskSets,
)
from flowright.environments.episode import Episode, Observation
from flowright.environments.rollout import Rollout, means, outcome_metrics
from flowright.environments.workflow.baselines import (
    built_in_baselines,
    cascade_baselines,
    check_workflow_files,
    read_workflow_files,
)
from flowright.environments.workflow.config import ProgramSection, WorkflowConfig
from flowright.environments.workflow.demonstrations import (
    expected_calls,
    later_turn,
    with_models,
)
from flowright.environments.workflow.display import DISPLAY
from flowright.environments.workflow.reward import (
    WorkflowRollouts,
    details_of,
    query_about,
    workflow_record,
)
from flowright.environments.workflow.servers import (
    budgets,
    check_servers,
    make_pool,
    models_that_judge,
    open_executor,
    settings_of_judge,
)
from flowright.environments.workflow.trials import turns_text
from flowright.grading.gold import algebra
from flowright.grading.references import check_references
from flowright.judging.build import OpenJudge, open_judge
from flowright.judging.group_judge import planned_calls as group_calls
from flowright.judging.panel import families
from flowright.judging.prompts import wording_hash
from flowright.judging.verdict import Judge, JudgeQuery
from flowright.llm.chat import Message
from flowright.llm.counters import Counters
from flowright.sandbox import Isolation, Limits, Sandbox
from flowright.simulation.classes import problem_class, resize
from flowright.simulation.large_models import OpenModels, open_models
from flowright.workflows.executor import Executor
from flowright.workflows.grammar import (
    draw_program,
    random_weights,
    self_consistency,
)
from flowright.workflows.operators import OPERATORS
from flowright.workflows.pool import ModelPool, PoolModel, add_model_parameter
from flowright.workflows.prompt import Form, build_messages
from flowright.workflows.registry import Operators
from flowright.workflows.source import read_workflow

MOST_SAMPLES = 12
"""Largest self-consistency at equal tokens; a workflow's budget of model calls ends soon after."""

_PLANNED = 64  # programs whose calls are counted

PLAIN = "plain"
"""In records, of a program that calls none of the operators that end one."""


class WorkflowEnvironment(Environment):
    """The environment of ``environment: workflow``, the default."""

    Config: ClassVar[type[EnvironmentSection]] = WorkflowConfig
    display = DISPLAY
    rollouts_by: ClassVar[type[WorkflowRollouts]] = WorkflowRollouts
    respond_seconds = 86_400.0
    """Executions end by limits of their own."""

    _notes: Sequence[str] = ()
    _to_prove: Sequence[Problem] | None = None
    _sandbox: Sandbox
    _models: OpenModels
    _judge: OpenJudge
    _executor: Executor
    _rollouts: WorkflowRollouts

    def tasks(self) -> TaskSets:
        """Both datasets, read or built. An overlap between them is a DataError."""
        problems: list[str] = []
        loaded: list[Sequence[Problem]] = []
        notes: list[str] = []
        wanted: tuple[tuple[str, Split], ...] = (
            (self.config.train_dataset, "train"),
            (self.config.val_dataset, "val"),
        )
        for name, split in wanted:
            try:
                loaded.append(load_problems(name, split, notes))
            except UserError as error:
                problems += error.problems
        if problems:
            raise DataError(*problems)
        self._notes = notes
        self._to_prove = [
            task
            for (name, _), tasks in zip(wanted, loaded, strict=True)
            for task in tasks
            if name != OFFLINE  # whose references are known to pass
        ]
        train, val = loaded
        check_disjoint(Splits(tuple(train), tuple(val), ()))
        return TaskSets(train, val)

    def task_notes(self) -> Sequence[str]:
        return self._notes

    def read_tasks(self, name: str) -> Sequence[Task]:
        return load_problems(name, "test")

    def messages(self, task: Task) -> list[Message]:
        return self.messages_as(task, self.config.policy.prompt)

    def messages_as(self, task: Task, form: Form) -> list[Message]:
        """Return the prompt in a form of its own, whatever ``policy.prompt`` is."""
        assert isinstance(task, Problem)
        own, dealt = self.config.own(WorkflowConfig), self._dealt(task)
        return build_messages(task, form, own, turns_text(own, form), dealt, self._budget(task))

    def _budget(self, task: Task) -> float | None:
        return self.config.reward.budget_of(task.id, self.config.seed)

    @property
    def max_turns(self) -> int:
        return self.config.own(WorkflowConfig).turns

    async def respond(self, episode: Episode) -> Observation | None:
        return await self._rollouts.respond(episode)

    @asynccontextmanager
    async def open(self, tasks: Sequence[Task]) -> AsyncIterator[None]:
        config, own = self.config, self.config.own(ProgramSection)
        await self._check_baselines()
        async with AsyncExitStack() as stack:
            await self._open(stack, tasks, config.models)
            self._executor = await stack.enter_async_context(
                open_executor(config, self._models.clients, self._sandbox, own, self.pool)
            )
            self._rollouts = self.rollouts_by(
                self._executor,
                self._judge.judge,
                self._sandbox,
                config.reward,
                config.judge,
                self._judge.ranking,
                self._judge.terms,
                own if isinstance(own, WorkflowConfig) else None,
                in_money=self.counts_money,
                budget=self._budget,
            )
            yield

    @cached_property
    def pool(self) -> ModelPool | None:
        return make_pool(self.config)

    @property
    def counts_money(self) -> bool:
        """True where programs choose among models with prices."""
        return self.pool is not None and any(self.pool.prices.values())

    def _dealt(self, task: Task) -> Sequence[PoolModel]:
        return self.pool.deal(task.id) if self.pool is not None else ()

    async def _open(
        self, stack: AsyncExitStack, tasks: Sequence[Task], names: Collection[str]
    ) -> None:
        """Models by these names, the judge and the sandbox."""
        config = self.config
        problems = [task for task in tasks if isinstance(task, Problem)]
        self._models = models = await stack.enter_async_context(
            open_models(names, config.llm, config.simulated, config.sandbox, problems)
        )
        self._sandbox = open_sandbox(config)
        self._judge = await stack.enter_async_context(
            open_judge(
                config.judge,
                config.judge_model,
                models.clients,
                algebra(self._sandbox),
                config.seed,
                config.reward,
            )
        )
        lines = [*await models.check(budgets(config)), *await self._judge.check()]
        if lines:
            raise UserError(*lines)
        await stack.enter_async_context(self._sandbox)

    def judge_settings(self) -> Mapping[str, Any] | None:
        judges_singly = self.config.judge.group.method == "none"
        is_asked = judges_singly and self.config.reward.judge_weight > 0
        return settings_of_judge(self.config) if is_asked else None

    def query(self, rollout: Rollout, key: str) -> JudgeQuery | None:
        return query_about(rollout, key)

    @asynccontextmanager
    async def open_judge(self) -> AsyncIterator[Judge]:
        names = models_that_judge(self.config)
        tasks: list[Task] = []
        if self.config.simulated.played(names):  # it knows right from wrong by the task
            known = self.tasks()
            tasks = [*known.train, *known.val]
        async with AsyncExitStack() as stack:
            await self._open(stack, tasks, names)
            yield self._judge.judge

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        return await self._rollouts.rollout(groups)

    def summarise(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        metrics = workflow_metrics(rollouts) | self.budget_metrics(rollouts)
        return metrics | self.status().metrics()

    def budget_metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Return the share of attempts that cost no more than ``reward.budget``."""
        money = self.counts_money
        pairs = [(r.spent.cost(money), self._budget(r.task)) for r in rollouts if r.spent]
        return means({"budget/kept": [cost <= most for cost, most in pairs if most is not None]})

    def mix(self, rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
        return operator_mix(rollouts)

    def record(self, rollout: Rollout) -> Mapping[str, Any]:
        """Return the workflow, its execution and, if some operators end a workflow, such as ways of
        presenting an answer, those that the program calls."""
        workflow = details_of(rollout).workflow
        if not (endings := self._endings()):
            return workflow_record(rollout)
        called = [name for name in endings if workflow and name in workflow.calls]
        shown = called or ([PLAIN] if workflow else [])
        return {**workflow_record(rollout), "presentation": shown}

    def _operators(self) -> Operators:
        """The operators that a workflow can call."""
        operators = OPERATORS.with_modules(self.config.own(ProgramSection).operators)
        return operators if self.pool is None else add_model_parameter(operators)

    def _endings(self) -> list[str]:
        """The operators of ``workflow.operators`` that end a workflow."""
        return [operator.name for operator in self._operators().values() if operator.ends]

    def baselines(self) -> Sequence[Baseline]:
        pool = self.pool
        if pool is None:
            return built_in_baselines()
        return [*built_in_baselines(pool.fixed_labels), *cascade_baselines(pool.by_price)]

    def read_baselines(self, paths: Sequence[Path]) -> Sequence[Baseline]:
        return read_workflow_files(paths, self._operators())

    def equal_tokens(self, policy: float, spent: Mapping[str, float]) -> Baseline | None:
        """Self-consistency over as many answers as cost what the policy does."""
        if (one := spent.get("fixed: step_by_step")) is None:  # a pool has mixtures instead
            return None
        share = policy / max(1.0, one)
        samples = min(MOST_SAMPLES, max(1, round(share)))
        name = f"fixed: vote of {samples}, same tokens"
        return Baseline(name, self_consistency(samples), shown=True)

    def demonstrations(
        self, tasks: Sequence[Task], count: int, completions: int, seed: int
    ) -> list[Demonstration]:
        """Problems, every kind as often, each with some programs that the operators' documentation
        calls applicable to its kind, uniformly among those; where ``workflow.operators`` has some
        that end a workflow, some of the programs end with them. Where the simulated model's
        accuracy depends on classes, every class of a kind as often, its name as a comment before
        the program, and shapes by weights that are drawn for each class. Of several turns every
        second one is a later turn, the first is none."""
        rng, own = random.Random(seed), self.config.own(WorkflowConfig)
        by_kind = tasks_by_kind([task for task in tasks if isinstance(task, Problem)])
        by_class: dict[str, dict[str, list[Problem]]] = {kind: {} for kind in by_kind}
        for kind, some in by_kind.items():
            for task in some:
                by_class[kind].setdefault(self.problem_class(task), []).append(task)
        endings = self._endings()
        drawn = []
        for number in range(count):
            kind = rng.choice(list(by_kind))
            some, weights, head = by_kind[kind], None, ""
            if self._has_classes:
                name = rng.choice(sorted(by_class[kind]))
                some, head = by_class[kind][name], f"# {name}\n"
                weights = random_weights(f"{seed}/{name}")
            task = rng.choice(some)
            turns = rng.randrange(1, own.turns) if number % 2 and own.turns > 1 else 0
            dealt = self._dealt(task)
            programs = []
            for _ in range(turns + completions):
                program = draw_program(task.kind, rng, endings, weights)
                programs.append(head + (with_models(program, dealt, rng) if dealt else program))
            messages = self.messages_as(task, "compact")
            earlier, later = programs[:turns], programs[turns:]
            drawn.append(
                later_turn(messages, task, earlier, later, own, rng)
                if turns
                else Demonstration(messages, later)
            )
        return drawn

    @property
    def _has_classes(self) -> bool:
        return self.config.simulated.world == "classes"

    def problem_class(self, task: Task) -> str:
        assert isinstance(task, Problem)
        return str(problem_class(task)) if self._has_classes else task.kind

    def counterfactual(self, task: Task) -> Task | None:
        assert isinstance(task, Problem)
        return resize(task) if self._has_classes else None

    def signature(self, completion: str) -> str:
        """Return the operators of a workflow in the order of its text."""
        try:
            return " ".join(read_workflow(completion, operators=self._operators()).calls)
        except FailureError:
            return "invalid"

    def planned_calls(self, train: Sequence[Task]) -> Mapping[str, float]:
        """Calls as in programs of the grammar, one an operator, with a program in every turn."""
        shown = self.demonstrations(train, _PLANNED * self.max_turns, 1, self.config.seed)
        first = [d.completions[0] for d in shown if "assistant" not in {m.role for m in d.messages}]
        called = [name for one in first for name in expected_calls(one) if name != "test"]
        reward, judge = self.config.reward, self.config.judge
        asked = judge.mode != "rules" and reward.judge_weight > 0
        calls = asked * judge.samples * (2 if judge.meta else 1)
        judges: float = calls * (1 + len(judge.panel))
        if judge.group.method != "none":
            size = self.config.grpo.group_size
            judges = group_calls(judge, size) / size
        judges += bool(reward.aspects)
        return {"executor": self.max_turns * len(called) / len(first), "judge": judges}

    @property
    def simulated(self) -> bool:
        played = self.config.simulated.played(self.config.models)
        return bool(played) or self.status().simulated

    def models(self) -> Mapping[str, Sequence[str]]:
        return {
            "executor": self.config.executor_models,
            "judge": self.config.judge_names,
        }

    def counters(self) -> Sequence[Counters]:
        return (*self._models.counters, *self._judge.counters)

    def state(self, without: Sequence[str] = ()) -> Any:
        """The judge's cache."""
        return self._judge.state(without)

    def restore(self, state: Any) -> None:
        self._judge.restore(state)

    def status(self) -> EnvironmentStatus:
        simulated = self._models.simulated or self._judge.simulated
        return EnvironmentStatus(simulated, self._judge.notes, self._sandbox.status)

    @property
    def _isolation(self) -> Isolation:
        sandbox = self.status().sandbox
        assert sandbox is not None
        return sandbox.isolation

    def about(self) -> Mapping[str, Any]:
        config, isolation = self.config, self._isolation
        weaker = [f"WEAKER ISOLATION than required: {isolation}"]
        about = {
            "executor": config.executor_name,
            "judge": config.judge_names[0],
            "isolation": str(isolation),
            "warnings": [] if isolation.sufficient else weaker,
        }
        if config.judge_model is not None:
            about["judge_wording"] = wording_hash(config.judge)
        return about

    def introduction(self) -> Sequence[str]:
        config = self.config
        lines = [
            f"executor  {config.executor_name}    judge  {config.judge_names[0]}",
            f"sandbox   {self._isolation}",
        ]
        if config.reward.has_terms:
            lines.append(f"reward    {config.reward.formula}")
        lines += [f"judge's note: {note}" for note in self.status().notes]
        if config.judge.panel:
            lines.append(f"panel     {', '.join(config.judge.panel)} ({config.judge.combine})")
        for name in sorted(set(config.judge_names)):
            for family in families(name) & families(config.strategy_model):
                lines.append(
                    f"WARNING: judge {name} is of the policy's family ({family}): judges prefer "
                    "the style of their own; compare judge/drift with another family's"
                )
        if self.simulated:
            lines.append(self.simulated_note() or SIMULATED_BY_ADDRESS)
        return lines

    def checks(self) -> Sequence[tuple[str, Callable[[], Awaitable[str]]]]:
        checks = (("servers", self._check_servers), ("sandbox", self._check_sandbox))
        return (*checks, ("baselines", self._check_baselines))

    async def _check_baselines(self) -> str:
        """Check the files of ``evaluation.baselines``, if there are any."""
        wanted = self.config.evaluation.baselines
        if not isinstance(wanted, list):
            return ""
        return await check_workflow_files(wanted, self._operators())

    async def _check_servers(self) -> str:
        return await check_servers(self.config)

    async def _check_sandbox(self) -> str:
        """Check the isolation, and run the references of code tasks against their tests."""
        if self._to_prove is None:
            with suppress(UserError):  # reported where the data are checked
                self.tasks()
        cache = self.config.policy.tiny.cache_dir
        with progress_bars() as (_, begin):
            async with open_sandbox(self.config) as sandbox:
                report = await check_references(self._to_prove or (), sandbox, cache, begin)
                isolation = str(sandbox.isolation)
        raise_problems([f"{id}: {why}" for id, why in report.failed.items()])
        return f"\n{' ' * 10}".join([isolation, *report.lines()])


def open_sandbox(config: Config) -> Sandbox:
    """The sandbox as configured, not yet entered."""
    section = config.sandbox
    limits = Limits(
        cpu_seconds=section.cpu_seconds,
        wall_seconds=10 * section.cpu_seconds,
        memory_bytes=section.memory_mb << 20,
    )
    return Sandbox(
        limits,
        workers=section.workers,
        allow_weaker=section.allow_weaker,
        patience_seconds=section.patience_seconds,
    )


def workflow_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of workflows' rollouts; a share of nothing is left out."""
    workflows = [w for r in rollouts if (w := details_of(r).workflow)]
    repairs = Counter(name for workflow in workflows for name in workflow.repairs)
    return {
        **outcome_metrics(rollouts),
        **turn_metrics([r for r in rollouts if r.turns and not r.lost]),
        **means({"rollout/repaired": [bool(w.repairs) for w in workflows]}),
        **{f"repair/{name}": n / len(rollouts) for name, n in repairs.items()},
        **pool_metrics(rollouts),
        **{
            f"operators/{kind}/{name}": mean
            for kind, mix in operator_mix(rollouts).items()
            for name, mean in mix.items()
        },
    }


def pool_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the money of an attempt and each model's share of the calls, where programs choose
    their models."""
    traces = [run.trace for r in rollouts if (run := details_of(r).execution) is not None]
    calls = Counter[str]()
    for call in (call for trace in traces for call in trace):
        calls[call.model] += call.usage.calls
    del calls[""]
    if not calls:
        return {}
    money = [r.spent.money for r in rollouts if r.spent]
    shares = {f"models/{name}": n / calls.total() for name, n in sorted(calls.items())}
    return means({"money/mean": money}) | shares


def turn_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return metrics of attempts that may have several turns: executions; the share, of attempts
    with several answers, whose last differs from the first; and for each turn the share whose
    submitted program is of it, and the accuracy by gold had attempts ended there."""
    values = defaultdict[str, list[float]](list)
    turns = max((len(r.turns) for r in rollouts), default=0)
    for details in map(details_of, rollouts):
        trials, gold = {trial.turn: trial for trial in details.trials}, None
        answers = [trial.answer for trial in details.trials if trial.answer is not None]
        values["workflow/executions"].append(sum(t.execution is not None for t in details.trials))
        if len(answers) > 1:
            values["workflow/answer_changed"].append(answers[-1] != answers[0])
        for turn in range(1, turns + 1):
            values[f"workflow/submitted/turn_{turn}"].append(details.submitted == turn)
            gold = trials[turn].gold if turn in trials else gold
            if gold is not None:
                values[f"workflow/gold/turn_{turn}"].append(gold)
    return means(values)


def operator_mix(rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
    """Mean calls of each operator in the text of a valid workflow, by kind of problem."""
    mix: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        some = [details_of(r).workflow for r in rollouts if r.task.kind == kind]
        calls = [workflow.calls for workflow in some if workflow]
        counts = Counter(name for names in calls for name in names)
        if counts:
            mix[kind] = {name: n / len(calls) for name, n in counts.most_common()}
    return mix
