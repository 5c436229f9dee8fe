"""From a source to the contents of its exported folder: a config that fits the weights, weights
that are not read yet, an adapter, and the source itself as a model, for comparison.

Config is plain JSON and stays as its writer had it but for what changes: other versions of
transformers are to read it, too.
"""

import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from peft import PeftModel
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

from flowright.config.policy import PolicySection
from flowright.core.errors import RunError
from flowright.core.files import read_bytes, read_object
from flowright.policy.export.source import ExportSource, Kind, shard_files, whole_weights
from flowright.policy.export.weights import (
    Adapter,
    Weights,
    adapter_of,
    in_folder,
    read_adapter,
    rounded,
    split_adapter,
    write_adapter,
)
from flowright.policy.lora import quantise, unpack
from flowright.policy.model_folders import load_config, load_model
from flowright.policy.tuning import CONFIG_FILE, disk_errors_of_safetensors

HEAD, SCORE, SCORE_BIAS = "lm_head.weight", "score.weight", "score.bias"
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")


@dataclass(frozen=True, slots=True)
class Export:
    """``kind``: the config as transformers has it. ``about``: folders with tokenizer and generation
    config; the first that has a file counts. ``adapter``: what is written beside or in place of the
    weights; ``merged``: one is in them. ``notes``: what was changed or left out. ``own``: the
    weights that the source is loaded from, or their folder; ``added``: its adapter, if any."""

    config: Mapping[str, Any]
    kind: Any
    weights: Weights
    about: tuple[Path, ...]
    base: str | None
    trained: str
    notes: tuple[str, ...]
    adapter: Adapter | None
    merged: bool
    own: Weights | Path
    added: Adapter | Path | None

    def load_base(self, dtype: torch.dtype) -> Any:
        """Load the source without its adapter."""
        if isinstance(self.own, Path):
            return load_model(class_of(self.kind), self.own, dtype=dtype)
        state = {name: read() for name, read in self.own.items()}
        return load_model(
            class_of(self.kind), None, config=self.kind, state_dict=state, dtype=dtype
        )

    def load(self, dtype: torch.dtype) -> Any:
        """Load the source, its adapter beside it."""
        model = self.load_base(dtype)
        if not isinstance(self.added, Adapter):
            return model if self.added is None else with_adapter(model, self.added)
        with tempfile.TemporaryDirectory() as folder:
            write_adapter(self.added, Path(folder), self.base, torch.float32)
            return with_adapter(model, Path(folder))

    def write_merged(self, folder: Path, dtype: torch.dtype, most_bytes: int) -> None:
        """Write the source with its adapter added by peft, in float32, and rounded once; in files
        of up to ``most_bytes``. Raises RunError as :func:`rounded`, and OSError."""
        stored = next(iter(self.weights.values()))().dtype
        model = self.load(torch.promote_types(stored, dtype)).merge_and_unload()
        for name, tensor in model.state_dict().items():
            rounded(tensor, dtype, name)
        with disk_errors_of_safetensors():
            model.to(dtype).save_pretrained(folder, max_shard_size=most_bytes)
        (folder / "generation_config.json").unlink(missing_ok=True)  # the source's is copied


def export_of(source: ExportSource, base: str | None, alpha: float | None, merge: bool) -> Export:
    """Plan the export of a source, on ``base`` or else what its files name. ``alpha``: that of an
    adapter among the files of verl that do not record it. ``merge``: an adapter becomes part of the
    weights. Raises RunError."""
    if source.kind is Kind.ADAPTER:
        return _of_adapter(source, base, merge)
    if source.kind is Kind.SHARDS:
        return _of_shards(source, base, alpha, merge)
    config, kind = _config(source.folder), _known(source.folder)
    trained = "all weights of the decoder but its embeddings" if source.run else "a whole model"
    return _export(
        config,
        kind,
        in_folder(source.folder),
        about=(source.folder,),
        base=base or source.run.get("strategy_model") or config.get("_name_or_path"),
        trained=trained,
        own=source.folder,
    )


def _of_adapter(source: ExportSource, base: str | None, merge: bool) -> Export:
    adapter = read_adapter(source.folder)
    name = base or adapter.base
    if name is None:
        raise RunError(f"{source.folder / CONFIG_FILE}: names no base; give it with --base")
    folder = base_folder(name)
    config, kind = _config(folder), _known(folder)
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
    whole = {**own, **adapter.saved}
    return _export(
        config,
        kind,
        whole,
        about=(source.folder, folder),
        base=name,
        trained=str(adapter),
        notes=notes,
        own={key: read for key, read in whole.items() if key != HEAD or SCORE not in whole},
        adapter=adapter,
        added=source.folder,
        merge=merge,
    )


def _of_shards(source: ExportSource, base: str | None, alpha: float | None, merge: bool) -> Export:
    about = source.folder / "huggingface"
    if not (about / "config.json").is_file():
        if base is None:
            raise RunError(f"{about}: no config.json in it; give the model with --base")
        about = base_folder(base)
    config, kind = _config(about), _known(about)
    own, halves = split_adapter(whole_weights(source.folder, _shapes(kind)))
    if other := [name for name in own if "lora_" in name]:
        raise RunError(f"{other[0]}: a part of an adapter that is not LoRA on a layer's weight")
    adapter = adapter_of(halves, _adapter_config(source.folder, alpha)) if halves else None
    ranks = len(shard_files(source.folder))
    return _export(
        config,
        kind,
        own,
        about=(about,),
        base=base or (adapter and adapter.base) or config.get("_name_or_path") or None,
        trained=f"{adapter or 'all weights'}, by verl on {ranks} rank{'s' * (ranks > 1)}",
        notes=source.beside,
        own={key: read for key, read in own.items() if key != HEAD or SCORE not in own},
        adapter=adapter,
        added=adapter,
        merge=merge,
    )


def _export(
    config: Mapping[str, Any],
    kind: Any,
    weights: Weights,
    *,
    about: tuple[Path, ...],
    base: str | None,
    trained: str,
    own: Weights | Path,
    notes: tuple[str, ...] | list[str] = (),
    adapter: Adapter | None = None,
    added: Adapter | Path | None = None,
    merge: bool = False,
) -> Export:
    """Make the config fit the weights; see :class:`Export`. Raises RunError for an adapter with
    layers that the weights lack: peft leaves them out."""
    for layer in adapter.halves if adapter else ():
        if f"{layer}.weight" not in weights:
            raise RunError(
                f"the base has no {layer}.weight, which the adapter was trained beside; give the "
                "base that it was trained on with --base"
            )
    fitted, written, changes = fit_config(config, kind, weights)
    return Export(
        fitted,
        type(kind).from_dict(dict(fitted)),
        written,
        about,
        base,
        trained,
        (*notes, *changes),
        adapter=None if merge else adapter,
        merged=merge and adapter is not None,
        own=own,
        added=added,
    )


def base_folder(name: str) -> Path:
    """Return the folder of a base: itself, or its copy from the hub. Raises RunError."""
    if Path(name).is_dir():
        return Path(name)
    if Path(name).is_absolute() or name.count("/") != 1:
        raise RunError(f"{name}: the base is not there; give its folder with --base")
    try:
        patterns = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"{name}: the base is neither a folder nor available from the hub ({first}); give its "
            "folder with --base"
        ) from error


def class_of(kind: Any) -> Any:
    """Return the class of transformers that a config names. Raises RunError for anything else than
    a model's."""
    name = (kind.architectures or [""])[0]
    found = getattr(transformers, name, None)
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        raise RunError(f"config.json: architectures: {name!r} is no model of transformers")
    return found


def with_adapter(model: Any, folder: Path) -> Any:
    """Put a peft adapter beside a model. Raises RunError if it is another model's."""
    with warnings.catch_warnings():
        # peft uses a name that transformers has renamed; nothing that a user can mend.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        try:
            return PeftModel.from_pretrained(model, str(folder))
        except (RuntimeError, ValueError) as error:
            why = " ".join(str(error).strip().splitlines()[-1].split())
            raise RunError(
                f"the adapter does not fit the base ({why}); give the base that it was trained on "
                "with --base"
            ) from error


def _unpacked(folder: Path, dtype: torch.dtype) -> Weights:
    """Return a base that was packed into 4 bits, as it multiplied. Needs bitsandbytes."""
    model: Any = load_model(AutoModelForCausalLM, folder, dtype=dtype)
    quantise(model)
    model.to("cpu")
    unpack(model)
    state: dict[str, Tensor] = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop(HEAD, None)
    return {name: lambda tensor=tensor: tensor for name, tensor in state.items()}


def _shapes(kind: Any) -> Mapping[str, tuple[int, ...]]:
    """Return the sizes of a model's weights by its config; none for an unknown class, and none of
    the vocabulary's, which may have been padded."""
    try:
        with torch.device("meta"):
            model = class_of(kind)(kind)
    except (RunError, TypeError):
        return {}
    rows = kind.get_text_config().vocab_size
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return {name: shape for name, shape in shapes.items() if shape[:1] != (rows,)}


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_bytes(folder / "config.json"))  # an infinity in it stays
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
        return cast(dict[str, Any], found)
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{folder / 'config.json'}: cannot be read ({error})") from error


def _known(folder: Path) -> Any:
    try:
        return load_config(folder)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise RunError(f"{folder}: transformers does not know this model ({first})") from error


def _adapter_config(folder: Path, alpha: float | None) -> Mapping[str, Any]:
    """Return what is known of an adapter among verl's files, which newer versions record."""
    for file in (folder / "lora_adapter" / CONFIG_FILE, folder / "lora_train_meta.json"):
        if file.is_file():
            try:
                known = read_object(file)
            except (OSError, ValueError) as error:
                raise RunError(f"{file}: cannot be read ({error}); copy it again") from error
            if known.get("lora_alpha"):
                return {**known, **({} if alpha is None else {"lora_alpha": alpha})}
    if alpha is None:
        raise RunError(
            f"{folder}: there is an adapter in its files and nothing records its alpha, without "
            "which it means nothing; give the lora_alpha of the training with --lora-alpha"
        )
    return {"lora_alpha": alpha}


def fit_config(
    config: Mapping[str, Any], kind: Any, weights: Weights
) -> tuple[Mapping[str, Any], Weights, list[str]]:
    """Return config and weights that belong together, and a note on each change: the class, tied
    and left-out weights, the size of the vocabulary. ``kind`` finds the class in transformers'
    tables. Raises RunError if there is none."""
    notes: list[str] = []
    changed, left = dict(config), dict(weights)
    for name in [name for name in left if name.startswith("v_head.")]:
        del left[name]
        notes.append(f"{name} left out: a value head that is none of the model's class")
    if SCORE in left:
        _fit_score(changed, kind, left, notes)
    elif "ForCausalLM" not in "".join(changed.get("architectures") or ()):
        changed["architectures"] = [_class_name(AutoModelForCausalLM, kind, changed)]
        notes.append(f"written as {changed['architectures'][0]}: there is no score")
    embedding = next((name for name in left if name.endswith(_EMBEDDINGS)), None)
    text = _text(changed)
    tied = text.get("tie_word_embeddings", changed.get("tie_word_embeddings", False))
    if tied and HEAD in left and embedding is not None:
        if torch.equal(left[HEAD](), left[embedding]()):
            del left[HEAD]
            notes.append(f"{HEAD} left out: tied, and equal, to {embedding}")
        else:
            text["tie_word_embeddings"] = changed["tie_word_embeddings"] = False
            notes.append(f"tie_word_embeddings false: {HEAD} differs from {embedding}")
    if embedding is not None and "vocab_size" in text:
        rows = int(left[embedding]().shape[0])
        if rows != text["vocab_size"]:
            notes.append(f"vocab_size {rows}, was {text['vocab_size']}: the rows of {embedding}")
            text["vocab_size"] = rows
    return changed, left, notes


def _fit_score(
    config: dict[str, Any], kind: Any, weights: dict[str, Callable[[], Tensor]], notes: list[str]
) -> None:
    """Fit a judge's scalar of a whole text, or a value head of each token, which has a bias."""
    rows = int(weights[SCORE]().shape[0])
    architecture = "".join(config.get("architectures") or ())
    each = SCORE_BIAS in weights or "ForTokenClassification" in architecture
    auto = AutoModelForTokenClassification if each else AutoModelForSequenceClassification
    config["architectures"] = [_class_name(auto, kind, config)]
    labels = {str(row): f"LABEL_{row}" for row in range(rows)}
    config |= {"id2label": labels, "label2id": {label: int(row) for row, label in labels.items()}}
    what = "a value for each token" if each else "of a whole text"
    notes.append(f"{SCORE}: {rows} row{'s' * (rows > 1)}, {what}: {config['architectures'][0]}")
    if weights.pop(HEAD, None) is not None:
        notes.append(f"{HEAD} left out: the class has a score in its place")
    if config.get("pad_token_id") is None and not each:
        # It marks where a text ends, without which transformers scores one text at a time.
        ends = config.get("eos_token_id")
        config["pad_token_id"] = ends[0] if isinstance(ends, list) else ends
        notes.append(f"pad_token_id {config['pad_token_id']}, the end of text: there was none")


def _class_name(auto: Any, kind: Any, config: Mapping[str, Any]) -> str:
    try:
        return auto._model_mapping[type(kind)].__name__
    except KeyError:
        raise RunError(
            f"transformers has no {auto.__name__} of model_type {config.get('model_type')}"
        ) from None


def padding_rows(config: Mapping[str, Any], tokens: int) -> int:
    """Return the rows of the embedding that no token of the tokenizer has."""
    return max(0, int(_text(dict(config)).get("vocab_size", tokens)) - tokens)


def _text(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config about its language model: a section of its own in a model that
    reads pictures, too."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config
