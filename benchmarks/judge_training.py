"""An optimizer step of SFT and of Bradley-Terry: TRL's trainers, our plain path and our shared one.

The same weights, adapter and tokens, on one thread, each in a process of its own: CPU seconds, and
the most memory held above the loaded model, of a step behind a smaller one that is not measured.
Repeats run in turn, and the table has the least of each figure.

- TRL: SFTTrainer and RewardTrainer, see ``judge_training_trl.py``. It is no dependency of this
  project: give the Python of an environment that has it (``python -m venv trl && trl/bin/pip
  install trl==1.16.0 peft torch==2.13.0``). Measured with up to 8 rows at once, padded, as
  it is by default; with one row or pair at a time, which pads least and holds least; that with
  gradient checkpointing; and for SFT with the rows as one sequence, without padding. Rows come
  sorted by length, the longest first.
- plain: ``grpo.prefix_sharing: false``, padded rows of ``--budget`` tokens at once.
- shared: as it is by default but for ``--budget``.

Beside the times: the loss that each found, and how far our gradient is from plain computation: a
forward pass of transformers' own model for each whole text by itself, with peft's own adapter, and
autograd.

The tokens are random. A prompt has half to one and a half of its nominal length; answers have
lognormal lengths with a median of 170 tokens, as those of auto-j's pairs under SmolLM2's tokenizer
(quartiles 61, 171, 353). Or a file's (``--pairs``: rows of ``chosen`` and ``rejected``, see
docs/training_judges.md) in the tokens of ``--model``, or of ``--tokenizer`` beside a random model,
drawn among the shortest, middle and longest prompts apart; SFT learns the chosen answers.

    python benchmarks/judge_training.py [--trl PYTHON] [--repeats 3] [--rows 8] [--prompt 2048]
    python benchmarks/judge_training.py --pairs FILE --tokenizer FOLDER [--trl PYTHON]
    python benchmarks/judge_training.py --model FOLDER [--pairs FILE] [--trl PYTHON]
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from judge_rows import (
    BANDS,
    METHODS,
    PROMPTS,
    Row,
    checkpoint,
    groups_of,
    policy,
    random_rows,
    rows_of_file,
    write_rows,
)
from meter import Meter, apart, forked, least
from peft import PeftModel
from shapes import say
from torch.nn.functional import cross_entropy, logsigmoid
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from flowright.config.grpo import GrpoSection, PairsSection
from flowright.grpo.learner import Learner

PATHS = ("plain", "shared")
TRL: Mapping[str, Mapping[str, Any]] = {
    "TRL, up to 8 at once": {"at_once": 8},
    "TRL, 1 at once": {"at_once": 1},
    "TRL, 1 at once, checkpointing": {"at_once": 1, "checkpointing": True},
    "TRL, unpadded": {"at_once": 8, "padding_free": True},
}
WARM = 24
"""Tokens of a text in the step that is not measured."""

Costs = dict[str, float]


def learner(model: Any, method: str, sharing: bool, budget: int) -> Learner:
    """Its gradient is neither clipped nor held around 0, as those it is compared with."""
    section = GrpoSection(
        loss=method,
        kl_coefficient=0.0,
        prefix_sharing=sharing,
        micro_batch_tokens=budget,
        learning_rate=1e-6,
        max_grad_norm=1e9,
        pairs=PairsSection(centring=0.0),
    )
    return Learner(model, section, 1.0, 0)


def measure(folder: Path, rows: list[Row], method: str, sharing: bool, budget: int) -> Costs:
    """A step in this process."""
    torch.set_num_threads(1)
    trainer = learner(policy(folder, method), method, sharing, budget)
    short = [Row(row.prompt[:WARM], [a[:WARM] for a in row.answers]) for row in rows]
    trainer.update(groups_of(short), 1, 1)
    meter, groups = Meter(), groups_of(rows)
    metrics = meter.measure("step", lambda: trainer.update(groups, 2, 1))
    return {**meter.found(), "loss": metrics["policy/loss"]}


def check(folder: Path, rows: list[Row], method: str, budget: int) -> Costs:
    """Our loss and gradient beside those of plain computation."""
    torch.set_num_threads(1)
    ours = policy(folder, method)
    trainer = learner(ours, method, True, budget)
    gradients: dict[str, torch.Tensor] = {}

    def keep(*_: object) -> None:
        named = ours.model.named_parameters()
        gradients.update((n, p.grad.clone()) for n, p in named if p.grad is not None)

    trainer.optimizer.register_step_pre_hook(keep)
    loss = trainer.update(groups_of(rows), 1, 1)["policy/loss"]
    kind = AutoModelForCausalLM if method == "sft" else AutoModelForSequenceClassification
    more = {} if method == "sft" else {"num_labels": 1}
    base = kind.from_pretrained(folder, dtype=torch.float32, **more)
    model: Any = PeftModel.from_pretrained(base, folder / method, is_trainable=True).eval()
    plain = 0.0
    for part in (_sft_terms if method == "sft" else _pair_terms)(model, rows):
        part.backward()
        plain += float(part)
    wanted = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert gradients.keys() == wanted.keys() and wanted
    largest = max(float(g.abs().max()) for g in wanted.values())
    apart_by = max(float((gradients[n] - g).abs().max()) for n, g in wanted.items())
    return {"loss": loss, "plain loss": plain, "gradient": apart_by / largest}


def _sft_terms(model: Any, rows: list[Row]) -> Iterator[torch.Tensor]:
    """Of each row: a mean over all rows' tokens."""
    tokens = sum(len(row.answers[0]) for row in rows)
    for row in rows:
        (answer,) = row.answers
        logits = model(input_ids=torch.tensor([[*row.prompt, *answer]]), use_cache=False).logits[0]
        predicted = logits[len(row.prompt) - 1 : -1]
        yield cross_entropy(predicted, torch.tensor(answer), reduction="sum") / tokens


def _pair_terms(model: Any, rows: list[Row]) -> Iterator[torch.Tensor]:
    for row in rows:
        better, worse = (
            model(input_ids=torch.tensor([[*row.prompt, *answer]]), use_cache=False).logits[0, 0]
            for answer in row.answers
        )
        yield -logsigmoid(better - worse) / len(rows)


def of_trl(folder: Path, rows: list[Row], method: str, python: str) -> dict[str, Costs]:
    """By name in another environment, which sees nothing of this project but some files here."""
    path, cases = folder / "rows.json", folder / "cases.json"
    write_rows(path, rows)
    common = {
        "model": str(folder),
        "adapter": str(folder / method),
        "method": method,
        "rows": str(path),
        "vocab_size": AutoConfig.from_pretrained(folder).vocab_size,
        "warm": WARM,
    }
    chosen = {n: h for n, h in TRL.items() if method == "sft" or "padding_free" not in h}
    cases.write_text(json.dumps([{**common, **how} for how in chosen.values()]))
    script = Path(__file__).with_name("judge_training_trl.py")
    return dict(zip(chosen, apart([python, str(script), str(cases)], []), strict=True))


HEADER = ("method", "prompts", "tokens", "path", "s", "GB", "s / shared", "GB / shared", "loss")


def table_rows(told: str, method: str, rows: list[Row], found: Mapping[str, Costs]) -> list[str]:
    """One for each path, with its ratios to the shared one."""
    shared = found["shared"]
    lines = []
    for path, costs in found.items():
        ratios = [
            "" if path == "shared" else f"{costs[name] / shared[name]:.1f}"
            for name in ("step s", "step GB")
        ]
        figures = [f"{costs['step s']:.1f}", f"{costs['step GB']:.2f}", *ratios]
        cells = (method, told, f"{sum(row.tokens for row in rows):,}", path, *figures)
        lines.append(f"| {' | '.join(cells)} | {costs['loss']:.5f} |")
    return lines


def compare(told: str, folder: Path, rows: list[Row], method: str, options: Any) -> None:
    """Print a step's table."""
    rows = sorted(rows, key=lambda row: -row.longest)
    close = forked(check, folder, rows, method, options.budget)
    runs: dict[str, list[Costs]] = {}
    for _ in range(options.repeats):  # in turn, so that a busy minute hits all
        made = of_trl(folder, rows, method, options.trl) if options.trl else {}
        for name in PATHS:
            sharing = name == "shared"
            made[name] = forked(measure, folder, rows, method, sharing, options.budget)
        for name, costs in made.items():
            runs.setdefault(name, []).append(costs)
            say(name, costs)
    found = {name: least(some) for name, some in runs.items()}
    print("\n".join(table_rows(told, method, rows, found)))
    print(
        f"| {method} | {told} | | plain computation | | | | | {close['plain loss']:.5f}; largest "
        f"difference of a gradient, of the largest gradient: {close['gradient']:.1e} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trl", metavar="PYTHON", help="of an environment that has TRL")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a real one")
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="a real one's alone")
    parser.add_argument("--pairs", type=Path, metavar="FILE", help="chosen and rejected answers")
    parser.add_argument("--repeats", type=int, default=3, help="the least of so many counts")
    parser.add_argument("--rows", type=int, default=8, help="rows or pairs of a step")
    parser.add_argument("--prompt", type=int, action="append", help="only these lengths")
    parser.add_argument("--method", choices=METHODS, help="only this one")
    parser.add_argument("--budget", type=int, default=1024, help="grpo.micro_batch_tokens")
    options = parser.parse_args()
    if options.pairs and not (options.model or options.tokenizer):
        parser.error("--pairs: give what reads them, --model FOLDER or --tokenizer FOLDER")
    if not options.trl:
        print("TRL is left out; give --trl PYTHON of an environment that has it\n")
    methods = (options.method,) if options.method else METHODS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        forked(checkpoint, folder, options.model, options.tokenizer)
        of_file = rows_of_file(options.pairs, folder, options.rows) if options.pairs else None
        print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
        for method in methods:
            if of_file is not None:
                for band in BANDS:
                    compare(band, folder, of_file[band][method], method, options)
                continue
            for length in options.prompt or PROMPTS:
                rows = random_rows(method, length, options.rows)
                compare(f"{length}", folder, rows, method, options)


if __name__ == "__main__":
    main()
