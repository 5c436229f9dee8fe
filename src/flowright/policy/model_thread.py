"""The one thread on which models compute, beside the event loop.

On a CPU each thread allocates tensors from an arena of its own, which keeps freed memory (glibc's
malloc; figures in docs/lab_notebook.md): a second thread would double the memory of an update or of
a batch of samples. asyncio's executor has several threads, and gives work to any of them.
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
    """Return the result of ``work``, run after all earlier work. It must not wait for more such
    work. A cancelled caller does not wait for running work."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread, partial(work, *args, **named))
