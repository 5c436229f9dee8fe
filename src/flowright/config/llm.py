"""The keys of `llm`, and the models of its file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import (
    Field,
)

from flowright.config.section import Positive, Seconds, Section


class LlmSection(Section):
    """How every role talks to its server. Models are named in `file`."""

    file: Path = Field(
        default=Path("config/aflow_llm.yaml"), description="Names of models and servers."
    )
    max_concurrency: Positive = Field(default=64, description="Requests in flight per model.")
    attempts: Positive = Field(default=5, description="Tries of one request, first included.")
    request_seconds: Seconds = Field(default=120.0, description="Timeout of one try.")
    deadline_seconds: Seconds = Field(
        default=300.0, description="Of one request with all its tries."
    )
    backoff_seconds: Seconds = Field(default=0.5, description="First pause between tries; doubles.")
    reconnect_seconds: float = Field(
        default=60.0,
        ge=0,
        description="So long a server that refuses connections is waited for, within the deadline, "
        "before that counts as tries.",
    )


class ModelEntry(Section):
    """One model of `llm.file`. Lists of URLs or keys are used in turn (least outstanding)."""

    api_type: Literal["openai"] = Field(default="openai", description="The protocol spoken.")
    base_url: str | tuple[str, ...] = Field(description="Address up to and with `/v1`.")
    api_key: str | tuple[str, ...] = Field(default="sk-none", description="Better `${NAME}`.")
    model_name: str = Field(description="The name under which the server serves it.")
    temperature: float | None = Field(
        default=None, ge=0, description="Used where a request names none."
    )
    top_p: float | None = Field(default=None, gt=0, le=1, description="As `temperature`.")
    max_tokens: int | None = Field(default=None, ge=1, description="As `temperature`.")
    no_proxy: str | None = Field(default=None, description="Hosts reached without the proxy.")
    stream: bool = Field(
        default=False, description="For servers that only stream; replies are assembled."
    )
    reasoning_effort: Literal["low", "medium", "high"] | None = Field(
        default=None, description="As `temperature`."
    )

    @property
    def base_urls(self) -> tuple[str, ...]:
        return (self.base_url,) if isinstance(self.base_url, str) else self.base_url

    @property
    def api_keys(self) -> tuple[str, ...]:
        return (self.api_key,) if isinstance(self.api_key, str) else self.api_key


class LlmFile(Section):
    models: Mapping[str, ModelEntry] = Field(description="By name.")
