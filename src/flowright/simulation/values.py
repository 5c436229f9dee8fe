"""Answers as values: the final one in a text, comparison, and the popular wrong answers of a task.

Good enough for the simulator's own answers; :mod:`flowright.grading` grades others.
"""

import ast
import asyncio
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice

from flowright.data.task import Problem
from flowright.llm.replies import boxed
from flowright.sandbox import Limits, Sandbox
from flowright.simulation.draws import unit

_TAGGED = re.compile(r"<(?:final_)?answer>(.*?)</(?:final_)?answer>", re.I | re.S)
_CLOSED = re.compile(r"</(?:final_)?answer>", re.I)
_MARKED = re.compile(r"(?:^|\n)[ \t>*#_-]*(?:final\s+)?answer[ \t*_]*[:：][ \t*_]*(.+)", re.I)
_SAID = re.compile(r"\banswer is:?\s*(.+?)(?:\.\s|\.$|\n|$)", re.I)
_HASHES = re.compile(r"####\s*(.+)")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?|[-+]?\.\d+")
_LABEL = re.compile(r"^\(?([A-Z])(?:\)|[.:]\s|[.:]?$)")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NOT_WORD = re.compile(r"[^\w\s.+/-]")
_SWAPS = (
    ("yes", "no"), ("true", "false"), ("left", "right"), ("knight", "knave"), ("up", "down"),
    ("north", "south"), ("east", "west"), ("before", "after"), ("odd", "even"),
)  # fmt: skip


def _last_closed(text: str) -> int:
    """Return the end of the last tag that closes an answer; later ones are never closed."""
    return max((closing.end() for closing in _CLOSED.finditer(text)), default=0)


def final_answer(text: str) -> str:
    """Return the answer that a reply ends in: boxed, tagged, marked, in a sentence, or the last
    line."""
    if inside := boxed(text):
        return inside.strip()
    for pattern in (_TAGGED, _MARKED, _HASHES, _SAID):
        end = _last_closed(text) if pattern is _TAGGED else len(text)
        if found := pattern.findall(text[:end]):
            return found[-1].strip().strip("*_$ ").rstrip(".")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].strip("*_$ ") if lines else ""


def number(text: str) -> Fraction | None:
    """Return the last number in a text."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    try:
        return Fraction(found[-1].replace(",", "").replace(" ", ""))
    except (ValueError, ZeroDivisionError):
        return None


def normal_text(text: str) -> str:
    text = _NOT_WORD.sub(" ", text.lower())
    return " ".join(_ARTICLES.sub(" ", text).split()).strip(". ")


def is_number(text: str) -> bool:
    bare = text.strip().strip("$%").replace(" ", "")
    return bool(bare) and _NUMBER.fullmatch(bare) is not None


def is_same(given: str, references: Sequence[str], choices: Sequence[tuple[str, str]] = ()) -> bool:
    """Return whether ``given`` equals one of ``references`` as number, label or text."""
    text = normal_text(given)
    for reference in references:
        if text and text == normal_text(reference):
            return True
        if is_number(reference) and number(given) == number(reference):
            return True
    labels = dict(choices)
    if labels and references[0] in labels:
        found = _LABEL.match(given.strip())
        if found:
            return found[1] == references[0]
        return bool(text) and text == normal_text(labels[references[0]])
    return False


def ends_in(text: str, references: Sequence[str], choices: Sequence[tuple[str, str]] = ()) -> bool:
    """Return whether a reply ends in one of ``references``, or is one of them."""
    whole = normal_text(text)
    return is_same(final_answer(text), references, choices) or (
        bool(whole) and whole in map(normal_text, references)
    )


def right_value(task: Problem, text: str) -> bool:
    """Return whether the final answer of a text is the task's."""
    return ends_in(text, (task.reference, *task.alternatives), task.choices)


def wrong_values(task: Problem, pool: Sequence[str], seed: int, count: int) -> tuple[str, ...]:
    """Return a task's popular wrong answers, the most popular first, fixed by the seed and the
    task. ``pool`` holds answers to other tasks of the same source."""
    if task.choices:
        candidates = [label for label, _ in task.choices if label != task.reference]
        candidates.sort(key=lambda label: unit(seed, task.id, "popular", label))
    else:
        candidates = [*_swapped(task.reference), *_perturbed(task, seed)]
        if not is_number(task.reference):
            others = sorted(set(pool), key=lambda other: unit(seed, task.id, "popular", other))
            candidates += others[:12]
    distinct: dict[str, str] = {}
    for candidate in candidates:
        if candidate.strip() and not right_value(task, candidate):
            distinct.setdefault(normal_text(candidate), candidate)
    found = tuple(distinct.values())[:count]
    return found or ("unknown",)


def _swapped(reference: str) -> list[str]:
    """Return the opposite of the answer, if it has one."""
    for one, other in _SWAPS:
        pattern = re.compile(rf"\b(?:{one}|{other})", re.I)
        if pattern.search(reference):
            return [pattern.sub(lambda m, a=one, b=other: _swap_word(m[0], a, b), reference, 1)]
    return []


def _swap_word(word: str, one: str, other: str) -> str:
    new = other if word.lower() == one else one
    return new.capitalize() if word[0].isupper() else new


def _perturbed(task: Problem, seed: int) -> list[str]:
    """Return the reference with one number changed by a typical mistake, or two items of a list
    exchanged."""
    reference = task.reference
    results: list[str] = []
    found = list(re.finditer(r"\d+(?:\.\d+)?", reference))
    if found:
        spot = found[int(unit(seed, task.id, "spot") * len(found))]
        results = [
            reference[: spot.start()] + new + reference[spot.end() :]
            for new in _near(spot[0], task, seed)
        ]
    parts = reference.split(", ")
    if len(parts) > 1:
        for index in range(min(len(parts) - 1, 3)):
            swapped = [*parts]
            swapped[index], swapped[index + 1] = swapped[index + 1], swapped[index]
            results.append(", ".join(swapped))
    return results


def _near(digits: str, task: Problem, seed: int) -> list[str]:
    _, dot, decimals = digits.partition(".")
    step = 10 ** len(decimals)
    value = int(digits.replace(".", ""))
    others = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", task.question)][:6]
    changes = [value + step, value - step, value * 2, value + 10 * step, value - 10 * step]
    changes += [value // 2, value + 2 * step, *(value + step * n for n in others)]
    changes += [value - step * n for n in others] + [int(str(value)[::-1])]
    distinct = [n for n in dict.fromkeys(changes) if n >= 0 and n != value]
    distinct.sort(key=lambda n: unit(seed, task.id, "near", n))
    return [f"{n // step}.{n % step:0{len(decimals)}d}" if dot else str(n) for n in distinct[:6]]


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

    They are small mutations of the reference, run against its tests in the sandbox at first use.
    The last may pass the public tests though it fails the hidden ones; the others fail both, if
    such mutants exist (and there are public tests).
    """

    def __init__(self, sandbox: Sandbox, seed: int, count: int) -> None:
        self._sandbox = sandbox
        self._seed = seed
        self._count = count
        self._found: dict[str, asyncio.Task[tuple[str, ...]]] = {}

    async def of(self, task: Problem) -> tuple[str, ...]:
        """Return at least one wrong solution. Raises FailureError(SANDBOX_LOST)."""
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
        """Run a mutant's tests; one that times out passes, since it would slow every later test."""
        report = await self._sandbox.check(
            mutant, task.test_setup, tests, task.entry_point, _LIMITS, reference=task.reference
        )
        return report.passed or report.status in ("timeout", "memory")


def stub(task: Problem) -> str:
    """Return a solution that raises, for tasks of which no mutant fails."""
    return f"def {task.entry_point or 'solution'}(*args, **kwargs):\n    raise NotImplementedError"


def shape(code: str) -> str | None:
    """Return a program's structure without comments, layout and docstrings; None if it is no
    Python, nests too deeply, or is longer than :data:`LONGEST`."""
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
    """Yield programs that differ from ``code`` in one small place, none twice, in an order drawn
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
    """Change a node in place in one of at most two ways; return False if it has no such way."""
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
