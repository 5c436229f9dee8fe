"""Opening what a run needs: tasks, servers, sandbox, executor, judge, environment, policy, sampler.

train.py, scripts/evaluate.py and the dry run all come through here, so that they mean the same
thing by the same configuration.
"""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from flowright.config import SIMULATED, Config, load_entries
from flowright.data.loading import load_problems
from flowright.data.sources import Split
from flowright.data.splits import Splits, check_disjoint
from flowright.data.task import KINDS, Kind, Problem
from flowright.environments.workflow import WorkflowEnvironment
from flowright.errors import DataError, UserError
from flowright.grpo.ranks import ONE, Ranks
from flowright.judge.build import build_judge
from flowright.judge.remote import RemoteJudge
from flowright.llm.chat import Message
from flowright.llm.client import ChatClient
from flowright.policy.local import LocalSampler
from flowright.policy.model import Policy, load_policy
from flowright.policy.sampler import Sampler
from flowright.policy.tiny import Example, tiny_checkpoint
from flowright.policy.vllm.sampler import VllmSampler
from flowright.policy.vllm.servers import check_servers
from flowright.sandbox import Limits, Sandbox
from flowright.simulation.process import SimulatedServer
from flowright.workflows.executor import Executor
from flowright.workflows.grammar import draw_program
from flowright.workflows.prompt import Prompt, Tokenizer, build_messages, render

TINY = "tiny"


@dataclass(frozen=True, slots=True)
class Tasks:
    """The problems of a run: to train on, and held out."""

    train: Sequence[Problem]
    val: Sequence[Problem]


@dataclass(frozen=True, slots=True)
class World:
    """An open environment and what may be said of it."""

    environment: WorkflowEnvironment
    sandbox: Sandbox
    clients: dict[str, ChatClient]
    simulated: bool


def load_tasks(config: Config) -> Tasks:
    """Read or build both datasets. Raises DataError; an overlap between them is one."""
    problems: list[str] = []
    loaded: list[Sequence[Problem]] = []
    wanted: tuple[tuple[str, Split], ...] = (
        (config.train_dataset, "train"),
        (config.val_dataset, "val"),
    )
    for name, split in wanted:
        try:
            loaded.append(load_problems(name, split))
        except UserError as error:
            problems += error.problems
    if problems:
        raise DataError(*problems)
    train, val = loaded
    check_disjoint(Splits(tuple(train), tuple(val), ()))
    return Tasks(train, val)


def is_simulated(config: Config) -> bool:
    """Whether any number of this run comes from an embedded server of its own."""
    return SIMULATED in config.models


@asynccontextmanager
async def open_world(config: Config, tasks: Sequence[Problem]) -> AsyncIterator[World]:
    """Start the embedded server if it is named, check every server, open sandbox and executor.

    ``tasks`` are those that the embedded server can answer. Raises UserError with a line for each
    server that cannot be used.
    """
    async with AsyncExitStack() as stack:
        entries = load_entries(config.llm.file, config.models)
        if is_simulated(config):
            server = SimulatedServer(tasks, config.simulated, config.sandbox)
            entries[SIMULATED] = (await stack.enter_async_context(server)).entry()
        clients: dict[str, ChatClient] = {}
        for name in sorted(config.models):
            clients[name] = ChatClient(name, entries[name], config.llm)
            stack.push_async_callback(clients[name].aclose)
        service: RemoteJudge | None = None
        if config.judge.service is not None:
            service = RemoteJudge(config.judge.service)
            stack.push_async_callback(service.aclose)
        problems = [line for client in clients.values() for line in await client.check()]
        problems += await service.check() if service is not None else []
        if config.policy.sampler == "vllm":
            problems += await check_servers(config.policy, config.served_policy)
        if problems:
            raise UserError(*problems)
        sandbox = await stack.enter_async_context(open_sandbox(config))
        model = clients[config.aflow_executor_model]
        executor = await stack.enter_async_context(
            Executor(model, sandbox, config.workflow, config.executor)
        )
        panel = [clients[name] for name in config.judge.panel]
        asked = service or clients.get(config.judge_model or "")
        judge = build_judge(config.judge, asked, panel)
        environment = WorkflowEnvironment(
            executor, judge, sandbox, config.reward, config.policy.prompt, config.judge
        )
        simulated = is_simulated(config) or (service is not None and service.simulated)
        yield World(environment, sandbox, clients, simulated)


def open_sandbox(config: Config) -> Sandbox:
    section = config.sandbox
    limits = Limits(
        cpu_seconds=section.cpu_seconds,
        wall_seconds=10 * section.cpu_seconds,
        memory_bytes=section.memory_mb << 20,
    )
    return Sandbox(limits, workers=section.workers, allow_weaker=section.allow_weaker)


def open_policy(
    config: Config,
    train: Sequence[Problem],
    progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
    device: torch.device | None = None,
) -> Policy:
    """The policy with a fresh adapter, on ``device`` or else on the configured one; the embedded
    one is cold-started on the train problems."""
    path = config.strategy_model
    if path == TINY:
        section = config.policy.tiny
        examples = draw_examples(train, section.examples, section.programs, section.seed)
        longest = config.policy.max_prompt_tokens
        path = str(tiny_checkpoint(section, examples, longest, _render, progress))
    return load_policy(path, config.policy, config.seed, device)


@asynccontextmanager
async def open_samplers(
    config: Config, policy: Policy, folder: str = "adapters", ranks: Ranks = ONE
) -> AsyncIterator[tuple[Sampler, Sampler]]:
    """Samplers of the policy as it is trained and as it was before, from the same place: what a
    comparison finds is not to be the difference between two samplers. ``folder``: where adapters
    for servers go, under the run's name; whoever samples at the same time takes another, as each
    of several ranks does. These share out the servers, where there are enough."""
    section = config.policy
    if section.sampler == "local":
        how = (section.decode_batch, config.grpo.prefix_sharing)
        yield (
            LocalSampler(policy, how[0], sharing=how[1]),
            LocalSampler(policy, how[0], adapter=False, sharing=how[1]),
        )
        return
    urls, path = section.vllm.base_urls, Path(config.run.name) / folder
    if ranks.size > 1:
        path /= f"rank-{ranks.rank}"
    if len(urls) >= ranks.size:
        vllm = section.vllm.model_copy(update={"base_urls": tuple(ranks.mine(urls))})
        section = section.model_copy(update={"vllm": vllm})
    root = section.vllm.adapter_dir or config.run.output_dir
    sampler = VllmSampler(policy, section, config.served_policy, root / path)
    try:
        yield sampler, sampler.untrained()
    finally:
        await sampler.aclose()


def draw_examples(train: Sequence[Problem], count: int, programs: int, seed: int) -> list[Example]:
    """What the cold start learns from: problems, every kind as often, each with some programs that
    the operators' documentation calls applicable to its kind, uniformly among those."""
    rng = random.Random(seed)
    by_kind = {kind: [task for task in train if task.kind == kind] for kind in KINDS}
    kinds: list[Kind] = [kind for kind in KINDS if by_kind[kind]]
    examples = []
    for _ in range(count):
        kind = rng.choice(kinds)
        task = rng.choice(by_kind[kind])
        drawn = [draw_program(kind, rng) for _ in range(programs)]
        examples.append(Example(build_messages(task, "compact"), drawn))
    return examples


def prompt_encoder(config: Config, policy: Policy) -> Callable[[Problem], Prompt]:
    """From a task to the policy's prompt tokens, cut to the configured length."""

    def encode(task: Problem) -> Prompt:
        messages = build_messages(task, config.policy.prompt, config.workflow)
        return render(messages, policy.tokenizer, config.policy.max_prompt_tokens)

    return encode


def _render(messages: Sequence[Message], tokenizer: Tokenizer, max_tokens: int) -> Sequence[int]:
    return render(messages, tokenizer, max_tokens).token_ids
