"""What a sampler is: token ids and log-probabilities for prompts, and which policy made them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from flowright.llm.counters import Counters


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw. ``seed`` fixes the draws of a batch; 0 temperature is greedy. ``top_k`` of 0
    draws from all tokens; else ``top_p`` is of the most likely ``top_k``, as vLLM and transformers
    have it."""

    temperature: float
    top_p: float
    max_new_tokens: int
    seed: int
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion. ``logprobs[t]`` is the natural log-probability of ``token_ids[t]`` under the
    distribution it was drawn from (temperature applied), by policy ``version``. The end-of-turn
    token is part of ``token_ids`` when ``finish_reason`` is "stop"."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: Literal["stop", "length"]
    version: int


class Sampler(Protocol):
    """Draws completions from the current policy and proves which one it serves."""

    @property
    def version(self) -> int: ...

    @property
    def counters(self) -> Sequence[Counters]:
        """What servers were asked for samples; empty where there is no server."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """What the newest refresh proved, under ``policy/proof_*``; empty where nothing had to be
        proven."""
        ...

    async def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        places: Sequence[int] | None = None,
    ) -> list[list[Sample]]:
        """``n`` completions for each prompt of token ids: one list of samples per prompt.

        ``places``: the prompts' numbers in the batch that they are part of (0, 1, 2, ... if None).
        The draws of a sample depend on the seed, its prompt's place and its own number, so that a
        batch is drawn alike by one process and by several.
        """
        ...

    async def refresh(self, version: int) -> None:
        """Serve the learner's weights of this moment from now on, as ``version``. Raises RunError
        if it can't: never a stale adapter, never the base model."""
        ...
