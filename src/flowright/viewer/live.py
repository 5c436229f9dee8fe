"""``monitor.sh``: the newest run, or a named one, drawn in the terminal until Ctrl-C or q.

It only reads. In a terminal the screen is drawn anew every second on the alternate buffer, so that
it follows a resize and leaves nothing behind but its last state; into a pipe, or with ``--once``,
it is printed once as plain text. Nothing of the training is imported.
"""

import json
import os
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from flowright.core.checkout import here
from flowright.core.errors import RunError
from flowright.core.formatting import percent
from flowright.core.network_faults import TLS, network_fault, proxy_for, speaks_tls
from flowright.core.report import Fact
from flowright.core.untrusted import one_line
from flowright.runs.run_files import newest_run, read_state, rollout_steps
from flowright.runs.totals import requests
from flowright.viewer.rendering.terminal import UNICODE
from flowright.viewer.screen import Screen, View, notices
from flowright.viewer.snapshot import (
    QUIET_SECONDS,
    RECENT,
    Snapshot,
    Watcher,
    eta_seconds,
    failures,
    held_out,
    take_snapshot,
)

_KEY = re.compile(rb"\x1b(?:\[[0-9;]*[A-Z~]|O[A-Z])|[ -~]")
_NAMED: Mapping[bytes, str] = {
    f"\x1b{code}".encode(): key
    for key, codes in {
        "k": "[A OA",
        "j": "[B OB",
        "b": "[5~",
        " ": "[6~",
        "g": "[H [1~",
        "G": "[F [4~",
        "n": "[C",
        "p": "[D",
    }.items()
    for code in codes.split()
}
"""Arrows, Page Up and Down, Home and End, with the letters that do the same."""


def read_keys(pressed: bytes) -> list[str]:
    """Decode pressed keys to letters; keys without a meaning are left out."""
    found: list[bytes] = _KEY.findall(pressed)
    return [_NAMED.get(key, key.decode()) for key in found if key in _NAMED or len(key) == 1]


@contextmanager
def pressed_keys() -> Iterator[Callable[[float], Sequence[str]]]:
    """Yield a function that waits some seconds for keys, which are read without Enter and echo;
    none come where stdin is no terminal. The terminal's settings are restored."""
    if not sys.stdin.isatty():
        yield lambda seconds: time.sleep(seconds) or ()
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def wait(seconds: float) -> Sequence[str]:
        if not select.select([fd], [], [], seconds)[0]:
            return ()
        pressed = os.read(fd, 64)
        if not pressed:  # the terminal has gone
            time.sleep(seconds)
        return read_keys(pressed)

    tty.setcbreak(fd)
    try:
        yield wait
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


SECONDS = 2.0  # of one request for a server's load
PAUSE = 5.0
_MOST_BYTES = 1 << 22
_LINE = re.compile(r"^vllm:([a-z_]+)(?:\{[^\n]*\})? ([-+0-9.eE]+)$", re.MULTILINE | re.ASCII)
_CACHE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
"""The second is that of vLLM before version 0.11. Both are shares, despite their names."""


@dataclass(frozen=True, slots=True)
class Health:
    """A server's load, summed over its engines: running requests, waiting requests, and the fullest
    key-value cache as a share. ``trouble``: why it could not be read."""

    running: int | None = None
    waiting: int | None = None
    cache: float | None = None
    trouble: str = ""


def load_of(url: str, health: Health) -> Fact:
    """Describe a server's load in a line."""
    host = one_line(url.rpartition("//")[2].removesuffix("/v1"), 40)
    counts = ((health.running, "running"), (health.waiting, "waiting"))
    parts = [f"{count} {word}" for count, word in counts if count is not None]
    if health.cache is not None:
        parts.append(f"KV cache {percent(health.cache)}")
    return Fact(host, ", ".join(parts), alarm=one_line(health.trouble, 60))


def ask(url: str) -> Health:
    """Read the health of the server at a base URL, with or without ``/v1``."""
    address = url.rstrip("/").removesuffix("/v1") + "/metrics"
    proxy = proxy_for(address, None)
    handler = urllib.request.ProxyHandler({url.partition(":")[0]: proxy} if proxy else {})
    try:
        with urllib.request.build_opener(handler).open(address, timeout=SECONDS) as answer:
            return read_metrics_page(answer.read(_MOST_BYTES).decode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        trouble = network_fault(error, address, proxy)
        if isinstance(error, ConnectionError) and speaks_tls(address):
            trouble = TLS
        return Health(trouble=trouble or str(error) or type(error).__name__)


def read_metrics_page(text: str) -> Health:
    """Parse a page in Prometheus' text format."""
    found: dict[str, list[float]] = {}
    for name, value in _LINE.findall(text):
        with suppress(ValueError):
            number = float(value)
            found.setdefault(name, []).append(number)
    running, waiting = (found.get(f"num_requests_{what}") for what in ("running", "waiting"))
    cache = next((found[name] for name in _CACHE if name in found), None)
    if running is None and waiting is None and cache is None:
        return Health(trouble="no vLLM metrics there")
    return Health(
        None if running is None else int(sum(running)),
        None if waiting is None else int(sum(waiting)),
        None if cache is None else max(cache),
    )


class Watch(threading.Thread):
    """Polls vLLM servers on a thread of its own, so that one that does not answer holds up no
    screen; ``known`` has the latest by URL."""

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(daemon=True, name="server-health")
        self._urls = urls
        self.known: Mapping[str, Health] = {}

    def look(self) -> Mapping[str, Health]:
        """Poll all, once."""
        self.known = {url: ask(url) for url in self._urls}
        return self.known

    def run(self) -> None:
        pause = threading.Event()
        while not pause.wait(PAUSE if self.known else 0):
            self.look()


START = "python train.py --config config/quickstart.yaml"


def monitor(
    name: str | None,
    output_dir: Path,
    once: bool = False,
    as_json: bool = False,
    servers: Sequence[str] = (),
    interval: float = 1.0,
) -> int:
    """Show a run until Ctrl-C or q, or once; the exit status. ``servers``: vLLM servers whose load
    is shown; ``interval``: seconds between updates. Raises RunError if there is no run."""
    console = make_console()
    try:
        if as_json:
            run = find_run(name, output_dir)
            print(json.dumps(summary(take_snapshot(run), Watch(servers).look()), indent=2))
        elif once or not console.is_terminal or console.is_dumb_terminal:
            run = find_run(name, output_dir)
            console.print(screen_of(Watcher(run), Watch(servers).look(), full=True))
        else:
            _watch(console, name, output_dir, interval, servers)
    except KeyboardInterrupt:
        return 0
    return 0


def make_console() -> Console:
    """Make a console that never fails on a character that the terminal's encoding lacks."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(highlight=False, soft_wrap=False)


def find_run(name: str | None, output_dir: Path) -> Path:
    """Find a run: a directory, a name under ``output_dir``, or the newest one.

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


def _watch(
    console: Console, name: str | None, output_dir: Path, interval: float, servers: Sequence[str]
) -> None:
    """Draw until Ctrl-C or q; then leave the last screen in the terminal's scrollback."""
    watcher: Watcher | None = None
    view, health = View(), Watch(servers)
    if servers:
        health.start()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        live = Live(console=console, screen=True, auto_refresh=False, transient=True)
        with live, pressed_keys() as wait:
            while not view.over:
                watcher = _follow(watcher, name, output_dir)
                screen = screen_of(watcher, health.known) if watcher else None
                shown = replace(screen, view=view) if screen else _waiting(output_dir)
                live.update(shown, refresh=True)
                for key in wait(interval):
                    if key in ("n", "p") and watcher is not None:
                        name = str(neighbour_run(watcher.run, key == "n"))
                        watcher = Watcher(Path(name))
                    all_lines = screen.lines(console.width, None, UNICODE) if screen else ()
                    view = view.after(key, console.height - 1, len(all_lines))
    if watcher:
        console.print(screen_of(watcher, health.known, full=True))


def neighbour_run(run: Path, older: bool) -> Path:
    """The run beside this one in its folder, by when their states changed: the one before it, or
    after it; itself at an end."""
    states = sorted(run.parent.glob("*/state.json"), key=lambda path: path.stat().st_mtime)
    runs = [path.parent for path in states]
    if run not in runs:
        return run
    place = runs.index(run) + (-1 if older else 1)
    return runs[place] if 0 <= place < len(runs) else run


def summary(snapshot: Snapshot, health: Mapping[str, Health]) -> dict[str, Any]:
    """Summarise a run for a program: status, notices, the figures of the other screens, the newest
    of each metric, and the failures of the recent steps."""
    state, rows, known = snapshot.state, snapshot.training_rows, held_out(snapshot)
    newest: dict[str, Any] = {}
    for row in snapshot.rows:
        newest |= row
    return {
        "run": str(snapshot.run.resolve()),
        "status": snapshot.status,
        "stage": state.get("stage"),
        "step": snapshot.step,
        "steps": state.get("steps"),
        "eta_seconds": eta_seconds(snapshot),
        "quiet_seconds": round(snapshot.quiet_seconds, 1),
        "simulated": snapshot.simulated,
        "held_out": known
        and {
            "measure": known.measured.key,
            "before": known.before,
            "after": known.after,
            "where": known.where,
        },
        "drift": snapshot.recent_drift,
        "seconds": snapshot.seconds | {"whole": sum(snapshot.seconds.values())},
        "requests": requests(snapshot.rows, snapshot.evaluation),
        "notices": [text for text, _ in notices(snapshot)],
        "failures": failures(rows[-RECENT:]) if rows else {},
        "metrics": newest,
        "servers": {url: asdict(each) for url, each in health.items()},
    }


def _follow(watcher: Watcher | None, name: str | None, output_dir: Path) -> Watcher | None:
    """Return the watcher to go on with. Without a name, a newer run is shown once the present one
    has ended or is silent; two runs at a time do not make the screen jump between them."""
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


def screen_of(watcher: Watcher, health: Mapping[str, Health], full: bool = False) -> Screen:
    steps = rollout_steps(watcher.run)
    rollouts = watcher.rollouts(steps[-1]) if steps else ()
    return Screen(watcher.look(), rollouts, full, [load_of(*each) for each in health.items()])


def _waiting(output_dir: Path) -> Text:
    return Text(
        f"No run in {output_dir.resolve()} yet; waiting for one.\n\n"
        f"Start one with\n  {here(START)}\n\nCtrl-C ends this."
    )
