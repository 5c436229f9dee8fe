"""From what a command line names to a model that answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from flowright.config.llm import LlmSection, ModelEntry
from flowright.config.loading import load_entries
from flowright.core.errors import UserError
from flowright.evaluation.responses.asking import AnsweringModel, Drawing, ModelDown
from flowright.evaluation.responses.served import (
    ServedModel,
    entry_of_environment,
    section_of_environment,
)
from flowright.llm.client import ChatClient


@dataclass(frozen=True, slots=True)
class Named:
    """What a command line says of a model: ``model``, a folder or name, is loaded in this process;
    ``server`` is a name of ``llm_file``; without either the environment names servers."""

    model: str | None = None
    server: str | None = None
    llm_file: Path = Path("config/aflow_llm.yaml")
    dtype: str | None = None
    max_model_len: int | None = None
    batch_size: int = 8
    chat_template: bool = True


@asynccontextmanager
async def open_model(named: Named, drawing: Drawing) -> AsyncIterator[AnsweringModel]:
    """Raises UserError for what cannot be had, ModelDown where a server does not answer."""
    if named.model is not None and named.server is not None:
        raise UserError("--model is loaded here, --server answers elsewhere; give one of them")
    if named.model is not None:
        # Loaded here alone: torch takes seconds.
        from flowright.evaluation.responses.local import LocalModel, open_local

        policy = open_local(named.model, named.dtype)
        yield LocalModel(
            policy, drawing, named.batch_size, named.max_model_len, named.chat_template
        )
        return
    if not named.chat_template:
        raise UserError("--no-chat-template: a server applies its own; it is for --model")
    section = section_of_environment(LlmSection(file=named.llm_file))
    name, entry = _entry(named)
    client = ChatClient(name, entry, section)
    try:
        if problems := await client.check({"--max-tokens": drawing.max_tokens}):
            raise ModelDown(*problems, "nothing was asked")
        yield ServedModel(client, entry.model_name, drawing, section.max_concurrency)
    finally:
        await client.aclose()


def _entry(named: Named) -> tuple[str, ModelEntry]:
    if named.server is not None:
        return named.server, load_entries(named.llm_file, [named.server])[named.server]
    entry = entry_of_environment()
    if entry is None:
        raise UserError(
            "nobody to ask: --model FOLDER loads a model here, --server NAME is one of "
            f"{named.llm_file}, VLLM_BASE_URL and VLLM_MODEL name servers"
        )
    return entry.model_name, entry
