"""Terminal output of a run: the introduction, progress, one line per step, waits for servers."""

import asyncio
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from flowright.app.device import MemoryDemand, look_at_device, memory_summary, settings_text
from flowright.app.preflight_checks import position_warnings
from flowright.config.policy import TINY
from flowright.config.root import Config
from flowright.core.checkout import here
from flowright.core.command_line import say
from flowright.environments.base import Environment
from flowright.evaluation.perplexity import HeldOutText
from flowright.grpo.ranks import Ranks, Reporter
from flowright.llm.counters import Counters, Outage, outages
from flowright.policy.base_models import origin_of
from flowright.policy.memory import shape_of
from flowright.policy.model import Policy
from flowright.policy.turns import Contexts
from flowright.runs.directory import RunDirectory
from flowright.runs.run_files import Best, step_name

PATIENCE = 5.0
"""Seconds without a served request before the terminal mentions a server."""

CUT = "prompt/truncated"

_SHOWN = (
    ("reward", "reward/mean", "{:.2f}"),
    ("valid", "rollout/valid_frac", "{:.0%}"),
    ("unscored", "rollout/unscored", "{:.1%}"),
    ("prompts cut", CUT, "{:.0%}"),
    ("judge=gold", "judge/agreement_with_gold", "{:.0%}"),
    ("turns", "turns/mean", "{:.2f}"),
    ("loss", "train/loss", "{:.3f}"),
    ("accuracy", "train/accuracy", "{:.0%}"),
    ("kl", "policy/kl", "{:.3f}"),
    ("seconds", "time/step", "{:.1f}"),
    ("val gold", "val/gold", "{:.1%}"),
    ("val reward", "val/reward", "{:.2f}"),
    ("val loss", "val/loss", "{:.3f}"),
    ("val accuracy", "val/accuracy", "{:.1%}"),
    ("val tokens", "val/tokens_completion_mean", "{:.0f}"),
    ("perplexity", "eval/perplexity", "{:.2f}"),
)


class StepProgress:
    """A Reporter: one line per step and, on a terminal, a bar with the remaining time."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._bar = _bar(console)
        self._task = self._bar.add_task("training", total=steps)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def step(self, step: int, steps: int, metrics: dict[str, float]) -> None:
        shown = [each for each in _SHOWN if each[1] in metrics and (each[1] != CUT or metrics[CUT])]
        parts = [f"{name} {form.format(metrics[key])}" for name, key, form in shown]
        if "policy/skipped_updates" not in metrics:
            parts.append("no update: no group has a signal")
        self._bar.update(self._task, completed=step)
        self.say(f"step {step:>{len(str(steps))}}/{steps}  " + "  ".join(parts))

    def say(self, line: str) -> None:
        say(self._console, line)


@contextmanager
def stage_progress(console: Console, title: str) -> Iterator[Callable[..., None]]:
    """Yield ``progress(done, total, note)``, which shows the progress of a stage if it turns out to
    have work: a bar on a terminal, else some lines."""
    bar = _bar(console)

    def progress(done: int, total: int, note: object = "") -> None:
        if not bar.task_ids:
            bar.start()
            bar.add_task(title, total=total)
        shown = f"loss {note:.3f}" if isinstance(note, float) else str(note)
        task = bar.task_ids[0]
        bar.update(task, completed=done, total=total, description=f"{title} {shown}")
        if not console.is_terminal and done % max(1, total // 4) == 0:
            console.print(f"{title}: {done}/{total} {shown}", highlight=False)

    try:
        yield progress
    finally:
        if bar.task_ids:
            bar.stop()


@asynccontextmanager
async def show_outages(
    owners: Callable[[], Iterable[Counters]],
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[None]:
    """Report servers that are waited for: after :data:`PATIENCE` seconds, each time that time has
    doubled, and at the end."""

    async def watch() -> None:
        shown: dict[str, tuple[Outage, float]] = {}  # with the seconds until the next line
        while True:
            await sleep(1.0)
            current = {outage.server: outage for outage in outages(owners())}
            for server, outage in current.items():
                seconds = clock() - outage.since
                if seconds >= shown.get(server, (outage, PATIENCE))[1]:
                    shown[server] = outage, 2 * seconds
                    say(_waited_for(outage, seconds))
            for server in shown.keys() - current.keys():
                outage, _ = shown.pop(server)
                say(f"{server}: waited for no longer, after {clock() - outage.since:.0f} s")

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _waited_for(outage: Outage, seconds: float) -> str:
    since = datetime.now() - timedelta(seconds=seconds)
    who = ", ".join(sorted(outage.roles))
    calls = "1 call waits" if outage.waiting == 1 else f"{outage.waiting} calls wait"
    return (
        f"{outage.server}: serves nothing since {since:%H:%M:%S}, {seconds:.0f} s ago "
        f"({outage.kind}); {calls} for it ({who}) and will go on when it is back: is it running?"
    )


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def introduce(
    config: Config,
    run: RunDirectory,
    environment: Environment,
    policy: Policy,
    console: Console,
    ranks: Ranks,
    text: HeldOutText | None = None,
) -> None:
    """Print model, device and servers of a run, and keep them in ``state.json`` for other
    screens."""
    run.state(policy=config.strategy_model, simulated=environment.simulated, **environment.about())
    trainable = sum(p.numel() for p in policy.trainable())
    shape = shape_of(policy.causal_lm, config.policy)
    total = shape.weights + shape.adapter
    packed = f", base in {policy.quantised}" if policy.quantised else ""
    lines = [
        f"run       {run.path}",
        f"policy    {config.strategy_model} on {policy.device}, {trainable:,} of {total:,} weights"
        f"{packed}",
        *position_warnings(config.policy, policy.causal_lm.config.to_dict()),
        *memory_lines(config, policy, ranks.size),
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


def memory_lines(config: Config, policy: Policy, processes: int = 1) -> list[str]:
    """Describe the memory of a step in each of the processes; the policy is loaded already."""
    if config.strategy_model == TINY and policy.device.type == "cpu":
        return look_at_device(config, None, policy.device)[1:]
    shape = shape_of(policy.causal_lm, config.policy)
    rewrites = bool(config.policy.max_episode_tokens) and Contexts(policy.tokenizer, ()).rewrites
    demand = MemoryDemand(
        shape,
        config.policy,
        config.grpo,
        gpus=policy.gpus,
        device=policy.device.type,
        rewrites=rewrites,
        samples=not config.section.samples_nothing(config),
        processes=processes,
    )
    _, *warnings = look_at_device(config, demand, policy.device)
    shown = f"memory    {memory_summary(demand.plan)}"
    if policy.device.type == "cuda":
        shown += f"; {settings_text(demand.settings)}"
    return [shown, *warnings]


def note_best(path: Path, best: Best | None, step: int, reporter: Reporter) -> None:
    """Report the best checkpoint, if it is not the last, and the command that measures it."""
    if best is None or best.step == step:
        return
    checkpoint = path / "checkpoints" / step_name(best.step)
    config, run = shlex.quote(str(path / "config.json")), shlex.quote(str(path))
    measure = here(f"python scripts/evaluate.py --config {config} --checkpoint {run} --data FILE")
    reporter.say(
        f"best      {best}: {checkpoint}; what comes below is of step {step}. It was chosen by "
        f"validation, so its score there is too high; on other problems: {measure}"
    )


def sampled_where(config: Config) -> str:
    """Describe where the policy is sampled."""
    if config.policy.sampler == "local":
        return "in this process"
    return f"vLLM at {', '.join(config.policy.vllm.base_urls)}"
