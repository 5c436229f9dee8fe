"""How long a batch of attempts waits for large models: attempts of a record, or of programs that
were only read, put through the run's request slots again. A queue on paper; nothing is asked.
"""

import ast
import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EXECUTOR, JUDGE = "executor", "judge"
DRAWS = 8
"""Batches that are drawn for one figure."""

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


@dataclass(slots=True)
class _Running:
    """An attempt under way: its waves to come, and the chains of this one that are not done."""

    waves: Iterator[Wave]
    chains: int = 0


def replayed(attempts: Sequence[Attempt], slots: Mapping[str, int], seed: int = 0) -> float:
    """Seconds until the last of the attempts is done, when all begin at once, at most ``slots`` of
    a pool's requests are with its servers, and the others wait in the order in which they came.

    ``slots`` has a role's number; roles that share a pool (one model that answers and judges) are
    one key, joined by ``+``. Our own computing takes no time here. ``seed`` draws the order.
    """
    pool_of = {role: pool for pool in slots for role in pool.split("+")}
    free = dict(slots)
    waiting: dict[str, deque[tuple[Request, _Running, Iterator[Request]]]] = {
        pool: deque() for pool in slots
    }
    ends: list[tuple[float, int, str, _Running, Iterator[Request]]] = []
    now, begun = 0.0, 0

    def go_on(running: _Running, chain: Iterator[Request]) -> None:
        request = next(chain, None)
        if request is not None:
            waiting[pool_of[request.role]].append((request, running, chain))
            return
        running.chains -= 1
        if running.chains <= 0:
            next_wave(running)

    def next_wave(running: _Running) -> None:
        wave = next(running.waves, ())
        running.chains = len(wave)
        for chain in wave:
            go_on(running, iter(chain))

    for attempt in random.Random(seed).sample(attempts, len(attempts)):
        next_wave(_Running(iter(attempt)))
    while True:
        for pool, queue in waiting.items():
            while queue and free[pool]:
                request, running, chain = queue.popleft()
                free[pool] -= 1
                begun += 1
                heapq.heappush(ends, (now + request.seconds, begun, pool, running, chain))
        if not ends:
            return now
        now, _, pool, running, chain = heapq.heappop(ends)
        free[pool] += 1
        go_on(running, chain)


def drawn(attempts: Sequence[Attempt], count: int, seed: int) -> list[Attempt]:
    """``count`` of them, with replacement."""
    return random.Random(seed).choices(attempts, k=count)


def batch_seconds(attempts: Sequence[Attempt], count: int, slots: Mapping[str, int]) -> float:
    """Mean of :func:`replayed` over DRAWS batches of ``count`` attempts like these."""
    each = [replayed(drawn(attempts, count, seed), slots, seed) for seed in range(DRAWS)]
    return sum(each) / len(each)


def busy_seconds(attempts: Sequence[Attempt], count: int, slots: Mapping[str, int]) -> float:
    """Seconds for which ``count`` attempts like these keep all slots of the busiest pool: calls x
    mean seconds / slots. No schedule is faster."""
    work = {
        pool: sum(r.seconds for role in pool.split("+") for r in requests_of(attempts, role))
        for pool in slots
    }
    return max(work[pool] * count / len(attempts) / slots[pool] for pool in slots)


def requests_of(attempts: Sequence[Attempt], role: str) -> list[Request]:
    """All of a role's."""
    return [
        r for attempt in attempts for wave in attempt for chain in wave for r in chain
        if r.role == role
    ]  # fmt: skip


def scaled(attempts: Sequence[Attempt], means: Mapping[str, float]) -> list[Attempt]:
    """The attempts with their requests' seconds multiplied, so that each role's mean is that."""
    factors: dict[str, float] = {}
    for role, mean in means.items():
        some = requests_of(attempts, role)
        if total := sum(request.seconds for request in some):
            factors[role] = mean * len(some) / total
    return _changed(attempts, lambda r: Request(r.role, r.seconds * factors.get(r.role, 1.0)))


def _changed(attempts: Sequence[Attempt], change: Callable[[Request], Request]) -> list[Attempt]:
    return [
        tuple(tuple(tuple(map(change, chain)) for chain in wave) for wave in attempt)
        for attempt in attempts
    ]


def in_series(calls: Sequence[float], rng: random.Random) -> Attempt:
    """An attempt of which only the numbers of calls are known, the executor's and the judge's: one
    after another, as :func:`attempt_read` times them. Fractions are drawn."""
    return tuple(
        ((Request(role, rng.expovariate(1.0)),),)
        for role, mean in zip((EXECUTOR, JUDGE), calls, strict=True)
        for _ in range(int(mean + rng.random()))
    )


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
