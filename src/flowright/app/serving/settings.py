"""The limits of ``scripts/serve_policy.py``."""

from pydantic import Field

from flowright.config.section import (
    Name,
    NonNegative,
    NonNegativeFloat,
    Positive,
    Seconds,
    Section,
)
from flowright.data.task import Kind


class PolicyServer(Section):
    """``name``: of the model; ``kind``: of questions to it; ``samples``: workflows drawn for each;
    ``temperature`` and ``top_p``: of the policy where a request names none."""

    name: Name
    kind: Kind = "qa"
    samples: Positive = 1
    temperature: NonNegativeFloat = 1.0
    top_p: float = Field(default=1.0, gt=0, le=1)
    api_key: str | None = None
    max_body_bytes: Positive = 1 << 20
    max_question_bytes: Positive = 60_000
    """As UTF-8, with its context: what an operator takes (``workflow.max_prompt_chars``)."""
    hosts: tuple[Name, ...] = ("*",)
    """Names that it answers to."""
    max_in_flight: Positive = 64
    max_queue: NonNegative = 256
    seconds: Seconds = 600.0
    """Of one answer, the wait for its turn included."""
    drain_seconds: Seconds = 30.0
