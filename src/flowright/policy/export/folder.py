"""The files of an exported folder: weights, config, and what surrounds a model, which is copied as
it is. What the files hold is settled before (:mod:`flowright.policy.export.model`).
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from flowright.core.errors import RunError
from flowright.policy.export.adapters import write_adapter
from flowright.policy.export.model import Export
from flowright.policy.export.settling import padding_rows
from flowright.policy.export.weights import write

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_AROUND = (
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("chat_template.jinja", "chat_template.json", "preprocessor_config.json"),
)


def dtype_of(export: Export, asked: str | None) -> torch.dtype:
    """The precision that is written: what is asked for, else what the config says, else that of
    the weights. Raises RunError for one that is not written here."""
    config = export.config
    inner = config.get("text_config") or {}
    keys = [(some, key) for some in (config, inner) for key in ("dtype", "torch_dtype")]
    said = asked or next((some[key] for some, key in keys if some.get(key)), None)
    if said is None:
        said = str(next(iter(export.weights.values()))().dtype).removeprefix("torch.")
    if said not in DTYPES:
        raise RunError(f"the config says {said}; give --dtype {', '.join(DTYPES)}")
    return DTYPES[said]


def fill(
    export: Export, folder: Path, dtype: torch.dtype, most_bytes: int, alone: bool, kept: bool
) -> Sequence[str]:
    """Put all files but the card into ``folder``; ``alone``: an adapter and no weights beside it;
    ``kept``: in the precision that it was trained in. Returns what there is to say of the
    tokenizer. Raises RunError and OSError."""
    adapter = export.adapter
    if alone:
        assert adapter is not None
        write_adapter(adapter, folder, export.base, None if kept else dtype)
    else:
        write(export.weights, folder, dtype, most_bytes)
        text = json.dumps(_with_dtype(export.config, dtype), indent=2) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")
        if adapter is not None:
            write_adapter(adapter, folder / "lora_adapter", export.base)
    for name in _AROUND:
        there = [place / name for place in export.about if (place / name).is_file()]
        if there and not (alone and name == "generation_config.json"):
            shutil.copyfile(there[0], folder / name)
    return _tokenizer(folder, export)


def _with_dtype(config: Mapping[str, Any], dtype: torch.dtype) -> Mapping[str, Any]:
    """Under the key that the config has; versions of transformers before 5 read the older one."""
    said = str(dtype).removeprefix("torch.")
    keys = [key for key in ("dtype", "torch_dtype") if key in config] or ["dtype"]
    changed = {**config, **dict.fromkeys(keys, said)}
    for name, section in config.items():
        if isinstance(section, dict):
            inner = {key: said for key in ("dtype", "torch_dtype") if key in section}
            changed[name] = {**section, **inner}
    return changed


def _tokenizer(folder: Path, export: Export) -> Sequence[str]:
    """What is to be known of it: that there is none, no chat template, rows without a token."""
    if not (folder / "tokenizer_config.json").is_file():
        return ["no tokenizer was there: give the base's to whoever loads this"]
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        return [f"its tokenizer cannot be loaded here ({first}); it is copied as it was"]
    notes: list[str] = []
    if tokenizer.chat_template is None:
        notes.append("the tokenizer has no chat template")
    if rows := padding_rows(export.config, len(tokenizer)):
        notes.append(f"{rows} rows of the embedding are padding: no token has them")
    return notes
