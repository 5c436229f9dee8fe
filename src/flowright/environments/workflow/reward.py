"""From a completion to a reward: read the workflow, run it, check its answer, judge it.

Where a gold check exists it is computed beside the verdict (law 3); the reward is the judge's.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flowright.config.judge import JudgeSection
from flowright.config.workflow import RewardSection
from flowright.core.errors import Failure, FailureError, Reason, boundary
from flowright.data.task import Problem, Task
from flowright.environments.episode import Episode, Observation
from flowright.environments.rollout import (
    UNSCORED,
    Rollout,
    Spent,
    plain,
    reward_of,
    with_cost,
    with_terms,
)
from flowright.environments.workflow.config import WorkflowConfig
from flowright.environments.workflow.trials import Trial, TrialRunner
from flowright.grading import Gold, gold_check
from flowright.grading.gold import algebra
from flowright.judging.audit import agreement_with_gold
from flowright.judging.build import rules_alone
from flowright.judging.group_judge import GroupJudge
from flowright.judging.terms import RewardTerms, TermSample
from flowright.judging.verdict import Judge, JudgeQuery, Verdict, task_query
from flowright.llm.chat import Usage
from flowright.sandbox import Sandbox
from flowright.workflows.executor import Execution, Executor
from flowright.workflows.source import Workflow


@dataclass(frozen=True, slots=True)
class WorkflowDetails:
    """The submitted program and its execution; None after a failure that prevented them. ``trials``
    are all programs of the attempt, ``submitted`` is the turn of that one."""

    workflow: Workflow | None = None
    execution: Execution | None = None
    trials: tuple[Trial, ...] = ()
    submitted: int = 1


def details_of(rollout: Rollout) -> WorkflowDetails:
    """Return the details of a workflow's rollout; empty ones if it has none."""
    details = rollout.details or WorkflowDetails()
    assert isinstance(details, WorkflowDetails)
    return details


def workflow_record(rollout: Rollout) -> dict[str, Any]:
    """The fields of a record that are a workflow's; of an attempt that may have several turns, each
    of its programs, and what all of them spent."""
    details = details_of(rollout)
    record = {"workflow": plain(details.workflow), "execution": plain(details.execution)}
    if not rollout.turns:
        return record
    trials = [
        {
            "turn": trial.turn,
            "answer": trial.answer,
            "failure": trial.failure and trial.failure.record(),
            "usage": trial.execution and plain(trial.execution.usage),
            "gold": trial.gold,
        }
        for trial in details.trials
    ]
    spent = {"submitted": details.submitted, "spent": plain(rollout.spent)}
    return {**record, "trials": trials, **spent}


def query_about(rollout: Rollout, key: str) -> JudgeQuery | None:
    """Return the judge's query about a workflow's answer; None without an answer, and for a program
    whose tests were not run."""
    execution, gold, task = details_of(rollout).execution, rollout.gold, rollout.task
    if execution is None or execution.answer is None or gold is None:
        return None
    assert isinstance(task, Problem)
    if task.kind == "code" and gold.correct is None:
        return None
    return task_query(task, execution.answer, key, gold.evidence, gold.correct)


def term_sample(episode: Episode, rollout: Rollout) -> TermSample | None:
    """Return a workflow's answer for ``reward.terms``, with the fields of its problem and the
    program as columns; None without an answer."""
    query, workflow = query_about(rollout, episode.key), details_of(rollout).workflow
    if query is None or workflow is None:
        return None
    task = rollout.task
    columns = {
        "id": task.id,
        "kind": task.kind,
        "source": task.source,
        "question": query.question,
        "answer": query.reference,
        "evidence": query.evidence,
        "program": workflow.source,
        "completion_ids": list(episode.sample.token_ids),
    }
    return TermSample(query, query.question, columns)


class WorkflowRollouts:
    """Rolls out workflows, for one event loop. ``trust``: what becomes of a judge that is found
    out. ``ranking`` judges whole groups in place of ``judge``; ``terms`` are those of ``rewards``.
    In an attempt of several turns the judge is asked about the submitted program alone.
    ``in_money``: costs are money and not tokens; ``budget``: that of a problem."""

    def __init__(
        self,
        executor: Executor,
        judge: Judge,
        sandbox: Sandbox,
        rewards: RewardSection,
        trust: JudgeSection | None = None,
        ranking: GroupJudge | None = None,
        terms: RewardTerms | None = None,
        own: WorkflowConfig | None = None,
        in_money: bool = False,
        budget: Callable[[Task], float | None] = lambda _: None,
    ) -> None:
        self._own = own or WorkflowConfig()
        self._runner = TrialRunner(executor, sandbox, self._own)
        self._judge = judge
        self._sandbox = sandbox
        self._rewards = rewards
        self._trust = trust or JudgeSection()
        self._ranking = ranking
        self._terms = terms
        self._in_money = in_money
        self._budget = budget

    async def respond(self, episode: Episode) -> Observation | None:
        return await self._runner.respond(episode)

    async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
        if self._ranking is not None:
            ranking = self._ranking
            ranked = await asyncio.gather(*(self._ranked(group, ranking) for group in groups))
            return await with_terms(self._terms, groups, ranked, term_sample)
        flat = [episode for group in groups for episode in group]
        judged = await asyncio.gather(*(self._one(item) for item in flat))
        rollouts = iter(await self._trusted(judged))
        costed = [self._costed([next(rollouts) for _ in group]) for group in groups]
        return await with_terms(self._terms, groups, costed, term_sample)

    async def _one(self, episode: Episode) -> Rollout:
        task, sample = episode.task, episode.sample
        assert isinstance(task, Problem)
        gold: Gold | None = None
        verdict: Verdict | None = None
        trials = await self._runner.finish(episode)
        trial = trials[-1]
        execution = trial.execution
        with boundary("rollout") as caught:
            trial.check()
            assert execution is not None and execution.answer is not None
            gold = await gold_check(task, execution.answer, self._sandbox)
            if task.kind == "code" and gold.correct is None:
                # Its tests were not run: a judge would have nothing but the program's looks.
                raise FailureError(Reason.SANDBOX_LOST, gold.detail)
            if self._ranking is None and self._rewards.judge_weight:
                key = episode.key
                query = task_query(task, execution.answer, key, gold.evidence, gold.correct)
                verdict = await self._judge.judge(query)
                if verdict.status != "ok":
                    raise FailureError(Reason.JUDGE_FAILED, verdict.cause)
        is_open = self._ranking is not None and caught.failure is None
        reward = UNSCORED if is_open else reward_of(caught.failure, verdict, self._rewards)
        each = {one.turn: one for one in trials}.values()
        details = WorkflowDetails(
            trial.workflow,
            execution,
            tuple([await self._with_gold(one, task) for one in each]),
            trial.turn,
        )
        spent = _spent([one.execution for one in each if one.execution is not None])
        return Rollout(task, sample, reward, caught.failure, verdict, gold, spent, details)

    async def _with_gold(self, trial: Trial, task: Problem) -> Trial:
        """Return a trial with the gold of its answer, where attempts may have several."""
        if self._own.turns == 1 or trial.answer is None:
            return trial
        found: bool | None = None
        with boundary("gold"):
            found = (await gold_check(task, trial.answer, self._sandbox)).correct
        return replace(trial, gold=None if found is None else float(found))

    async def _ranked(self, group: Sequence[Episode], ranking: GroupJudge) -> list[Rollout]:
        """The rollouts of a group, ranked by their answers; those that we lost take no part."""
        rollouts = await asyncio.gather(*(self._one(item) for item in group))
        taking_part = [index for index, rollout in enumerate(rollouts) if not rollout.lost]
        queries = [
            None if rollouts[i].failure else query_about(rollouts[i], group[i].key)
            for i in taking_part
        ]
        verdicts = dict(zip(taking_part, await ranking.rank(queries), strict=True))
        return [self._with(rollout, verdicts.get(i)) for i, rollout in enumerate(rollouts)]

    def _with(self, rollout: Rollout, verdict: Verdict | None) -> Rollout:
        if verdict is None:
            return rollout
        failure = None
        if verdict.status != "ok":
            failure = Failure(Reason.JUDGE_FAILED, verdict.cause)
        reward = reward_of(failure, verdict, self._rewards)
        return replace(rollout, verdict=verdict, failure=failure, reward=reward)

    async def _trusted(self, rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
        """The rollouts, by rules where the judge was found out (``judge.low_agreement: rules``).
        Nothing is remembered: each step is its own case, so that a resumed run sees it alike."""
        if self._trust.low_agreement != "rules":
            return rollouts
        found = agreement_with_gold([r.verdict for r in rollouts], [r.gold for r in rollouts])
        if found is None or found >= self._trust.min_agreement:
            return rollouts
        return await asyncio.gather(*(self._ruled(rollout, found) for rollout in rollouts))

    async def _ruled(self, rollout: Rollout, found: float) -> Rollout:
        """The rollout with the rules' verdict, the judge's kept as its member; unscored where no
        rule decides, whatever the answer."""
        judged, execution, gold = rollout.verdict, details_of(rollout).execution, rollout.gold
        if judged is None or judged.status != "ok" or gold is None:
            return rollout
        assert execution is not None and execution.answer is not None
        assert isinstance(rollout.task, Problem)
        query = task_query(rollout.task, execution.answer, "", gold.evidence, gold.correct)
        ruled = await rules_alone(algebra(self._sandbox)).judge(query)
        why = f"the judge agreed with gold on {found:.0%} of the step"
        verdict = replace(
            ruled,
            source="floor" if ruled.source == "floor" else "rule_fallback",
            reason=f"{ruled.reason} ({why})",
            attempts=judged.attempts,
            usage=judged.usage,
            members=(judged,),
        )
        failure = rollout.failure
        if verdict.status != "ok":
            failure = Failure(Reason.JUDGE_FAILED, f"{why}, and {ruled.reason}")
        reward = reward_of(failure, verdict, self._rewards)
        return replace(rollout, verdict=verdict, failure=failure, reward=reward)

    def _costed(self, group: list[Rollout]) -> list[Rollout]:
        spent = [r.spent or Spent() for r in group]
        costs = [each.cost(self._in_money) for each in spent]
        budget = self._budget(group[0].task) if group else None
        rewards = with_cost([r.reward for r in group], costs, self._rewards, budget)
        return [rollout.rewarded(reward) for rollout, reward in zip(group, rewards, strict=True)]


def _spent(executions: Sequence[Execution]) -> Spent | None:
    """Return what an attempt's executions cost; None without any."""
    if not executions:
        return None
    usage = sum((one.usage for one in executions), Usage())
    seconds = sum(one.seconds for one in executions)
    return Spent(usage.calls, usage.tokens, seconds, usage.money)
