"""An attempt as the requests that it makes of large models: from a rollout's record, or from a
program that was only read; and attempts with other seconds or calls. Nothing is asked.
"""

import ast
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EXECUTOR, JUDGE = "executor", "judge"

_ASKS_NOBODY = frozenset({"test"})


@dataclass(frozen=True, slots=True)
class Request:
    """A call of a large model: whose, and how long it took a server."""

    role: str
    seconds: float


Wave = tuple[tuple[Request, ...], ...]
"""Chains of requests that begin together; a chain's requests wait for each other."""
Attempt = tuple[Wave, ...]
"""Each wave waits for the whole of the one before."""


def requests_of(attempts: Sequence[Attempt], role: str) -> list[Request]:
    """All of a role's."""
    return [
        r for attempt in attempts for wave in attempt for chain in wave for r in chain
        if r.role == role
    ]  # fmt: skip


def attempt_of(record: Mapping[str, Any]) -> Attempt:
    """A rollout's record as requests. Operator calls that overlapped are a wave; those of a judge
    come last, one after another, and share what the verdict took, waiting included."""
    calls = sorted(
        (call for call in (record.get("execution") or {}).get("trace") or () if call["exchanges"]),
        key=lambda call: call["started"],
    )
    waves: list[list[tuple[Request, ...]]] = []
    until = -1.0
    for call in calls:
        if call["started"] >= until:
            waves.append([])
        waves[-1].append(tuple(Request(EXECUTOR, e["seconds"]) for e in call["exchanges"]))
        until = max(until, call["started"] + call["seconds"])
    verdict = record.get("verdict") or {}
    judged = (verdict.get("usage") or {}).get("calls", 0)
    if judged:
        waves.append([(Request(JUDGE, verdict["seconds"] / judged),) * judged])
    return tuple(map(tuple, waves))


def attempt_read(
    program: str, operators: frozenset[str], judges: int, rng: random.Random
) -> Attempt | None:
    """What a program asks if every loop goes to its end, every branch is taken and an operator asks
    once, and then so many judges: seconds drawn from an exponential distribution of mean 1. None
    for a text that is no program."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError):
        return None

    def request(role: str) -> tuple[Request]:
        return (Request(role, rng.expovariate(1.0)),)

    widths = _widths(tree, operators - _ASKS_NOBODY)
    executed = [tuple(request(EXECUTOR) for _ in range(width)) for width in widths]
    return (*executed, tuple(request(JUDGE) for _ in range(judges)))


def _widths(node: ast.AST, operators: frozenset[str]) -> list[int]:
    """How many calls each wave of a syntax tree has; a comprehension's go out together."""
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        times = _times(node.generators[0].iter)
        return [times * width for width in _widths(node.elt, operators)]
    if isinstance(node, ast.For):
        body = [width for inner in node.body for width in _widths(inner, operators)]
        return body * _times(node.iter)
    inner = [w for child in ast.iter_child_nodes(node) for w in _widths(child, operators)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return [*inner, 1] if node.func.id in operators else inner
    return inner


def _times(iterated: ast.expr) -> int:
    """Of ``range(n)``; 1 for what is not known from the text."""
    match iterated:
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(count))]):
            return max(0, count)
        case _:
            return 1


def in_series(calls: Sequence[float], rng: random.Random) -> Attempt:
    """An attempt of which only the numbers of calls are known, the executor's and the judge's: one
    after another, as :func:`attempt_read` times them. Fractions are drawn."""
    return tuple(
        ((Request(role, rng.expovariate(1.0)),),)
        for role, mean in zip((EXECUTOR, JUDGE), calls, strict=True)
        for _ in range(int(mean + rng.random()))
    )


def scaled(attempts: Sequence[Attempt], means: Mapping[str, float]) -> list[Attempt]:
    """The attempts with their requests' seconds multiplied, so that each role's mean is that."""
    factors: dict[str, float] = {}
    for role, mean in means.items():
        some = requests_of(attempts, role)
        if total := sum(request.seconds for request in some):
            factors[role] = mean * len(some) / total
    return _changed(attempts, lambda r: Request(r.role, r.seconds * factors.get(r.role, 1.0)))


def with_calls(attempts: Sequence[Attempt], calls: Mapping[str, float]) -> list[Attempt]:
    """The attempts with their work as if each had so many calls of a role: where these differ from
    its own, all its seconds are as much longer or shorter."""
    means: dict[str, float] = {}
    for role, wanted in calls.items():
        some = requests_of(attempts, role)
        if some:
            mean = sum(request.seconds for request in some) / len(some)
            means[role] = mean * wanted * len(attempts) / len(some)
    return scaled(attempts, means)


def like_the_executor(attempts: Sequence[Attempt], seed: int = 0) -> list[Attempt]:
    """The attempts with a judge's seconds drawn from the executor's: those of verdicts hold waiting
    in our queue. As they are where there is no executor."""
    known = [request.seconds for request in requests_of(attempts, EXECUTOR)]
    if not known:
        return list(attempts)
    rng = random.Random(seed)
    return _changed(
        attempts, lambda r: r if r.role == EXECUTOR else Request(r.role, rng.choice(known))
    )


def _changed(attempts: Sequence[Attempt], change: Callable[[Request], Request]) -> list[Attempt]:
    return [
        tuple(tuple(tuple(map(change, chain)) for chain in wave) for wave in attempt)
        for attempt in attempts
    ]
