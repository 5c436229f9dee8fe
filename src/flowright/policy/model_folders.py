"""Models of a folder or the hub as data: config, tokenizer and weights are read, and Python code
that they bring or name is never run, nor is anybody asked whether it should be.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer

from flowright.core.errors import ConfigError
from flowright.core.files import read_json
from flowright.llm.control_tokens import tokenizer_folder
from flowright.policy.chat_templates import read_template, start_renderer

_MALFORMED = (
    *(ImportError, TypeError, AttributeError, LookupError, ArithmeticError, AssertionError),
    *(RecursionError, SafetensorError, StrictDataclassError),
)
_MAPPED = "auto_map"
"""Key of a model's own classes, in any of its files of JSON."""


def load_config(model: str | Path) -> Any:
    """Return the config of a model as transformers has it. Raises ConfigError where code of the
    model would be needed or a value is malformed, OSError and ValueError if it cannot be read."""
    with _as_data(model):
        found = AutoConfig.from_pretrained(model, trust_remote_code=False)
    for section in (found, found.get_text_config()):
        for key in ("_attn_implementation", "_experts_implementation"):
            if "/" in str(named := getattr(section, key, None)):
                raise ConfigError(
                    f"{model}: its config.json names the kernel {named} of the hub, which is code "
                    f"and never run here; take {key.removeprefix('_')} out"
                )
    return found


def load_tokenizer(model: str | Path, template: Path | None = None, **how: Any) -> Any:
    """Return a model's tokenizer, with the chat ``template`` of a file if there is one. Raises as
    :func:`load_config` and :func:`read_template`."""
    start_renderer()
    with _as_data(model):
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False, **how)
    if template is not None:
        tokenizer.chat_template = read_template(template)
    return tokenizer


def load_model(kind: Any, model: str | Path | None, **how: Any) -> Any:
    """Return a model by the transformers class ``kind``; None: of a ``config`` and ``state_dict``.
    Raises as :func:`load_config`, which is to be called before."""
    with _as_data(model):
        return kind.from_pretrained(model, trust_remote_code=False, **how)


@contextmanager
def _as_data(model: str | Path | None) -> Iterator[None]:
    """Name the file that asks for code of its own; turn a library's error at malformed files into
    one line."""
    try:
        yield
    except _MALFORMED as error:
        why = " ".join(str(error).split())[:200]
        kind = type(error).__name__
        raise ConfigError(f"{model}: cannot be loaded here: {kind}: {why}") from error
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ConfigError(
            f"{model}: {_names_code(model)} names Python code of its own ({_MAPPED}), which is "
            "never run here, and transformers has no class for it; give another model"
        ) from None


def _names_code(model: str | Path | None) -> str:
    """Return the file of a model that names code."""
    for file in sorted(tokenizer_folder(str(model)).glob("*config.json")):
        try:
            if _MAPPED in read_json(file):
                return file.name
        except (OSError, ValueError, TypeError):
            continue
    return "one of its files"
