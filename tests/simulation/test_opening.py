"""Opening models by name: which clients there are, and what a check says of them."""

from pathlib import Path

import pytest

from flowright.config.llm import LlmSection, SimulatedSection
from flowright.core.errors import ConfigError
from flowright.data.task import Problem
from flowright.llm.chat import ChatRequest, Message
from flowright.simulation.large_models import open_models

TASK = Problem("t/1", "math", "s", "What is 6 * 7?", "42")


@pytest.fixture
def llm(tmp_path: Path) -> LlmSection:
    file = tmp_path / "llm.yaml"
    file.write_text("models: {big: {base_url: 'http://127.0.0.1:9/v1', model_name: b}}")
    return LlmSection(file=file)


async def test_a_client_for_each_name_and_the_embedded_server(llm: LlmSection) -> None:
    names = {"simulated", "big"}
    async with open_models(names, llm, SimulatedSection(), None, [TASK]) as models:
        assert list(models.clients) == ["big", "simulated"] and models.simulated
        (problem,) = await models.check()
        assert "models.big" in problem and "cannot be reached" in problem
        asked = ChatRequest([Message("user", TASK.question)])
        assert (await models.clients["simulated"].chat(asked)).text


async def test_without_its_name_no_embedded_server_is_started(llm: LlmSection) -> None:
    async with open_models(["big"], llm, SimulatedSection(), None, ()) as models:
        assert list(models.clients) == ["big"] and not models.simulated
    async with open_models((), llm, SimulatedSection(), None, ()) as models:
        assert models.clients == {} and await models.check() == []


async def test_a_name_that_the_file_lacks_is_told(llm: LlmSection) -> None:
    with pytest.raises(ConfigError, match="did you mean big"):
        async with open_models(["bog"], llm, SimulatedSection(), None, ()):
            pass
