"""What of a model is trained, and what it was before: an adapter beside frozen weights
(:mod:`flowright.policy.adapter`), or the decoder's own weights (:mod:`flowright.policy.full`).
Neither trains embeddings and head: the head's gradient is not computed
(:mod:`flowright.policy.head`). Here is what the two have in common.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError
from torch import Tensor

from flowright.core.errors import ConfigError

OF_ITS_RUN = "evaluate or resume with the configuration of that run"


class Tuning(Protocol):
    """What is trained of ``model``, in float32, which small steps need. ``folder`` is the name
    under which a checkpoint keeps it."""

    model: Any
    folder: str

    @property
    def causal_lm(self) -> Any:
        """The transformers model; calling it applies what was trained."""
        ...

    def reference(self) -> AbstractContextManager[None]:
        """The model as it was before training."""
        ...

    def decoding(self) -> AbstractContextManager[None]:
        """The weights of this moment as decoding is fastest with them, while nobody trains."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What is trained, by name."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put back a whole state. Raises ConfigError where it has other layers or sizes."""
        ...

    def save(self, folder: Path) -> None:
        """Make a folder with files that others load, too. Raises OSError (a full disk, say)."""
        ...

    def save_merged(self, folder: Path) -> None:
        """Put the whole model as it was trained into a folder that transformers loads. Raises
        OSError. The policy is of no use after this."""
        ...

    def read(self, folder: Path, name: str) -> None:
        """Load what was saved of a policy called ``name``. Raises RunError where it is of another
        base model, which would load and mean nothing; ConfigError as :meth:`load`."""
        ...


def refuse_misfits(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], mend: str) -> None:
    """Raises ConfigError where a state has other names or sizes than ours."""
    sizes = {name: tensor.shape for name, tensor in ours.items()}
    given = {name: tensor.shape for name, tensor in theirs.items()}
    wrong = [name for name in {**sizes, **given} if sizes.get(name) != given.get(name)]
    if wrong:
        raise ConfigError(
            f"checkpoint: its weights do not fit this policy, for instance {wrong[0]}; {mend}"
        )


def save_model(model: Any, folder: Path, state: Mapping[str, Tensor] | None = None) -> None:
    """Put a transformers model, or this ``state`` of it, into a folder. Raises OSError, which its
    writer turns into an error of its own."""
    with disk_errors_of_safetensors():
        model.save_pretrained(folder, state_dict=state)


@contextmanager
def disk_errors_of_safetensors() -> Iterator[None]:
    """Raises OSError where the writer of safetensors found one and made an error of its own."""
    try:
        yield
    except SafetensorError as error:
        if found := re.search(r"os error (\d+)", str(error)):
            number = int(found[1])
            raise OSError(number, os.strerror(number)) from error
        raise
