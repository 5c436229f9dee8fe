"""The table of the simulator: the accuracy of each way of asking for each kind of task, and its
source.

The model is the two-parameter logistic of item response theory (Lord and Novick, 1968):
``P(right) = sigmoid(a * (skill - difficulty))`` with ``difficulty ~ Normal(0, spread)`` drawn once
per task. The table gives the mean accuracy over tasks, which a reader can compare with a paper; the
skill behind it is computed. ``a`` decides how alike the samples of one task are, hence what voting
brings: the larger, the more a task is either solved always or never.

The levels are those of an imaginary mid-size model; the gaps between ways imitate the literature
(percent, each from the paper named). The table was written from these figures alone, before any
policy was trained on it; ``CLASSES`` was changed once after runs (docs/lab_notebook.md).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

from flowright.data.task import Kind
from flowright.simulation.classes import Subject


class Way(StrEnum):
    """A way of asking that :mod:`flowright.simulation.cues` recognises in a prompt."""

    DIRECT = "direct"  # the question, nothing else: the bare answer
    STEPS = "steps"  # think step by step
    PROGRAM = "program"  # write a program that prints the answer
    FIX_PROGRAM = "fix_program"  # ... again, given what went wrong when it ran
    CODE = "code"  # implement the function
    FIX_CODE = "fix_code"  # ... again, given tests that it failed
    REVISE = "revise"  # a new answer, given an old one and a review that objects
    CHOOSE = "choose"  # pick one of several candidates, the right one among them
    REVIEW = "review"  # say whether a given answer is right
    FORMAT = "format"  # bring a given answer into a form, keeping its value


@dataclass(frozen=True, slots=True)
class Skill:
    accuracy: float
    imitates: str


@dataclass(frozen=True, slots=True)
class KindTable:
    """One kind of task: discrimination ``a``, standard deviation of the difficulty (``spread``),
    and the shares of a task's few popular wrong answers (``popularity``)."""

    a: float
    spread: float
    popularity: tuple[float, ...]
    imitates: str
    ways: Mapping[Way, Skill]

    def probability(self, way: Way, difficulty: float) -> float:
        """Return P(right) of one reply to a task of this difficulty."""
        skill = _skill(self.ways[way].accuracy, self.a, self.spread)
        return _sigmoid(self.a * (skill - difficulty))


@dataclass(frozen=True, slots=True)
class ReviewTable:
    """A review objects to a wrong answer with ``hit``, to a right one with ``false_alarm``."""

    hit: float
    false_alarm: float
    imitates: str


_MATH = KindTable(
    a=2.0,
    spread=1.0,
    popularity=(0.45, 0.25, 0.18, 0.12),
    imitates="Self-consistency over 40 paths, GSM8K, PaLM 540B: 56.5 -> 74.4 (Wang et al. 2022, "
    "arXiv 2203.11171). Here: 60 -> 70 with 5 votes, 76 with 40.",
    ways={
        Way.DIRECT: Skill(
            0.35,
            "GSM8K, answer only -> chain of thought: PaLM 540B 17.9 -> 56.9, GPT-3 175B "
            "15.6 -> 46.9 (Wei et al. 2022, arXiv 2201.11903): here the gap is kept smaller.",
        ),
        Way.STEPS: Skill(0.60, "The reference point of this kind; see `direct`."),
        Way.PROGRAM: Skill(
            0.78,
            "Chain of thought -> program run by Python, Codex: GSM8K 65.6 -> 72.0, GSM-hard "
            "23.1 -> 61.2 (PAL, Gao et al. 2022, arXiv 2211.10435).",
        ),
        Way.FIX_PROGRAM: Skill(0.78, "A program that crashed is written anew; as `program`."),
        Way.CODE: Skill(0.78, "A function that returns the number; as `program`."),
        Way.FIX_CODE: Skill(0.78, "As `fix_program`."),
        Way.REVISE: Skill(
            0.52,
            "Without feedback from outside, revising does not help: GSM8K, GPT-3.5 "
            "75.9 -> 75.1 -> 74.7 in two rounds (Huang et al. 2023, arXiv 2310.01798). With the "
            "review below, review + revise changes 60 by less than one point.",
        ),
        Way.CHOOSE: Skill(
            0.70,
            "Choosing by the model matches the majority vote on GSM8K (universal "
            "self-consistency, Chen et al. 2023, arXiv 2311.17311).",
        ),
    },
)

_CODE = KindTable(
    a=2.0,
    spread=1.0,
    popularity=(0.45, 0.25, 0.18, 0.12),
    imitates="As for maths; no published figure.",
    ways={
        Way.DIRECT: Skill(0.55, "The problem of a code task asks for code by itself; as `code`."),
        Way.STEPS: Skill(
            0.50,
            "Prose before code adds nothing: MBPP, gpt-4o-mini, input/output 71.8, chain of "
            "thought 71.8 (AFlow, Zhang et al. 2024, arXiv 2410.10762); here it costs a little, "
            "the code being mixed with prose.",
        ),
        Way.PROGRAM: Skill(0.45, "Code that was asked to print instead of to be called."),
        Way.FIX_PROGRAM: Skill(0.45, "As `program`."),
        Way.CODE: Skill(0.55, "The reference point of this kind."),
        Way.FIX_CODE: Skill(
            0.70,
            "Feedback of real test failures: HumanEval, GPT-4 80.1 -> 91.0 (Reflexion, Shinn et "
            "al. 2023, arXiv 2303.11366); MBPP up to +12 (Self-Debugging, Chen et al. 2023, arXiv "
            "2304.05128); MBPP 71.8 -> 83.4 (AFlow). About half of the failures are mended: here "
            "55 -> 75 with one repair, 81 with two, against 68 for a second try without feedback.",
        ),
        Way.REVISE: Skill(
            0.48,
            "Without running anything, repair brings little (Olausson et al. 2023, arXiv "
            "2306.09896): review + revise changes 55 by less than one point.",
        ),
        Way.CHOOSE: Skill(
            0.70, "Choosing by the model matches voting by execution (universal self-consistency)."
        ),
    },
)

_QA = KindTable(
    a=4.0,
    spread=1.0,
    popularity=(0.55, 0.30, 0.15),
    imitates="Self-consistency over 40 paths, PaLM 540B: StrategyQA 75.3 -> 81.6, ARC-challenge "
    "85.2 -> 88.7 (Wang et al. 2022). Here: 62 -> 66 with 5 votes, 68 with 40.",
    ways={
        Way.DIRECT: Skill(
            0.45,
            "23 tasks of BIG-Bench Hard, Codex, answer only -> chain of thought: 56.6 -> 73.9 "
            "(Suzgun et al. 2022, arXiv 2210.09261).",
        ),
        Way.STEPS: Skill(0.62, "The reference point of this kind; see `direct`."),
        Way.PROGRAM: Skill(
            0.30,
            "A program cannot look a fact up: below the direct answer. Running code alone fails "
            "on the language tasks of BIG-Bench Hard (Chain of Code, Li et al. 2023, arXiv "
            "2312.04474, whose remedy is to let the model stand in for the interpreter).",
        ),
        Way.FIX_PROGRAM: Skill(0.30, "As `program`."),
        Way.CODE: Skill(0.30, "As `program`."),
        Way.FIX_CODE: Skill(0.30, "As `program`."),
        Way.REVISE: Skill(
            0.50,
            "CommonsenseQA, GPT-3.5 75.8 -> 38.1, HotpotQA 26.0 -> 25.0 (Huang et al. 2023); "
            "HotpotQA, self-refine 60.8 against 68.1 (AFlow). Review + revise costs 2 points.",
        ),
        Way.CHOOSE: Skill(0.66, "As for maths."),
    },
)

TABLE: Mapping[Kind, KindTable] = {"math": _MATH, "code": _CODE, "qa": _QA}

_COMMON = (0.75, 0.15, 0.10)
"""Popularity of wrong answers in classes: two models that are both wrong agree 60 times in a
hundred (Kim et al. 2025, arXiv 2506.07962), which no vote mends."""


_MATH_CLASS, _QA_CLASS = (replace(kind, popularity=_COMMON) for kind in (_MATH, _QA))


def _class(base: KindTable, imitates: str, **accuracies: float) -> KindTable:
    """Return the table of a class: ``base`` with these accuracies by way; beside code tasks,
    that of ``program`` holds for every program."""
    found = {Way(name): Skill(accuracy, imitates) for name, accuracy in accuracies.items()}
    if Way.PROGRAM in found:
        programs = (Way.FIX_PROGRAM, Way.CODE, Way.FIX_CODE)
        found |= dict.fromkeys(programs, found[Way.PROGRAM])
    return replace(base, imitates=imitates, ways={**base.ways, **found})


CLASSES: Mapping[tuple[Subject, bool], KindTable] = {
    ("sums", False): _class(
        _MATH_CLASS,
        "Short arithmetic is answered at once: GPT-3, two-digit addition 100 % (Brown et al. 2020, "
        "arXiv 2005.14165). That a program is worse here imitates no published figure.",
        direct=0.95, steps=0.95, program=0.85, revise=0.90, choose=0.95,
    ),
    ("sums", True): _class(
        _MATH_CLASS,
        "Long numbers want an interpreter: GSM-hard, chain of thought 23.1, program 61.2 (PAL); "
        "two-digit multiplication of GPT-3, 29 %.",
        direct=0.08, steps=0.40, program=0.93, revise=0.35, choose=0.60,
    ),
    ("story", False): _class(
        _MATH_CLASS,
        "Short word problems: MAWPS, chain of thought up to 93.3 % (Wei et al. 2022).",
        direct=0.45, steps=0.88, program=0.50, revise=0.80, choose=0.85,
    ),
    ("story", True): _class(
        _MATH_CLASS,
        "Long word problems: GSM8K, chain of thought 56.9 -> 74.4 by voting (Wang et al. 2022). "
        "That a program is worse here imitates no published figure.",
        direct=0.15, steps=0.64, program=0.35, revise=0.55, choose=0.70,
    ),
    ("letters", False): _class(
        _QA_CLASS,
        "Spelling short words; no published figure.",
        direct=0.92, steps=0.94, program=0.82, revise=0.85, choose=0.94,
    ),
    ("letters", True): _class(
        _QA_CLASS,
        "A program handles letters exactly, however many; the size of the gap imitates no "
        "published figure.",
        direct=0.08, steps=0.30, program=0.92, revise=0.25, choose=0.50,
    ),
    ("facts", False): _class(
        _QA_CLASS,
        "Short questions; a program cannot look a fact up (`qa`).",
        direct=0.88, steps=0.93, program=0.25, revise=0.80, choose=0.93,
    ),
    ("facts", True): _class(
        _QA_CLASS,
        "Questions on several statements: as `qa` with steps; voting helps (StrategyQA).",
        direct=0.35, steps=0.68, program=0.20, revise=0.55, choose=0.72,
    ),
    ("program", False): _class(
        _CODE,
        "Short descriptions: HumanEval, GPT-4 80.1 (Reflexion).",
        direct=0.85, steps=0.80, code=0.85,
    ),
    ("program", True): _class(
        _CODE,
        "Long descriptions; as `code`, harder.",
        direct=0.45, steps=0.42, code=0.45,
    ),
}  # fmt: skip
"""Tables by subject and size (:mod:`flowright.simulation.classes`), for ``simulated.world:
classes``. Each way of asking is best or cheapest somewhere."""

REVIEW = ReviewTable(
    hit=0.35,
    false_alarm=0.20,
    imitates="Models hardly find mistakes: GPT-4 finds the first wrong step of a chain of thought "
    "in 53 % of cases (BIG-Bench Mistake, Tyen et al. 2023, arXiv 2311.08516).",
)

# A meta judge objects to judgements as REVIEW to answers. Principles (`judge.principles`) change no
# verdict: their gain is not simulated.

CRITERION_WORDS = 0.5
"""For a line of a rubric without quotes and an answer without a reference, P(true) rises with the
share of the line's words in the answer, from ``judge_false_positive`` at none of them to
``judge_true_positive`` at this share. Imitates no published figure: it makes a reward that depends
on the answer, so that a policy can learn from it."""
CRITERION_LETTERS = 4
"""Shortest word of such a line that counts."""

STEADY_TEMPERATURE = 0.3
"""Temperature up to which a judge's verdict is that of temperature 0, so that a retry (each a
little warmer) returns the verdict of the failed call. Imitates no published figure."""

CRASH_SHARE = 0.15
"""Share of wrong programs that raise instead of printing a wrong number, which a second try with
the error message can fix. Imitates no published figure."""

# Of a code task's wrong solutions, the least popular may be one that passes the public tests; the
# others fail them, where such mutants exist. Reflexion reports that 16.3 % of the MBPP solutions
# that passed their (self-written) tests were wrong, 1.4 % for HumanEval.


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


@cache
def _skill(accuracy: float, a: float, spread: float) -> float:
    """Find the skill whose mean P(right) over Normal(0, spread) difficulties is ``accuracy``."""
    low, high = -40.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_accuracy(middle, a, spread) < accuracy else (low, middle)
    return (low + high) / 2


def mean_accuracy(skill: float, a: float, spread: float) -> float:
    """Integrate sigmoid(a (skill - d)) over d ~ Normal(0, spread), by the trapezoid rule."""
    total = weight = 0.0
    for i in range(-160, 161):
        z = i / 20
        w = math.exp(-z * z / 2)
        total += w * _sigmoid(a * (skill - spread * z))
        weight += w
    return total / weight
