"""Opening a judge: who is asked, what a check covers, and whether its verdicts are simulated."""

import pytest
from llm_standin import StandIn, good

from flowright.config.judge import JudgeSection, JudgeServiceSection
from flowright.config.llm import LlmSection, ModelEntry
from flowright.judging.build import open_judge
from flowright.judging.verdict import JudgeQuery
from flowright.llm.client import ChatClient
from flowright.llm.counters import metrics_since

NOWHERE = "http://127.0.0.1:9"


def clients(*names: str) -> dict[str, ChatClient]:
    entry = ModelEntry(base_url=f"{NOWHERE}/v1", model_name="m")
    return {name: ChatClient(name, entry, LlmSection()) for name in names}


@pytest.mark.parametrize(
    ("section", "model", "simulated"),
    [
        (JudgeSection(model="big"), "big", False),
        (JudgeSection(model="simulated"), "simulated", True),
        (JudgeSection(model="big", panel=("simulated",)), "big", True),
        (JudgeSection(mode="rules"), "simulated", False),
    ],
)
async def test_a_judge_is_simulated_where_the_embedded_server_judges(
    section: JudgeSection, model: str, simulated: bool
) -> None:
    async with open_judge(section, model, clients("big", "simulated")) as opened:
        assert opened.simulated is simulated
        assert opened.service is None and await opened.check() == []


async def test_what_a_judge_asks_is_counted_as_the_judges() -> None:
    async with StandIn(rest=good('{"correct": true}')) as server:
        entry = ModelEntry(base_url=server.url, model_name="standin-7b")
        models = {"big": ChatClient("big", entry, LlmSection())}
        async with open_judge(JudgeSection(model="big"), "big", models) as opened:
            await opened.judge.judge(JudgeQuery("What is 6 * 7?", "It is 42.", "42", "number"))
            assert opened.counters == ()
        metrics = metrics_since(client.counters for client in models.values())
        await models["big"].aclose()
    assert metrics["servers/judge/calls"] >= 1
    assert not any(name.startswith("servers/executor") for name in metrics)


async def test_a_service_judges_in_the_models_place() -> None:
    section = JudgeSection(service=JudgeServiceSection(judge_url=NOWHERE))
    async with open_judge(section, None, {}) as opened:
        assert opened.judge.name == NOWHERE and not opened.simulated
        (problem,) = await opened.check()
        assert "cannot be reached" in problem


async def test_a_model_that_is_not_open_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="needs a model"):
        async with open_judge(JudgeSection(model="big"), "big", {}):
            pass
