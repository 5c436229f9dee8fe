"""Training the decoder's own weights. What else a model can be trained by is
:mod:`flowright.policy.tuning`'s to say.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import PreTrainedTokenizerBase

from flowright.core.errors import RunError
from flowright.policy.tuning import OF_ITS_RUN, refuse_misfits, save_model


class _Weight(nn.Module):
    """A trained weight as the model multiplies by it: the float32 original in the model's
    precision, or another tensor ``instead``."""

    instead: Tensor | None = None

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def forward(self, original: Tensor) -> Tensor:
        return original.to(self._dtype) if self.instead is None else self.instead


class FullTuning:
    """All weights of the decoder but its embeddings, norms included.

    They are float32 and multiply in the model's precision: steps of 1e-6 are lost on bfloat16
    weights (Micikevicius et al. 2017, arXiv 1710.03740, section 3.1). The reference is a copy as
    the model was loaded, in main memory; it is brought to the device for as long as it is asked.
    Saved as a Hugging Face folder, the tokenizer included: trained weights in float32, so that a
    run can go on from it.
    """

    folder = "model"

    def __init__(self, base: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model = base
        self._tokenizer = tokenizer
        self._weights: dict[str, tuple[_Weight, nn.Parameter]] = {}
        self._before: dict[str, Tensor] = {}
        base.requires_grad_(False)
        head = base.get_output_embeddings()
        modules = [
            (name, module)
            for name, module in base.named_modules()
            if module is not head and not isinstance(module, nn.Embedding)
        ]
        for path, module in modules:
            for name, parameter in [*module.named_parameters(recurse=False)]:
                full = f"{path}.{name}" if path else name
                self._before[full] = parameter.detach().to("cpu", copy=True)
                weight = _Weight(parameter.dtype)
                parameter.data = parameter.data.float()
                parametrize.register_parametrization(module, name, weight, unsafe=True)
                self._weights[full] = (weight, parameter.requires_grad_())

    @property
    def causal_lm(self) -> Any:
        return self.model

    @contextmanager
    def reference(self) -> Iterator[None]:
        try:
            for name, (weight, original) in self._weights.items():
                weight.instead = self._before[name].to(original.device)
            yield
        finally:
            self._as_trained()

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Cast once, and not for each token."""
        try:
            with torch.no_grad():
                for weight, original in self._weights.values():
                    weight.instead = weight(original).detach()
            yield
        finally:
            self._as_trained()

    def _as_trained(self) -> None:
        for weight, _ in self._weights.values():
            weight.instead = None

    def state(self) -> dict[str, Tensor]:
        """With the names that transformers writes to disk."""
        return {name: original.detach() for name, (_, original) in self._weights.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        refuse_misfits(self.state(), state, "resume with the strategy_model it was trained from")
        with torch.no_grad():
            for name, (_, original) in self._weights.items():
                original.copy_(state[name])

    def save(self, folder: Path) -> None:
        folder.mkdir()
        self.save_merged(folder)
        self._tokenizer.save_pretrained(folder)

    def save_merged(self, folder: Path) -> None:
        save_model(self.model, folder, self._whole())

    def read(self, folder: Path, name: str) -> None:
        """Bases are told apart by what is not trained: embeddings and head."""
        state: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            state |= load_file(file)
        frozen = {key: tensor for key, tensor in self._whole().items() if key not in self._weights}
        for key, tensor in frozen.items():
            theirs = state.pop(key, None)  # a tied head is not there
            if theirs is not None and not (
                theirs.shape == tensor.shape and torch.equal(theirs, tensor.cpu())
            ):
                raise RunError(
                    f"{folder.parent}: it was trained from another model than {name}: {key} "
                    f"differs, which is never trained; {OF_ITS_RUN}"
                )
        self.load(state)

    def _whole(self) -> dict[str, Tensor]:
        """Everything, by its plain name."""
        by_name = cast(dict[str, Tensor], self.model.state_dict())
        return {plain_name(name): tensor for name, tensor in by_name.items()}


def plain_name(name: str) -> str:
    """Of a weight, as it was called before it was trained itself."""
    return re.sub(r"parametrizations\.(\w+)\.original$", r"\1", name)
