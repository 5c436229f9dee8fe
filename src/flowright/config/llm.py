"""The keys of `llm`, and the models of its file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import (
    Field,
)

from flowright.config.section import Fraction, NonNegativeFloat, Positive, Seconds, Section


class LlmSection(Section):
    """How every role talks to its server. Models are named in `file`."""

    file: Path = Path("config/aflow_llm.yaml")
    """Names of models and servers."""
    max_concurrency: Positive = 64
    """Requests in flight per model."""
    attempts: Positive = 5
    """Attempts at one request, the first included."""
    request_seconds: Seconds = 120.0
    """Timeout of one attempt."""
    deadline_seconds: Seconds = 300.0
    """Of one request with all its attempts."""
    backoff_seconds: Seconds = 0.5
    """First pause between attempts; doubles."""
    reconnect_seconds: NonNegativeFloat = 60.0
    """So long a server that refuses connections is waited for, within the deadline, before that
    counts as attempts."""


class ModelEntry(Section):
    """One model of `llm.file`. Lists of URLs or keys, or texts with commas, are used in turn (least
    outstanding)."""

    api_type: Literal["openai"] = "openai"
    """The protocol spoken."""
    base_url: str | tuple[str, ...]
    """Address up to and with `/v1`."""
    api_key: str | tuple[str, ...] = "sk-none"
    """Better `${NAME}`."""
    model_name: str
    """The name under which the server serves it."""
    temperature: float | None = Field(default=None, ge=0)
    """Used where a request names none."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """As `temperature`."""
    max_tokens: int | None = Field(default=None, ge=1)
    """As `temperature`."""
    no_proxy: str | None = None
    """Hosts reached without the proxy."""
    stream: bool = False
    """For servers that only stream; replies are assembled."""
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    """As `temperature`."""
    tokenizer: Path | None = None
    """Folder with the model's `tokenizer_config.json` or `tokenizer.json`: the control tokens that
    these name are broken in every message. `model_name` where that is a folder of this machine; the
    usual shapes of control tokens are broken in a judge's prompt without it."""

    @property
    def base_urls(self) -> tuple[str, ...]:
        return _listed(self.base_url)

    @property
    def api_keys(self) -> tuple[str, ...]:
        return _listed(self.api_key)


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


class FaultSection(Section):
    """Faults that the embedded server injects: shares of requests."""

    empty: Fraction = 0.0
    """200 with empty content."""
    error_500: Fraction = 0.0
    """HTTP 500."""
    error_429: Fraction = 0.0
    """HTTP 429: too many requests."""
    hang: Fraction = 0.0
    """No answer until the client gives up."""
    truncate: Fraction = 0.0
    """Half the text and `finish_reason` "length"."""
    malformed: Fraction = 0.0
    """A body that is not the JSON it claims to be."""
    roles: Literal["all", "executor", "judge"] = "all"
    """Who meets the faults."""


class SimulatedSection(Section):
    """The embedded server; read only where a model is named `simulated`."""

    seed: int = 0
    """Of the tasks' difficulties and every draw."""
    latency_ms: NonNegativeFloat = 0.0
    """Mean waiting time added to a reply."""
    judge_true_positive: Fraction = 0.97
    """Right answers called right."""
    judge_false_positive: Fraction = 0.03
    """Wrong answers called right."""
    judge_biases: Mapping[str, float] = Field(default_factory=dict)
    """Planted biases, by name: verbosity, authority, tone, formatting, distraction, injection,
    self_preference, sycophancy, self_certification, lexical, master_key, position."""
    faults: FaultSection = FaultSection()
