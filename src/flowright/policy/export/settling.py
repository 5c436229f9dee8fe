"""What a folder's ``config.json`` has to say of the weights beside it: the class that they are of,
tied and left-out ones, and a vocabulary of another size. Config is plain JSON here, and stays as
its writer had it but for what changes: other versions of transformers are to read it, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from flowright.core.errors import RunError
from flowright.policy.export.weights import Weights

HEAD, SCORE, SCORE_BIAS = "lm_head.weight", "score.weight", "score.bias"
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")


@dataclass(frozen=True, slots=True)
class Settled:
    """``notes``: what was changed or left out, a line each."""

    config: Mapping[str, Any]
    weights: Weights
    notes: tuple[str, ...]


def settled(config: Mapping[str, Any], kind: Any, weights: Weights) -> Settled:
    """Weights and config that belong together. ``kind``: the config as transformers knows it, for
    its table of classes. Raises RunError where it has no class for them."""
    notes: list[str] = []
    changed, left = dict(config), dict(weights)
    for name in [name for name in left if name.startswith("v_head.")]:
        del left[name]
        notes.append(f"{name} left out: a value head that is none of the model's class")
    if SCORE in left:
        _have_a_score(changed, kind, left, notes)
    elif "ForCausalLM" not in "".join(changed.get("architectures") or ()):
        changed["architectures"] = [_class_of(AutoModelForCausalLM, kind, changed)]
        notes.append(f"written as {changed['architectures'][0]}: there is no score")
    _untie(changed, left, notes)
    _count_rows(changed, left, notes)
    return Settled(changed, left, tuple(notes))


def _have_a_score(
    config: dict[str, Any], kind: Any, weights: dict[str, Callable[[], Tensor]], notes: list[str]
) -> None:
    """A judge's scalar, of a whole text; or a value head, of each token, which has a bias."""
    rows = int(weights[SCORE]().shape[0])
    architecture = "".join(config.get("architectures") or ())
    each = SCORE_BIAS in weights or "ForTokenClassification" in architecture
    auto = AutoModelForTokenClassification if each else AutoModelForSequenceClassification
    config["architectures"] = [_class_of(auto, kind, config)]
    labels = {str(row): f"LABEL_{row}" for row in range(rows)}
    config |= {"id2label": labels, "label2id": {word: int(row) for row, word in labels.items()}}
    what = "a value for each token" if each else "of a whole text"
    notes.append(f"{SCORE}: {rows} row{'s' * (rows > 1)}, {what}: {config['architectures'][0]}")
    if weights.pop(HEAD, None) is not None:
        notes.append(f"{HEAD} left out: the class has a score in its place")
    if config.get("pad_token_id") is None and not each:
        # It tells where a text ends, without which transformers scores one text at a time.
        ends = config.get("eos_token_id")
        config["pad_token_id"] = ends[0] if isinstance(ends, list) else ends
        notes.append(f"pad_token_id {config['pad_token_id']}, the end of text: there was none")


def _class_of(auto: Any, kind: Any, config: Mapping[str, Any]) -> str:
    try:
        return auto._model_mapping[type(kind)].__name__
    except KeyError:
        raise RunError(
            f"transformers has no {auto.__name__} of model_type {config.get('model_type')}"
        ) from None


def _untie(
    config: dict[str, Any], weights: dict[str, Callable[[], Tensor]], notes: list[str]
) -> None:
    embedding = _embedding(weights)
    text = _text(config)
    if not text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)):
        return
    if HEAD in weights and embedding is not None:
        head, rows = weights[HEAD](), weights[embedding]()
        if head.shape == rows.shape and torch.equal(head, rows):
            del weights[HEAD]
            notes.append(f"{HEAD} left out: tied, and equal, to {embedding}")
            return
        text["tie_word_embeddings"] = config["tie_word_embeddings"] = False
        notes.append(f"tie_word_embeddings false: {HEAD} differs from {embedding}")


def _count_rows(config: dict[str, Any], weights: Weights, notes: list[str]) -> None:
    embedding = _embedding(weights)
    text = _text(config)
    if embedding is None or "vocab_size" not in text:
        return
    rows = int(weights[embedding]().shape[0])
    if rows != text["vocab_size"]:
        notes.append(f"vocab_size {rows}, was {text['vocab_size']}: so many rows has {embedding}")
        text["vocab_size"] = rows


def padding_rows(config: Mapping[str, Any], tokens: int) -> int:
    """Rows of the embedding that no token of the tokenizer has."""
    return max(0, int(_text(dict(config)).get("vocab_size", tokens)) - tokens)


def _embedding(weights: Weights) -> str | None:
    return next((name for name in weights if name.endswith(_EMBEDDINGS)), None)


def _text(config: dict[str, Any]) -> dict[str, Any]:
    """Where a config says what its language model is like: in a section of its own, where it reads
    pictures, too."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config
