"""GRPO: rollouts, advantages, losses, the learner and the loop around them.

Here stand the choices of a configuration by name: objectives, advantages, KL estimators, off-policy
corrections and schedules. Imports no torch, so that they can be checked before torch is loaded.
"""

from flowright.config import grpo as names

_OBJECTIVES = "flowright.grpo.objectives"

OBJECTIVES = names.OBJECTIVES.table({n: f"{_OBJECTIVES}:{n.upper()}" for n in names.OBJECTIVES})
"""An Objective (the weights of tokens and their terms) or a PairObjective each."""

ADVANTAGES = names.ADVANTAGES.table(
    {
        "group": "flowright.grpo.advantages:by_group",
        "batch": "flowright.grpo.advantages:by_batch",
        "none": "flowright.grpo.advantages:centred",
        "rloo": "flowright.grpo.advantages:leave_one_out",
        "maxrl": "flowright.grpo.advantages:by_mean",
        "reinforce_plus_plus": "flowright.grpo.advantages:ACROSS_GROUPS",
        "reinforce_plus_plus_baseline": "flowright.grpo.advantages:whitened",
    }
)
"""Functions from the scored rewards of all groups to an advantage for each sample, or an
Advantage."""

KL_ESTIMATORS = names.KL_ESTIMATORS.table(
    {n: f"{_OBJECTIVES}:{n if n in ('k1', 'k2', 'k3') else n.upper()}" for n in names.KL_ESTIMATORS}
)
"""Functions of the tokens' log-probabilities under the policy and under the reference, or a
Divergence."""

CORRECTIONS = names.CORRECTIONS.table({n: f"{_OBJECTIVES}:{n.upper()}" for n in names.CORRECTIONS})
"""A Correction each: the reference point of the ratio, and a weight."""

SCHEDULES = names.SCHEDULES.table({n: f"flowright.grpo.learner:{n}" for n in names.SCHEDULES})
"""Functions from the completed share of the run to a factor of the learning rate."""
