"""One process of several that share a policy's weights; for tests/policy/test_sharding.py.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python shard_worker.py OUT URL
"""

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rank_worker import LONGEST, Update, placed
from rich.console import Console
from served_run import served, train
from tiny_policy import ARCHITECTURES, checkpoint, random_groups, shake, tiny_policy, weights
from torch import Tensor
from torch.distributed.tensor import DTensor
from toy_run import Toy

from flowright.app.open_policies import policy_in_turn
from flowright.config.grpo import GrpoSection
from flowright.config.root import Config
from flowright.core.errors import PeerLost
from flowright.evaluation.perplexity import HeldOutText, TokenWindow, before_and_after
from flowright.grpo.batch import Group, Place
from flowright.grpo.checkpoint import load_trained, trained_state
from flowright.grpo.learner import Learner
from flowright.grpo.ranks import ONE, Ranks, open_ranks, peers_of_passes
from flowright.grpo.selfcheck import check_sharing
from flowright.policy.model import Policy
from flowright.policy.sharding import shard
from flowright.policy.tuning import whole
from flowright.policy.vllm.proof import learner_scores, trial_scores


@dataclass(frozen=True)
class Case:
    """An update: of which policy, with which settings, on which groups (the prompt's length and
    those of its completions; those in ``alike`` begin with the same 20 tokens)."""

    shapes: list[tuple[int, list[int]]]
    grpo: dict[str, Any]
    alike: tuple[int, ...] = ()
    architecture: str = "qwen2"
    checkpointing: bool = False
    policy: dict[str, Any] = field(default_factory=dict)

    @property
    def section(self) -> GrpoSection:
        return GrpoSection(
            **{"kl_coefficient": 0.0, "learning_rate": 1e-3, "dual_clip": None, **self.grpo}
        )

    def groups(self, seed: int) -> list[Group]:
        template = list(range(10, 30))
        return [
            replace(group, prompt_ids=[*template, *group.prompt_ids]) if i in self.alike else group
            for i, group in enumerate(random_groups(seed, self.shapes))
        ]


FULL = {"train": "full", "sharded": True}
CASES = {
    "shares of unequal size": Case([(3, [2, 5, 1]), (4, [8, 8]), (6, [1, 1])], {}),
    "one without a group": Case([(4, [3, 2])], {}, architecture="qwen3"),
    "one with more packs and chunks": Case(
        [(3, [6, 5, 6, 4]), (4, [2, 1]), (9, [7, 3, 8])], {"micro_batch_tokens": 8}
    ),
    "a template on the first alone": Case(
        [(3, [4, 5]), (4, [6, 1]), (2, [2, 3])], {}, alike=(0, 2), checkpointing=True
    ),
    "a template on the second alone": Case(
        [(3, [4, 5]), (4, [6, 1]), (2, [2, 3]), (5, [3])], {}, (1, 3), architecture="qwen3"
    ),
    "tokens that stand alone": Case([(3, [1, 1]), (4, [1, 5])], {"micro_batch_tokens": 2}),
    "none but such": Case([(3, [1, 1, 1]), (4, [1, 1])], {}),
    "the plain path": Case(
        [(3, [2, 5, 7]), (4, [6])],
        {"prefix_sharing": False, "micro_batch_tokens": 20},
        checkpointing=True,
    ),
    "the plain path, one without a group": Case([(4, [3, 2])], {"prefix_sharing": False}),
    "with a reference": Case(
        [(3, [2, 5]), (4, [3, 4]), (2, [7, 1, 1])],
        {"kl_coefficient": 0.3, "micro_batch_tokens": 16},
        alike=(0, 1, 2),
        architecture="qwen3",
    ),
    "several steps, with scores": Case(
        [(5, [2, 6]), (3, [4, 4]), (2, [7, 1])],
        {"off_policy": "truncated", "epochs": 2, "minibatches": 2, "entropy_coefficient": 0.1},
        checkpointing=True,
    ),
    "all weights": Case(
        [(3, [2, 5]), (4, [3, 4]), (2, [7, 1, 1])],
        {"kl_coefficient": 0.3, "micro_batch_tokens": 16, "learning_rate": 1e-4},
        alike=(0, 1, 2),
        policy=FULL,
    ),
    "all weights, one without a group": Case(
        [(4, [3, 2])],
        {"max_grad_norm": 0.1, "kl_coefficient": 0.3, "learning_rate": 1e-4},
        policy=FULL | {"offload": "all"},
    ),
    "all weights, several steps": Case(
        [(5, [2, 6]), (3, [4, 4]), (2, [7, 1])],
        {"off_policy": "truncated", "epochs": 2, "minibatches": 2, "learning_rate": 1e-4},
        architecture="qwen3",
        checkpointing=True,
        policy=FULL | {"offload": "optimizer"},
    ),
    "all weights, the plain path": Case(
        [(3, [2, 5, 7]), (4, [6])],
        {"prefix_sharing": False, "micro_batch_tokens": 20, "learning_rate": 1e-4},
        checkpointing=True,
        policy=FULL,
    ),
}


def updates(ranks: Ranks, prepared: Callable[[Policy], Policy]) -> dict[str, Update]:
    """By case, each from the policy's first weights. Loading is what costs, so that cases share."""
    found: dict[str, Update] = {}
    policies: dict[str, tuple[Policy, dict[str, Tensor]]] = {}
    for seed, (name, case) in enumerate(CASES.items()):
        kind = repr((case.architecture, case.checkpointing, case.policy))
        if kind not in policies:
            policy = tiny_policy(
                case.architecture,
                trained=False,
                split=ranks.size > 1 and bool(case.policy),
                gradient_checkpointing=case.checkpointing,
                **case.policy,
            )
            policy = prepared(policy)
            shake(policy)  # behind the reference, which is copied when weights are split
            policies[kind] = policy, weights(policy)
        policy, first = policies[kind]
        policy.load(first)
        learner = Learner(policy, case.section, 1.0, 0, ranks)
        steps: list[list[Tensor]] = []

        def keep(*_: object, steps: list = steps, policy: Policy = policy) -> None:
            grads = [p.grad for p in policy.trainable() if p.grad is not None]
            steps.append([whole(grad).clone() for grad in grads])

        learner.optimizer.register_step_pre_hook(keep)
        seen: dict[Place, list[float]] = {}
        metrics = learner.update(placed(case.groups(seed)), 1, LONGEST, found=seen)
        found[name] = Update([], steps[0], whole(weights(policy)), metrics, seen)
    return found


def looked_at(policy: Policy, ranks: Ranks) -> dict[str, Any]:
    """What else runs the model, or reads its weights."""
    section = GrpoSection(micro_batch_tokens=8)
    learner = Learner(policy, section, 1.0, 0, ranks)
    groups = random_groups(7, [(3, [2, 5]), (4, [3]), (2, [7, 1])])
    mine = [[groups], [groups[:1], groups[1:]]][ranks.size - 1][ranks.rank]
    check_sharing(policy, section)
    state = deepcopy(trained_state(policy, learner))
    before = weights(policy)
    shake(policy, seed=9)
    moved = learner_scores(policy, [list(range(5, 40)), list(range(9, 30))]).scores
    load_trained(Path(), state, policy, learner)
    return {
        "scores": learner_scores(policy, [list(range(5, 40)), list(range(9, 30))]).scores,
        "moved": moved,
        "divergences": learner.divergences(mine),
        "adapter": weights(policy),
        "before": before,
    }


def to_serve(policy: Policy) -> dict[str, Any]:
    """All weights as a server gets them, trained and of a trial, and the trial's scores."""
    shake(policy)
    texts = [list(range(5, 40)), list(range(9, 30))]
    with policy.reference():
        base = learner_scores(policy, texts)
    size, known = trial_scores(policy, texts, base, "trial weights")
    with policy.tuning.trial(size):
        trial = policy.tuning.served()
    return {"trial": trial, "scores": known.scores, "size": size, "own": policy.tuning.served()}


async def read_texts(policy: Policy, ranks: Ranks) -> list[float]:
    """Perplexities of three windows and of one alone, before training and after."""
    groups = random_groups(8, [(9, [1]), (20, [1]), (5, [1])])
    windows = [TokenWindow(n, tuple(group.prompt_ids)) for n, group in enumerate(groups)]
    section, found = GrpoSection(micro_batch_tokens=8), []
    for some in (windows, windows[:1]):
        text = HeldOutText(policy, section, some, (), ranks)
        found += [read.perplexity for read in await before_and_after(text) if read is not None]
    return found


def held(split: Callable[[Policy], Policy]) -> dict[str, int]:
    """Bytes of the layers' frozen weights, of all of them and of this process' part; and of
    whatever tensors it has alive for a policy that has been used."""
    before = alive()
    policy = split(tiny_policy())
    check_sharing(policy, GrpoSection())
    layers = [p for p in policy.causal_lm.model.layers.parameters() if isinstance(p, DTensor)]
    return {
        "whole": sum(p.numel() * p.itemsize for p in layers),
        "part": sum(p.to_local().numel() * p.itemsize for p in layers),
        "alive": alive() - before,
    }


def alive() -> int:
    """Bytes of all tensors of this process."""
    gc.collect()
    tensors = [x for x in gc.get_objects() if type(x) in (Tensor, torch.nn.Parameter)]
    storages = {s.data_ptr(): s.nbytes() for s in (x.untyped_storage() for x in tensors)}
    return sum(storages.values())


def toy_run(url: str, path: Path, sharded: bool, steps: int = 2) -> Config:
    """A run whose batches have an odd number of problems and whose rewards need the reference."""
    config = served(url, path, wait_seconds=600).model_copy(
        update={"strategy_model": str(checkpoint())}
    )
    grpo = {"steps": steps, "prompts_per_step": 3, "kl_coefficient": 0.05, "kl_in": "reward"}
    return config.model_copy(
        update={
            "grpo": config.grpo.model_copy(update=grpo),
            "policy": config.policy.model_copy(update={"sharded": sharded}),
        }
    )


async def toy_training(url: str, path: Path, ranks: Ranks, gpus: int = 1) -> None:
    """Two steps, and a third after the run was resumed."""
    for resume in (False, True):
        config = toy_run(url, path, gpus > 1, 3 if resume else 2)
        policy = await policy_in_turn(config, Toy(), [], Console(quiet=True), ranks, gpus)
        assert policy.gpus == gpus
        await train(config, resume, policy, ranks)


async def main(out: Path, url: str) -> None:
    for architecture in ARCHITECTURES:  # before: among several transformers saves on one alone
        checkpoint(architecture)
    with open_ranks() as ranks:
        assert ranks.size > ONE.size
        gpus = await ranks.gpus_per_node()

        def split(policy: Policy) -> Policy:
            return shard(policy, torch.device("cpu"), gpus, ranks.size, ranks)

        found = {name: asdict(update) for name, update in updates(ranks, split).items()}
        policy = split(tiny_policy())
        found = {"updates": found, "looked": looked_at(policy, ranks), "held": held(split)}
        found["texts"] = await read_texts(policy, ranks)
        policy.save(out / f"adapter-{ranks.rank}")
        full = split(tiny_policy(trained=False, split=True, **FULL))
        found["served"] = to_serve(full)
        torch.save(found, out / f"{ranks.rank}.pt")
        await toy_training(url, out, ranks, gpus)
        if not ranks.is_first:
            os._exit(0)  # as a process that is killed: nothing is closed in order
        try:
            with peers_of_passes():
                learner_scores(policy, [list(range(10, 20))])
        except PeerLost as error:
            (out / "lost.txt").write_text(str(error))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
