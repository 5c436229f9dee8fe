"""How much the judge service takes on at once, and how it stops. Counts and tasks; no HTTP.

Nothing waits without a bound: what does not fit into the slots and the queue is refused at once.
"""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

Slot = Callable[[], AbstractAsyncContextManager[None]]

_PACE_WEIGHT = 0.05  # of the latest verdict in the moving mean
_WANTS_SECONDS = 35.0  # after a refusal: a little longer than a client may be asked to wait
_LAST_WORDS_SECONDS = 1.0  # for what is cancelled at the end of a drain


class Overloaded(Exception):
    """Neither a slot nor room in the queue is left."""


class Admission:
    """Slots for ``max_in_flight`` verdicts and a queue of ``max_queue``, in fair shares.

    Clients take turns: a slot that falls free goes to the next client that waits, whoever came
    first and however much the others have queued. While somebody is refused for want of room, a
    client that holds more than its share of it is refused more, so that room comes to the others.

    ``pace`` is how long a slot was held lately, in seconds (a moving mean); 0 at first.
    """

    def __init__(
        self, max_in_flight: int, max_queue: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._room = max_in_flight + max_queue
        self._slot_count = max_in_flight
        self._clock = clock
        self._running = 0
        self._held: Counter[str] = Counter()
        self._refused: dict[str, float] = {}  # who wants room, until when
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self.pace = 0.0

    @property
    def running(self) -> int:
        return self._running

    @property
    def queued(self) -> int:
        return self._held.total() - self._running

    def seconds_to_room(self, client: str = "") -> float:
        """About how long until there is room for a client: until half of the queue has been let in,
        or the next verdicts are made where it has nothing here and so is to come before others."""
        rounds = self.queued / 2 / self._slot_count if self._held[client] else 0.0
        return self.pace * max(1.0, rounds)

    @contextmanager
    def admit(self, count: int, client: str = "") -> Iterator[Slot]:
        """Hold room for ``count`` verdicts of a client. Each waits for a slot and holds it by what
        is yielded, and gives its room back when it ends. Raises Overloaded where there is not
        enough."""
        if self._is_too_much(count, client):
            self._refused[client] = self._clock() + _WANTS_SECONDS
            raise Overloaded
        self._refused.pop(client, None)
        self._held[client] += count
        left = count

        @asynccontextmanager
        async def slot() -> AsyncIterator[None]:
            nonlocal left
            await self._turn(client)
            left -= 1
            began = time.monotonic()
            try:
                yield
            finally:
                took = time.monotonic() - began
                self.pace += (took - self.pace) * (_PACE_WEIGHT if self.pace else 1.0)
                self._give_back(client, 1)
                self._next_turn()

        try:
            yield slot
        finally:
            self._give_back(client, left)  # of verdicts that were cancelled before they began

    def _is_too_much(self, count: int, client: str) -> bool:
        if self._held.total() + count > self._room:
            return True
        now = self._clock()
        self._refused = {name: until for name, until in self._refused.items() if until > now}
        if not self._refused.keys() - {client}:
            return False
        share = self._room // len(self._held.keys() | self._refused.keys() | {client})
        return self._held[client] > 0 and self._held[client] + count > share

    def _give_back(self, client: str, count: int) -> None:
        self._held[client] -= count
        if not self._held[client]:
            del self._held[client]

    async def _turn(self, client: str) -> None:
        """Wait for a slot, which is the caller's then."""
        if self._running < self._slot_count:  # so nobody waits
            self._running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(client, deque())
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given the slot in the same moment
                self._next_turn()
            raise

    def _next_turn(self) -> None:
        """Hand a slot on to the next client that waits, or leave it free."""
        while self._waiting:
            client, turns = self._waiting.popitem(last=False)
            while turns and turns[0].done():  # cancelled
                turns.popleft()
            if turns:
                turns.popleft().set_result(None)
                if turns:
                    self._waiting[client] = turns  # behind the others
                return
        self._running -= 1


class Traffic:
    """The requests that are being answered. ``drain`` lets them finish and lets no more in."""

    def __init__(self) -> None:
        self.draining = False
        self.expired = False
        self._running: set[asyncio.Task[None]] = set()

    def add(self, task: "asyncio.Task[None]") -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def drain(self, seconds: float) -> int:
        """Wait for the running requests, ``seconds`` at most; then cancel them. Returns how many
        had to be cancelled."""
        self.draining = True
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)
        self.expired = True
        left = list(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_LAST_WORDS_SECONDS)
        return len(left)
