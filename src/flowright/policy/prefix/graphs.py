"""Decoding on a GPU by CUDA graphs: the kernels of a token are recorded once and started at once.

Starting them one by one takes the host longer than the GPU takes for them (docs/running_on_gpus.md
has the figures). A graph repeats its kernels on the same memory, so the rows must stay: those that
have ended are decoded on and left out of the results, until many are. Then the rows are moved, two
tokens are decoded without a graph, in which kernels are compiled, and the next graph is recorded.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial

import torch
from torch import Tensor

from flowright.policy.layout import to_device
from flowright.policy.model import Policy
from flowright.policy.prefix.decoding import SharedDecoding, shared_decoding
from flowright.policy.prefix.kept import Kept

logger = logging.getLogger(__name__)

Work = Callable[[], Tensor]

LEAST_LIVE = 0.75
"""Share of the decoded rows that have not ended; below it rows are moved."""

PLAIN_STEPS = 2
"""Tokens without a graph whenever the rows have changed."""


def recorded(work: Work) -> Work:
    """Return a function that repeats the work's kernels on the same memory."""
    graph, stream = torch.cuda.CUDAGraph(), _stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            found = work()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)

    def repeat() -> Tensor:
        graph.replay()
        return found

    return repeat


@cache
def _stream() -> torch.cuda.Stream:
    """Return the stream to record on, always the same: libraries keep a workspace for each."""
    return torch.cuda.Stream()


class ReplayedDecoding:
    """Rows as of :class:`SharedDecoding`, whose tokens are decoded by what ``record`` returns."""

    def __init__(
        self,
        made: SharedDecoding,
        device: torch.device,
        record: Callable[[Work], Work] | None = None,
    ) -> None:
        self._made, self._record = made, record or recorded
        self._places: list[int] = []  # of the rows that have not ended, among all
        self._tokens = self._at = torch.empty(0, dtype=torch.long, device=device)
        self._plain_steps = 0
        self._work: Work | None = None

    @property
    def joins(self) -> bool:
        """Prompts may join where rows have moved, as each change costs a graph."""
        return not self._made.repeats or self._plain_steps < PLAIN_STEPS

    def join(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        self._move()
        logits = self._made.join(prompts)
        self._restart()
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        if not self._made.repeats or len(self._places) < LEAST_LIVE * self._made.rows:
            self._move()
        if self._made.rows == len(self._places):
            self._tokens.copy_(tokens)
            return self._step()
        self._tokens[self._at] = tokens
        return self._step()[self._at]

    def _step(self) -> Tensor:
        work = partial(self._made.compute, self._tokens)
        if self._made.repeats and self._plain_steps == PLAIN_STEPS:
            try:
                self._work = self._record(work)
            except RuntimeError as error:
                self._work = work
                logger.warning("decoding without CUDA graphs, which is slower: %s", error)
        self._plain_steps += 1
        logits = (self._work or work)()
        self._made.count()
        return logits

    def keep(self, rows: Sequence[int]) -> None:
        self._places = [self._places[row] for row in rows]
        self._at = to_device(torch.tensor(self._places, dtype=torch.long), self._tokens.device)

    def remember(self, row: int, ids: Sequence[int]) -> None:
        self._made.remember(self._places[row], ids)

    def _move(self) -> None:
        """Leave out the rows that have ended."""
        if len(self._places) < self._made.rows:
            self._made.keep(self._places)
            self._restart()

    def _restart(self) -> None:
        self._work, self._plain_steps = None, 0
        self._places = list(range(self._made.rows))
        self._tokens = self._tokens.new_zeros(self._made.rows)


@contextmanager
def replayed_decoding(
    policy: Policy, prompts: Sequence[Sequence[int]], kept: Kept
) -> Iterator[Callable[[int, int, int, int], ReplayedDecoding]]:
    """Yield a factory as :func:`shared_decoding`."""
    with shared_decoding(policy, prompts, kept) as made:
        yield lambda *sizes: ReplayedDecoding(made(*sizes), policy.device)
