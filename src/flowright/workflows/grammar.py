"""Workflows drawn from a grammar: the cold start of the embedded policy, and the fixed baselines.

A shape is a way of combining operators. It applies to a kind of problem when the documentation of
every operator in it names that kind; nothing here knows which shape pays. Operators of a user's own
are in none, but for those that end a workflow: these stand behind any shape.
"""

import ast
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from types import MappingProxyType

from flowright.data.task import KINDS, Kind
from flowright.workflows.language import nodes, parse
from flowright.workflows.operators import OPERATORS


@dataclass(frozen=True, slots=True)
class Shape:
    """One way of combining operators. ``body`` holds the lines of ``async def workflow(problem)``
    with ``<name>`` for what varies; ``slots`` gives the values of each, the first of which makes
    the canonical program. Variables have one name each: a model of the embedded policy's size
    would spend its cold start on learning to copy a name that was drawn."""

    body: str
    slots: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def operators(self) -> frozenset[str]:
        return frozenset(re.findall(r"\b\w+(?=\()", self.body)).intersection(OPERATORS)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds for which all its operators are documented."""
        return tuple(k for k in KINDS if all(k in OPERATORS[o].kinds for o in self.operators))

    def program(self, values: Mapping[str, str] = MappingProxyType({})) -> str:
        """A program of this shape with these values in its slots, the first one in the others."""
        filled = {slot: values.get(slot, known[0]) for slot, known in self.slots.items()}
        lines = _SLOT.sub(lambda match: filled[match[1]], self.body).splitlines()
        return "\n".join(["async def workflow(problem):", *(f"    {line}" for line in lines)])


_SLOT = re.compile(r"<(\w+)>")

_INSTRUCTIONS = "Give only the final answer.", "Answer the problem.", "Reply with the answer only."

SHAPES: Mapping[str, Shape] = {
    "direct": Shape(
        'return await generate("<instruction>", problem)', {"instruction": _INSTRUCTIONS}
    ),
    "step_by_step": Shape("return await answer(problem)"),
    "answer_format": Shape("result = await answer(problem)\nreturn await format(problem, result)"),
    "direct_format": Shape(
        'result = await generate("<instruction>", problem)\nreturn await format(problem, result)',
        {"instruction": _INSTRUCTIONS},
    ),
    "self_consistency": Shape(
        "samples = await asyncio.gather(*[answer(problem) for _ in range(<n>)])\n"
        "return await ensemble(problem, samples)",
        {"n": ("5", "3", "4", "2")},
    ),
    "direct_vote": Shape(
        "samples = await asyncio.gather("
        '*[generate("<instruction>", problem) for _ in range(<n>)])\n'
        "return await ensemble(problem, samples)",
        {"instruction": _INSTRUCTIONS, "n": ("3", "2", "4", "5")},
    ),
    "answer_review_revise": Shape(
        "draft = await answer(problem)\n"
        "feedback = await review(problem, draft)\n"
        "return await revise(problem, draft, feedback)"
    ),
    "programmer": Shape("return await programmer(problem)"),
    "programmer_or_answer": Shape(
        "result = await programmer(problem)\n"
        "if not result:\n"
        "    result = await answer(problem)\n"
        "return result"
    ),
    "programmer_vote": Shape(
        "samples = await asyncio.gather(*[programmer(problem) for _ in range(<n>)])\n"
        "return await ensemble(problem, samples)",
        {"n": ("3", "2")},
    ),
    "write_code": Shape("return await write_code(problem)"),
    "write_test_revise": Shape(
        "code = await write_code(problem)\n"
        "for _ in range(<rounds>):\n"
        "    outcome = await test(code)\n"
        '    if outcome["passed"]:\n'
        "        break\n"
        '    code = await revise(problem, code, outcome["feedback"])\n'
        "return code",
        {"rounds": ("2", "1", "3")},
    ),
    "write_test_rewrite": Shape(
        "code = await write_code(problem)\n"
        "outcome = await test(code)\n"
        'if not outcome["passed"]:\n'
        '    code = await write_code(problem, outcome["feedback"])\n'
        "return code"
    ),
    "write_review_revise": Shape(
        "code = await write_code(problem)\n"
        "feedback = await review(problem, code)\n"
        "return await revise(problem, code, feedback)"
    ),
    "write_vote": Shape(
        "samples = await asyncio.gather(*[write_code(problem) for _ in range(<n>)])\n"
        "return await ensemble(problem, samples)",
        {"n": ("3", "2", "4")},
    ),
}


BRANCHING: Mapping[str, Shape] = {
    "agree_or_vote": Shape(
        "if entry_point:\n"
        "    code = await write_code(problem)\n"
        "    outcome = await test(code)\n"
        '    return code if outcome["passed"] else await write_code(problem, outcome["feedback"])\n'
        "results = await asyncio.gather(answer(problem), answer(problem))\n"
        'if " ".join(results[0].split()) == " ".join(results[1].split()):\n'
        "    return results[0]\n"
        "more = await asyncio.gather(*[answer(problem) for _ in range(3)])\n"
        "return await ensemble(problem, [*results, *more])"
    ),
    "cheap_then_careful": Shape(
        "if entry_point:\n"
        "    code = await write_code(problem)\n"
        "    for _ in range(2):\n"
        "        outcome = await test(code)\n"
        '        if outcome["passed"]:\n'
        "            break\n"
        '        code = await revise(problem, code, outcome["feedback"])\n'
        "    return code\n"
        "result = await answer(problem)\n"
        'if re.fullmatch(r"[-+$]?[0-9][0-9.,/]*[ %]*", result.strip()):\n'
        "    computed = await programmer(problem)\n"
        "    if computed:\n"
        "        return computed\n"
        "feedback = await review(problem, result)\n"
        'if re.search("incorrect|wrong|mistake|error", feedback.lower()):\n'
        "    results = await asyncio.gather(*[answer(problem) for _ in range(2)])\n"
        "    return await ensemble(problem, [result, *results])\n"
        "return result"
    ),
}
"""Baselines whose steps depend on the problem and on the replies. No policy is shown them."""


@cache
def shapes_for(kind: Kind) -> tuple[str, ...]:
    """Names of the shapes that apply to a kind of problem."""
    return tuple(name for name, shape in SHAPES.items() if kind in shape.kinds)


@cache
def programs_for(kind: Kind) -> tuple[str, ...]:
    """Every program of the shapes that apply to a kind of problem."""
    return tuple(
        shape.program(dict(zip(shape.slots, values, strict=True)))
        for shape in map(SHAPES.__getitem__, shapes_for(kind))
        for values in product(*shape.slots.values())
    )


def random_weights(seed: str, spread: float = 3.0) -> dict[str, float]:
    """Weights of all shapes from 1 / ``spread`` to ``spread``, uniform in their logarithm and the
    same for the same seed: a taste that is blind to what pays."""
    rng = random.Random(seed)
    return {name: spread ** rng.uniform(-1.0, 1.0) for name in SHAPES}


ENDED = (0.2, 0.6, 0.2)
"""Shares of the programs that are drawn with no, one and two operators at their end, where there
are some that end a workflow."""


def draw_program(
    kind: Kind,
    rng: random.Random,
    endings: Sequence[str] = (),
    weights: Mapping[str, float] | None = None,
) -> str:
    """One of the programs that suit ``kind``, each as likely; with ``weights`` of shapes, one of a
    shape that was drawn by them. ``endings``: names of operators that end a workflow, each as
    likely as the others to stand behind it."""
    if weights is None:
        program = rng.choice(programs_for(kind))
    else:
        names = shapes_for(kind)
        (name,) = rng.choices(names, [weights[each] for each in names])
        shape = SHAPES[name]
        program = shape.program({slot: rng.choice(known) for slot, known in shape.slots.items()})
    if not endings:
        return program
    (count,) = rng.choices(range(len(ENDED)), ENDED)
    return with_endings(program, rng.sample(endings, min(count, len(endings))))


def with_endings(program: str, endings: Sequence[str]) -> str:
    """A program of a shape that hands what it would return to these operators, one after the other,
    and returns what the last one gives."""
    if not endings:
        return program
    head, _, value = program.rpartition(_RETURN)
    if value != "result":
        head += f"\n    result = {value}"
    for name in endings[:-1]:
        head += f"\n    result = await {name}(result)"
    return f"{head}{_RETURN}await {endings[-1]}(result)"


_RETURN = "\n    return "


def name_models(program: str, draw: Callable[[], str]) -> str:
    """Return a program that names in each of its calls the model that ``draw`` returns for it."""
    lines = program.split("\n")
    calls = [
        node
        for node in nodes(parse(program))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in OPERATORS and OPERATORS[node.func.id].llm_calls != "0"
    ]
    for node in sorted(calls, key=lambda n: (n.end_lineno or 0, n.end_col_offset or 0))[::-1]:
        number, column = (node.end_lineno or 1) - 1, (node.end_col_offset or 1) - 1
        argument = f', model="{draw()}"'
        lines[number] = lines[number][:column] + argument + lines[number][column:]
    return "\n".join(lines)


def cascade(labels: Sequence[str]) -> str:
    """Return a program that goes through models, the first one first: to the next where tests fail
    or two answers differ. The last one is believed."""
    *before, last = labels
    return _CASCADE.format(before=", ".join(f'"{label}"' for label in before), last=last)


_CASCADE = """\
async def workflow(problem):
    for name in [{before}]:
        if entry_point:
            code = await write_code(problem, model=name)
            outcome = await test(code, model=name)
            if outcome["passed"]:
                return code
        else:
            results = await asyncio.gather(*[answer(problem, model=name) for _ in range(2)])
            if " ".join(results[0].split()) == " ".join(results[1].split()):
                return results[0]
    if entry_point:
        return await write_code(problem, model="{last}")
    return await answer(problem, model="{last}")"""


def fixed_workflows(kind: Kind | None = None) -> dict[str, str]:
    """One canonical program per shape, by name; of the shapes that apply to ``kind``, if given."""
    names = SHAPES if kind is None else shapes_for(kind)
    return {name: SHAPES[name].program() for name in names}


def branching_workflows() -> dict[str, str]:
    """The programs of :data:`BRANCHING`, by name."""
    return {name: shape.program() for name, shape in BRANCHING.items()}


def branches(program: str) -> bool:
    """Return whether a program, which parses, has a condition."""
    conditions = ast.If | ast.IfExp | ast.While | ast.Match
    return any(isinstance(node, conditions) for node in nodes(parse(program)))


def self_consistency(samples: int) -> str:
    """The vote over ``samples`` answers: the baseline at any number of tokens."""
    return SHAPES["self_consistency"].program({"n": str(samples)})
