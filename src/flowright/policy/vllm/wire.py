"""What is said to a vLLM server, and how its replies are read: each field that is relied on is
checked, and a reply that lacks one raises :class:`BadReply`. Nothing is sent here.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flowright.policy.sampler import Sampling

IMPOSSIBLE = -9000.0
"""vLLM writes -inf as -9999."""

# Where a request has none of these, vLLM takes those of the model's generation_config.json.
_PLAIN = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "n": 1,
}


class BadReply(Exception):
    """A 200 that cannot be used: another model's, cut short, or without what was asked for."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A served model. ``root`` is where it was loaded from; ``parent`` is set for an adapter."""

    name: str
    root: str | None
    parent: str | None
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A completion as :class:`flowright.policy.sampler.Sample` has it, without the text."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]


def draw_body(
    model: str, prompt: Sequence[int], sampling: Sampling, end_ids: Collection[int]
) -> bytes:
    """The request for one completion; its draws depend on ``sampling.seed``."""
    return _body(
        model=model,
        prompt=list(prompt),
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        logprobs=0,  # of the token that was drawn
        return_token_ids=True,
        stop_token_ids=sorted(end_ids),
        skip_special_tokens=False,
        **_PLAIN | {"top_k": sampling.top_k},
    )


def score_body(model: str, token_ids: Sequence[int]) -> bytes:
    """The request for the log-probabilities of given tokens. vLLM computes them anew, past its
    prefix cache, and at temperature 1 whatever else is asked."""
    return _body(
        model=model,
        prompt=list(token_ids),
        max_tokens=1,
        temperature=1.0,
        top_p=1.0,
        prompt_logprobs=1,
        return_token_ids=True,
        **_PLAIN,
    )


def alternatives_body(model: str, prompt: Sequence[int], temperature: float) -> bytes:
    """The request for the likeliest next tokens with their log-probabilities."""
    return _body(
        model=model,
        prompt=list(prompt),
        max_tokens=1,
        temperature=temperature,
        top_p=1.0,
        seed=0,
        logprobs=5,
        return_tokens_as_token_ids=True,
        **_PLAIN,
    )


def read_drawn(
    content: bytes, model: str, prompt: Sequence[int], longest: int, end_ids: Collection[int]
) -> Drawn:
    """A completion that is whole, and ``model``'s. Raises BadReply."""
    choice = _choice(content, model)
    _same_prompt(choice, prompt)
    ids = _token_ids(choice)
    table = choice.get("logprobs")
    logprobs = table.get("token_logprobs") if isinstance(table, dict) else None
    if not isinstance(logprobs, list) or len(logprobs) != len(ids):
        given = len(logprobs) if isinstance(logprobs, list) else "no"
        raise BadReply(f"{len(ids)} tokens with {given} log-probabilities")
    checked = tuple(_logprob(value) for value in logprobs)
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise BadReply(f"finish_reason {reason!r}")
    if ids and ids[-1] in end_ids:  # also where it is the last that was allowed
        return Drawn(ids, checked, "stop")
    if reason == "stop":
        raise BadReply("it stopped, but its last token is not one that ends a completion")
    if len(ids) != longest:
        raise BadReply(
            f"cut after {len(ids)} of {longest} tokens; a larger --max-model-len is needed"
        )
    return Drawn(ids, checked, "length")


def read_scores(content: bytes, model: str, token_ids: Sequence[int]) -> list[float]:
    """Log-probabilities of all tokens but the first, by ``model``. Raises BadReply."""
    choice = _choice(content, model)
    _same_prompt(choice, token_ids)
    rows = choice.get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(token_ids):
        raise BadReply("no prompt_logprobs, or not one for each token")
    found = []
    for token, row in zip(token_ids[1:], rows[1:], strict=True):
        entry = row.get(str(token)) if isinstance(row, dict) else None
        found.append(_logprob(entry.get("logprob") if isinstance(entry, dict) else None))
    return found


def read_alternatives(content: bytes, model: str) -> list[float]:
    """Log-probabilities of the likeliest next tokens, descending. Raises BadReply."""
    table = _choice(content, model).get("logprobs")
    rows = table.get("top_logprobs") if isinstance(table, dict) else None
    row = rows[0] if isinstance(rows, list) and rows else None
    if not isinstance(row, dict) or len(row) < 2:
        raise BadReply("no top_logprobs")
    return sorted((_logprob(value) for value in row.values()), reverse=True)


def read_models(content: bytes) -> dict[str, ModelCard]:
    """The served models by name. Raises BadReply."""
    rows = _json(content).get("data")
    if not isinstance(rows, list) or not all(isinstance(r, dict) and "id" in r for r in rows):
        raise BadReply("not a list of models; is this an OpenAI-compatible server?")
    cards = (
        ModelCard(str(r["id"]), r.get("root"), r.get("parent"), r.get("max_model_len"))
        for r in rows
    )
    return {card.name: card for card in cards}


def _body(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _json(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise BadReply(f"not JSON: {content[:80].decode('utf-8', 'replace')!r}") from None
    if not isinstance(found, dict):
        raise BadReply("not a JSON object")
    return found


def _choice(content: bytes, model: str) -> Mapping[str, Any]:
    body = _json(content)
    if body.get("model") != model:
        raise BadReply(f"it is from model {body.get('model')!r}, not {model!r}")
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BadReply("not exactly one choice")
    return choices[0]


def _same_prompt(choice: Mapping[str, Any], prompt: Sequence[int]) -> None:
    if choice.get("prompt_token_ids") is None:
        raise BadReply("no prompt_token_ids; it takes a vLLM of requirements-vllm.txt")
    if choice["prompt_token_ids"] != list(prompt):
        raise BadReply("the prompt that it answers is not the one that was sent")


def _token_ids(choice: Mapping[str, Any]) -> tuple[int, ...]:
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise BadReply("no token_ids; it takes a vLLM of requirements-vllm.txt")
    return tuple(ids)


def _logprob(value: object) -> float:
    """A logarithm of a probability; rounding may put that of a sure token slightly above 0."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise BadReply(f"a log-probability is {value!r}")
    if not IMPOSSIBLE < value < 1e-3:
        raise BadReply(f"a log-probability is {value:g}; --logprobs-mode gives logits?")
    return float(value)
