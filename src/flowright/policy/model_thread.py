"""The one thread on which models compute, beside the event loop.

On a CPU a thread's tensors come from an arena of its own, which keeps what it frees (glibc's
malloc; the figures are in docs/lab_notebook.md). So a second thread takes the memory of an update
or of a wave of samples once more, and on one thread whatever comes next takes what is there. An
executor of asyncio has several, and gives work to any of them.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_thread = ThreadPoolExecutor(1, "model")


async def on_model_thread(work: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
    """What ``work`` gives, behind all that was asked for before. It must not wait for more such
    work. A caller that is cancelled does not wait for what has begun."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, partial(work, *args, **named))
