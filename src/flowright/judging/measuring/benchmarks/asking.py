"""Asking about all rows, so many at once; what was said is kept as it comes."""

import asyncio
from collections.abc import Callable

from flowright.core.batch_calls import ServerDown
from flowright.core.errors import RunError
from flowright.judging.measuring.benchmarks.contenders import Contender
from flowright.judging.measuring.benchmarks.ledger import Ledger
from flowright.judging.measuring.benchmarks.sheet import R, Sheet

_PATIENCE = 20  # failures in a row from the start after which a judge counts as down


async def ask_all(
    contender: Contender,
    sheet: Sheet[R],
    ledger: Ledger | None,
    concurrency: int,
    tell: Callable[[], None] = lambda: None,
) -> dict[str, R]:
    """What the contender says of every row, by key. What the ledger has is not asked again; a row
    that failed is not kept, so that the next call asks about it. ``tell`` is called as each comes.

    Raises ServerDown where the first rows fail, one and all, RunError for a ledger that holds
    something else.
    """
    said = {} if ledger is None else _kept(sheet, ledger)
    waiting = iter([key for key in sheet.keys if key not in said])
    left = len(sheet.keys) - len(said)
    failures, was_reached = 0, bool(said)

    async def work() -> None:
        nonlocal failures, was_reached
        for key in waiting:
            answer = await sheet.ask(contender, key)
            said[key] = answer
            tell()
            if not sheet.failed(answer):
                was_reached = True
                if ledger is not None:
                    ledger.put(key, sheet.encode(answer))
            elif not was_reached:
                failures += 1
                if failures >= min(_PATIENCE, left):
                    raise _down(contender, sheet, answer, failures)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, left)):
                group.create_task(work())
    except* ServerDown as several:
        raise several.exceptions[0] from None
    return {key: said[key] for key in sheet.keys}


def _kept(sheet: Sheet[R], ledger: Ledger) -> dict[str, R]:
    try:
        return {key: sheet.decode(ledger.said[key]) for key in sheet.keys if key in ledger.said}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"{ledger.path}: what was said cannot be read ({type(error).__name__}: {error}); "
            "--overwrite starts again"
        ) from None


def _down(contender: Contender, sheet: Sheet[R], answer: R, failures: int) -> ServerDown:
    return ServerDown(
        f"judge {contender.name!r} gives no verdict: the first {failures} rows failed "
        f"({sheet.why(answer)[:300]})",
        "start its server, or check its address in the LLM file; nothing was measured",
    )
