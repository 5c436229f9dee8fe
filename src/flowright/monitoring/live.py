"""``monitor.sh``: the newest run, or a named one, drawn in the terminal until Ctrl-C.

It only reads. In a terminal the screen is drawn anew every second on the alternate buffer, so that
it follows a resize and leaves nothing behind but its last state; into a pipe, or with ``--once``,
it is printed once as plain text. Nothing of the training is imported.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from flowright.checkout import here
from flowright.config import RunSection
from flowright.errors import RunError, UserError
from flowright.monitoring.screen import Screen
from flowright.monitoring.snapshot import QUIET_SECONDS, Watcher
from flowright.runs import newest_run, read_state, rollout_steps

START = "python train.py --config config/quickstart.yaml"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 0, or 2 when there is nothing to show."""
    options = _parser().parse_args(arguments)
    console = make_console()
    try:
        if options.once or not console.is_terminal or console.is_dumb_terminal:
            run = find_run(options.run, options.output_dir)
            console.print(_screen(Watcher(run), full=True))
        else:
            _watch(console, options.run, options.output_dir, options.interval)
    except UserError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def make_console() -> Console:
    """A console that never fails on a character that the terminal's encoding lacks."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(highlight=False, soft_wrap=False)


def find_run(name: str | None, output_dir: Path) -> Path:
    """The run that a user means: a directory, a name under ``output_dir``, or the newest one.

    Raises RunError, with what to do, when there is none.
    """
    if name is None:
        newest = newest_run(output_dir)
        if newest is None:
            raise RunError(
                f"{output_dir.resolve()}: no run here yet; start one with "
                f"{here(START)}, or name a run directory"
            )
        return newest
    for path in (Path(name), output_dir / name):
        if read_state(path) or (path / "config.json").is_file():
            return path
    raise RunError(f"{name}: no run of this name in {output_dir.resolve()}, nor a run directory")


def _watch(console: Console, name: str | None, output_dir: Path, interval: float) -> None:
    """Draw until Ctrl-C; then leave the last screen in the terminal's scrollback."""
    watcher: Watcher | None = None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
            while True:
                watcher = _follow(watcher, name, output_dir)
                shown = _screen(watcher) if watcher else _waiting(output_dir)
                live.update(shown, refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        if watcher:
            console.print(_screen(watcher, full=True))


def _follow(watcher: Watcher | None, name: str | None, output_dir: Path) -> Watcher | None:
    """The watcher to go on with. Without a name, a newer run is taken up once the present one has
    ended or fallen silent; two runs at a time do not make the screen jump between them."""
    if name is not None:
        return watcher or Watcher(find_run(name, output_dir))
    if watcher:
        now = watcher.look()
        if now.running and now.quiet_seconds < QUIET_SECONDS:
            return watcher
    newest = newest_run(output_dir)
    if newest is None or (watcher and newest == watcher.run):
        return watcher
    return Watcher(newest)


def _screen(watcher: Watcher, full: bool = False) -> Screen:
    steps = rollout_steps(watcher.run)
    return Screen(watcher.look(), watcher.rollouts(steps[-1]) if steps else (), full)


def _waiting(output_dir: Path) -> Text:
    return Text(
        f"No run in {output_dir.resolve()} yet; waiting for one.\n\n"
        f"Start one with\n  {here(START)}\n\nCtrl-C ends this."
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="monitor.sh",
        description="Watch a run. Reads its files only; ending the monitor does not end the run.",
    )
    add_run_arguments(parser)
    parser.add_argument("--once", action="store_true", help="print once and exit")
    parser.add_argument(
        "--interval", type=seconds, default=1.0, metavar="S", help="seconds between two looks"
    )
    return parser


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments from which :func:`find_run` finds a run."""
    parser.add_argument(
        "run", nargs="?", help="a run directory, or a name under --output-dir; default: the newest"
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=RunSection().output_dir,
        help="where run directories live (default: %(default)s)",
    )


def seconds(text: str) -> float:
    """A pause that argparse accepts; a ValueError is its "invalid seconds value"."""
    value = float(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError("must be between 0.05 and 3600 seconds")
    return value
