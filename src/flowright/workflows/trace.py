"""The trace of a workflow: operator calls, model exchanges, usage.

The host writes it; nothing that a workflow does can touch it. Long texts are cut here, where they
are made, so that a rollout on disk stays readable.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from flowright.core.errors import Failure
from flowright.llm.chat import Usage

TEXT_CHARS = 4000  # of one text in a trace


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question to the large model and its reply, both cut to ``TEXT_CHARS``.

    ``attempts`` counts the client's tries of the request. ``finish_reason`` is the server's.
    """

    prompt: str
    reply: str
    finish_reason: str
    usage: Usage
    seconds: float
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of an operator. ``started`` is in seconds since the execution began.

    ``arguments`` are the values by parameter name and ``result`` the value returned, as text and
    cut; ``result`` is None when the call failed or was cancelled, with the reason in ``error``.
    ``model`` is the name of the model that it could ask, where programs choose. ``children`` are
    steps of the call that are not questions to the model, such as a program run in
    the sandbox, in the same form.
    """

    operator: str
    arguments: dict[str, str]
    result: str | None
    error: str | None
    started: float
    seconds: float
    usage: Usage = field(default_factory=Usage)
    exchanges: tuple[Exchange, ...] = ()
    children: tuple["OperatorCall", ...] = ()
    model: str = ""


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of a workflow: either ``answer`` or ``failure`` is set, never both.

    ``trace`` holds the operator calls in the order in which the program made them, calls that it
    never awaited included. ``usage`` counts every request that reached the model, also those of
    cancelled or failed calls once they were answered. ``seconds`` is wall time; ``own_seconds`` the
    program's own computing as the host saw it (transfers to and from the interpreter included).
    ``printed`` is the beginning of what the program printed.
    """

    answer: str | None
    failure: Failure | None
    trace: tuple[OperatorCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    own_seconds: float = 0.0
    printed: str = ""

    def __post_init__(self) -> None:
        if (self.answer is None) == (self.failure is None):
            raise ValueError("an execution has either an answer or a failure")


def cut(text: str) -> str:
    """``text``, or its two ends with a note of what is missing between them."""
    if len(text) <= TEXT_CHARS:
        return text
    half = TEXT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"


def as_text(value: Any) -> str:
    """A validated argument or result as the trace shows it: strings as they are, the rest JSON."""
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
