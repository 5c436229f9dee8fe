"""What sampling costs with shared prefixes, against the model's own attention and cache: CPU
seconds and peak memory.

The model and the shapes of ``benchmarks/step.py``, on one thread; the same draws for both, each
measured in a process of its own. No completion ends early, so the lengths are those of the shape.
Memory is what the process holds above the loaded model.

    python benchmarks/sampling.py [--repeats 3] [--shape NAME]
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from meter import Meter, apart, least
from shapes import SHAPES, Shape, checkpoint, groups_of, policy

from flowright.policy.local import LocalSampler
from flowright.policy.sampler import Sampling


def measure(folder: Path, shape: Shape, sharing: bool) -> dict[str, float]:
    """One call in this process, after a short one, so that nothing is first-time."""
    torch.set_num_threads(1)
    model = policy(folder)
    assert not model.end_ids
    sampler = LocalSampler(model, shape.groups * shape.size, sharing=sharing)
    prompts = [group.prompt_ids for group in groups_of(shape)]
    sampler.draw([prompt[:32] for prompt in prompts], 2, Sampling(1.0, 1.0, 8, 0))
    sampling = Sampling(1.0, 1.0, shape.length, 0)
    meter = Meter()
    meter.measure("generate", lambda: sampler.draw(prompts, shape.size, sampling))
    return meter.found()


def in_a_process(folder: Path, name: str, sharing: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", str(folder), "--shape", name]
    return apart([*command, *(["--sharing"] if sharing else [])], sys.path)


def main() -> None:
    shapes = [name for name, shape in SHAPES.items() if not shape.ragged]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--repeats", type=int, default=3, help="the least of so many counts")
    parser.add_argument("--shape", choices=shapes, help="only this one")
    parser.add_argument("--sharing", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, SHAPES[options.shape], options.sharing)))
        return
    print("one call, CPU seconds and GB above the loaded model (least of the repeats)")
    print("| shape | plain | shared | plain / shared | GB plain | GB shared | shared / plain |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint(folder)
        for shape in [options.shape] if options.shape else shapes:
            runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
            for _ in range(options.repeats):
                for sharing, found in runs.items():
                    found.append(in_a_process(folder, shape, sharing))
            plain, shared = least(runs[False]), least(runs[True])
            seconds, gb = "generate s", "generate GB"
            print(
                f"| {shape} | {plain[seconds]:.1f} | {shared[seconds]:.1f} | "
                f"{plain[seconds] / shared[seconds]:.1f} | {plain[gb]:.2f} | "
                f"{shared[gb]:.2f} | {shared[gb] / plain[gb]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
