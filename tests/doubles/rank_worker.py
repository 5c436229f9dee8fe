"""One rank of several: updates of the same random policy, for tests/grpo/test_ranks.py.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python rank_worker.py OUT
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from made_episodes import KINDS, made_batch
from tiny_policy import checkpoint, random_groups, tiny_policy, weights
from torch import Tensor

from flowright.config.grpo import GrpoSection
from flowright.grpo.batch import Group, Requested, TurnPlace, flattened, trained_groups
from flowright.grpo.learner import Learner
from flowright.grpo.ranks import ONE, Ranks, open_ranks
from flowright.policy.model import Policy

LONGEST = 8
UPDATES: tuple[tuple[dict[str, Any], list[tuple[int, list[int]]]], ...] = (
    # Ranks with unequal shares, one of them with nothing in a minibatch, every kind of weight.
    ({"loss": "dapo"}, [(3, [2, 5, 1]), (4, [8, 8]), (6, [1, 1])]),
    ({"loss": "grpo", "kl_coefficient": 0.3}, [(3, [2, 5]), (4, [3, 4]), (2, [7, 1, 1])]),
    ({"loss": "dr_grpo", "minibatches": 2, "epochs": 2}, [(5, [2, 6]), (4, [3, 4]), (2, [7, 1])]),
    ({"loss": "gspo", "off_policy": "truncated", "epochs": 2}, [(5, [2, 6]), (3, [4, 4])]),
    ({"loss": "cispo", "entropy_coefficient": 0.1}, [(4, [3, 2])]),
    ({"off_policy": "sequence_masked", "off_policy_cap": 9}, [(5, [2, 6]), (3, [4, 4]), (2, [3])]),
    # One sample of one rank was drawn from a scaffold: all score it on its group's prompt, or none.
    (
        {"scaffolded": True, "off_policy": "ratio", "epochs": 2},
        [(5, [2, 6]), (3, [4, 4]), (2, [3])],
    ),
    ({"scaffolded": True, "off_policy": "truncated"}, [(5, [2, 6]), (3, [4, 4])]),
    # Groups without a signal, whose KL and entropy train.
    (
        {"silent": 2, "kl_coefficient": 0.3, "entropy_coefficient": 0.1, "minibatches": 2},
        [(5, [2, 6]), (3, [4, 4]), (2, [3]), (4, [3, 1]), (3, [5])],
    ),
    ({"silent": 2, "kl_coefficient": 0.3, "epochs": 2, "top_p": 0.9}, [(5, [2, 6]), (3, [4])]),
    # Tokens selected among those of all ranks.
    (
        {"loss": "clip_cov", "top_entropy": 0.4, "silent": 1, "epochs": 2, "minibatches": 2},
        [(5, [2, 6]), (3, [4, 4]), (2, [3]), (4, [3, 1])],
    ),
    ({"loss": "kl_cov"}, [(5, [2, 6]), (3, [4, 4])]),
    # All weights, with a reference; the rate is small, as Adam moves what is 0 but for rounding.
    (
        {"train": "full", "kl_coefficient": 0.3, "epochs": 2, "learning_rate": 1e-4},
        [(5, [2, 6]), (3, [4]), (2, [3])],
    ),
    # A teacher, whose part of the advantages also selects tokens.
    (
        {"teacher": {"model": "x", "weight": 0.5}, "epochs": 2, "learning_rate": 1e-4},
        [(5, [2, 6]), (3, [4, 4]), (2, [3])],
    ),
    (
        {
            "teacher": {"model": "x", "reward_weight": 0},
            "loss": "kl_cov",
            "learning_rate": 1e-4,
        },
        [(5, [2, 6]), (3, [4, 4]), (2, [3])],
    ),
    # Episodes, some in several samples, in the place of the groups.
    ({"episodes": True, "loss": "gsspo", "kl_coefficient": 0.3}, []),
    ({"episodes": True, "loss": "gspo", "off_policy": "truncated", "minibatches": 2}, []),
    ({"episodes": True, "loss": "kl_cov", "learning_rate": 1e-4, "epochs": 2}, []),
)
"""Settings of the learner, ``train`` of the policy, whether the first sample is ``scaffolded``, how
many groups are ``silent``, the sampler's ``top_p``, whether there are ``episodes``, and the groups.
"""
ASKED = Requested(4, 5, (3, 4, 8))
"""Of each update, beside its groups."""


@dataclass(frozen=True)
class Update:
    """The divergences of this rank's samples, the summed gradients of its first optimizer step,
    what is trained after it, its metrics, and what the learner found of this rank's tokens."""

    nats_P: list[float]
    gradients: list[Tensor]
    weights: dict[str, Tensor]
    metrics: dict[str, float]
    found: dict[TurnPlace, list[float]]


def placed(groups: Sequence[Group]) -> list[Group]:
    """With each sample's place among them."""
    return [
        replace(group, samples=[replace(s, place=(p, g)) for g, s in enumerate(group.samples)])
        for p, group in enumerate(groups)
    ]


def taught(groups: Sequence[Group]) -> list[Group]:
    """With log-probabilities of a teacher."""
    return [
        replace(
            group,
            samples=[
                replace(s, teacher_logprobs=[value / 2 - 1 for value in s.sampled_logprobs])
                for s in group.samples
            ],
        )
        for group in groups
    ]


def updates(ranks: Ranks) -> list[Update]:
    """Each from the policy's first weights."""
    found = []
    for seed, (options, shapes) in enumerate(UPDATES):
        grpo = {"kl_coefficient": 0.0, "learning_rate": 1e-3, **options}
        policy = tiny_policy(train=grpo.pop("train", "lora"))
        groups = placed(random_groups(seed, shapes))
        if grpo.pop("episodes", False):
            groups = trained_groups(*made_batch(seed, (KINDS[1], KINDS[0], KINDS[1])))
        if "teacher" in grpo:
            groups = taught(groups)
        top_p = grpo.pop("top_p", 1.0)
        for n in range(grpo.pop("silent", 0)):
            samples = [replace(s, advantage=0.0) for s in groups[n].samples]
            groups[n] = replace(groups[n], samples=samples, has_signal=False)
        if grpo.pop("scaffolded", False):
            first, *others = groups[0].samples
            shown = replace(first, scaffolded=True)
            groups[0] = replace(groups[0], samples=[shown, *others])
        section = GrpoSection(**grpo)
        learner = Learner(policy, section, 1.0, 0, ranks, top_p)
        steps: list[list[Tensor]] = []

        def keep(*_: object, steps: list = steps, policy: Policy = policy) -> None:
            steps.append([p.grad.clone() for p in policy.trainable() if p.grad is not None])

        learner.optimizer.register_step_pre_hook(keep)
        mine = ranks.mine(groups)
        nats = iter(learner.divergences(flattened(mine)))
        nats_P = [sum(next(nats) for g in flattened([group]) for _ in g.samples) for group in mine]
        seen: dict[TurnPlace, list[float]] = {}
        metrics = learner.update(groups, 1, LONGEST, ASKED, seen)
        found.append(Update(nats_P, steps[0], weights(policy), metrics, seen))
    return found


if __name__ == "__main__":
    checkpoint()  # before: among several ranks transformers saves a model on the first alone
    with open_ranks() as opened:
        assert opened.size > ONE.size
        found = [asdict(update) for update in updates(opened)]
        torch.save(found, Path(sys.argv[1]) / f"{opened.rank}.pt")
