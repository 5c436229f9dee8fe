"""A whole training step, generation and update: TRL's trainer, our plain path and our shared one.

The same model (random; with ``--model``, a real one with real prompts, see ``shapes.py``), adapter
and prompts, on one thread, each in a process of its own, so that one's memory is not another's. CPU
seconds and the most memory held above the loaded model, in either phase, each process' at once and
the table when all are done. All generate at full length: in the ragged shape completions are cut
afterwards, which is what rows that ended early cost transformers' ``generate`` anyway; ours would
let them go. In the shapes of several turns each completion but the last is answered with 64 tokens;
what sampling costs where nothing is kept between turns is printed beside the table.

- TRL: see ``step_trl.py``. It is no dependency of this project: give the Python of an environment
  that has it (``python -m venv trl && trl/bin/pip install trl==1.16.0 peft torch==2.13.0``).
  Without a GPU its head also runs on the prompts' positions; the row "TRL, head cut" is without
  that. The aims are for TRL as it is.
- plain: transformers' ``generate`` with its cache on a row for each completion, then the update
  with ``grpo.prefix_sharing: false``, a padded batch of 16 rows at a time.
- shared: LocalSampler, then the update as it is by default, with ``--budget`` tokens in a chunk.

The floor is what an update's products alone would take at the rate of the fastest of them here; see
``floor.py``. That of the plain path over that of the shared one is the ratio of two updates without
any waste.

    python benchmarks/step.py [--trl PYTHON] [--repeats 3] [--shape NAME]
    python benchmarks/step.py --model FOLDER [--groups 2] [--size 8] [--length 300] [--trl PYTHON]
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from floor import rate, update_flops
from meter import Meter, apart, least
from shapes import (
    ROWS,
    SHAPES,
    WARM,
    Shape,
    add_model_arguments,
    groups_in,
    groups_of,
    learner,
    policy,
    prepared,
    say,
)
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig

from flowright.grpo.batch import Group
from flowright.policy.local import LocalSampler
from flowright.policy.model import Policy
from flowright.policy.sampling import Sampling

PATHS = ("plain", "shared")
TRL = {"TRL": False, "TRL, head cut": True}

AIMS = {
    "P=1024 C=128": (6, 4.5),
    "P=1500 C=300": (5, 4),
    "workload: 8 x (1300 + 200) C=300": (7, 5),
}
"""At least so many times faster: a step than TRL's, an update than the plain one."""
MEMORY_AIM = 0.1
"""An update's memory, of the plain one's."""

Costs = dict[str, float]


def generate_plain(policy: Policy, groups: Sequence[Group], shape: Shape) -> None:
    """Prompts of different lengths are padded on their left, as its users do. A later turn reads
    all that stands before it."""
    contexts = [list(g.prompt_ids) for g in groups for _ in range(shape.size)]
    for _ in range(shape.turns):
        rows = [torch.tensor(context) for context in contexts]
        ids = pad_sequence(rows, batch_first=True, padding_side="left")
        mask = pad_sequence([torch.ones_like(row) for row in rows], True, padding_side="left")
        with torch.no_grad():
            found = policy.model.generate(  # pyright: ignore[reportCallIssue]
                input_ids=ids, attention_mask=mask, max_new_tokens=shape.length,
                do_sample=True, temperature=1.0, top_p=1.0, top_k=0, pad_token_id=0,
            )  # fmt: skip
        written = found[:, ids.shape[1] :].tolist()
        contexts = [[*c, *w, *answer_of(shape)] for c, w in zip(contexts, written, strict=True)]


def generate_shared(
    policy: Policy, groups: Sequence[Group], shape: Shape, keeps: bool = True
) -> None:
    """Keep earlier turns as an episode's sampler does, or read them again."""
    sampler, size = LocalSampler(policy, 256), shape.size
    draw = sampler.for_episodes(1) if keeps else sampler.sample
    contexts = [list(group.prompt_ids) for group in groups]
    for turn in range(shape.turns):
        sampling = Sampling(1.0, 1.0, max_new_tokens=shape.length, seed=turn)
        drawn = asyncio.run(draw(contexts, size, sampling, None))
        assert all(len(s.token_ids) == shape.length for group in drawn for s in group)
        contexts = [
            [*context, *sample.token_ids, *answer_of(shape)]
            for context, samples in zip(contexts, drawn, strict=True)
            for sample in samples
        ]
        size = 1  # each attempt has a context of its own now


def answer_of(shape: Shape) -> list[int]:
    return [7] * shape.answer


def measure(folder: Path, shape: Shape, sharing: bool, budget: int) -> Costs:
    """A step in this process, after a small one, so that nothing is first-time."""
    torch.set_num_threads(1)
    model = policy(folder)
    trainer = learner(model, sharing, budget)
    generate = generate_shared if sharing else generate_plain
    generate(model, groups_of(WARM), WARM)
    groups = groups_in(folder, shape)
    meter = Meter()
    meter.measure("generate", lambda: generate(model, groups, shape))
    meter.measure("update", lambda: trainer.update(groups, 2, 512))
    if sharing and shape.turns > 1:
        again = "generate, nothing kept"
        meter.measure(again, lambda: generate_shared(model, groups, shape, keeps=False))
    return meter.found()


def of_ours(folder: Path, shape: Shape, path: str, budget: int) -> Costs:
    command = [sys.executable, __file__, "--measure", str(folder), json.dumps(asdict(shape))]
    return apart([*command, "--path", path, "--budget", str(budget)], sys.path)


def of_trl(folder: Path, shape: Shape, python: str, compact: bool) -> Costs:
    """In another environment, which sees nothing of this project but two files."""
    groups = groups_in(folder, shape)
    case = {
        "model": str(folder),
        "adapter": str(folder / "adapter"),
        "vocab_size": AutoConfig.from_pretrained(folder).vocab_size,
        "prompts": [group.prompt_ids for group in groups],
        "lengths": [s.turns[0].tokens for group in groups for s in group.samples],
        "turns": shape.turns,
        "answer": answer_of(shape),
        "size": shape.size,
        "length": shape.length,
        "rows_at_once": ROWS,
        "compact": compact,
    }
    path = folder / "case.json"
    path.write_text(json.dumps(case))
    return apart([python, str(Path(__file__).with_name("step_trl.py")), str(path)], [])


def rows_of_table(
    name: str, folder: Path, shape: Shape, found: dict[str, Costs], flops_a_second: float
) -> list[str]:
    """A row for each path, with its ratios to the shared one and their aims."""
    model, groups = AutoConfig.from_pretrained(folder), groups_in(folder, shape)
    shared = found["shared"]
    step_aim, update_aim = AIMS.get(name, (None, None))
    rows = []
    for path, costs in found.items():
        step = costs["generate s"] + costs["update s"]
        floor = update_flops(model, groups, path == "shared") / flops_a_second
        ratios = (
            _ratio(step / (shared["generate s"] + shared["update s"]), step_aim, path == "TRL"),
            _ratio(costs["update s"] / shared["update s"], update_aim, path == "plain"),
            f"{shared['update GB'] / costs['update GB']:.2f}"
            + (f" (<= {MEMORY_AIM})" if path == "plain" else ""),
        )
        cells = (
            name,
            path,
            f"{costs['generate s']:.1f}",
            f"{costs['update s']:.1f}",
            f"{step:.1f}",
            f"{costs['generate GB']:.2f}",
            f"{costs['update GB']:.2f}",
            *(ratios if path != "shared" else ("", "", "")),
            *((f"{floor:.2f}", f"{costs['update s'] / floor:.1f}") if path in PATHS else ("", "")),
        )
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _ratio(value: float, aim: float | None, aimed: bool) -> str:
    return f"{value:.1f} (>= {aim})" if aimed and aim else f"{value:.1f}"


HEADER = (
    "shape", "path", "generate s", "update s", "step s", "generate GB", "update GB",
    "step / shared", "update / shared", "shared GB / its", "floor s", "update / floor",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trl", metavar="PYTHON", help="of an environment that has TRL")
    parser.add_argument("--repeats", type=int, default=3, help="the least of so many counts")
    parser.add_argument("--shape", choices=SHAPES, help="only this one")
    parser.add_argument("--budget", type=int, default=768, help="grpo.micro_batch_tokens, shared")
    add_model_arguments(parser)
    parser.add_argument("--path", choices=PATHS, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        folder, shape = Path(options.measure[0]), Shape(**json.loads(options.measure[1]))
        print(json.dumps(measure(folder, shape, options.path == "shared", options.budget)))
        return
    if not options.trl:
        print("TRL is left out; give --trl PYTHON of an environment that has it\n")
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shapes = prepared(options, folder, SHAPES)
        flops_a_second = rate(AutoConfig.from_pretrained(folder), options.budget)
        for told, shape in shapes.items():
            runs: dict[str, list[Costs]] = {}
            for _ in range(options.repeats):  # in turn, so that a busy minute hits all
                for path, compact in TRL.items() if options.trl else ():
                    made = of_trl(folder, shape, options.trl, compact)
                    runs.setdefault(path, []).append(made)
                    say(path, made)
                for path in PATHS:
                    made = of_ours(folder, shape, path, options.budget)
                    runs.setdefault(path, []).append(made)
                    say(path, made)
            found = {path: least(some) for path, some in runs.items()}
            rows = rows_of_table(told, folder, shape, found, flops_a_second)
            print("\n".join(rows), flush=True)
    print(f"\nproducts at {flops_a_second / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
