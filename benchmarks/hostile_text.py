"""How long every function takes that a model's text goes through, over degenerate texts.

For each function of hostile_functions.py: the worst milliseconds over all texts of
hostile_corpus.py at 20 kB and at the size up to which it runs on the event loop (off_loop.py); and
of the six texts that are slowest or grow fastest the seconds at the largest size, 1 MB
(``--quick``: 100 kB), and how time grows with size (the exponent between 20 kB and the largest; 1
is linear; none where 20 kB take less than 2 ms). The text named is the slowest at 20 kB.
``--quick`` looks at 20 kB only of the texts that are slowest at the loop's size.

    python benchmarks/hostile_text.py [--quick] [--only PART_OF_A_NAME]

Limits: exponent at most 1.2 (``--quick``, whose sizes differ by five times only and so leave more
to noise: 1.25), at most 50 ms per 20 kB, at most 5 ms on the loop. CPython's parser
grows faster; the functions that call it have a thread and are held to 150 ms, and say so. Each
function has a process of its own, two at a time: one that hangs or kills its process is a line like
any other. The exit status is 1 when a function is over a limit.
"""

import argparse
import gc
import math
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import nlargest
from multiprocessing import connection
from typing import Any

from hostile_corpus import TEXTS
from hostile_functions import BOUNDED, CACHED, FUNCTIONS, REFUSALS, THREADED

from flowright.core.off_loop import MOST_CHARS

EXPONENT, EXPONENT_QUICK, PER_20_KB, ON_LOOP = 1.2, 1.25, 0.050, 0.005
PARSED = 0.150  # seconds per 20 kB, where a parser that is not ours reads it
SHOWN, LARGEST, LARGEST_QUICK = 20_000, 1_000_000, 100_000
MOST_QUICK = 120  # texts
UNCLEAR = 0.002  # seconds below which it is the clock that is measured
PATIENCE = 0.25  # seconds of a call that is long enough to be measured once
AT_ONCE = 2
MOST_CPU = 60  # seconds of CPU for a function; few take a tenth of it
DEADLINE = 20.0 * MOST_CPU  # seconds for one that waits, on a machine however busy

_fork = multiprocessing.get_context("fork")


def seconds(function: Callable[[str], object], text: str) -> float:
    """CPU seconds of one call; a refusal is an answer."""
    for cached in CACHED:
        cached.cache_clear()
    began = time.thread_time()
    with suppress(*REFUSALS):
        function(text)
    return time.thread_time() - began


@dataclass(frozen=True)
class Timed:
    """The worst of a function, in seconds: at 20 kB, at the largest size and at the size up to
    which it runs on the loop; the exponent of size, NaN where there is none; the slowest text."""

    at_20_kb: float
    largest: float
    exponent: float
    on_loop: float
    text: str


class Stopwatch:
    """Times one function, in a process of its own. ``at`` tells the parent the text of the call
    that is under way, by its place in the corpus, and its size."""

    def __init__(self, function: Callable[[str], object], at: Any) -> None:
        self._function = function
        self._at = at
        self._names = list(TEXTS)

    def once(self, name: str, size: int) -> float:
        self._at[:] = self._names.index(name), size
        return seconds(self._function, TEXTS[name](size))

    def best(self, name: str, size: int, before: float = math.inf) -> float:
        """Of a few calls the quickest, which others on the machine have held up least."""
        for _ in range(4):
            before = min(before, self.once(name, size))
            if before > PATIENCE:
                break
        return before

    def worst(self, size: int, names: Collection[str]) -> tuple[dict[str, float], float]:
        """One call for each text, and the worst, where each that seemed worse was tried again."""
        took = {name: self.once(name, size) for name in names}
        tried: set[str] = set()
        while (worst := max(took, key=lambda name: took[name])) not in tried:
            took[worst] = self.best(worst, size, took[worst])
            tried.add(worst)
        return took, took[worst]

    def exponent(self, name: str, at_20_kb: float, largest: int) -> tuple[float, float]:
        """How this text's time grows to that at the largest size, and that."""
        grows = took = math.inf
        for _ in range(3):  # growth is there each time, noise is not
            took = min(took, self.best(name, largest))
            at_20_kb = min(at_20_kb, self.best(name, SHOWN))
            if at_20_kb < UNCLEAR:
                return math.nan, took
            grows = min(grows, math.log(took / at_20_kb) / math.log(largest / SHOWN))
            if grows <= EXPONENT or took > 1:
                break
        return grows, took

    def measure(self, threaded: bool, quick: bool) -> Timed:
        largest = LARGEST_QUICK if quick else LARGEST
        small, on_loop = self.worst(MOST_CHARS, TEXTS)
        names = nlargest(MOST_QUICK, small, key=lambda n: small[n]) if quick else TEXTS
        shown, at_20_kb = self.worst(SHOWN, names)
        slowest = nlargest(3, shown, key=lambda name: shown[name])
        clear = [name for name, took in shown.items() if took > UNCLEAR / 4]
        growing = nlargest(3, clear, key=lambda name: shown[name] / small[name])
        each = [
            self.exponent(name, shown[name], largest) for name in dict.fromkeys(slowest + growing)
        ]
        grows = [exponent for exponent, _ in each if not math.isnan(exponent)]
        return Timed(
            at_20_kb,
            max(took for _, took in each),
            max(grows, default=math.nan),
            0.0 if threaded else on_loop,
            slowest[0],
        )


def _child(name: str, quick: bool, at: Any, told: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU, MOST_CPU))
    gc.freeze()  # what the imports made is not this function's to look through
    told.send(Stopwatch(FUNCTIONS[name], at).measure(name in THREADED, quick))


def run(names: Sequence[str], quick: bool) -> Iterator[tuple[str, Timed | str]]:
    """What was measured of each function, or why it was not, as they end."""
    waiting = list(names)[::-1]
    running: dict[Any, tuple[str, Any, Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            at = _fork.RawArray("q", 2)
            ours, theirs = _fork.Pipe(duplex=False)
            process = _fork.Process(target=_child, args=(waiting[-1], quick, at, theirs))
            process.start()
            theirs.close()
            running[ours] = waiting.pop(), process, at, time.monotonic() + DEADLINE
        left = min(deadline for *_, deadline in running.values()) - time.monotonic()
        ready = connection.wait(running, max(0.0, left))
        for ours, (name, process, at, deadline) in list(running.items()):
            if ours not in ready and time.monotonic() < deadline:
                continue
            process.kill() if ours not in ready else None
            where = f"{list(TEXTS)[at[0]]} at {at[1]:,}"
            try:
                yield name, ours.recv()
            except EOFError:
                process.join()
                ended = "killed after its deadline" if ours not in ready else process.exitcode
                yield name, f"did not come back ({ended}): {where}"
            process.join()
            del running[ours]


def verdict_on(name: str, timed: Timed, quick: bool) -> str:
    """What is over a limit, in words; nothing where all is well."""
    most = EXPONENT_QUICK if quick else EXPONENT
    over = [
        said
        for said, is_over in (
            ("grows", timed.exponent > most and name not in BOUNDED),
            ("slow", timed.at_20_kb > (PARSED if name in BOUNDED else PER_20_KB)),
            ("on the loop", timed.on_loop > ON_LOOP),
        )
        if is_over
    ]
    return f"  <-- {', '.join(over)}" if over else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="up to 100 kB, fewer texts")
    parser.add_argument("--only", default="", metavar="PART", help="functions named so")
    args = parser.parse_args()
    began = time.monotonic()
    print(f"{'function':45} {'20 kB ms':>9} {'largest s':>9} {'exponent':>8} {'loop ms':>8}  text")
    chosen = [name for name in FUNCTIONS if args.only in name]
    kept = 0
    for name, found in run(chosen, args.quick):
        if isinstance(found, str):
            print(f"{name:45} {found}  <-- no end", flush=True)
            continue
        over = verdict_on(name, found, args.quick)
        kept += not over
        if name in BOUNDED and found.exponent > EXPONENT:
            over += f"  ({BOUNDED[name]})"
        grows = "-" if math.isnan(found.exponent) else f"{found.exponent:.2f}"
        print(
            f"{name:45} {found.at_20_kb * 1e3:9.2f} {found.largest:9.3f} {grows:>8}"
            f" {found.on_loop * 1e3:8.2f}  {found.text}{over}",
            flush=True,
        )
    print(
        f"{kept} of {len(chosen)} functions keep to the limits; {len(TEXTS)} texts, "
        f"{time.monotonic() - began:.0f} s"
    )
    sys.exit(kept < len(chosen))


if __name__ == "__main__":
    main()
