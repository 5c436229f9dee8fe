"""What sampling costs with shared prefixes, against the model's own attention and cache, and
against transformers' ``generate``: CPU seconds, completion tokens a CPU second, peak memory.

The model and the shapes of ``benchmarks/step.py``, on one thread, ``--model`` as there; the same
draws for the first two, each measured in a process of its own. No completion ends early, so the
lengths are those of the shape. Memory is what the process holds above the loaded model.

    python benchmarks/sampling.py [--repeats 3] [--shape NAME]
    python benchmarks/sampling.py --model FOLDER [--groups 2] [--size 8] [--length 300]
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from meter import Meter, apart, least
from shapes import (
    SHAPES,
    WARM,
    Shape,
    add_model_arguments,
    groups_in,
    groups_of,
    policy,
    prepared,
    say,
)
from step import generate_plain

from flowright.policy.local import LocalSampler
from flowright.policy.sampling import Sampling

PATHS = ("generate", "plain", "shared")


def measure(folder: Path, shape: Shape, path: str) -> dict[str, float]:
    """One call in this process, after a short one, so that nothing is first-time."""
    torch.set_num_threads(1)
    model = policy(folder)
    assert not model.end_ids
    groups, meter = groups_in(folder, shape), Meter()
    if path == "generate":
        generate_plain(model, groups_of(WARM), WARM)
        meter.measure("generate", lambda: generate_plain(model, groups, shape))
        return meter.found()
    sampler = LocalSampler(model, shape.groups * shape.size, sharing=path == "shared")
    prompts = [group.prompt_ids for group in groups]
    sampler.draw([prompt[:32] for prompt in prompts], 2, Sampling(1.0, 1.0, 8, 0))
    sampling = Sampling(1.0, 1.0, shape.length, 0)
    meter.measure("generate", lambda: sampler.draw(prompts, shape.size, sampling))
    return meter.found()


def in_a_process(folder: Path, shape: Shape, path: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", str(folder), json.dumps(asdict(shape)), path]
    return apart(command, sys.path)


def main() -> None:
    shapes = {name: shape for name, shape in SHAPES.items() if not shape.ragged}
    parser = argparse.ArgumentParser(description="What sampling costs, in three ways")
    parser.add_argument("--repeats", type=int, default=3, help="the least of so many counts")
    parser.add_argument("--shape", choices=shapes, help="only this one")
    add_model_arguments(parser)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        folder, shape, path = options.measure
        print(json.dumps(measure(Path(folder), Shape(**json.loads(shape)), path)))
        return
    print("one call, CPU seconds and GB above the loaded model (least of the repeats)")
    print("| shape | path | s | tokens / CPU s | its s / shared | GB | shared GB / its |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for told, shape in prepared(options, folder, shapes).items():
            runs: dict[str, list[dict[str, float]]] = {path: [] for path in PATHS}
            for _ in range(options.repeats):
                for path, found in runs.items():
                    found.append(in_a_process(folder, shape, path))
                    say(path, found[-1])
            costs = {path: least(found) for path, found in runs.items()}
            shared, tokens = costs["shared"], shape.groups * shape.size * shape.length
            for path, its in costs.items():
                seconds, gb = its["generate s"], its["generate GB"]
                print(
                    f"| {told} | {path} | {seconds:.1f} | {tokens / seconds:.0f} | "
                    f"{seconds / shared['generate s']:.1f} | {gb:.2f} | "
                    f"{shared['generate GB'] / gb:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
