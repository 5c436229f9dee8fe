"""An exported folder: its weights and config, the files that are copied as they are, the comparison
with its source, the model card, and the upload to the Hugging Face hub.
"""

import gc
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any

import torch
from huggingface_hub import HfApi, ModelCardData
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # of httpx, since 2.0 of httpx2
)
from torch import Tensor

import flowright
from flowright.core.errors import ConfigError, RunError, UserError
from flowright.policy.chat_templates import CHAT_TEMPLATE
from flowright.policy.export.model import Export, class_of, padding_rows, with_adapter
from flowright.policy.export.source import ExportSource
from flowright.policy.export.weights import Adapter, write, write_adapter
from flowright.policy.model_folders import load_model, load_tokenizer
from flowright.runs.run_files import sha256_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

TOKENS = 16
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Share of the largest output that rounding over many layers may change. An adapter added with
another scale or to another layer changes more."""

_COPIED = (
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt"),
    *(CHAT_TEMPLATE, "chat_template.json", "preprocessor_config.json"),
)

_ON_CARD = (
    *("environment", "seed", "strategy_model", "train_dataset", "val_dataset"),
    *("policy.train", "policy.quantised", "policy.lora", "policy.dtype"),
    *("policy.max_prompt_tokens", "policy.max_new_tokens", "policy.chat_template"),
    *("grpo.steps", "grpo.loss", "grpo.learning_rate", "grpo.prompts_per_step"),
    *("grpo.group_size", "grpo.kl_coefficient", "judging"),
)
"""Configuration keys that describe how the weights came about; no address and no key is among
them."""

TOKEN = "HF_TOKEN"


def dtype_of(export: Export, wanted: str | None) -> torch.dtype:
    """Return the precision to write: ``wanted``, else the config's, else that of the weights.
    Raises RunError for any other than DTYPES."""
    config = export.config
    inner = config.get("text_config") or {}
    keys = [(some, key) for some in (config, inner) for key in ("dtype", "torch_dtype")]
    name = wanted or next((some[key] for some, key in keys if some.get(key)), None)
    if name is None:
        name = str(next(iter(export.weights.values()))().dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise RunError(f"the config has dtype {name}; give --dtype {', '.join(DTYPES)}")
    return DTYPES[name]


def fill(
    export: Export, folder: Path, dtype: torch.dtype, most_bytes: int, alone: bool, kept: bool
) -> Sequence[str]:
    """Write all files but the card into ``folder``; ``alone``: an adapter without its base;
    ``kept``: in the precision that it was trained in. Returns notes on the tokenizer. Raises
    RunError and OSError."""
    adapter = export.adapter
    if alone:
        assert adapter is not None
        write_adapter(adapter, folder, export.base, None if kept else dtype)
    else:
        if export.merged:
            export.write_merged(folder, dtype, most_bytes)
        else:
            write(export.weights, folder, dtype, most_bytes)
        text = json.dumps(_with_dtype(export.config, dtype), indent=2) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")
        if adapter is not None:
            write_adapter(adapter, folder / "lora_adapter", export.base)
    for name in _COPIED:
        there = [place / name for place in export.about if (place / name).is_file()]
        if there and not (alone and name == "generation_config.json"):
            shutil.copyfile(there[0], folder / name)
    _keep_one_template(folder)
    return _tokenizer_notes(folder, export)


def _keep_one_template(folder: Path) -> None:
    """Take an older template out where one is in a file of its own, which newer readers prefer."""
    file = folder / "tokenizer_config.json"
    if (folder / CHAT_TEMPLATE).is_file() and file.is_file():
        (folder / "chat_template.json").unlink(missing_ok=True)
        config = json.loads(file.read_text(encoding="utf-8"))
        if config.pop("chat_template", None) is not None:
            file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _with_dtype(config: Mapping[str, Any], dtype: torch.dtype) -> Mapping[str, Any]:
    """Set the dtype under the keys that a config has; transformers before 5 reads
    ``torch_dtype``."""
    name = str(dtype).removeprefix("torch.")
    keys = [key for key in ("dtype", "torch_dtype") if key in config] or ["dtype"]
    changed = {**config, **dict.fromkeys(keys, name)}
    for section, values in config.items():
        if isinstance(values, dict):
            inner = {key: name for key in ("dtype", "torch_dtype") if key in values}
            changed[section] = {**values, **inner}
    return changed


def _tokenizer_notes(folder: Path, export: Export) -> Sequence[str]:
    if not (folder / "tokenizer_config.json").is_file():
        return ["no tokenizer was there: the base's is needed to load this"]
    try:
        tokenizer: Any = load_tokenizer(folder)
    except (OSError, ValueError, ConfigError) as error:
        first = str(error).strip().splitlines()[0]
        return [f"its tokenizer cannot be loaded here ({first}); it is copied as it was"]
    notes: list[str] = []
    if tokenizer.chat_template is None:
        notes.append("the tokenizer has no chat template")
    if rows := padding_rows(export.config, len(tokenizer)):
        notes.append(f"{rows} rows of the embedding are padding: no token has them")
    return notes


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference between the outputs of source and folder, of outputs up to ``of``.
    ``what``: logits or scores."""

    largest: float
    of: float
    what: str


def compare(
    export: Export, folder: Path, dtype: torch.dtype, adapter: Adapter | None
) -> Difference:
    """Load the source and then ``folder`` in the precision that was written, and compare their
    outputs for the same tokens. ``adapter``: the one in the folder, alone (on the source's base) or
    beside the weights in ``lora_adapter/``. Raises RunError if they differ by more than rounding,
    or the folder lacks weights."""
    theirs = _outputs(lambda: export.load(dtype))
    ours = _outputs(lambda: _loaded(export, folder, dtype, adapter))
    largest, of = float((theirs - ours).abs().max()), float(theirs.abs().max())
    if not largest <= _TOLERANCE[dtype] * max(of, 1e-6):
        raise RunError(
            f"{folder.name.removesuffix('.part')}: not written: it would differ from its source by "
            f"{largest:.3g}, of outputs up to {of:.3g}; please report this"
        )
    scores = "ForCausalLM" not in export.kind.architectures[0]
    return Difference(largest, of, "scores" if scores else "logits")


def _loaded(export: Export, folder: Path, dtype: torch.dtype, adapter: Adapter | None) -> Any:
    if adapter is not None and not (folder / "config.json").is_file():
        return with_adapter(export.load_base(dtype), folder)
    model, info = load_model(class_of(export.kind), folder, dtype=dtype, output_loading_info=True)
    for key, problem in (("missing_keys", "lacks"), ("unexpected_keys", "has no place for")):
        if info.get(key):
            raise RunError(
                f"not written: {class_of(export.kind).__name__} {problem} {sorted(info[key])[0]} "
                f"({len(info[key])} in all); the source is of another model or not whole"
            )
    return model if adapter is None else with_adapter(model, folder / "lora_adapter")


def _outputs(load: Callable[[], Any]) -> Tensor:
    """Return [..., labels or vocabulary] of tokens spread over the vocabulary, and free the
    model."""
    try:
        model = load().eval()
    except (RuntimeError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"not written: transformers cannot load it ({first})") from error
    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = torch.linspace(0, vocabulary - 1, min(TOKENS, vocabulary)).long()
    with torch.no_grad():
        outputs = model(input_ids=ids[None]).logits.float()
    del model
    gc.collect()
    return outputs


def card(
    title: str,
    source: ExportSource,
    export: Export,
    written: str,
    notes: Sequence[str],
    difference: Difference,
    files: Sequence[Path],
) -> str:
    """Return ``README.md``, the hub's model card, with the hashes of ``files``. ``written``: the
    form and the precision. It may be made public, so no folder of this machine is in it."""
    base, licence = export.base, export.config.get("license") or export.config.get("licence")
    hub_base = base if base and _shown(base) == base and "/" in base else None
    licence = licence if licence is None or isinstance(licence, str) else json.dumps(licence)
    head = ModelCardData(library_name="transformers", base_model=hub_base, license=licence)
    versions = {name: version(name) for name in ("transformers", "peft")}
    versions = {"flowright": flowright.__version__, **versions, "torch": torch.__version__}
    rows = {
        "base": _shown(base) if base else "unknown",
        "licence of the base": licence or "unknown: not in its config",
        "trained": export.trained,
        "from": source.name,
        "written": f"{written}, {datetime.now(UTC):%Y-%m-%d}",
        "with": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "against its source": f"largest difference of {difference.what} {difference.largest:.3g}, "
        f"of up to {difference.of:.3g}",
    }
    lines = ["---", head.to_yaml(), "---", "", f"# {title}", "", "| | |", "| --- | --- |"]
    for name, value in rows.items():
        cell = value.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {name} | {cell} |")
    lines += ["", *(f"- {note}" for note in notes), ""] if notes else [""]
    if run := _configuration(source.run):
        lines += ["## Configuration", "", "```json", json.dumps(run, indent=2), "```", ""]
    lines += ["## Files", "", "| file | bytes | SHA-256 |", "| --- | --- | --- |"]
    lines += [f"| {file.name} | {file.stat().st_size} | {sha256_of(file)} |" for file in files]
    return "\n".join([*lines, ""])


def _configuration(run: Mapping[str, Any]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for path in _ON_CARD:
        value: Any = run
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            found[path] = _without_folders(value)
    return found


def _without_folders(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_folders(inner) for inner in value]
    return _shown(value) if isinstance(value, str) else value


def _shown(name: str) -> str:
    """Return a path's last part; a name of the hub as it is."""
    return PurePath(name).name if name.startswith((".", "/", "~")) or name.count("/") > 1 else name


def hub_token(environment: Mapping[str, str] = os.environ) -> str:
    """Return the token of the environment; one that is kept on the machine may be another user's.
    Raises UserError if there is none."""
    token = environment.get(TOKEN, "").strip()
    if not token:
        raise UserError(f"--push-to-hub: {TOKEN} is not set; export a token that may write")
    return token


def push(folder: Path, name: str, token: str, endpoint: str | None = None) -> str:
    """Upload a folder as the repository ``name``, private if it is new; return its address. Raises
    RunError if the hub refuses or cannot be reached; the folder stays."""
    api = HfApi(endpoint=endpoint, token=token)
    try:
        made = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder)
    except (HfHubHTTPError, HFValidationError, HTTPError, OSError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"--push-to-hub {name}: {first}; {folder} is written: upload it by "
            f"hf upload {name} {folder}"
        ) from error
    return str(made)
