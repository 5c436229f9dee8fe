"""Open the policy and its samplers, for training and evaluation alike, and fit tasks to it."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from flowright.app.device import (
    MemoryDemand,
    free_memory,
    memory_settings,
    planned_device,
    with_settings,
)
from flowright.app.preflight_checks import Start, with_steps
from flowright.app.terminal import sampled_where, stage_progress
from flowright.config.policy import SMOLLM2, TINY
from flowright.config.root import Config
from flowright.core.errors import ConfigError, DataError, UserError
from flowright.data.task import Task
from flowright.environments.base import Environment, TaskSets
from flowright.grpo.ranks import ONE, Ranks
from flowright.llm.chat import Message
from flowright.policy.base_models import HUB, converted, packaged, smollm2
from flowright.policy.local import LocalSampler
from flowright.policy.memory import kept_tokens, shape_of, wave_tokens
from flowright.policy.model import Policy, choose_device, load_policy
from flowright.policy.model_folders import load_config, load_tokenizer
from flowright.policy.sampling import Sampler, Tokenizer, render, template_ids, template_text
from flowright.policy.sharding import shard
from flowright.policy.tiny import Example, tiny_checkpoint
from flowright.policy.turns import Contexts
from flowright.policy.vllm.proof import zero_adapter
from flowright.policy.vllm.sampler import VllmSampler
from flowright.policy.vllm.server import check_servers

Progress = Callable[[int, int, object], None]
"""Called with steps done, steps in all, and a note."""


def open_policy(
    config: Config,
    environment: Environment,
    train: Sequence[Task],
    progress: Progress = lambda step, steps, note: None,
    device: torch.device | None = None,
    split: bool = False,
) -> Policy:
    """Open the policy with a fresh adapter, on ``device`` or the configured one, over the
    warm-started model if there is to be one. ``split``: for :func:`shard`."""
    folder = config.policy.warm_start.folder
    path = str(folder) if folder else base_model(config, environment, train, progress)
    return load_policy(path, config.policy, config.seed, device, split=split)


async def policy_in_turn(
    config: Config,
    environment: Environment,
    train: Sequence[Task],
    console: Console,
    ranks: Ranks,
    gpus: int,
) -> Policy:
    """Open the policy on the first rank before the others, so that a cold start is done once; then,
    if its weights are sharded, on all together."""
    device = choose_device(config.policy)
    first = device if gpus == 1 else torch.device("cpu")

    def load() -> Policy:
        with stage_progress(console, "making the policy") as progress:
            return open_policy(config, environment, train, progress, first, gpus > 1)

    policy = load() if ranks.is_first else None
    await ranks.all_gather(None)
    policy = policy or load()
    if gpus == 1:
        return policy
    return shard(policy, device, gpus, ranks.size, ranks)


def fitted(start: Start, policy: Policy) -> Start:
    """Keep the tasks that fit this policy, and set the steps of a run on them. Raises DataError if
    no training task is left."""
    tasks = fitted_tasks(start.config, start.environment, start.tasks, policy.tokenizer)
    return replace(start, config=with_steps(start.config, start.environment, tasks), tasks=tasks)


def fitted_tasks(
    config: Config, environment: Environment, tasks: TaskSets, tokenizer: Tokenizer
) -> TaskSets:
    """Return the tasks that a policy with this tokenizer can read. Raises DataError if no training
    task is left."""
    limit = config.policy.max_prompt_tokens

    def tokens(messages: Sequence[Message]) -> int:
        if messages[-1].role != "assistant":
            return len(template_ids(messages, tokenizer, to_answer=True))
        template_text(messages[:-1], tokenizer, to_answer=True)  # what is learned stands behind it
        return len(template_ids(messages, tokenizer, to_answer=False))

    found = environment.fitted(tasks, tokens, limit)
    if not found.train:
        raise DataError(
            f"policy.max_prompt_tokens: {limit}, and every row to train on is longer; raise it"
        )
    return found


def base_model(
    config: Config,
    environment: Environment,
    train: Sequence[Task],
    progress: Progress = lambda step, steps, note: None,
) -> str:
    """Return the folder or hub name of ``strategy_model``; the embedded policy is made here,
    cold-started on the environment's demonstrations for the train tasks."""
    section = config.policy.tiny
    if config.strategy_model == SMOLLM2:
        return smollm2(section.cache_dir)
    if config.strategy_model != TINY:
        return config.strategy_model
    drawn = environment.demonstrations(train, section.examples, section.programs, section.seed)
    examples = [Example(one.messages, one.completions) for one in drawn]

    def encode(messages: Sequence[Message], tokenizer: Tokenizer, tokens: int) -> Sequence[int]:
        """Encode a prompt, cut as for sampling, and the turns behind it."""
        roles = [message.role for message in messages]
        first = roles.index("assistant") if "assistant" in roles else len(roles)
        prompt, turns = render(messages[:first], tokenizer, tokens), messages[first:]
        if not turns:
            return prompt.token_ids
        last = messages[first - 1]
        cut = Message(last.role, prompt.shown) if prompt.truncated else last
        return template_ids([*messages[: first - 1], cut, *turns], tokenizer, to_answer=True)

    longest = config.policy.max_prompt_tokens
    return str(tiny_checkpoint(section, examples, longest, encode, progress))


def model_at_hand(config: Config) -> str | None:
    """Return the folder or hub name of the weights that :func:`open_policy` would start from; None
    if they are yet to be made on this machine."""
    folder, name = config.policy.warm_start.folder, config.strategy_model
    if folder is None and name == SMOLLM2:
        file = packaged()
        if file is None:
            return HUB
        folder = converted(file, config.policy.tiny.cache_dir)
    if folder is not None:
        return str(folder) if folder.exists() else None
    return None if name == TINY else name


def tokenizer_at_hand(config: Config) -> Tokenizer | None:
    """Load the tokenizer; None if it is missing, which the check of the policy reports."""
    with suppress(OSError, ValueError, UserError):
        name = model_at_hand(config)
        # Of a folder without its files transformers makes an empty one, which has no template.
        bare = name and Path(name).is_dir() and not any(Path(name).glob("tokenizer*"))
        if name is not None and not bare:
            return load_tokenizer(name, config.policy.chat_template, local_files_only=True)
    return None


def demand_of(config: Config, processes: int | None = None) -> MemoryDemand | None:
    """Return the memory demand of a run of several ``processes``, by default one for each GPU; None
    for the embedded policy and for a model of unknown shape."""
    name = model_at_hand(config)
    if config.strategy_model == TINY or name is None:
        return None
    try:
        architecture = load_config(name)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(architecture)
        tokenizer = tokenizer_at_hand(config) if config.policy.max_episode_tokens else None
        rewrites = tokenizer is not None and Contexts(tokenizer, ()).rewrites
    except (OSError, ValueError, UserError):
        return None  # reported when it is loaded
    shape, count = shape_of(model, config.policy), gpus_of(config)
    return MemoryDemand(
        shape,
        config.policy,
        config.grpo,
        gpus=count if config.policy.sharded else 1,
        device=planned_device(config),
        rewrites=rewrites,
        samples=not config.section.samples_nothing(config),
        processes=processes or count,
    )


def gpus_of(config: Config) -> int:
    """Return the number of this machine's GPUs for the run: one process each."""
    return len(config.physical_gpus or ()) or torch.cuda.device_count() or 1


async def fit_memory(
    config: Config, ranks: Ranks = ONE, before: Mapping[str, Any] | None = None
) -> Config:
    """Return a resolved configuration without `auto`, the same on all ranks: with the values that
    the run had ``before``, or else what fits into the least free memory of their devices."""
    settings = memory_settings(config.policy, config.grpo)
    wanted = [key for key, value in settings.items() if value == "auto"]
    if not wanted:
        return config
    available = min(await ranks.all_gather(free_memory(choose_device(config.policy))[0]))
    if ranks.is_first and (demand := demand_of(config, ranks.size)) is not None:
        settings = demand.fitted(available).settings
    for key in wanted:
        section, _, name = key.partition(".")
        settings[key] = (before or {}).get(section, {}).get(name, settings[key])
    return config.model_copy(update=with_settings(config, await ranks.broadcast(settings)))


async def check_samplers(config: Config, with_adapter: bool = False) -> str:
    """:func:`sampled_where`. Raises UserError with a line for each server that cannot be used.
    ``with_adapter``: an empty one is loaded and unloaded, as a dry run does; a run proves more with
    its first."""
    section = config.policy
    if section.sampler == "local":
        return sampled_where(config)
    root = section.vllm.adapter_dir or config.run.output_dir
    model = model_at_hand(config) if with_adapter and section.train == "lora" else None
    empty = zero_adapter(model, section.lora, root) if model is not None else None
    with empty or nullcontext() as adapter:
        problems = await check_servers(section, config.served_policy, adapter)
    if problems:
        raise UserError(*problems)
    loaded = f", adapters of rank {section.lora.rank} load" if adapter is not None else ""
    return f"{sampled_where(config)}{loaded}"


def local_sampler(config: Config, policy: Policy, trained: bool = True) -> LocalSampler:
    """Return a sampler in this process that keeps to the memory plan."""
    section, grpo = config.policy, config.grpo
    kept = kept_tokens(section, grpo)
    tokens = wave_tokens(section, grpo) - kept
    return LocalSampler(policy, section.decode_rows, trained, grpo.prefix_sharing, tokens, kept)


@asynccontextmanager
async def open_samplers(
    config: Config, policy: Policy, folder: str = "adapters", ranks: Ranks = ONE
) -> AsyncIterator[tuple[Sampler, Sampler]]:
    """Open samplers of the policy as trained and as it was before, in the same place, so that a
    comparison does not measure a difference between samplers. ``folder``: place of the servers'
    adapters, below the run's name; concurrent runs need different ones. The ranks share out the
    servers if there are enough; else the first publishes for all. Raises ConfigError if there are
    not enough for ``policy.train: full``."""
    section = config.policy
    if section.sampler == "local":
        yield local_sampler(config, policy), local_sampler(config, policy, trained=False)
        return
    urls, path = section.vllm.base_urls, Path(config.run.name) / folder
    has_own = len(urls) >= ranks.size
    if section.train == "full" and not has_own:
        raise ConfigError(
            f"policy.vllm.base_urls: {len(urls)} for {ranks.size} processes; with policy.train: "
            "full each needs a server of its own"
        )
    vllm = section.vllm.shared_by(ranks.size)
    if has_own:
        most = vllm.max_concurrency_per_server * ranks.size  # one rank asks each
        own = {"base_urls": tuple(ranks.mine(urls)), "max_concurrency_per_server": most}
        vllm = vllm.model_copy(update=own)
    section = section.model_copy(update={"vllm": vllm})
    root = section.vllm.adapter_dir or config.run.output_dir
    publishes = has_own or ranks.is_first
    sampler = VllmSampler(policy, section, config.served_policy, root / path, ranks, publishes)
    try:
        yield sampler, sampler.untrained()
    finally:
        await sampler.aclose()
