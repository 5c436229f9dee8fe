"""What a training run says of itself before its first step and after its last, on the terminal and
in ``state.json``. Trains and measures nothing.
"""

import shlex
from pathlib import Path

from rich.console import Console

from flowright.app.device import look_at_device
from flowright.app.memory_plan import Demand, summary
from flowright.app.terminal import say
from flowright.app.world import sampled_where
from flowright.config.policy import TINY
from flowright.config.root import Config
from flowright.core.checkout import here
from flowright.environments.base import Environment
from flowright.evaluation.perplexity import HeldOutText
from flowright.grpo.ranks import Ranks, Reporter
from flowright.policy.base_models import origin_of
from flowright.policy.memory import shape_of
from flowright.policy.model import Policy
from flowright.runs.checkpoints import Best, step_name
from flowright.runs.directory import RunDirectory


def introduce(
    config: Config,
    run: RunDirectory,
    environment: Environment,
    policy: Policy,
    console: Console,
    ranks: Ranks,
    text: HeldOutText | None = None,
) -> None:
    """Say what runs where, and leave the same in ``state.json`` for every other screen."""
    run.state(policy=config.strategy_model, simulated=environment.simulated, **environment.about())
    trainable = sum(p.numel() for p in policy.trainable())
    shape = shape_of(policy.causal_lm, config.policy)
    total = shape.weights + shape.adapter
    packed = f", base in {policy.quantised}" if policy.quantised else ""
    lines = [
        f"run       {run.path}",
        f"policy    {config.strategy_model} on {policy.device}, {trainable:,} of {total:,} weights"
        f"{packed}",
        *memory_lines(config, policy),
    ]
    if made := origin_of(policy.name):
        run.state(policy_origin=made.summary)
        lines.insert(2, f"from      {made.summary}")
    if config.policy.sampler != "local":
        lines.append(f"sampler   {sampled_where(config)}")
    if ranks.size > 1:
        lines.append(f"ranks     {ranks.size} processes share each batch")
    if policy.gpus > 1:
        lines.append(f"sharded   the layers' weights are split among {policy.gpus} processes")
    if text is not None:
        lines += text.notes
    for line in [*lines, *environment.task_notes(), *environment.introduction()]:
        say(console, line)


def memory_lines(config: Config, policy: Policy) -> list[str]:
    """What a step will take of the memory, of which the policy is there already."""
    if config.strategy_model == TINY and policy.device.type == "cpu":
        return []
    shape = shape_of(policy.causal_lm, config.policy)
    demand = Demand(shape, config.policy, config.grpo, policy.gpus, policy.device.type)
    _, *warnings = look_at_device(config, demand, policy.device)
    return [f"memory    {summary(demand.plan)}", *warnings]


def say_best(path: Path, best: Best | None, step: int, reporter: Reporter) -> None:
    """Which checkpoint was the best, where it is not the last, and how to measure it."""
    if best is None or best.step == step:
        return
    checkpoint = path / "checkpoints" / step_name(best.step)
    config, run = shlex.quote(str(path / "config.json")), shlex.quote(str(path))
    measure = here(f"python scripts/evaluate.py --config {config} --checkpoint {run} --data FILE")
    reporter.say(
        f"best      {best}: {checkpoint}; what comes below is of step {step}. Validation chose it, "
        f"and so says too much of it; on other problems: {measure}"
    )
