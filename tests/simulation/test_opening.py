"""Opening models by name: which clients there are, and what a check says of them."""

from pathlib import Path

import httpx2
import pytest

from flowright.config.judge import JudgeSection
from flowright.config.llm import LlmSection, SimulatedSection
from flowright.core.errors import ConfigError
from flowright.data.task import Problem
from flowright.judging.build import open_judge
from flowright.llm.chat import ChatRequest, Message
from flowright.simulation.large_models import open_models
from flowright.simulation.process import SimulatedServer

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


async def test_a_simulated_server_at_an_address_is_labelled(tmp_path: Path) -> None:
    file = tmp_path / "llm.yaml"
    with SimulatedServer([TASK]) as server:
        file.write_text(
            f"models: {{big: {{base_url: '{server.base_url}', model_name: simulated}}}}"
        )
        llm = LlmSection(file=file)
        async with (
            open_models(["big"], llm, SimulatedSection(), None, ()) as models,
            open_judge(JudgeSection(), "big", models.clients) as judge,
        ):
            assert await models.check() == []
            assert models.simulated and judge.simulated
        async with httpx2.AsyncClient() as client:
            answer = await client.get(f"{server.base_url}/models")
            assert answer.headers["X-Simulated"] == "true"
            assert answer.json()["data"][0]["simulated"] is True
            named = {"Host": "evil.example"}
            refused = await client.get(f"{server.base_url}/models", headers=named)
            assert refused.status_code == 400


async def test_a_name_that_the_file_lacks_is_told(llm: LlmSection) -> None:
    with pytest.raises(ConfigError, match="did you mean big"):
        async with open_models(["bog"], llm, SimulatedSection(), None, ()):
            pass
