"""The keys of `llm`, and the models of its file."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from pydantic import (
    Field,
)

from flowright.config.section import (
    Concurrency,
    Fraction,
    NonNegativeFloat,
    Positive,
    Seconds,
    Section,
)


class LlmSection(Concurrency):
    """Requests to large models, whatever their role."""

    file: Path = Path("config/aflow_llm.yaml")
    """YAML file of models and servers."""
    attempts: Positive = 5
    """Attempts per request."""
    request_seconds: Seconds = 120.0
    """Timeout of an attempt."""
    deadline_seconds: Seconds = 300.0
    """Timeout of a request with all attempts."""
    backoff_seconds: Seconds = 0.5
    """First pause between attempts; doubles."""
    reconnect_seconds: NonNegativeFloat = 60.0
    """Seconds to wait for a server that refuses connections before that counts as attempts."""


class PriceSection(Section):
    """Money per million tokens."""

    input: NonNegativeFloat
    """Prompts."""
    output: NonNegativeFloat
    """Replies."""
    cached: NonNegativeFloat | None = None
    """Cached tokens of prompts. Default: `input`."""

    def of(self, prompt: int, completion: int, cached: int = 0) -> float:
        """Return the money for a request's tokens; ``cached`` are some of the prompt's."""
        known = self.input if self.cached is None else self.cached
        fresh = max(0, prompt - cached)
        return (fresh * self.input + (prompt - fresh) * known + completion * self.output) / 1e6


class ModelEntry(Section):
    """A model of `llm.file`. Several URLs or keys, as a list or separated by commas, share the
    load."""

    api_type: Literal["openai"] = "openai"
    """Protocol."""
    base_url: str | tuple[str, ...]
    """Address up to and with `/v1`."""
    api_key: str | tuple[str, ...] = "sk-none"
    """Better `${NAME}`."""
    model_name: str
    """Name on the server."""
    temperature: float | None = Field(default=None, ge=0)
    """Default for requests without one."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """See `temperature`."""
    max_tokens: int | None = Field(default=None, ge=1)
    """See `temperature`."""
    no_proxy: str | None = None
    """Hosts reached without the proxy."""
    stream: bool | None = None
    """Stream replies, for servers that require it. Default: on DashScope."""
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    """See `temperature`."""
    tokenizer: Path | None = None
    """Folder with `tokenizer_config.json` or `tokenizer.json`, whose control tokens are broken in
    every message. Default: `model_name`, if that is a folder or in the hub's cache."""
    price: PriceSection | None = None
    """Needed by `reward.cost_weight` with `executor.models`."""
    note: str = ""
    """Shown to the policy."""

    @property
    def base_urls(self) -> tuple[str, ...]:
        return _listed(self.base_url)

    @property
    def streams(self) -> bool:
        """True if replies are streamed."""
        if self.stream is not None:
            return self.stream
        return any(_STREAMS_ONLY.match(url) for url in self.base_urls)

    @property
    def api_keys(self) -> tuple[str, ...]:
        return _listed(self.api_key)


_STREAMS_ONLY = re.compile(
    r"https?://[\w.-]+\.aliyuncs\.com(:\d+)?/compatible-mode\b", re.IGNORECASE
)
"""DashScope in every region; some of its models, such as qwq-plus, only stream."""


def _listed(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """A variable of the environment is one text, whatever it lists."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip()) or (value,)


class LlmFile(Section):
    models: Mapping[str, ModelEntry]
    """By name."""


SIMULATED = "simulated"
"""The name of the model that the embedded server stands in for."""


World = Literal["kinds", "classes"]


class FaultSection(Section):
    """Shares of requests that meet an injected fault."""

    empty: Fraction = 0.0
    """200 with empty content."""
    error_500: Fraction = 0.0
    """HTTP 500."""
    error_429: Fraction = 0.0
    """HTTP 429."""
    hang: Fraction = 0.0
    """No answer until the client gives up."""
    truncate: Fraction = 0.0
    """Half the text and `finish_reason` "length"."""
    malformed: Fraction = 0.0
    """Invalid JSON."""
    roles: Literal["all", "executor", "judge"] = "all"
    """Roles that meet the faults."""


class SimulatedModelSection(Section):
    """A further model of the embedded server."""

    price: PriceSection | None = None
    """See `llm.file`."""
    note: str = ""
    """See `llm.file`."""
    skills: Mapping[str, float] = Field(default_factory=dict)
    """Added skill by kind, subject or class (`large sums`)."""


class SimulatedSection(Section):
    """The embedded server, for models named `simulated` or as one of `models`."""

    seed: int = 0
    """Seed of the tasks' difficulties and of every draw."""
    world: World = "kinds"
    """Accuracies depend on a problem's kind, or on its class: subject and size, as its text has
    them."""
    models: Mapping[str, SimulatedModelSection] = Field(default_factory=dict)
    """Further models by name."""
    latency_ms: NonNegativeFloat = 0.0
    """Mean added latency."""
    judge_true_positive: Fraction = 0.97
    """Share of right answers judged right."""
    judge_false_positive: Fraction = 0.03
    """Share of wrong answers judged right."""
    judge_biases: Mapping[str, float] = Field(default_factory=dict)
    """Planted biases by name: verbosity, authority, tone, formatting, distraction, injection,
    self_preference, sycophancy, self_certification, lexical, master_key, position."""
    faults: FaultSection = FaultSection()

    def played(self, names: Collection[str]) -> frozenset[str]:
        """Return those of the names that the embedded server plays."""
        return frozenset({SIMULATED, *self.models}.intersection(names))
