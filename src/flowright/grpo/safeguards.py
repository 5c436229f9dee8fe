"""Before an update: is there enough to train on, and is the judge to be believed? (laws 1 and 3)"""

from collections.abc import Sequence

from flowright.config import JudgeSection
from flowright.environments.rollout import Rollout
from flowright.errors import RunPaused
from flowright.judge.audit import agreement_with_gold


def unscored_share(rollouts: Sequence[Rollout]) -> float:
    return sum(rollout.reward.value is None for rollout in rollouts) / len(rollouts)


def refuse_garbage(step: int, rollouts: Sequence[Rollout], limit: float) -> None:
    """Raises RunPaused where more than ``limit`` of the samples could not be scored."""
    if unscored_share(rollouts) <= limit:
        return
    unscored = [r for r in rollouts if r.reward.value is None]
    reasons = {str(r.failure) for r in unscored[:100]}
    raise RunPaused(
        f"step {step}: {len(unscored)} of {len(rollouts)} samples could not be scored "
        f"(limit {limit:.0%}), so nothing was trained on; mend the cause and --resume",
        *(f"  {reason[:200]}" for reason in sorted(reasons)[:5]),
    )


def mind_the_judge(step: int, rollouts: Sequence[Rollout], section: JudgeSection) -> str | None:
    """What to say of a judge that drifts from gold; raises RunPaused where it is to stop the run
    (``judge.low_agreement: stop``)."""
    found = agreement_with_gold([r.verdict for r in rollouts], [r.gold for r in rollouts])
    if found is None or found >= section.min_agreement:
        return None
    line = (
        f"step {step}: the judge agreed with gold on {found:.0%} of the samples "
        f"(judge.min_agreement {section.min_agreement:.0%})"
    )
    if section.low_agreement == "stop":
        raise RunPaused(f"{line}, so nothing was trained on; look at them and --resume")
    return line
