"""Agreement and cost of a judge that is asked plainly, several times, with principles first, and
with a meta judge that keeps the best samples.

Pairs are judged in both orders; a pair counts as right if the verdict of both is the label.
Labelled answers are judged right or wrong. The default judge is the embedded server (simulated): it
knows nothing of pairs without a reference, principles do not change its verdicts by design, and its
meta judge objects as often as the table of the simulator has it. Only a real model shows what they
bring in agreement; calls and tokens hold for any.

    python benchmarks/judge_reasoning.py --pairs natural.json ... [--labelled labelled.jsonl]
        [--judge simulated] [--samples 4] [--keep 2] [--limit 100] [llm.file=mine.yaml ...]
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from flowright.config.loading import load_judge_server
from flowright.core.statistics import bootstrap
from flowright.data.task import Pair
from flowright.judging.build import build_judge
from flowright.judging.measuring.benchmark_judges import ModelJudge, measured_section
from flowright.judging.measuring.labelled_answers import (
    LabelledItem,
    read_labelled,
    sampled_groups,
)
from flowright.judging.measuring.pair_figures import prompt_of, verdict_of
from flowright.judging.measuring.pair_files import read_pairs_file
from flowright.llm.client import ChatClient
from flowright.simulation.large_models import open_models

Right = Callable[[Any], Awaitable[bool | None]]
"""True if the verdict on a row is its label, None if the judge failed."""


def arms(samples: int, keep: int, judge: str) -> dict[str, list[str]]:
    several, principled = [f"judge.samples={samples}"], ["judge.principles=true"]
    best = [*several, f'judge.meta="{judge}"', f"judge.keep={keep}"]
    return {
        "plain": [],
        f"{samples} samples": several,
        "principles": principled,
        f"principles, {samples} samples": [*principled, *several],
        f"principles, best {keep} of {samples}": [*principled, *best],
    }


async def measure(client: ChatClient, rows: Sequence[tuple[str, Any]], right: Right) -> str:
    """Return the cells of one arm: agreement, unscored, calls, tokens and seconds a row."""
    client.counters.since()
    room = asyncio.Semaphore(32)

    async def one(row: Any) -> bool | None:
        async with room:
            return await right(row)

    began = time.monotonic()
    found = await asyncio.gather(*(one(row) for _, row in rows))
    seconds = time.monotonic() - began
    counts = client.counters.since()["judge"]
    groups: dict[str, list[float | None]] = {}
    for (name, _), agrees in zip(rows, found, strict=True):
        groups.setdefault(name, []).append(None if agrees is None else float(agrees))
    value, low, high = (100 * (end or 0.0) for end in bootstrap(list(groups.values())))
    tokens = counts["prompt_tokens"], counts["completion_tokens"]
    each = [f"{n / len(rows):,.0f}" for n in tokens]
    return (
        f"{value:.1f} ({low:.1f} to {high:.1f}) | {found.count(None)} | "
        f"{counts['calls'] / len(rows):.1f} | {each[0]} in, {each[1]} out | "
        f"{1000 * seconds / len(rows):.0f}"
    )


async def main(options: argparse.Namespace) -> None:
    pairs: Sequence[Pair] = [pair for path in options.pairs for pair in read_pairs_file(path).rows]
    items: Sequence[LabelledItem] = read_labelled(options.labelled) if options.labelled else ()
    pairs = sampled_groups(pairs, prompt_of, options.limit, "0/prompts")
    items = sampled_groups(items, lambda item: item.question, options.limit, "0/prompts")
    for title, rows in (("pairs", pairs), ("labelled answers", items)):
        if rows:
            print(f"\n{len(rows)} {title}, judge {options.judge}\n")
            print("| judge | agreement | unscored | calls | tokens | ms a row |")
            print("| --- | --- | ---: | ---: | ---: | ---: |")
            for name, keys in arms(options.samples, options.keep, options.judge).items():
                print(f"| {name} | {await arm(options, rows, keys)} |", flush=True)


async def arm(options: argparse.Namespace, rows: Sequence[Any], keys: Sequence[str]) -> str:
    named = [f'judge.model="{options.judge}"', *options.overrides, *keys]
    config = load_judge_server(options.config, named)
    async with open_models(config.models, config.llm, config.simulated, None, ()) as models:
        if problems := await models.check():
            raise SystemExit("\n".join(problems))
        client = models.clients[options.judge].as_role("judge")
        section = measured_section(config.judge)
        if isinstance(rows[0], Pair):
            compared = ModelJudge(client, section, "pairwise", meta=client)

            async def agrees(pair: Pair) -> bool | None:
                games = await compared.compare(pair)
                return None if games.failed else verdict_of(games) == pair.label

            return await measure(client, [(prompt_of(pair), pair) for pair in rows], agrees)
        judge = build_judge(section.model_copy(update={"ask": "true_false"}), client, meta=client)

        async def is_right(item: LabelledItem) -> bool | None:
            verdict = await judge.judge(item.query(item.id))
            return None if verdict.correct is None else verdict.correct == item.label

        return await measure(client, [(item.question, item) for item in rows], is_right)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=Path, nargs="+", default=[])
    parser.add_argument("--labelled", type=Path)
    parser.add_argument("--judge", default="simulated")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--keep", type=int, default=2)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--config", type=Path, default=Path("config/judge_server.yaml"))
    parser.add_argument("overrides", nargs="*")
    uvloop.run(main(parser.parse_args()))
