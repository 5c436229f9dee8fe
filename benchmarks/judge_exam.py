"""Does the exam find the biases that were planted, and no others? The embedded judge is examined.

For every seed a judge is drawn: some biases planted with some weight, the others not. The exam is
held without knowing, and its effects on wrong answers (for position: on pairs of equals) are
compared with what was planted. A row says what was planted, what the exam should see of it, what it
saw, and whether its 95 % interval holds the truth. All numbers are simulated.

    python benchmarks/judge_exam.py [--seeds 5] [--questions 500]
"""

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import uvloop

from flowright.config.judge import JudgeSection
from flowright.config.llm import SimulatedSection
from flowright.config.root import JudgeServerConfig
from flowright.judging.measuring.exam_probes import (
    EQUAL,
    PERTURBATIONS,
    ExamPlan,
    control_of,
    perturbed,
)
from flowright.judging.measuring.judge_exam import hold_exam, open_exam_judges
from flowright.judging.measuring.labelled_answers import LabelledItem
from flowright.simulation.assessor import pull

# Between these, and with weights up to 0.3 either way, no probability reaches 0 or 1, where a
# weight would be cut. Master keys and verbosity add up to less than that with the rest.
TRUE_POSITIVE, FALSE_POSITIVE = 0.65, 0.35
WEIGHTS = (0.3, 0.2, 0.12, -0.15)
PLANTED = 5  # of the nine biases


@dataclass(frozen=True, slots=True)
class Line:
    """One bias of one seed. ``truth`` is what an exam of infinite size would see."""

    bias: str
    weight: float
    truth: float
    value: float
    low: float
    high: float
    found: str | None

    @property
    def holds(self) -> bool:
        return self.low <= self.truth <= self.high


def drawn_biases(seed: int) -> dict[str, float]:
    draw = random.Random(f"planted/{seed}")
    names = draw.sample((*PERTURBATIONS, "position"), PLANTED)
    return {name: draw.choice(WEIGHTS) for name in names}


def questions(count: int, seed: int) -> list[LabelledItem]:
    """Sums, each with a right and a wrong answer: what is asked about plays no part here."""
    draw = random.Random(f"questions/{seed}")
    items: list[LabelledItem] = []
    for number in range(count):
        one, other = draw.randint(100, 999), draw.randint(100, 999)
        slip = draw.choice((-100, -10, -1, 1, 10, 100))
        for label, value in ((True, one + other), (False, one + other + slip)):
            answer = draw.choice(("{}", "The answer is {}.", "Answer: {}")).format(value)
            item = LabelledItem(
                id=f"{number}/{label}",
                question=f"Question {number}. What is {one} + {other}?",
                answer=answer,
                reference=str(one + other),
                label=label,
                answer_type="number",
            )
            items.append(item)
    return items


def truth_of(
    bias: str, items: Sequence[LabelledItem], weights: Mapping[str, float], plan: ExamPlan
) -> float:
    """The mean of what the planted weights add to the perturbed answers, less what they add to the
    answers that these are compared with."""
    if bias == "position":
        return weights.get("position", 0.0)
    gains: list[float] = []
    for item in items:
        changed = perturbed(item, bias, plan.seed)
        control = control_of(bias)
        before = perturbed(item, control, plan.seed) if control else item
        if not item.label and changed is not None and before is not None:
            gains.append(pull(weights, changed.answer) - pull(weights, before.answer))
    return fmean(gains)


async def examine(
    items: Sequence[LabelledItem], weights: Mapping[str, float], plan: ExamPlan, gate: bool
) -> dict[str, Any]:
    config = JudgeServerConfig(
        judge=JudgeSection(model="simulated", gate=gate),
        simulated=SimulatedSection(
            seed=plan.seed,
            judge_true_positive=TRUE_POSITIVE,
            judge_false_positive=FALSE_POSITIVE,
            judge_biases=dict(weights),
        ),
    )
    async with open_exam_judges(config, pairs=True) as judges:
        return await hold_exam(items, judges.judge, judges.pair_judge, plan)


def lines_of(
    record: Mapping[str, Any],
    items: Sequence[LabelledItem],
    weights: Mapping[str, float],
    plan: ExamPlan,
) -> list[Line]:
    seen = {e["bias"]: (e["own"], e["found"]) for e in record["effects"] if not e["label"]}
    order = record["pairs"][EQUAL]
    seen["position"] = (order["position"], order["found"])
    return [
        Line(
            bias,
            weights.get(bias, 0.0),
            truth_of(bias, items, weights, plan),
            estimate["value"],
            estimate["low"],
            estimate["high"],
            found,
        )
        for bias in (*PERTURBATIONS, "position")
        for estimate, found in [seen[bias]]
    ]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--questions", type=int, default=500)
    arguments = parser.parse_args()
    print("SIMULATED: the embedded judge, with biases planted in it")
    print(f"{'seed':4} {'bias':16} {'planted':>8} {'truth':>7} {'estimate':>9}  95 % interval")
    every: list[Line] = []
    for seed in range(arguments.seeds):
        items, weights = questions(arguments.questions, seed), drawn_biases(seed)
        plan = ExamPlan(repeats=1, seed=seed)
        record = await examine(items, weights, plan, gate=False)
        lines = lines_of(record, items, weights, plan)
        every += lines
        for line in lines:
            interval = f"[{line.low:+.3f}, {line.high:+.3f}]"
            told = f"{line.found or 'not found':9} {'' if line.holds else 'MISSES THE TRUTH'}"
            print(f"{seed:4} {line.bias:16} {line.weight:+8.2f} {line.truth:+7.3f} "
                  f"{line.value:+9.3f}  {interval}  {told}".rstrip())  # fmt: skip
    summary(every)
    await gated(arguments.questions)


def summary(lines: Sequence[Line]) -> None:
    planted = [line for line in lines if line.weight]
    others = [line for line in lines if not line.weight]
    holds = sum(line.holds for line in lines)
    print(f"intervals that hold the truth: {holds} of {len(lines)} (95 % of them would be "
          f"{0.95 * len(lines):.1f}); of planted biases "
          f"{sum(line.holds for line in planted)} of {len(planted)}, of others "
          f"{sum(line.holds for line in others)} of {len(others)}")  # fmt: skip
    right_way = sum(line.found == ("raises" if line.weight > 0 else "lowers") for line in planted)
    print(f"found: {right_way} of {len(planted)} planted, "
          f"{sum(line.found is not None for line in others)} of {len(others)} others")  # fmt: skip


async def gated(count: int) -> None:
    """A bias for master keys behind the gate: nothing of it reaches the judge."""
    items = questions(count, 0)
    plan = ExamPlan(perturbations=("master_key",), repeats=1)
    for gate in (False, True):
        record = await examine(items, {"master_key": 0.3}, plan, gate)
        share = record["effects"][0]["after"]["value"]
        print(f"master keys called right, +0.30 planted, gate {'on' if gate else 'off'}: "
              f"{100 * share:.1f} %")  # fmt: skip


if __name__ == "__main__":
    uvloop.run(main())
