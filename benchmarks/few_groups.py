"""How large a step is that only a few groups have a signal for.

    python benchmarks/few_groups.py

A random Qwen2 (4 layers, hidden_size 256), LoRA of rank 16 on every linear layer, ten groups of
eight completions of 20 to 60 tokens with right and wrong ones. In each of four draws 4 or all of
the groups train; in the others all answers are alike. Printed are the norm of an update's
gradient (one pass, no KL) and how many optimizer steps a pass has of the three that are configured:
normalised over the groups that train, as if nothing else had been asked for, and over all that was.
Means over the draws, in brackets the largest. 40 s of one core.
"""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import torch
from shapes import MODEL, checkpoint, policy

from flowright.config.grpo import GrpoSection
from flowright.grpo.advantages import group_advantages
from flowright.grpo.batch import Group, Requested, Trained
from flowright.grpo.learner import Learner
from flowright.policy.model import Policy
from flowright.policy.tiny import SPECIAL

GROUPS, SIZE, DRAWS, MINIBATCHES = 10, 8, 4, 3


def drawn(draw: random.Random) -> list[Group]:
    def ids(count: int) -> list[int]:
        return [draw.randrange(len(SPECIAL), MODEL.vocab_size) for _ in range(count)]

    groups = []
    for _ in range(GROUPS):
        right = draw.randint(1, SIZE - 1)
        (found,) = group_advantages([[1.0] * right + [0.0] * (SIZE - right)])
        samples = []
        for advantage in found.values:
            length = draw.randint(20, 60)
            samples.append(Trained(ids(length), [-9.0] * length, advantage))
        groups.append(Group(ids(32), samples))
    return groups


def norm(model: Policy, loss: str, groups: Sequence[Group], asked: Requested | None) -> float:
    """Of one optimizer step with all of them, at ratios of 1."""
    section = GrpoSection(
        loss=loss, off_policy="ignored", kl_coefficient=0.0, learning_rate=1e-12, max_grad_norm=1e9
    )
    return Learner(model, section, 1.0, 0).update(groups, 1, 64, asked)["policy/grad_norm"]


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint(Path(folder))
        model = policy(Path(folder))
    draw = random.Random(0)
    batches = [drawn(draw) for _ in range(DRAWS)]
    print("loss   trained  norm over those that train  over all asked for  steps")
    for loss in ("dapo", "grpo"):
        for count in (4, GROUPS):
            before, after = [], []
            for batch in batches:
                idle = [len(s.token_ids) for group in batch[count:] for s in group.samples]
                asked = Requested(GROUPS, GROUPS, idle)
                before.append(norm(model, loss, batch[:count], None))
                after.append(norm(model, loss, batch[:count], asked))
            steps = Requested(GROUPS, GROUPS, ()).minibatches(MINIBATCHES, count)
            was = min(MINIBATCHES, count)
            print(
                f"{loss:<6} {count:>2} of {GROUPS}  {mean(before):>14.3f} [{max(before):.3f}]"
                f"{mean(after):>17.3f} [{max(after):.3f}]  {was} -> {steps}"
            )


if __name__ == "__main__":
    main()
