"""The records of a step: metrics of its batch and of its update, and its rollouts as they are kept.

Names of metrics are the field's where it has one.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from flowright.data.mixture import tasks_by_kind
from flowright.environments.base import Environment
from flowright.environments.episode import STOPS, Episode
from flowright.environments.rollout import Rollout, to_record
from flowright.grpo.advantages import GroupAdvantages
from flowright.grpo.batch import Batch, Group, Trained, TurnPlace, flattened
from flowright.grpo.objectives import Terms
from flowright.grpo.problems import ShownPrompt, is_scaffolded
from flowright.policy.sampling import TokenTexts

TOKENS = "token_logprobs"
DIGITS = 4

SHOWN_TURNS = 8
"""Turns with a metric of their own."""

SCAFFOLD_CHARACTERS = 2000
"""Characters of a scaffold that a record keeps."""


def rollout_records(
    environment: Environment,
    batch: Batch,
    advantages_P: Sequence[GroupAdvantages],
    step: int,
    texts: TokenTexts | None,
    mask_failed: bool = False,
) -> list[dict[str, Any]]:
    """Return a step's rollouts as they are kept; with their tokens where there are ``texts``.
    ``mask_failed``: turns that could not be parsed are not trained on."""
    return [
        to_record(
            rollout,
            {
                **environment.record(rollout),
                **_scaffold_record(batch.shown_P_G[p][g]),
                **token_record(rollout, texts),
            },
            step,
            p,
            g,
            advantages_P[p].values[g],
            _credit(rollout, advantages_P[p].of(g), mask_failed),
        )
        for p, group in enumerate(batch.rollouts_P_G)
        for g, rollout in enumerate(group)
    ]


def _credit(
    rollout: Rollout, advantage: float | Sequence[float], mask_failed: bool
) -> Sequence[float | None]:
    """Return the advantages of an attempt's turns; empty where all have the attempt's."""
    masked = [mask_failed and turn.is_failed for turn in rollout.turns]
    if not isinstance(advantage, Sequence):
        advantage = [advantage] * len(masked) if any(masked) else ()
    return [None if left_out else value for value, left_out in zip(advantage, masked, strict=False)]


def _scaffold_record(shown: ShownPrompt | None) -> dict[str, Any]:
    if shown is None:
        return {}
    text = (shown.scaffold or "")[:SCAFFOLD_CHARACTERS]
    tokens = len(shown.token_ids)
    return {"scaffold": {"text": text, "prompt_tokens": tokens, "left_out": shown.left_out}}


def token_record(rollout: Rollout, texts: TokenTexts | None) -> dict[str, Any]:
    """Return the field of ``run.keep_logprobs``, the sampled tokens of all turns, still without the
    learner's log-probabilities; nothing where there are no ``texts``. Ratios are left to the
    reader."""
    if texts is None:
        return {}
    samples = [turn.sample for turn in rollout.turns] or [rollout.sample]
    turns = {"turns": [len(s.token_ids) for s in samples]} if rollout.turns else {}
    split = [texts.of(sample.token_ids, sample.text) for sample in samples]
    known = [some for some in split if some is not None]
    return {
        TOKENS: {
            "ids": [*chain.from_iterable(sample.token_ids for sample in samples)],
            "texts": [*chain.from_iterable(known)] if len(known) == len(split) else None,
            "sampler": rounded([*chain.from_iterable(sample.logprobs for sample in samples)]),
            "learner": None,
            **turns,
        }
    }


def add_learner_logprobs(
    records: Sequence[dict[str, Any]], logprobs: Mapping[TurnPlace, Sequence[float]]
) -> None:
    """Add the learner's log-probabilities before the update, by place; None where a sample took no
    part in it, and for each token of a turn that took none."""
    for record in records:
        kept, place = record[TOKENS], (record["group"], record["index"])
        lengths = kept.get("turns", [len(kept["ids"])])
        found = [logprobs.get((*place, turn)) for turn in range(len(lengths))]
        parts = zip(found, lengths, strict=True)
        values = [[None] * n if part is None else rounded(part) for part, n in parts]
        is_known = any(part is not None for part in found)
        kept["learner"] = [*chain.from_iterable(values)] if is_known else None


def rounded(logprobs_T: Sequence[float]) -> list[float | None]:
    """Round as records keep them; None for what is not finite after an update that broke the
    policy."""
    return [round(value, DIGITS) + 0.0 if math.isfinite(value) else None for value in logprobs_T]


def sample_texts(environment: Environment, rollouts: Sequence[Rollout]) -> dict[str, str]:
    """Return the first completion of each kind of task as Markdown, by the name that loggers show
    it under."""
    texts = {}
    for kind in tasks_by_kind([rollout.task for rollout in rollouts]):
        first = next(rollout for rollout in rollouts if rollout.task.kind == kind)
        text = f"{_headline(first)}\n\n```{environment.display.language}\n{first.sample.text}\n```"
        texts[f"{environment.display.completion}/{kind}"] = text
    return texts


def _headline(rollout: Rollout) -> str:
    value = rollout.reward.value
    outcome = "unscored" if value is None else f"reward {value:.2f}"
    why = f" ({rollout.failure})" if rollout.failure else ""
    return f"**{rollout.task.id}**: {outcome}{why}"


def batch_metrics(
    batch: Batch, advantages_P: Sequence[GroupAdvantages], step: int
) -> dict[str, float]:
    """Return signal, penalties, scaffolds, lengths and staleness of a step's batch."""
    return {
        **_signal_metrics(batch, advantages_P),
        **_penalty_metrics(batch.rollouts),
        **scaffold_metrics(batch),
        **_token_metrics(batch),
        **_staleness(batch, step),
    }


def _signal_metrics(batch: Batch, advantages_P: Sequence[GroupAdvantages]) -> dict[str, float]:
    scored = [reward for group in batch.rewards_P_G for reward in group if reward is not None]
    signals = [advantages.signal for advantages in advantages_P]
    metrics = {
        "reward/zero_variance_frac": signals.count("zero_variance") / len(signals),
        "reward/dropped_groups_frac": signals.count("too_few") / len(signals),
    }
    if len(scored) > 1:
        metrics["reward/std"] = float(torch.tensor(scored, dtype=torch.float64).std())
    return metrics


def _penalty_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """The mean part of each penalty in the rewards, where there is one."""
    metrics = {}
    for name in ("kl", "overlong"):
        if parts := [r.reward.parts[name] for r in rollouts if name in r.reward.parts]:
            metrics[f"reward/{name}"] = sum(parts) / len(parts)
    return metrics


def scaffold_metrics(batch: Batch) -> dict[str, float]:
    """Shares of attempts that had a scaffold and whose scaffold was too long, the mean share of it
    that was shown, and mean rewards with and without one; nothing without scaffolds."""
    shown = [*chain.from_iterable(batch.shown_P_G)]
    if not any(shown):
        return {}
    rewards: Mapping[bool, list[float]] = {True: [], False: []}
    for one, rollout in zip(shown, batch.rollouts, strict=True):
        if rollout.reward.value is not None:
            rewards[is_scaffolded(one)].append(rollout.reward.value)
    named = {"reward/scaffolded": rewards[True], "reward/bare": rewards[False]}
    shares = [one.share for one in shown if one is not None and one.share is not None]
    return {
        "rollout/scaffolded_frac": sum(map(is_scaffolded, shown)) / len(shown),
        "rollout/scaffold_left_out": sum(s is not None and s.left_out for s in shown) / len(shown),
        **({"rollout/scaffold_share": sum(shares) / len(shown)} if shares else {}),
        **{name: sum(some) / len(some) for name, some in named.items() if some},
    }


def _token_metrics(batch: Batch) -> dict[str, float]:
    episodes = [episode for group in batch.episodes_P_G for episode in group]
    prompts = [prompt for prompts_G in batch.prompts_P_G for prompt in prompts_G]
    both = zip(prompts, batch.rollouts, strict=True)
    cut = [p.truncated or r.cut_prompt is not None for p, r in both]
    return {
        **length_metrics(
            [episode.length for episode in episodes],
            [len(prompt.token_ids) for prompt in prompts],
        ),
        "tokens/cut_frac": sum(episode.is_cut for episode in episodes) / len(episodes),
        "prompt/truncated": sum(cut) / len(cut),
    }


def length_metrics(completions: Sequence[int], prompts: Sequence[int]) -> dict[str, float]:
    """Return means and maximum of the lengths of completions and prompts, in tokens."""
    return {
        "tokens/completion_mean": sum(completions) / len(completions),
        "tokens/completion_max": float(max(completions)),
        "tokens/prompt_mean": sum(prompts) / len(prompts),
    }


def _staleness(batch: Batch, step: int) -> dict[str, float]:
    """Updates between the policy that sampled and the one that is trained, mean over samples."""
    versions = [episode.version for group in batch.episodes_P_G for episode in group]
    return {"pipeline/staleness": step - 1 - sum(versions) / len(versions)}


def version_lag(batch: Batch, step: int) -> float:
    """Return the updates between the policy that drew and the one that is trained, mean over
    tokens."""
    episodes = chain.from_iterable(batch.episodes_P_G)
    samples = (turn.sample for episode in episodes for turn in episode.turns)
    drawn = [some for sample in samples for some in sample.tokens_by_version]
    versions = sum(version * tokens for version, tokens in drawn)
    return step - 1 - versions / sum(tokens for _, tokens in drawn)


def episode_metrics(
    batch: Batch, groups: Sequence[Group], advantages_P: Sequence[GroupAdvantages]
) -> dict[str, float]:
    """Return turns, ends and observations of a batch of several turns, the share of turns that
    their credit compared with no other, and the share of the trained tokens that are those that
    were sampled, behind the context that the sampler saw."""
    episodes = [episode for group in batch.episodes_P_G for episode in group]
    seen = [turn.answer_ids for e in episodes for turn in e.turns if turn.answer_ids]
    counts = [len(episode.turns) for episode in episodes]
    metrics = {"turns/mean": sum(counts) / len(counts), "turns/max": float(max(counts))}
    for stop in STOPS:
        metrics[f"turns/stop/{stop}"] = sum(e.stop == stop for e in episodes) / len(episodes)
    failed = [turn.is_failed for episode in episodes for turn in episode.turns]
    metrics["turns/unparsed"] = sum(failed) / len(failed)
    if any(found.turns or found.alone for found in advantages_P):
        metrics["turns/alone"] = sum(found.alone for found in advantages_P) / sum(counts)
    if seen:
        metrics["tokens/observation_mean"] = sum(map(len, seen)) / len(seen)
    same = trained = 0
    for group in flattened(groups):
        for sample in group.samples:
            assert sample.place is not None
            p, g = sample.place
            trained += sample.count
            same += _as_sampled(group.prompt_ids, sample, batch.episodes_P_G[p][g])
    return metrics | ({"tokens/trained_as_sampled": same / trained} if trained else {})


def _as_sampled(prompt_ids: Sequence[int], sample: Trained, episode: Episode) -> int:
    """Return how many learned tokens stand in a turn that was sampled so, behind what it saw."""
    ids = (*prompt_ids, *sample.token_ids)
    learned = [True] * len(sample.token_ids) if sample.learned is None else sample.learned
    count = 0
    for turn in episode.turns:
        start, stop = len(turn.context_ids), len(turn.context_ids) + len(turn.sample.token_ids)
        if start >= len(prompt_ids) and ids[:stop] == (*turn.context_ids, *turn.sample.token_ids):
            count += sum(learned[start - len(prompt_ids) : stop - len(prompt_ids)])
    return count


def memory(device: torch.device) -> dict[str, float]:
    """Return the most GPU memory that was in use, in GiB; nothing on other devices."""
    if device.type != "cuda":
        return {}
    return {"gpu/memory_gb": torch.cuda.max_memory_allocated(device) / 2**30}


def added(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Add up the ranks' counts."""
    names = dict.fromkeys(name for share in shares for name in share)
    return {name: sum(share.get(name, 0.0) for share in shares) for name in names}


class StepSums:
    """Sums over the tokens or pairs of an optimizer step, from which its metrics are made. They
    stay on the device until they are read, so that adding does not wait for it."""

    NAMES = (
        *("tokens", "signal_tokens", "kl", "entropy", "loss", "policy"),
        *("log_ratio", "ratio", "ratio_square", "nucleus", "weight", "capped"),
        *("clipped_low", "clipped_high", "clipped_dual"),
        *("pairs", "decided", "right", "score", "lead"),
        *("scaffold_tokens", "scaffold_log_ratio", "scaffold_weight", "scaffold_capped"),
        *("scaffold_nucleus", "teacher_kl"),
        *(f"gap_{turn}" for turn in range(SHOWN_TURNS)),
        *(f"gap_tokens_{turn}" for turn in range(SHOWN_TURNS)),
    )

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(len(self.NAMES), dtype=torch.float64, device=device)

    def add(self, name: str, value: Tensor | int) -> None:
        self.values[self.NAMES.index(name)] += value

    def add_gaps(self, chunk: Sequence[Trained], gaps_N: Tensor) -> None:
        """Add the tokens' gaps between sampler and learner by turn; later turns are the last."""
        credits = [credit for sample in chunk for credit in sample.turns]
        for credit, gaps_T in zip(credits, gaps_N.split([c.tokens for c in credits]), strict=True):
            turn = min(credit.turn, SHOWN_TURNS - 1)
            self.add(f"gap_{turn}", gaps_T.sum())
            self.add(f"gap_tokens_{turn}", credit.tokens)

    def add_apart(self, name: str, values_N: Tensor, scaffolded_N: Tensor | None) -> None:
        """Add values of scaffolded samples under ``scaffold_name``; ``scaffolded_N`` is None where
        no sample was."""
        if scaffolded_N is None:
            self.add(name, values_N.sum())
            return
        self.add(name, values_N.masked_fill(scaffolded_N, 0).sum())
        self.add(f"scaffold_{name}", values_N.masked_fill(~scaffolded_N, 0).sum())

    def add_clipping(self, terms: Terms, ratio_N: Tensor, silent_N: Tensor | None) -> None:
        """Count clipped terms and add their ratios: ``ratio_N`` where the terms have none.
        ``silent_N`` marks tokens of groups without a signal, which are left out; None: no token."""
        ratio_N = ratio_N if terms.ratio_N is None else terms.ratio_N
        clipped_N, dual_N = terms.clipped_N, terms.dual_N
        if silent_N is not None:
            ratio_N, clipped_N = ratio_N.masked_fill(silent_N, 1), clipped_N & ~silent_N
            dual_N = None if dual_N is None else dual_N & ~silent_N
        high_N = clipped_N & (ratio_N > 1)
        if dual_N is not None:
            self.add("clipped_dual", dual_N.sum())
            high_N = high_N & ~dual_N
        self.add("clipped_low", (clipped_N & (ratio_N <= 1)).sum())
        self.add("clipped_high", high_N.sum())
        off_N = ratio_N.double() - 1
        self.add("ratio", off_N.sum())
        self.add("ratio_square", off_N.square().sum())


def fixed_data_metrics(sums_M: Tensor, epoch: int) -> dict[str, float]:
    """Return the metrics of an update on fixed data from :class:`StepSums` as in
    :func:`update_metrics`.

    The loss is that of the first pass. Of pairs: the share with a preference whose better answer
    has the higher score (equal scores count half), the mean score, and the mean lead of the better
    one.
    """
    met = dict(zip(StepSums.NAMES, sums_M[:epoch].sum(dim=0).tolist(), strict=True))
    metrics = {"policy/loss": met["loss"] / epoch}
    if met["tokens"]:
        metrics["policy/entropy"] = met["entropy"] / met["tokens"]
    if met["pairs"]:
        metrics["policy/score_mean"] = met["score"] / (2 * met["pairs"])
    if met["decided"]:
        metrics["policy/accuracy"] = met["right"] / met["decided"]
        metrics["policy/lead_mean"] = met["lead"] / met["decided"]
    return metrics


def update_metrics(
    sums_M: Tensor, epoch: int, with_kl: bool, weighted: bool, cuts: bool
) -> dict[str, float]:
    """Return the metrics of an update from the :class:`StepSums` [M, names] of its optimizer steps,
    ``epoch`` of them in each pass.

    Loss (``pg_loss``: without KL and entropy), entropy and KL are those of the first pass, clipping
    and ratios those of all passes in groups with a signal, the gap between sampler and learner that
    before the first step. ``weighted``: an off-policy correction has weights. ``cuts``: the sampler
    draws from a nucleus, whose mean mass is that of p / p_sampler over what it drew. Gap and
    weights of scaffolded samples are apart (``scaffold_*``), since there the two prompts differ,
    too.
    """
    start, met, whole = (
        dict(zip(StepSums.NAMES, some_M.sum(dim=0).tolist(), strict=True))
        for some_M in (sums_M[:1], sums_M[:epoch], sums_M)
    )
    metrics = {
        **_apart("sampler_logp_diff", "scaffold_logp_diff", start, "log_ratio"),
        "policy/loss": met["loss"] / epoch,
        "policy/pg_loss": met["policy"] / epoch,
        "policy/entropy": met["entropy"] / met["tokens"],
        **_gap_metrics(start),
    }
    if tokens := whole["signal_tokens"]:
        clipped = {name: whole[f"clipped_{name}"] / tokens for name in ("low", "high", "dual")}
        off = whole["ratio"] / tokens
        variance = whole["ratio_square"] / tokens - off * off
        metrics |= {
            "policy/clip_frac": sum(clipped.values()),
            **{f"policy/clip_{name}": share for name, share in clipped.items()},
            "policy/ratio_mean": 1 + off,
            "policy/ratio_std": math.sqrt(max(variance, 0.0)),
        }
    if cuts and start["tokens"] > start["scaffold_tokens"]:
        bare = start["tokens"] - start["scaffold_tokens"]
        metrics["policy/nucleus_mass"] = start["nucleus"] / bare
    if with_kl:
        metrics["policy/kl"] = met["kl"] / met["tokens"]
    if weighted:
        metrics |= _apart("off_policy_weight", "scaffold_weight", met, "weight")
        metrics |= _apart("off_policy_capped_frac", "scaffold_capped_frac", met, "capped")
    return metrics


def teacher_metrics(sums_M: Tensor, epoch: int) -> dict[str, float]:
    """Return the mean of log p - log p_teacher over the tokens of the first pass, which estimates
    KL(policy || teacher) of a token."""
    met = dict(zip(StepSums.NAMES, sums_M[:epoch].sum(dim=0).tolist(), strict=True))
    return {"teacher/kl": met["teacher_kl"] / met["tokens"]}


def _gap_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Mean gap between the log-probabilities of sampler and learner, in nats, by turn from 1."""
    return {
        f"policy/logprob_gap/turn_{turn + 1}": sums[f"gap_{turn}"] / count
        for turn in range(SHOWN_TURNS)
        if (count := sums[f"gap_tokens_{turn}"])
    }


def _apart(bare: str, scaffolded: str, sums: Mapping[str, float], name: str) -> dict[str, float]:
    """Means over the tokens of bare and of scaffolded samples, where there are some."""
    count = sums["scaffold_tokens"]
    metrics = {}
    if sums["tokens"] > count:
        metrics[f"policy/{bare}"] = sums[name] / (sums["tokens"] - count)
    if count:
        metrics[f"policy/{scaffolded}"] = sums[f"scaffold_{name}"] / count
    return metrics


def step_norms(norms: Sequence[float]) -> dict[str, float]:
    """Return the mean gradient norm before clipping, and the number of optimizer steps that were
    skipped because theirs was not finite."""
    finite = [norm for norm in norms if math.isfinite(norm)]
    return {
        "policy/grad_norm": sum(finite) / len(finite) if finite else math.nan,
        "policy/skipped_updates": float(len(norms) - len(finite)),
    }
