"""Metrics that every environment's rollouts have: rewards, gold, failures, the judge, what was
spent. A share or a mean of nothing is left out.
"""

from collections import Counter
from collections.abc import Sequence

from flowright.core.errors import Blame, Failure, Reason
from flowright.data.mixture import tasks_by_kind
from flowright.environments.rollout import Rollout
from flowright.judging.audit import audit


def outcome_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """The metrics of some rollouts under the field's names."""
    spent = [r.spent for r in rollouts if r.spent]
    verdicts = [r.verdict for r in rollouts if r.verdict]
    return {
        **_scores(rollouts),
        **_failures([r.failure for r in rollouts]),
        **audit([r.verdict for r in rollouts], [r.gold for r in rollouts]),
        **mean_of("llm/calls_mean", [float(s.calls) for s in spent]),
        **mean_of("tokens/llm_mean", [float(s.tokens) for s in spent]),
        **mean_of("tokens/judge_mean", [float(v.usage.tokens) for v in verdicts]),
        **mean_of("time/execute", [s.seconds for s in spent]),
        **mean_of("time/judge", [v.seconds for v in verdicts]),
    }


def mean_of(name: str, values: Sequence[float]) -> dict[str, float]:
    """One metric: the mean of the values, none without any."""
    return {name: sum(values) / len(values)} if values else {}


def _scores(rollouts: Sequence[Rollout]) -> dict[str, float]:
    judged = [r.verdict.correct for r in rollouts if r.verdict and r.verdict.status == "ok"]
    metrics = {
        **mean_of("reward/mean", _rewards(rollouts)),
        **mean_of("reward/right_frac", [1.0 if correct else 0.0 for correct in judged]),
        **mean_of("gold/accuracy", _golds(rollouts)),
    }
    for kind in tasks_by_kind([r.task for r in rollouts]):
        some = [r for r in rollouts if r.task.kind == kind]
        metrics |= mean_of(f"reward/by_kind/{kind}", _rewards(some))
        metrics |= mean_of(f"gold/accuracy/{kind}", _golds(some))
    return metrics


def _rewards(rollouts: Sequence[Rollout]) -> list[float]:
    return [r.reward.value for r in rollouts if r.reward.value is not None]


def _golds(rollouts: Sequence[Rollout]) -> list[float]:
    return [score for r in rollouts if (score := r.gold_score) is not None]


def _failures(failures: Sequence[Failure | None]) -> dict[str, float]:
    """Shares of all rollouts: valid, unscored, and each reason of the taxonomy, 0 where it did not
    occur: a curve without its zeros shows the bad steps alone."""
    count = len(failures)
    reasons = Counter(failure.reason for failure in failures if failure)
    ours = sum(n for reason, n in reasons.items() if reason.blame is Blame.INFRASTRUCTURE)
    policy = sum(reasons.values()) - ours
    # A sample that we lost says nothing about the policy, so it is not in the valid share.
    shares = {"rollout/unscored": ours / count}
    if count > ours:
        shares["rollout/valid_frac"] = 1 - policy / (count - ours)
    return shares | {f"rollout/failed/{reason.value}": reasons[reason] / count for reason in Reason}
