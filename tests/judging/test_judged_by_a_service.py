"""A run whose judge is a service at another address: how it is opened, checked and shown."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from judge_serving import served
from pydantic import ValidationError
from rich.console import Console

from flowright.app.preflight import dry_run
from flowright.config.judge import JudgeServerSection
from flowright.config.root import Config, JudgeServerConfig
from flowright.core.errors import UserError
from flowright.data.task import Problem
from flowright.environments.base import make_environment
from flowright.environments.registry import make_config
from flowright.judging.rules import RuleJudge
from flowright.judging.service.app import create_app
from flowright.judging.service.serve import open_backend
from flowright.judging.verdict import JudgeQuery

TASK = Problem("t/1", "math", "s", "What is 6 * 7?", "42")
ASKED = JudgeQuery("What is 6 * 7?", "42", "42", "number")


@asynccontextmanager
async def service(simulated: bool = False) -> AsyncIterator[str]:
    """The address of a judge service that judges by rules, and that says what it is told to."""
    app = create_app(RuleJudge(), JudgeServerSection(), simulated=simulated)
    async with served(app) as (url, _):
        yield url


def judged_by(url: str) -> Config:
    return make_config(
        {"judge": {"service": {"judge_url": url, "batch_timeout": 0}}, "sandbox": {"workers": 1}}
    )


async def test_a_run_needs_no_model_for_its_judge() -> None:
    async with service() as url:
        config = judged_by(url)
        assert (config.judge_model, config.judge_names) == (None, (url,))
        assert config.models == {"simulated"}, "the executor's"
        environment = make_environment(config)
        async with environment.open([TASK]):
            assert environment.about()["judge"] == url


async def test_a_service_that_is_not_there_is_told_before_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = judged_by("http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9: cannot be reached.*judge_url"):
        async with make_environment(config).open([TASK]):
            pass
    code = await asyncio.to_thread(dry_run, config, Console(width=200))
    assert code == 2
    assert "http://127.0.0.1:9: cannot be reached" in capsys.readouterr().out


@pytest.mark.parametrize("simulated", [True, False])
async def test_what_the_service_simulates_is_said_here_too(simulated: bool) -> None:
    async with service(simulated) as url:
        config = JudgeServerConfig.model_validate({"judge": {"service": {"judge_url": url}}})
        assert config.models == frozenset()
        async with open_backend(config) as (opened, ready):
            assert opened.simulated is simulated
            assert (await opened.judge.judge(ASKED)).correct is True
            assert await ready() == []


@pytest.mark.parametrize(
    ("judge", "told"),
    [
        ({"ask": "pairwise"}, "judge.ask: pairwise does not fit"),
        ({"ask": "rubric"}, "judge.ask: rubric does not fit"),
        ({"mode": "rules", "service": {"judge_url": "http://j"}}, "the rules ask no judge"),
        ({"aspects": {}}, "aspects: different names"),
        ({"aspects": {"overall": "all of it"}}, "aspects: different names"),
        ({"aspects": {"Clarity": "?", "clarity": "!"}}, "aspects: different names"),
        ({"aspects": {"a:b": "?"}}, "aspects: different names"),
    ],
)
def test_a_judge_that_cannot_judge_workflows_is_a_mistake(
    judge: dict[str, object], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        make_config({"judge": judge})
