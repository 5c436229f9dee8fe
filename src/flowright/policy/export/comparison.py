"""Whether a written folder is what it was written from: both are loaded, one after the other, and
compared by their outputs for the same tokens.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flowright.core.errors import RunError
from flowright.policy.export.adapters import Adapter
from flowright.policy.export.model import Export, class_of, with_adapter

TOKENS = 16
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Of the largest number: what rounding can do over many layers. An adapter added with another scale
or beside another layer is further off."""


@dataclass(frozen=True, slots=True)
class Difference:
    """``largest``: between the outputs; ``of``: the largest of the source's. ``what``: logits or
    scores."""

    largest: float
    of: float
    what: str


def compare(
    export: Export, folder: Path, dtype: torch.dtype, adapter: Adapter | None
) -> Difference:
    """Of the source and of ``folder``, in the precision that was written. ``adapter``: what of the
    folder is one, alone (the base is the source's) or beside the weights in ``lora_adapter/``.
    Raises RunError where they differ by more than rounding, or where the folder lacks weights."""
    theirs = _outputs(lambda: export.load(dtype))
    ours = _outputs(lambda: _loaded(export, folder, dtype, adapter))
    largest, of = float((theirs - ours).abs().max()), float(theirs.abs().max())
    if not largest <= _TOLERANCE[dtype] * max(of, 1e-6):
        raise RunError(
            f"{folder.name.removesuffix('.part')}: not written: what was to be in it differs from "
            f"its source by {largest:.3g}, of outputs up to {of:.3g}; please report this"
        )
    scores = "ForCausalLM" not in export.kind.architectures[0]
    return Difference(largest, of, "scores" if scores else "logits")


def _loaded(export: Export, folder: Path, dtype: torch.dtype, adapter: Adapter | None) -> Any:
    if adapter is not None and not (folder / "config.json").is_file():
        return with_adapter(export.load_base(dtype), folder)
    model, info = class_of(export.kind).from_pretrained(
        folder, dtype=dtype, output_loading_info=True
    )
    for key, what in (("missing_keys", "lacks"), ("unexpected_keys", "has no place for")):
        if info.get(key):
            raise RunError(
                f"not written: {class_of(export.kind).__name__} {what} {sorted(info[key])[0]} "
                f"({len(info[key])} in all); the source is of another model or not whole"
            )
    if adapter is None:
        return model
    return with_adapter(model, folder / "lora_adapter")


def _outputs(load: Callable[[], Any]) -> Tensor:
    """[..., labels or vocabulary] of tokens spread over the vocabulary. The model goes after it."""
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
