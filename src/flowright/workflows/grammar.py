"""Workflows drawn from a grammar: the cold start of the embedded policy, and the fixed baselines.

A shape is a way of combining operators. It applies to a kind of problem when the documentation of
every operator in it names that kind; nothing here knows which shape pays.
"""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from flowright.data.task import KINDS, Kind
from flowright.workflows.operators import OPERATORS


@dataclass(frozen=True, slots=True)
class Shape:
    """One way of combining operators. ``body`` holds the lines of ``async def workflow(problem)``
    with ``<name>`` for what varies; ``slots`` gives the values of each, the first of which makes
    the canonical program. ``<0>``, ``<1>`` stand for variable names, drawn from ``NAMES``."""

    body: str
    slots: Mapping[str, tuple[str, ...]]
    names: tuple[str, ...] = ()

    @property
    def operators(self) -> frozenset[str]:
        return frozenset(re.findall(r"\b\w+(?=\()", self.body)).intersection(OPERATORS)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds for which all its operators are documented."""
        return tuple(k for k in KINDS if all(k in OPERATORS[o].kinds for o in self.operators))

    def program(self, choose: Callable[[tuple[str, ...]], str]) -> str:
        """A program of this shape; ``choose`` picks a value for each slot."""
        filled = {slot: choose(values) for slot, values in self.slots.items()}
        filled |= {str(i): choose(NAMES[role]) for i, role in enumerate(self.names)}
        lines = _SLOT.sub(lambda match: filled[match[1]], self.body).splitlines()
        return "\n".join(["async def workflow(problem):", *(f"    {line}" for line in lines)])


_SLOT = re.compile(r"<(\w+)>")

# What a variable of a role is called; no operator has such a name. One name each: a model of this
# size spends its cold start on learning to copy a name that was drawn, not on reading the problem.
NAMES: Mapping[str, tuple[str, ...]] = {
    "result": ("result",),
    "draft": ("draft",),
    "code": ("code",),
    "many": ("samples",),
    "outcome": ("outcome",),
    "feedback": ("feedback",),
}
_INSTRUCTIONS = (
    "Give only the final answer.",
    "Answer the problem.",
    "Reply with the answer only.",
)
_FEW = ("3", "2", "4", "5")
_ROUNDS = ("2", "1", "3")

SHAPES: Mapping[str, Shape] = {
    "direct": Shape(
        'return await generate("<instruction>", problem)',
        {"instruction": _INSTRUCTIONS},
    ),
    "step_by_step": Shape("return await answer(problem)", {}),
    "answer_format": Shape(
        "<0> = await answer(problem)\nreturn await format(problem, <0>)", {}, ("result",)
    ),
    "direct_format": Shape(
        '<0> = await generate("<instruction>", problem)\nreturn await format(problem, <0>)',
        {"instruction": _INSTRUCTIONS},
        ("result",),
    ),
    "self_consistency": Shape(
        "<0> = await asyncio.gather(*[answer(problem) for _ in range(<n>)])\n"
        "return await ensemble(problem, <0>)",
        {"n": ("5", "3", "4", "2")},
        ("many",),
    ),
    "direct_vote": Shape(
        '<0> = await asyncio.gather(*[generate("<instruction>", problem) for _ in range(<n>)])\n'
        "return await ensemble(problem, <0>)",
        {"instruction": _INSTRUCTIONS, "n": _FEW},
        ("many",),
    ),
    "answer_review_revise": Shape(
        "<0> = await answer(problem)\n"
        "<1> = await review(problem, <0>)\n"
        "return await revise(problem, <0>, <1>)",
        {},
        ("draft", "feedback"),
    ),
    "programmer": Shape("return await programmer(problem)", {}),
    "programmer_or_answer": Shape(
        "<0> = await programmer(problem)\nif not <0>:\n    <0> = await answer(problem)\nreturn <0>",
        {},
        ("result",),
    ),
    "programmer_vote": Shape(
        "<0> = await asyncio.gather(*[programmer(problem) for _ in range(<n>)])\n"
        "return await ensemble(problem, <0>)",
        {"n": ("3", "2")},
        ("many",),
    ),
    "write_code": Shape("return await write_code(problem)", {}),
    "write_test_revise": Shape(
        "<0> = await write_code(problem)\n"
        "for _ in range(<rounds>):\n"
        "    <1> = await test(<0>)\n"
        '    if <1>["passed"]:\n'
        "        break\n"
        '    <0> = await revise(problem, <0>, <1>["feedback"])\n'
        "return <0>",
        {"rounds": _ROUNDS},
        ("code", "outcome"),
    ),
    "write_test_rewrite": Shape(
        "<0> = await write_code(problem)\n"
        "<1> = await test(<0>)\n"
        'if not <1>["passed"]:\n'
        '    <0> = await write_code(problem, <1>["feedback"])\n'
        "return <0>",
        {},
        ("code", "outcome"),
    ),
    "write_review_revise": Shape(
        "<0> = await write_code(problem)\n"
        "<1> = await review(problem, <0>)\n"
        "return await revise(problem, <0>, <1>)",
        {},
        ("code", "feedback"),
    ),
    "write_vote": Shape(
        "<0> = await asyncio.gather(*[write_code(problem) for _ in range(<n>)])\n"
        "return await ensemble(problem, <0>)",
        {"n": ("3", "2", "4")},
        ("many",),
    ),
}


@cache
def shapes_for(kind: Kind) -> tuple[str, ...]:
    """Names of the shapes that apply to a kind of problem."""
    return tuple(name for name, shape in SHAPES.items() if kind in shape.kinds)


def draw_program(kind: Kind, rng: random.Random) -> str:
    """A random valid workflow: uniform over the shapes that apply to ``kind``, then over what
    varies within the shape."""
    shape = SHAPES[rng.choice(shapes_for(kind))]
    return shape.program(rng.choice)


def fixed_workflows(kind: Kind | None = None) -> dict[str, str]:
    """One canonical program per shape, by name; of the shapes that apply to ``kind``, if given."""
    names = SHAPES if kind is None else shapes_for(kind)
    return {name: SHAPES[name].program(lambda values: values[0]) for name in names}


def self_consistency(samples: int) -> str:
    """The vote over ``samples`` answers: the baseline at any number of tokens."""
    return SHAPES["self_consistency"].program(
        lambda values: str(samples) if values[0].isdigit() else values[0]
    )
