"""Wrong solutions of code tasks: small mutations of the reference that really fail its tests.

Each is run against the hidden tests in the sandbox before it is used, and against the public ones
to know whether they catch it. Found on first need and kept in memory.
"""

import ast
import asyncio
from collections.abc import Iterator
from itertools import islice

from flowright.data.task import Problem
from flowright.sandbox import Limits, Sandbox
from flowright.simulation.draws import unit

_TRIES = 16  # mutants run per task at most
LONGEST = 20_000  # characters of a program; Python's own parser is not linear
_LIMITS = Limits(cpu_seconds=0.4, wall_seconds=8.0)

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
}  # fmt: skip


_CHANGED = (
    ast.Compare, ast.BinOp, ast.BoolOp, ast.Constant, ast.Return, ast.If, ast.IfExp, ast.UnaryOp,
    ast.Call,
)  # fmt: skip

_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)


class WrongSolutions:
    """The popular wrong solutions of each code task, most popular first.

    The last of them may pass the public tests though it fails the hidden ones; the others fail
    both where such mutants exist (and there are public tests).
    """

    def __init__(self, sandbox: Sandbox, seed: int, count: int) -> None:
        self._sandbox = sandbox
        self._seed = seed
        self._count = count
        self._found: dict[str, asyncio.Task[tuple[str, ...]]] = {}

    async def of(self, task: Problem) -> tuple[str, ...]:
        """At least one wrong solution. Raises FailureError(SANDBOX_LOST) with the sandbox."""
        pending = self._found.get(task.id)
        if pending is None:
            pending = self._found[task.id] = asyncio.ensure_future(self._search(task))
            pending.add_done_callback(lambda done: self._forget_failure(task.id, done))
        return await asyncio.shield(pending)

    def _forget_failure(self, task_id: str, done: "asyncio.Task[tuple[str, ...]]") -> None:
        if done.cancelled() or done.exception() is not None:
            self._found.pop(task_id, None)

    async def _search(self, task: Problem) -> tuple[str, ...]:
        caught: list[str] = []
        uncaught: list[str] = []
        for mutant in islice(mutations(task.reference, self._seed, task.id), _TRIES):
            if await self._passes(task, mutant, task.tests):
                continue
            public = bool(task.public_tests) and await self._passes(task, mutant, task.public_tests)
            (uncaught if public else caught).append(mutant)
            if len(caught) >= self._count or (len(caught) == self._count - 1 and uncaught):
                break
        found = [*caught[: self._count - 1], *uncaught[:1]] if uncaught else caught
        return tuple(found or uncaught) or (stub(task),)

    async def _passes(self, task: Problem, mutant: str, tests: tuple[str, ...]) -> bool:
        """True also for a mutant that runs out of time: it would be slow to test ever after."""
        report = await self._sandbox.check(
            mutant, task.test_setup, tests, task.entry_point, limits=_LIMITS
        )
        return report.passed or report.status in ("timeout", "memory")


def stub(task: Problem) -> str:
    """A solution that gives up: for tasks of which no mutant fails."""
    return f"def {task.entry_point or 'solution'}(*args, **kwargs):\n    raise NotImplementedError"


def shape(code: str) -> str | None:
    """A program's structure without comments, layout and docstrings; None if it is no Python, nests
    without end, or is longer than :data:`LONGEST`."""
    if len(code) > LONGEST:
        return None
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    try:
        return ast.dump(tree)
    except RecursionError:
        return None


def mutations(code: str, *rank: object) -> Iterator[str]:
    """Programs that differ from ``code`` in one small place, none twice, in an order that is drawn
    from ``rank``."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return
    seen = {ast.unparse(tree)}
    places = [
        (site, variant)
        for site, node in enumerate(ast.walk(tree))
        if isinstance(node, _CHANGED)
        for variant in (0, 1)
    ]
    places.sort(key=lambda place: unit(*rank, *place))
    for site, variant in places:
        changed = ast.parse(code)
        node = next(islice(ast.walk(changed), site, None))
        if not _change(node, variant):
            continue
        text = ast.unparse(ast.fix_missing_locations(changed))
        if text not in seen:
            seen.add(text)
            yield text


def _change(node: ast.AST, variant: int) -> bool:
    """Change a node in place, in one of at most two ways; False where there is no such way."""
    match node, variant:
        case ast.Compare(ops=[op, *_]), 0 if type(op) in _COMPARISONS:
            node.ops[0] = _COMPARISONS[type(op)]()
        case ast.BinOp(op=op), 0 if type(op) in _OPERATORS:
            node.op = _OPERATORS[type(op)]()
        case ast.BoolOp(op=op), 0:
            node.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.Constant(value=bool(value)), 0:
            node.value = not value
        case ast.Constant(value=int(value)), _ if not isinstance(value, bool):
            node.value = value + (1 if variant == 0 else -1)
        case ast.Return(value=ast.expr()), 0:
            node.value = ast.Constant(None)
        case ((ast.If(test=test) | ast.IfExp(test=test)), 0):
            node.test = ast.UnaryOp(ast.Not(), test)
        case ast.UnaryOp(op=ast.USub()), 0:
            node.op = ast.UAdd()
        case ast.UnaryOp(op=ast.Not(), operand=operand), 0:
            node.operand = ast.UnaryOp(ast.Not(), operand)
        case ast.Call(keywords=[*_, _]), 0:  # sorted(x, reverse=True) loses a keyword
            node.keywords.pop()
        case ast.Call(func=ast.Name(id="range"), args=[*_, last]), 1 if len(node.args) <= 2:
            node.args[-1] = ast.BinOp(last, ast.Sub(), ast.Constant(1))
        case _:
            return False
    return True
