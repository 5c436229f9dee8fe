"""Workflow writing as an environment: read the program, run it, judge its answer, reward it.

Where a gold check exists it is computed beside the verdict (law 3); the reward is the judge's.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from flowright.config import JudgeSection, RewardSection
from flowright.data.task import KINDS, Problem, Task
from flowright.environments.reward import reward_of, with_cost
from flowright.environments.rollout import Completion, Rollout
from flowright.errors import Blame, Failure, FailureError, Reason, boundary
from flowright.grading import Gold, gold_check
from flowright.judge.audit import agreement_with_gold, audit
from flowright.judge.query import query_of
from flowright.judge.rules import RuleJudge
from flowright.judge.verdict import Judge, Verdict
from flowright.llm.chat import Message
from flowright.sandbox import Sandbox
from flowright.workflows.executor import Execution, Executor
from flowright.workflows.prompt import build_messages
from flowright.workflows.source import Workflow


class WorkflowEnvironment:
    """An :class:`flowright.environments.rollout.Environment` for one event loop."""

    def __init__(
        self,
        executor: Executor,
        judge: Judge,
        sandbox: Sandbox,
        rewards: RewardSection,
        form: Literal["full", "compact"],
        trust: JudgeSection | None = None,
    ) -> None:
        self._executor = executor
        self._judge = judge
        self._sandbox = sandbox
        self._rewards = rewards
        self._form: Literal["full", "compact"] = form
        self._trust = trust or JudgeSection()

    def messages(self, task: Task) -> list[Message]:
        return build_messages(task, self._form)

    async def play(self, groups: Sequence[Sequence[Completion]]) -> list[list[Rollout]]:
        flat = [completion for group in groups for completion in group]
        played = await asyncio.gather(*(self._play_one(item) for item in flat))
        rollouts = iter(await self._trusted(played))
        return [self._costed([next(rollouts) for _ in group]) for group in groups]

    async def _play_one(self, completion: Completion) -> Rollout:
        task, sample = completion.task, completion.sample
        assert isinstance(task, Problem)
        workflow: Workflow | None = None
        execution: Execution | None = None
        gold: Gold | None = None
        verdict: Verdict | None = None
        with boundary("rollout") as caught:
            workflow = await self._executor.validate(sample.text, sample.finish_reason)
            execution = await self._executor.execute(workflow, task, completion.key)
            if execution.answer is None:
                failure = execution.failure
                assert failure is not None
                raise FailureError(failure.reason, failure.message, failure.line)
            gold = await gold_check(task, execution.answer, self._sandbox)
            query = query_of(task, execution.answer, completion.key, gold.evidence)
            verdict = await self._judge.judge(query)
            if verdict.status != "ok":
                raise FailureError(Reason.JUDGE_FAILED, f"{verdict.status}: {verdict.reason}")
        reward = reward_of(caught.failure, verdict, self._rewards)
        return Rollout(task, sample, reward, caught.failure, workflow, execution, verdict, gold)

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
        rule decides."""
        judged, execution, gold = rollout.verdict, rollout.execution, rollout.gold
        if judged is None or judged.status != "ok" or gold is None:
            return rollout
        assert execution is not None and execution.answer is not None
        assert isinstance(rollout.task, Problem)
        ruled = await RuleJudge().judge(query_of(rollout.task, execution.answer, "", gold.evidence))
        why = f"the judge agreed with gold on {found:.0%} of the step"
        verdict = replace(
            ruled,
            source="rule_fallback",
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
        tokens = [r.execution.usage.tokens if r.execution else 0 for r in group]
        rewards = with_cost([r.reward for r in group], tokens, self._rewards)
        return [rollout.rewarded(reward) for rollout, reward in zip(group, rewards, strict=True)]

    def summarise(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics of some rollouts; a share of nothing is left out."""
        return {
            **_outcomes(rollouts),
            **_failures([r.failure for r in rollouts]),
            **audit([r.verdict for r in rollouts], [r.gold for r in rollouts]),
            **_costs(rollouts),
            **self._sandbox.metrics(),
            **{
                f"operators/{kind}/{name}": mean
                for kind, mix in operator_mix(rollouts).items()
                for name, mean in mix.items()
            },
        }


def _outcomes(rollouts: Sequence[Rollout]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for prefix, kind in (("", None), *((f"/{kind}", kind) for kind in KINDS)):
        some = [r for r in rollouts if kind in (None, r.task.kind)]
        rewards = [r.reward.value for r in some if r.reward.value is not None]
        judged = [r.verdict.correct for r in some if r.verdict and r.verdict.status == "ok"]
        name = "reward/mean" if kind is None else f"reward/by_kind{prefix}"
        metrics |= _mean(name, rewards)
        if kind is None:
            metrics |= _mean("reward/right_frac", [1.0 if c else 0.0 for c in judged])
        metrics |= _mean(
            f"gold/accuracy{prefix}", [g for r in some if (g := gold_of(r)) is not None]
        )
    return metrics


def gold_of(rollout: Rollout) -> float | None:
    """1 or 0 by the gold check; the policy's failures are 0, ours are None (not counted)."""
    if rollout.failure is not None and rollout.failure.blame is Blame.POLICY:
        return 0.0
    if rollout.gold is None or rollout.gold.correct is None:
        return None
    return float(rollout.gold.correct)


def is_valid(rollout: Rollout) -> bool:
    """Whether the program was accepted, ran to its end and gave an answer."""
    return rollout.execution is not None and rollout.execution.answer is not None


def _failures(failures: Sequence[Failure | None]) -> dict[str, float]:
    """Shares of all rollouts: valid, unscored, repaired, and each reason of the taxonomy."""
    count = len(failures)
    reasons = Counter(failure.reason for failure in failures if failure)
    ours = sum(n for reason, n in reasons.items() if reason.blame is Blame.INFRASTRUCTURE)
    policy = sum(reasons.values()) - ours
    # A sample that we lost says nothing about the policy, so it is not in the valid share.
    shares = {
        "rollout/unscored": ours / count,
        f"rollout/failed/{Reason.UNSUPPORTED.value}": 0.0,  # a rate to watch, so always there
    }
    if count > ours:
        shares["rollout/valid_frac"] = 1 - policy / (count - ours)
    return shares | {f"rollout/failed/{reason.value}": n / count for reason, n in reasons.items()}


def _costs(rollouts: Sequence[Rollout]) -> dict[str, float]:
    executions = [r.execution for r in rollouts if r.execution]
    verdicts = [r.verdict for r in rollouts if r.verdict]
    repaired = [float(bool(r.workflow.repairs)) for r in rollouts if r.workflow]
    metrics = {
        **_mean("llm/calls_mean", [float(e.usage.calls) for e in executions]),
        **_mean("tokens/llm_mean", [float(e.usage.tokens) for e in executions]),
        **_mean("tokens/judge_mean", [float(v.usage.tokens) for v in verdicts]),
        **_mean("time/execute", [e.seconds for e in executions]),
        **_mean("time/judge", [v.seconds for v in verdicts]),
        **_mean("rollout/repaired", repaired),
    }
    names = Counter(name for r in rollouts if r.workflow for name in r.workflow.repairs)
    return metrics | {f"repair/{name}": n / len(rollouts) for name, n in names.items()}


def operator_mix(rollouts: Sequence[Rollout]) -> dict[str, dict[str, float]]:
    """Mean calls of each operator in the text of a valid workflow, by kind of problem."""
    mix: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        calls = [r.workflow.calls for r in rollouts if r.workflow and r.task.kind == kind]
        counts = Counter(name for names in calls for name in names)
        if counts:
            mix[kind] = {name: n / len(calls) for name, n in counts.most_common()}
    return mix


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: sum(values) / len(values)} if values else {}
