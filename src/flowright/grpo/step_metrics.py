"""What a step says of itself beside its environment and its learner: signal, lengths, staleness,
the device. Names are the field's where it has one."""

from collections.abc import Mapping, Sequence

import torch

from flowright.data.task import KINDS
from flowright.environments.rollout import Rollout
from flowright.evaluation.evaluator import Score
from flowright.grpo.advantages import GroupAdvantages
from flowright.grpo.pipeline import Played


def signal_metrics(
    rewards_P_G: Sequence[Sequence[float | None]], advantages_P: Sequence[GroupAdvantages]
) -> dict[str, float]:
    scored = [r for group in rewards_P_G for r in group if r is not None]
    signals = [advantages.signal for advantages in advantages_P]
    metrics = {
        "reward/zero_variance_frac": signals.count("zero_variance") / len(signals),
        "reward/dropped_groups_frac": signals.count("too_few") / len(signals),
    }
    if len(scored) > 1:
        metrics["reward/std"] = float(torch.tensor(scored, dtype=torch.float64).std())
    return metrics


def penalty_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """The mean part that the distance from the base model has in the rewards, where it has one."""
    parts = [r.reward.parts["kl"] for r in rollouts if "kl" in r.reward.parts]
    return {"reward/kl": sum(parts) / len(parts)} if parts else {}


def token_metrics(played: Played) -> dict[str, float]:
    samples = [sample for group in played.samples_P_G for sample in group]
    lengths = [len(sample.token_ids) for sample in samples]
    prompts = played.prompts_P
    return {
        "tokens/completion_mean": sum(lengths) / len(lengths),
        "tokens/completion_max": float(max(lengths)),
        "tokens/prompt_mean": sum(len(p.token_ids) for p in prompts) / len(prompts),
        "tokens/cut_frac": sum(s.finish_reason == "length" for s in samples) / len(samples),
        "prompt/truncated": sum(p.truncated for p in prompts) / len(prompts),
    }


def staleness(played: Played, step: int) -> dict[str, float]:
    """Updates between the policy that sampled and the one that is trained, mean over samples."""
    versions = [sample.version for group in played.samples_P_G for sample in group]
    return {"pipeline/staleness": step - 1 - sum(versions) / len(versions)}


def memory(device: torch.device) -> dict[str, float]:
    if device.type != "cuda":
        return {}
    return {"gpu/memory_gb": torch.cuda.max_memory_allocated(device) / 2**30}


def validation_metrics(scores: Mapping[str, Score]) -> dict[str, float]:
    """Of a measured policy, by kind of problem ("all" included); what has no value is left out."""
    every = scores["all"]
    measured = {
        "val/gold": every.gold,
        "val/judge": every.judge,
        "val/valid_frac": every.valid,
        "val/unscored": every.unscored,
        "val/tokens_llm_mean": every.tokens,
        **{f"val/gold/{kind}": scores[kind].gold for kind in KINDS if kind in scores},
    }
    return {name: value for name, value in measured.items() if value is not None}
