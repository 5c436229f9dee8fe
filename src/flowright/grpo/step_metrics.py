"""What a step says of itself beside its environment and its learner: signal, lengths, staleness,
the device. Names are the field's where it has one."""

from collections.abc import Mapping, Sequence

import torch

from flowright.environments.rollout import Rollout
from flowright.grpo.advantages import GroupAdvantages
from flowright.grpo.pipeline import Batch


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
    """The mean part that each penalty has in the rewards, where there is one."""
    metrics = {}
    for name in ("kl", "overlong"):
        if parts := [r.reward.parts[name] for r in rollouts if name in r.reward.parts]:
            metrics[f"reward/{name}"] = sum(parts) / len(parts)
    return metrics


def added(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The ranks' counts as those of the whole run."""
    names = dict.fromkeys(name for share in shares for name in share)
    return {name: sum(share.get(name, 0.0) for share in shares) for name in names}


def token_metrics(batch: Batch) -> dict[str, float]:
    samples = [sample for group in batch.samples_P_G for sample in group]
    lengths = [len(sample.token_ids) for sample in samples]
    prompts = [prompt for prompts_G in batch.prompts_P_G for prompt in prompts_G]
    return {
        "tokens/completion_mean": sum(lengths) / len(lengths),
        "tokens/completion_max": float(max(lengths)),
        "tokens/prompt_mean": sum(len(p.token_ids) for p in prompts) / len(prompts),
        "tokens/cut_frac": sum(s.finish_reason == "length" for s in samples) / len(samples),
        "prompt/truncated": sum(p.truncated for p in prompts) / len(prompts),
    }


def staleness(batch: Batch, step: int) -> dict[str, float]:
    """Updates between the policy that sampled and the one that is trained, mean over samples."""
    versions = [sample.version for group in batch.samples_P_G for sample in group]
    return {"pipeline/staleness": step - 1 - sum(versions) / len(versions)}


def memory(device: torch.device) -> dict[str, float]:
    if device.type != "cuda":
        return {}
    return {"gpu/memory_gb": torch.cuda.max_memory_allocated(device) / 2**30}
