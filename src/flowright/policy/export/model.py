"""From a source to what its folder is to hold: config, weights that are not read yet, an adapter,
and the source itself as a model, for comparison. Nothing is written here.
"""

import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from peft import PeftModel
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from flowright.config.policy import PolicySection
from flowright.core.errors import RunError
from flowright.policy.export.shards import shard_files, whole_weights
from flowright.policy.export.source import Kind, Source
from flowright.policy.export.weights import (
    Adapter,
    Weights,
    adapter_of,
    in_folder,
    in_memory,
    merged,
    read_adapter,
    split_adapter,
    write_adapter,
)
from flowright.policy.lora import quantise, unpack
from flowright.policy.tuning import CONFIG_FILE

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


@dataclass(frozen=True, slots=True)
class Export:
    """``about``: folders with tokenizer and generation config, the first that has a file counts.
    ``adapter``: what is written beside or in place of the weights; ``merged``: one is in them.
    ``kind``: the config as transformers has it. ``load_base`` and ``load``: the source as a model
    in a precision, without and with its adapter."""

    config: Mapping[str, Any]
    kind: Any
    weights: Weights
    about: tuple[Path, ...]
    adapter: Adapter | None
    merged: bool
    base: str | None
    trained: str
    notes: tuple[str, ...]
    load_base: Callable[[torch.dtype], Any]
    load: Callable[[torch.dtype], Any]


def export_of(source: Source, base: str | None, alpha: float | None, merge: bool) -> Export:
    """What is to be written of a source, on ``base`` where that is not what its files name.
    ``alpha``: of an adapter among the files of verl that do not say it. ``merge``: an adapter
    becomes part of the weights. Raises RunError."""
    if source.kind is Kind.ADAPTER:
        return _of_adapter(source, base, merge)
    if source.kind is Kind.SHARDS:
        return _of_shards(source, base, alpha, merge)
    config = _config(source.folder)
    known = _known(source.folder)
    ready = settled(config, known, in_folder(source.folder))
    kind = type(known).from_dict(dict(ready.config))
    said = source.run.get("strategy_model")
    trained = "all weights of the decoder but its embeddings" if source.run else "a whole model"

    def load(dtype: torch.dtype) -> Any:
        return class_of(kind).from_pretrained(source.folder, dtype=dtype)

    return Export(
        ready.config,
        kind,
        ready.weights,
        (source.folder,),
        None,
        False,
        base or said or config.get("_name_or_path"),
        trained,
        ready.notes,
        load,
        load,
    )


def _of_adapter(source: Source, base: str | None, merge: bool) -> Export:
    adapter = read_adapter(source.folder)
    name = base or adapter.base
    if name is None:
        raise RunError(f"{source.folder / CONFIG_FILE}: names no base; give it with --base")
    folder = base_folder(name)
    config, known = _config(folder), _known(folder)
    if packed := config.get("quantization_config"):
        raise RunError(
            f"{name}: its weights are packed ({packed.get('quant_method')}), an adapter cannot be "
            "added to them; give the model that they were packed from with --base"
        )
    notes: list[str] = []
    if source.quantised:
        dtype = PolicySection.model_validate(source.run.get("policy", {})).on("cpu").dtype
        assert dtype is not None
        own = _unpacked(folder, getattr(torch, dtype))
        notes.append(f"the base as it was trained beside: {source.quantised}, unpacked")
    else:
        own = in_folder(folder)
    ready = settled(config, known, merged(own, adapter) if merge else {**own, **adapter.saved})
    kind = type(known).from_dict(dict(ready.config))

    def load_base(dtype: torch.dtype) -> Any:
        return _model(kind, dtype, own, adapter)

    def load(dtype: torch.dtype) -> Any:
        return with_adapter(load_base(dtype), source.folder)

    return Export(
        ready.config,
        kind,
        ready.weights,
        (source.folder, folder),
        None if merge else adapter,
        merge,
        name,
        str(adapter),
        (*notes, *ready.notes),
        load_base,
        load,
    )


def _of_shards(source: Source, base: str | None, alpha: float | None, merge: bool) -> Export:
    about = source.folder / "huggingface"
    if not (about / "config.json").is_file():
        if base is None:
            raise RunError(f"{about}: no config.json in it; give the model with --base")
        about = base_folder(base)
    config, known = _config(about), _known(about)
    own, entries = split_adapter(whole_weights(source.folder, _shapes(known)))
    ranks = len(shard_files(source.folder))
    name = base or config.get("_name_or_path") or None
    trained = f"all weights, by verl on {ranks} rank{'s' * (ranks > 1)}"
    adapter = None
    if entries:
        adapter = adapter_of(entries, _adapter_config(source.folder, alpha))
        trained = f"{adapter}, by verl on {ranks} rank{'s' * (ranks > 1)}"
        name = base or adapter.base or name
    ready = settled(config, known, merged(own, adapter) if adapter and merge else own)
    kind = type(known).from_dict(dict(ready.config))

    def load_base(dtype: torch.dtype) -> Any:
        return _model(kind, dtype, own, None)

    def load(dtype: torch.dtype) -> Any:
        model = load_base(dtype)
        if adapter is None:
            return model
        with tempfile.TemporaryDirectory() as folder:
            write_adapter(adapter, Path(folder), name, torch.float32)
            return with_adapter(model, Path(folder))

    return Export(
        ready.config,
        kind,
        ready.weights,
        (about,),
        None if merge else adapter,
        merge and adapter is not None,
        name,
        trained,
        (*source.beside, *ready.notes),
        load_base,
        load,
    )


def base_folder(name: str) -> Path:
    """The folder of a base: itself, or its copy from the hub. Raises RunError where it cannot be
    had."""
    if Path(name).is_dir():
        return Path(name)
    if Path(name).is_absolute() or name.count("/") != 1:
        raise RunError(f"{name}: the base is not there; say where it is with --base")
    try:
        patterns = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"{name}: the base is neither a folder nor to be had from the hub ({first}); say where "
            "it is with --base"
        ) from error


def class_of(kind: Any) -> Any:
    """The class of transformers that a config names."""
    return getattr(transformers, kind.architectures[0])


def with_adapter(model: Any, folder: Path) -> Any:
    """The model with a peft adapter beside it."""
    with warnings.catch_warnings():
        # peft asks by a name that transformers has renamed; nothing that a user can mend.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        return PeftModel.from_pretrained(model, str(folder))


def _model(kind: Any, dtype: torch.dtype, own: Weights, adapter: Adapter | None) -> Any:
    """The class of ``kind`` with these weights and, of an adapter, those that are whole."""
    whole = {**own, **(adapter.saved if adapter else {})}
    if SCORE in whole:
        whole.pop("lm_head.weight", None)
    state = {name: read() for name, read in whole.items()}
    return class_of(kind).from_pretrained(None, config=kind, state_dict=state, dtype=dtype)


def _unpacked(folder: Path, dtype: torch.dtype) -> Weights:
    """A base that was packed into 4 bits, as it multiplied. Needs bitsandbytes."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    quantise(model)
    model.to("cpu")
    unpack(model)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    return in_memory(state)


def _shapes(kind: Any) -> Mapping[str, tuple[int, ...]]:
    """The sizes of a model's weights, by name, from its config; none where its class is unknown,
    and none of the vocabulary's, which may have been padded."""
    try:
        with torch.device("meta"):
            model = class_of(kind)(kind)
    except (AttributeError, TypeError, IndexError):
        return {}
    rows = kind.get_text_config().vocab_size
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return {name: shape for name, shape in shapes.items() if shape[:1] != (rows,)}


def _config(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / 'config.json'}: cannot be read ({error})") from error


def _known(folder: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise RunError(f"{folder}: transformers does not know this model ({first})") from error


def _adapter_config(folder: Path, alpha: float | None) -> Mapping[str, Any]:
    """What is known of an adapter among verl's files: beside them by newer versions, else given."""
    for file in (folder / "lora_adapter" / CONFIG_FILE, folder / "lora_train_meta.json"):
        if file.is_file():
            known = json.loads(file.read_text(encoding="utf-8"))
            if known.get("lora_alpha"):
                return {**known, **({} if alpha is None else {"lora_alpha": alpha})}
    if alpha is None:
        raise RunError(
            f"{folder}: there is an adapter in its files and nothing says its alpha, without which "
            "it means nothing; give the lora_alpha of the training with --lora-alpha"
        )
    return {"lora_alpha": alpha}
