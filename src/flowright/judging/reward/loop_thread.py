"""An event loop on a thread of its own, and waiting for it that always ends. Knows no judges."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from typing import Any, TypeVar

import uvloop

Answer = TypeVar("Answer")

CLOSING_SECONDS = 5.0  # for what is under way when the thread is to end
_LOOK_SECONDS = 0.5  # between two looks at whether there is still something to wait for


class LoopThread:
    """Does not keep the process alive. ``moved_at`` is when something was finished last, by
    ``time.monotonic()``; :meth:`moved` says that it was now."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="judge-reward", daemon=True)
        self.moved_at = time.monotonic()
        self._ended = False
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._ended

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def moved(self) -> None:
        self.moved_at = time.monotonic()

    def submit(self, work: Coroutine[Any, Any, Answer]) -> "Future[Answer]":
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # it ended in this moment
            work.close()
            lost: Future[Answer] = Future()
            lost.cancel()
            return lost

    def wait(self, work: "Future[Any]", patience: float) -> str | None:
        """Wait until the work is done; None, or why it never will be: the thread ended, or nothing
        at all was finished for ``patience`` seconds. Raises what the work raised."""
        if self.is_current:
            work.cancel()
            raise RuntimeError("this would wait for itself; await areward or areward_batch here")
        began = time.monotonic()
        while True:
            try:
                work.result(timeout=_LOOK_SECONDS)
                return None
            except CancelledError:
                return _ENDED
            except TimeoutError:
                if work.done():
                    return None if work.exception() is None else _raise(work)
            except KeyboardInterrupt:  # nobody waits for it any more
                self._abandon(work)
                raise
            if (why := self._why_not(began, patience)) is not None:
                self._abandon(work)
                return why

    async def waited(self, work: "Future[Any]", patience: float) -> str | None:
        """:meth:`wait` on another loop, which it does not block."""
        began = time.monotonic()
        done = asyncio.wrap_future(work)
        try:
            while not (await asyncio.wait({done}, timeout=_LOOK_SECONDS))[0]:
                if (why := self._why_not(began, patience)) is not None:
                    return why
            if done.cancelled():
                return _ENDED
            done.result()
            return None
        finally:
            self._abandon(done)

    def end(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Let ``last`` run, then stop; what does not end in time is left to the process's end."""
        if not self.is_alive:
            return
        if last is not None and not self.is_current:
            wait([self.submit(last())], CLOSING_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_current:
            self._thread.join(CLOSING_SECONDS)

    def _abandon(self, work: "Future[Any] | asyncio.Future[Any]") -> None:
        if not self._loop.is_closed():  # else nothing of it is left
            work.cancel()

    def _why_not(self, began: float, patience: float) -> str | None:
        if not self.is_alive:
            return _ENDED
        if time.monotonic() - max(began, self.moved_at) > patience:
            return f"Timeout waiting for results: no verdict for anybody within {patience:g} s"
        return None

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels what is left
            try:
                runner.get_loop().run_forever()
            finally:
                self._ended = True


_ENDED = "the reward system was closed, or its thread ended, while this waited"


def _raise(work: "Future[Any]") -> None:
    work.result()
