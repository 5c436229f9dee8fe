"""What a training run shows at the terminal: progress, one line a step, the before/after table.

On a terminal there is a bar below the lines; in a pipe or a log only the lines.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timedelta
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
from rich.table import Table

from flowright.evaluation.comparison import TRAINED, UNTRAINED, Comparison, change_lines
from flowright.evaluation.evaluator import Score, TableRow
from flowright.llm.counters import Counters, Outage, outages

PATIENCE = 5.0
"""Seconds for which a server may serve nothing before the screen says so."""

_SHOWN = (
    ("reward", "reward/mean", "{:.2f}"),
    ("valid", "rollout/valid_frac", "{:.0%}"),
    ("unscored", "rollout/unscored", "{:.1%}"),
    ("judge=gold", "judge/agreement_with_gold", "{:.0%}"),
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


def say(console: Console, line: str) -> None:
    """Print a line as it is: nothing in it is markup, and it is not broken."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


class StepProgress:
    """A Reporter: one line a step and, on a terminal, a bar with the time left."""

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
        parts = [f"{name} {form.format(metrics[k])}" for name, k, form in _SHOWN if k in metrics]
        if "policy/skipped_updates" not in metrics:
            parts.append("no update: no group has a signal")
        self._bar.update(self._task, completed=step)
        self.say(f"step {step:>{len(str(steps))}}/{steps}  " + "  ".join(parts))

    def say(self, line: str) -> None:
        say(self._console, line)


@contextmanager
def stage_progress(console: Console, title: str) -> "Iterator[StageProgress]":
    """Progress of a stage that may turn out to have nothing to do; then nothing is shown."""
    progress = StageProgress(console, title)
    try:
        yield progress
    finally:
        progress.stop()


class StageProgress:
    """Callable as ``progress(done, total, note)``: a bar on a terminal, else some lines."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._bar: Progress | None = None

    def __call__(self, done: int, total: int, note: object = "") -> None:
        if self._bar is None:
            self._bar = _bar(self._console)
            self._bar.start()
            self._bar.add_task(self._title, total=total)
        shown = f"loss {note:.3f}" if isinstance(note, float) else str(note)
        task = self._bar.task_ids[0]
        self._bar.update(task, completed=done, total=total, description=f"{self._title} {shown}")
        if not self._console.is_terminal and done % max(1, total // 4) == 0:
            self._console.print(f"{self._title}: {done}/{total} {shown}", highlight=False)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


@asynccontextmanager
async def tell_outages(
    owners: Callable[[], Iterable[Counters]],
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[None]:
    """Meanwhile, say which servers are waited for: after :data:`PATIENCE` seconds, whenever that
    time has doubled, and when it is over."""

    async def watch() -> None:
        told: dict[str, tuple[Outage, float]] = {}  # with the seconds after which it is said again
        while True:
            await sleep(1.0)
            current = {outage.server: outage for outage in outages(owners())}
            for server, outage in current.items():
                seconds = clock() - outage.since
                if seconds >= told.get(server, (outage, PATIENCE))[1]:
                    told[server] = outage, 2 * seconds
                    say(_waited_for(outage, seconds))
            for server in told.keys() - current.keys():
                outage, _ = told.pop(server)
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


def table(comparison: Comparison) -> Table:
    """Policies and the baselines that matter, for a terminal of 80 columns; all rows are in
    ``evaluation.json`` and in the report."""
    label = ", simulated server" if comparison.simulated else ""
    shown = Table(
        title=f"Gold accuracy on {comparison.problems} held-out problems{label}",
        box=None,
        padding=(0, 1, 0, 0),
    )
    shown.add_column("", no_wrap=True)
    shown.add_column("all", justify="right", no_wrap=True)
    shown.add_column("95 %", justify="right", no_wrap=True)
    policies = [row for row in comparison.rows if row.group == "policy"]
    kinds = [kind for kind in policies[0].kinds if kind != "all"]
    for name in (*kinds, "judge", "valid", "tokens"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in policies:
        shown.add_row(*_cells(row, kinds), style="bold" if row.name == TRAINED else None)
    if comparison.best_by_kind:
        best = f"{comparison.best_by_kind_gold:.1%}"
        shown.add_row("best fixed per kind", best, *[""] * (len(kinds) + 4))
    for row in _baselines(comparison):
        shown.add_row(*_cells(row, kinds))
    return shown


def _baselines(comparison: Comparison) -> list[TableRow]:
    """The best single one, and those that the environment wants to be seen."""
    fixed = [row for row in comparison.rows if row.group == "baseline"]
    chosen = [row for row in fixed if row.shown or row.name == comparison.best_single]
    return sorted(chosen, key=lambda row: -(row.kinds["all"].gold or 0.0))


def _cells(row: TableRow, kinds: Sequence[str]) -> list[str]:
    every = row.kinds["all"]
    low, high = every.gold_low, every.gold_high
    return [
        _name(row),
        _shown(every.gold, "{:.1%}"),
        "-" if low is None or high is None else f"{100 * low:.0f}-{100 * high:.0f}",
        *(_shown(row.kinds[k].gold if k in row.kinds else None, "{:.0%}") for k in kinds),
        _shown(every.judge, "{:.0%}"),
        _shown(every.valid, "{:.0%}"),
        f"{every.tokens:,.0f}",
    ]


def _shown(value: float | None, form: str) -> str:
    """A number in its form, a dash where there is none."""
    return "-" if value is None else form.format(value)


def source_table(comparison: Comparison) -> Table:
    """Gold accuracy and, behind it, the judge's, by dataset; the rows of :func:`table` across."""
    policies = [row for row in comparison.rows if row.group == "policy"]
    rows = [*policies, *_baselines(comparison)]
    shown = Table(
        title="By dataset, gold / judge in percent",
        box=None,
        padding=(0, 1, 0, 0),
    )
    shown.add_column("", no_wrap=True)
    for row in rows:
        shown.add_column(_name(row), justify="right")
    for source in sorted({source for row in rows for source in row.sources}):
        cells = [row.sources.get(source) for row in rows]
        texts = [_both(cell) if cell else "-" for cell in cells]
        shown.add_row(source.rpartition("/")[2], *texts)
    return shown


def _both(cell: Score) -> str:
    gold, judge = (None if share is None else 100 * share for share in (cell.gold, cell.judge))
    return f"{_shown(gold, '{:.0f}')}/{_shown(judge, '{:.0f}')}"


def _name(row: TableRow) -> str:
    return row.name.removeprefix("fixed: ").replace("_", " ")


def _way_gone(share: float) -> str:
    """Past the end a share says nothing: baselines of a judge are hardly above chance."""
    if share > 1:
        return "training went past the best baseline of each kind"
    return (
        f"training went {share:.0%} of the way from the untrained policy to the best baseline of "
        "each kind"
    )


def findings(comparison: Comparison) -> list[str]:
    """What the table says, a line each."""
    lines = []
    if comparison.best_by_kind:
        chosen = "  ".join(
            f"{kind} {name.removeprefix('fixed: ').replace('_', ' ')}"
            for kind, name in comparison.best_by_kind.items()
        )
        lines.append(f"best baseline, chosen on {comparison.chosen_on}: {chosen}")
    if comparison.gap_closed is not None:
        lines.append(_way_gone(comparison.gap_closed))
    for name, changes in comparison.drift.items():
        whose = "" if name == TRAINED else f"{name}: "
        lines += [f"{whose}{line}" for line in change_lines(changes)]
    lost = {row.name: row.kinds["all"].unscored for row in comparison.rows}
    if worst := max(lost.values(), default=0.0):
        name = max(lost, key=lambda name: lost[name])
        lines.append(f"not scored, by no fault of the policy: up to {worst:.1%} ({name})")
    for name in (UNTRAINED, TRAINED):
        row = comparison.row(name)
        for kind, mix in (row.mix if row else {}).items():
            calls = "  ".join(f"{what} {mean:.2f}" for what, mean in mix.items())
            lines.append(f"{name.split()[0]:<9} {kind:<4} {calls}")
    return lines
