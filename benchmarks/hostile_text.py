"""How long every function takes that a model's text goes through, over degenerate texts.

Repeats of every bracket, fence, tag, number, space and mark, from 1 kB to 1 MB (``--quick``: to
100 kB). For each function the worst text, its seconds at 20 kB and at the largest size, how the
time grows with the size (the exponent of size over those that take 2 ms; 1 is linear), and the
worst milliseconds at the size up to which it runs on the event loop (off_loop.py).

    python benchmarks/hostile_text.py [--quick] [--only PART_OF_A_NAME]

The last line says how many functions keep to the limits: exponent at most 1.2, at most 50 ms per
20 kB, at most 5 ms on the loop. CPython's parser grows faster; the functions that call it are held
to seconds, and say so.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import nlargest

from hostile_functions import BOUNDED, CACHED, FUNCTIONS, REFUSALS

from flowright.off_loop import MOST_CHARS

EXPONENT, PER_20_KB, ON_LOOP = 1.2, 0.050, 0.005
READS = "workflows.source:read_workflow"
UNCLEAR = 0.002  # seconds below which it is the clock that is measured
TOO_LONG = 5.0  # seconds after which no larger size is tried

UNITS = (
    "(", ")", "[", "]", "{", "}", "<", ">", "((", "{{", "[[", "`", "```", "``` ", '```\n', "~",
    '~~~~~\n', '~\u200b', "<think>", "</think>", "<think", "<think ", "<s>", "<|", "<|im_end|>",
    "<|channel|>", "<|channel|>final<|message|>", "[THINK]", "[INST]", "<answer>", "</answer>",
    "<answer></answer>", "<score>", "<score>4", "<a>", "<a></a>", "\\", "\\\\", "\\boxed{",
    "\\boxed{}", "\\frac{1}{", "\\frac{1}{2}", "\\text{", "\\text{a}", "0", "1", "12 ", "1,",
    "1,000", "1,000,", "1.", "1/", "1/2 ", "-1 ", "+", "-", "*", "**", "_", "=", "^", "%", "$",
    "$$", "e", "1e", "#", "####", "#### ", "## ", " ", '\t', '\n', '\r\n', '\r', ' \n',
    '\u2028', '\u200b', "́", "á", "ﷺ", "１", "é", "İ", "解", "👍", '\ud800', "a", "A", "a ",
    "the ", "a,", "and ", "a and ", "May 12, 1999 ", "12 May ", "answer", "answer is ",
    "Answer: ", "Answer:", 'answer:\n', 'the answer is a.\n', "Verdict: ", 'Verdict: True\n',
    "verdict is ", 'criterion_1: True\n', "\"verdict\"", "{\"", "{\"a\":",
    "{\"verdict\": true}", "{\"verdict\": ", "[\"", "\"", "'", "\"\"\"", "\\\"", "'''",
    "option A ", "(A) ", "A. ", "(A", 'Solution:\n', 'Solution: a\n', "candidate 1: ",
    'def f():\n', 'def f():\n\tpass\n', 'class Workflow:\n', 'async def workflow(problem):\n',
    'async def workflow(problem): pass\n', 'if x:\n ', 'x = 1\n', "x.", "f(", "lambda: ",
    "not ", "- ", "1. ", "| a ", "|", "||", "analysis", "assistantfinal", "analysisA",
    "is the ", "it is ", "says ", ". ", "! ", ", ", ": ", ":", ";", "/", "//", "&", "&amp;",
    "@", 'import x\n', '\x00', "passed 1 of ", "program ", "true or ", "which answer ",
    "is this ", "choose ", "</", "<answer", "Sorry, ",
)  # fmt: skip
"""What the texts repeat."""

FRAMES: tuple[Callable[[str], str], ...] = (
    lambda body: body,
    lambda body: f"```python\n{body}",
    lambda body: f"<think>{body}",
    lambda body: f"Answer: {body}x",
)


def seconds(function: Callable[[str], object], text: str) -> float:
    """CPU seconds of one call; a refusal is an answer."""
    for cached in CACHED:
        cached.cache_clear()
    began = time.thread_time()
    with suppress(*REFUSALS):
        function(text)
    return time.thread_time() - began


def filled(frame: Callable[[str], str], unit: str, size: int) -> str:
    return frame(unit * (size // len(unit)))


@dataclass(frozen=True)
class Timed:
    """The worst of a function: seconds at 20 kB, at the largest size and at the size up to which
    it runs on the loop, and the exponent of size; ``text`` is the slowest one's unit."""

    at_20_kb: float
    largest: float
    exponent: float
    on_loop: float
    text: str


def measure(
    function: Callable[[str], object], sizes: Sequence[int], size_on_loop: int, first: int
) -> Timed:
    """The worst over all texts, at the ``first`` size, and then, of the four slowest, at each."""
    texts = [(frame, unit) for frame in FRAMES for unit in UNITS]
    slowest = nlargest(4, texts, key=lambda text: seconds(function, filled(*text, first)))
    each = [_of_text(function, text, sizes, size_on_loop) for text in slowest]
    worst = max(each, key=lambda timed: timed.at_20_kb)
    return Timed(
        worst.at_20_kb,
        max(timed.largest for timed in each),
        max(timed.exponent for timed in each),
        max(timed.on_loop for timed in each),
        worst.text,
    )


def _of_text(
    function: Callable[[str], object],
    text: tuple[Callable[[str], str], str],
    sizes: Sequence[int],
    size_on_loop: int,
) -> Timed:
    def best(size: int) -> float:
        shown = filled(*text, size)
        return min(seconds(function, shown) for _ in range(3))

    known: list[tuple[int, float]] = []
    took = 0.0
    for size in sizes:
        took = best(size)
        if took > UNCLEAR:
            known.append((size, took))
        if took > TOO_LONG:
            break
    grows = 0.0
    if len(known) > 1:
        (small, before), (large, after) = known[0], known[-1]
        grows = math.log(after / before) / math.log(large / small)
    return Timed(
        best(20_000), took, grows, best(size_on_loop) if size_on_loop else 0.0, repr(text[1])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="up to 100 kB")
    parser.add_argument("--only", default="", metavar="PART", help="functions named so")
    args = parser.parse_args()
    sizes = (10_000, 31_600, 100_000) if args.quick else (10_000, 100_000, 1_000_000)
    print(f"{'function':45} {'20 kB ms':>9} {'largest s':>9} {'exponent':>8} {'loop ms':>8}  text")
    chosen = {name: f for name, f in FUNCTIONS.items() if args.only in name}
    kept: list[Timed] = []
    for name, function in chosen.items():
        # A vote and the reading of a workflow always run in a thread.
        threaded = "groups" in name or name in ("workflows.language:parse", READS)
        on_loop = 0 if threaded else MOST_CHARS
        found = measure(function, sizes, on_loop, 2_500 if args.quick else 5_000)
        grows = found.exponent <= EXPONENT or name in BOUNDED
        good = grows and found.at_20_kb <= PER_20_KB and found.on_loop <= ON_LOOP
        if good:
            kept.append(found)
        said = "" if good else "  <-- over a limit"
        if name in BOUNDED and found.exponent > EXPONENT:
            said += f"  ({BOUNDED[name]})"
        print(
            f"{name:45} {found.at_20_kb * 1e3:9.2f} {found.largest:9.3f} {found.exponent:8.2f}"
            f" {found.on_loop * 1e3:8.2f}  {found.text}{said}",
            flush=True,
        )
    print(f"{len(kept)} of {len(chosen)} functions keep to the limits")


if __name__ == "__main__":
    main()
