"""Episodes of several turns whose tokens are drawn at random."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from tiny_policy import VOCAB_SIZE
from torch import Tensor

from flowright.data.task import Problem
from flowright.environments.episode import Episode, Observation, Turn
from flowright.environments.rollout import UNSCORED, Reward, Rollout
from flowright.grpo.advantages import GroupAdvantages
from flowright.grpo.batch import Batch
from flowright.policy.model import Policy
from flowright.policy.sampling import Prompt, Sample
from flowright.policy.tiny import SPECIAL

ADDED, ANEW, APART = "added", "anew", "apart"
"""The context of a turn: the last one with its completion and an answer; another that begins with
the prompt; one that does not."""
KINDS = (
    ((), (ADDED, ADDED), (ANEW, ADDED), (APART,)),
    ((ADDED, ANEW, ANEW), (APART, ANEW), (ADDED,), ()),
)
"""By group and episode, the contexts of the turns after the first."""


def ids(draw: torch.Generator, length: int) -> tuple[int, ...]:
    return tuple(torch.randint(len(SPECIAL), VOCAB_SIZE, (length,), generator=draw).tolist())


def drawn(draw: torch.Generator) -> Sample:
    """A completion with log-probabilities about those of the random policies."""
    length = int(torch.randint(1, 5, (), generator=draw))
    logprobs = (-5.5 + 2 * torch.randn(length, generator=draw)).tolist()
    return Sample(ids(draw, length), tuple(logprobs), "x", "stop", 0)


def made_episode(draw: torch.Generator, prompt: tuple[int, ...], kinds: Sequence[str]) -> Episode:
    turns = [Turn(prompt, drawn(draw))]
    for kind in kinds:
        last = turns[-1]
        answer = ids(draw, 3) if kind == ADDED else ()
        turns[-1] = replace(last, answer_ids=answer, observation=Observation("d"))
        context = (*last.context_ids, *last.sample.token_ids, *answer)
        if kind != ADDED:
            context = (*(prompt if kind == ANEW else ids(draw, 2)), *ids(draw, 4))
        turns.append(Turn(context, drawn(draw)))
    return Episode(Problem("t", "math", "toy", "?", "1"), "1/1/0/0", tuple(turns))


def made_batch(
    seed: int, kinds: Sequence[Sequence[Sequence[str]]] = KINDS, unscored: bool = True
) -> tuple[Batch, list[GroupAdvantages]]:
    """A batch of such episodes, the last one ``unscored``, and an advantage for each turn."""
    draw = torch.Generator().manual_seed(seed)
    prompts = [ids(draw, 5 + n) for n in range(len(kinds))]
    episodes = [
        [made_episode(draw, prompt, one) for one in group]
        for prompt, group in zip(prompts, kinds, strict=True)
    ]
    rollouts = [
        [Rollout(e.task, e.sample, Reward(float(n), {"x": float(n)}), turns=e.turns)
         for n, e in enumerate(group)]
        for group in episodes
    ]  # fmt: skip
    if unscored:
        rollouts[-1][-1] = replace(rollouts[-1][-1], reward=UNSCORED)
    advantages = [
        GroupAdvantages(
            tuple(0.5 for _ in group),
            "ok",
            tuple(tuple(torch.randn(len(e.turns), generator=draw).tolist()) for e in group),
        )
        for group in episodes
    ]
    shown = [[None] * len(group) for group in episodes]
    own = [
        [Prompt(prompt, truncated=False)] * len(group)
        for prompt, group in zip(prompts, episodes, strict=True)
    ]
    return Batch(own, shown, episodes, rollouts), advantages


def turn_logprobs(policy: Policy, turn: Turn, temperature: float = 1.0) -> Tensor:
    """Log-probabilities of a turn's tokens behind the context that its sampler saw, by the model's
    own forward pass."""
    tokens = turn.sample.token_ids
    logits = policy.causal_lm(input_ids=torch.tensor([[*turn.context_ids, *tokens]])).logits[0]
    rows = (logits / temperature).log_softmax(-1)[len(turn.context_ids) - 1 : -1]
    return rows.gather(1, torch.tensor(tokens)[:, None])[:, 0]
