"""Measuring a policy that scores: of each pair of answers, does the one that people preferred have
the higher score?"""

from collections.abc import Sequence

from flowright.config.grpo import GrpoSection
from flowright.data.task import Task
from flowright.environments.reward import Reward
from flowright.environments.rollout import Rollout
from flowright.evaluation.evaluator import Row, make_row
from flowright.grading import Gold
from flowright.grpo.batch import Group, scalar_scores
from flowright.grpo.fixed_data import FixedData
from flowright.policy.model import Policy
from flowright.policy.model_thread import on_model_thread
from flowright.policy.sampler import Sample


async def scored_row(
    name: str,
    tasks: Sequence[Task],
    policy: Policy,
    batches: FixedData,
    section: GrpoSection,
) -> Row:
    """A row whose gold accuracy is the share of pairs that are ranked as people ranked them. Two
    equal scores are half right; pairs without a preference do not count."""
    groups = [group for task in tasks for group in batches.groups([task])]
    scores = await on_model_thread(scalar_scores, policy, groups, section)
    pairs = zip(scores[::2], scores[1::2], strict=True)
    rollouts = [
        _outcomes(task, group, first - second)
        for task, group, (first, second) in zip(tasks, groups, pairs, strict=True)
    ]
    return make_row(name, "policy", rollouts, batches.environment)


def _outcomes(task: Task, group: Group, difference: float) -> list[Rollout]:
    """Two halves, of which a tie has one right."""
    strength = group.samples[0].advantage - group.samples[1].advantage
    sample = Sample((), (), f"{difference:+.4f}", "stop", -1)
    why = f"scores differ by {difference:+.4f}, strengths by {strength:+g}"
    if not strength:
        return [Rollout(task, sample, Reward(None, {}), gold=Gold(None, "label", why))]
    rights = (difference * strength > 0, difference * strength >= 0)
    return [_outcome(task, sample, right, why) for right in rights]


def _outcome(task: Task, sample: Sample, right: bool, why: str) -> Rollout:
    reward = Reward(float(right), {"agreement": float(right)})
    return Rollout(task, sample, reward, gold=Gold(right, "label", why))
