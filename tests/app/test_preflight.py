"""What the dry run asks of servers, and that it and the run choose one device."""

import asyncio
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from judge_serving import served
from llm_standin import StandIn, good, problem
from rich.console import Console
from tiny_policy import checkpoint

from flowright.app.device import MemoryDemand, look_at_device, planned_device
from flowright.app.measuring import open_evaluation
from flowright.app.preflight import demand_of, dry_run
from flowright.app.preflight_checks import load_tasks
from flowright.app.session import run_evaluation
from flowright.app.terminal import memory_lines
from flowright.config.grpo import GrpoSection
from flowright.config.judge import JudgeServerSection
from flowright.config.policy import SMOLLM2, PolicySection, WarmStartSection
from flowright.config.root import Config
from flowright.core.errors import ConfigError, UserError
from flowright.core.formatting import amount
from flowright.environments.base import make_environment
from flowright.environments.registry import load_config, make_config
from flowright.environments.workflow.servers import check_servers
from flowright.judging.rules import RuleJudge
from flowright.judging.service.app import create_app
from flowright.policy.memory import shape_of
from flowright.policy.model import choose_device, load_policy

VERDICT = '{"reason": "It is 42.", "verdict": true}'


def asking(tmp_path: Path, urls: Mapping[str, str], **given: Any) -> Config:
    """A run whose executor is the model ``large``; models by name at these addresses."""
    file = tmp_path / "models.yaml"
    entry = {"model_name": "standin-7b"}
    file.write_text(
        yaml.safe_dump({"models": {n: {"base_url": u, **entry} for n, u in urls.items()}})
    )
    llm = {"file": file, "attempts": 1, "reconnect_seconds": 0}
    return make_config({"aflow_executor_model": "large", "llm": llm, **given})


async def told(config: Config) -> str:
    with pytest.raises(UserError) as caught:
        await check_servers(config)
    return "\n".join(caught.value.problems)


async def test_each_model_is_asked_once_as_it_will_be(tmp_path: Path) -> None:
    async with StandIn(rest=good(VERDICT), window=32768) as server:
        line = await check_servers(asking(tmp_path, {"large": server.url}))
    assert line == f"large at {server.url}"
    as_executor, as_judge = (seen.json for seen in server.seen)
    assert as_executor["max_tokens"] == as_judge["max_tokens"] == 16
    assert as_executor["temperature"] == 0.7 and "response_format" not in as_executor
    assert as_judge["response_format"]["type"] == "json_schema" and as_judge["temperature"] == 0


@pytest.mark.parametrize("role", ["executor", "judge", "panel"])
async def test_an_address_without_v1_is_told_for_every_role(tmp_path: Path, role: str) -> None:
    async with StandIn(rest=good(VERDICT)) as server:
        right, wrong = server.url, server.url.removesuffix("/v1")
        urls = {"large": wrong if role == "executor" else right, "other": wrong}
        given = {
            "judge": {"judge": {"model": "other"}, "panel": {"panel": ["other"]}}.get(role, {})
        }
        config = asking(tmp_path, urls, **given)
        found = await told(config)
        assert f"{wrong}: answered 404 to /models, and {right} serves standin-7b" in found
        assert f"set base_url to {right}" in found and len(found.splitlines()) == 1
        with pytest.raises(UserError, match="set base_url to"):  # a run says it as well
            async with make_environment(config).open([]):
                pass


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/openai", ""])
async def test_an_address_that_was_copied_wrongly_is_told_too(tmp_path: Path, path: str) -> None:
    async with StandIn(rest=good(VERDICT)) as server:
        found = await told(asking(tmp_path, {"large": server.url.removesuffix("/v1") + path}))
    assert f"set base_url to {server.url}" in found


async def test_budgets_above_the_servers_context_are_told_with_both_numbers(tmp_path: Path) -> None:
    async with StandIn(rest=good(VERDICT), window=2048) as server:
        config = asking(tmp_path, {"large": server.url})
        found = await told(config)
        assert "max_model_len of standin-7b is 2048, but executor.max_tokens is 4096" in found
        assert "judge.max_tokens is 2048" in found and "--max-model-len" in found
        small = {"executor": {"max_tokens": 512}, "judge": {"max_tokens": 512}}
        assert "large at" in await check_servers(asking(tmp_path, {"large": server.url}, **small))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (problem(401, "invalid key"), "check api_key"),
        (problem(403, "not yours"), "may use this model"),
        (problem(404, "The model `standin-7b` does not exist."), "check model_name"),
        (problem(400, "reasoning_effort is unknown"), "reasoning_effort is unknown"),
        (problem(503, "loading"), "503"),
        (problem(500, "EngineDeadError"), "EngineDeadError"),
    ],
)
async def test_what_only_a_completion_shows_is_found(
    tmp_path: Path, reply: bytes, words: str
) -> None:
    async with StandIn(rest=reply) as server:
        found = await told(asking(tmp_path, {"large": server.url}))
    executor, judge = found.splitlines()
    assert executor.startswith("aflow_executor_model: large: ") and words in executor
    assert judge.startswith("judge: large: ") and words in judge


async def test_a_judge_that_refuses_schemas_is_no_problem_but_said(tmp_path: Path) -> None:
    def choose(seen: Any) -> bytes:
        schema = seen.json.get("response_format", {}).get("type") == "json_schema"
        return problem(400, "json_schema is not supported") if schema else good(VERDICT)

    async with StandIn(choose=choose) as server:
        line = await check_servers(asking(tmp_path, {"large": server.url}))
    assert line.endswith("(judges by json_object: it refuses json_schema)")


async def test_a_judge_service_is_asked_one_question(tmp_path: Path) -> None:
    app = create_app(RuleJudge(), JudgeServerSection())
    async with served(app) as (url, _):
        fine = make_config({"judge": {"service": {"judge_url": url}}})
        assert f"judge service at {url}" in await check_servers(fine)
        deep = make_config({"judge": {"service": {"judge_url": f"{url}/v1"}}})
        assert f"set judge_url to {url}" in await told(deep)


async def test_a_models_server_is_no_judge_service() -> None:
    """vLLM answers /health, too, and knows no /batch_judge."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        known = head.startswith(b"GET /health")
        line = b"200 OK" if known else b"404 Not Found"
        writer.write(b"HTTP/1.1 " + line + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found = await told(make_config({"judge": {"service": {"judge_url": url}}}))
    assert "no judge service is there" in found and "an entry of llm.file" in found


def test_a_model_trains_on_a_cpu_where_there_is_no_gpu() -> None:
    """The dry run and the run look with one function, which warns and does not refuse."""
    section = PolicySection(device="cpu", max_prompt_tokens=64, max_new_tokens=16)
    policy = load_policy(str(checkpoint()), section, 0)
    config = make_config(strategy_model=str(checkpoint()), policy=section).on("cpu")
    demand = MemoryDemand(
        shape_of(policy.causal_lm, config.policy), config.policy, config.grpo, 1, "cpu"
    )
    assert planned_device(config) == choose_device(section).type == "cpu"
    free, warning = look_at_device(config, demand)
    assert free.startswith("cpu, ") and "slow for all but small models" in warning
    memory, same = memory_lines(config, policy)
    assert memory.startswith("memory ") and same == warning


def test_gpus_that_are_named_and_not_there_are_a_warning_for_every_model() -> None:
    config = make_config(physical_gpus=[2])
    if planned_device(config) == "cuda":
        pytest.skip("there is a GPU")
    _, warning = look_at_device(config, None)
    assert warning.startswith("WARNING: physical_gpus: [2], but torch sees no GPU")


def test_a_model_that_is_made_here_is_planned_by_its_folder(tmp_path: Path) -> None:
    """The name ``smollm2-135m`` is no folder, and no hub's."""
    section = PolicySection(device="cpu", warm_start=WarmStartSection(folder=checkpoint()))
    config = make_config(strategy_model=SMOLLM2, policy=section).on("cpu")
    demand = demand_of(config)
    policy = load_policy(str(checkpoint()), config.policy, 0)
    assert demand is not None and demand.shape == shape_of(policy.causal_lm, config.policy)
    none = WarmStartSection(folder=tmp_path / "none")
    later = config.model_copy(update={"policy": section.model_copy(update={"warm_start": none})})
    assert demand_of(later) is None


def test_memory_decides_on_a_cpu_as_on_a_gpu() -> None:
    section = PolicySection(device="cpu")
    policy = load_policy(str(checkpoint()), section, 0)
    shape = shape_of(policy.causal_lm, section)
    demand = MemoryDemand(shape, section, GrpoSection(), 1, "cpu")
    with pytest.raises(ConfigError, match=r"a smaller strategy_model, or policy.quantised: nf4$"):
        demand.announce(demand.least - 1)
    _, warning = demand.announce(demand.least + 1)
    assert warning.startswith("WARNING: the machine may run out of memory")


def test_a_run_on_given_pairs_is_planned_by_its_rows(tmp_path: Path) -> None:
    """By those that the policy can be asked: passes are over these."""
    data, long = tmp_path / "pairs.jsonl", "long " * 200
    rows = [(f"question {n}", "yes", "no" if n % 4 else long) for n in range(40)]
    said = ("user", "assistant")
    data.write_text(
        "\n".join(
            json.dumps(
                {
                    name: [
                        {"role": role, "content": text}
                        for role, text in zip(said, (question, answer), strict=True)
                    ]
                    for name, answer in (("chosen", good), ("rejected", bad))
                }
            )
            for question, good, bad in rows
        )
    )
    config = make_config(
        {
            "environment": "judging",
            "strategy_model": str(checkpoint()),
            "judging": {
                "method": "bradley_terry",
                "data": "files",
                "train_files": [data],
                "val_share": 0.25,
                "epochs": 2,
            },
            "policy": {"head": "score", "max_prompt_tokens": 150, "device": "cpu"},
            "grpo": {"loss": "bradley_terry", "prompts_per_step": 5, "kl_coefficient": 0},
            "plan": {"learner_tokens_per_second": 1000},
            "run": {"output_dir": tmp_path / "runs"},
        }
    )
    screen = io.StringIO()
    assert dry_run(config, Console(file=screen, width=200)) == 0
    text = screen.getvalue()
    kept = re.search(r"(\d+) rows to train on.*?train: [^\n]*, (\d+) dropped", text, re.DOTALL)
    assert kept is not None and int(kept[2]) > 0
    steps = round(2 * (int(kept[1]) - int(kept[2])) / 5)
    assert f"{steps} steps of 5 rows, bradley_terry" in text
    assert "tokens a row" in text and "time: training" in text
    assert "attempts" not in text and "SIMULATED" not in text


def test_a_dry_run_shows_what_the_run_does(tmp_path: Path) -> None:
    """No server where nothing is asked, no rollouts where nothing is sampled."""
    answers, judges = (
        "SIMULATED: the embedded server answers",
        "SIMULATED: the embedded server judges",
    )
    for name, overrides, has, lacks in (
        ("judge_pairwise_small", (), ["sampler "], ["SIMULATED", "call_seconds", "judge calls"]),
        ("judge_sft_small", (), ["sampler "], ["SIMULATED", "off_policy"]),
        ("judge_bradley_terry_small", (), ["settings  float32"], ["sampler ", "off_policy"]),
        ("instructions_small", (), [f"{judges};", "judge calls"], ["executor calls"]),
        ("quickstart", (), [f"{answers} and judges;", "executor calls"], []),
        ("quickstart", ("judge.mode=rules",), [f"{answers};"], ["judge calls"]),
        ("quickstart", ("environment=presentation",), ["SIMULATED: questions, answers"], []),
    ):
        screen = io.StringIO()
        config = load_config(name, (*overrides, f"run.output_dir={tmp_path}"))
        assert dry_run(config, Console(file=screen, width=200)) == 0
        text = screen.getvalue()
        assert [words for words in has if words not in text] == [], (name, text)
        assert [words for words in lacks if words in text] == [], (name, text)


def test_too_few_problems_are_those_of_the_environment() -> None:
    config = load_config("instructions_small", ["grpo.prompts_per_step=3000"])
    with pytest.raises(UserError) as caught:
        load_tasks(make_environment(config))
    counted = "2000 problems, fewer than a step's 3000"
    assert str(caught.value).startswith(f"a known rule (synthetic), rewarded by rubric: {counted}")


@pytest.mark.parametrize(
    ("off_policy", "said"),
    [(None, "ratio does not correct"), ("truncated", "truncated corrects")],
)
def test_what_attempts_are_shown_is_told_with_what_corrects_for_it(
    tmp_path: Path, off_policy: str | None, said: str
) -> None:
    config = make_config(
        {
            "environment": "words_environment:Hinted",
            "strategy_model": str(checkpoint()),
            "policy": {"max_prompt_tokens": 100, "max_new_tokens": 4, "device": "cpu"},
            "grpo": {"group_size": 4, "off_policy": off_policy},
            "run": {"output_dir": tmp_path / "runs"},
        }
    )
    screen = io.StringIO()
    assert dry_run(config, Console(file=screen, width=200)) == 0
    shown = "at step 1 10 of 40 attempts at the first 10 problems are shown one, 10 are not as it"
    assert f"scaffolds {shown}" in screen.getvalue()
    assert f"off_policy {said} for that" in " ".join(screen.getvalue().split())


def test_the_turns_of_an_attempt_are_shown_with_their_tokens(tmp_path: Path) -> None:
    """And compared with the 256 positions of the model."""
    config = make_config(
        {
            "environment": "talk_environment:Talk",
            "strategy_model": str(checkpoint()),
            "policy": {"max_prompt_tokens": 100, "max_new_tokens": 4, "device": "cpu"},
            "grpo": {"prompts_per_step": 2},
            "run": {"output_dir": tmp_path / "runs"},
        }
    )
    screen = io.StringIO()
    assert dry_run(config, Console(file=screen, width=200)) == 0
    text = screen.getvalue()
    behind = 3 * 4 + 2 * (512 + 64)
    shown = f"up to 3 of 4 tokens, with the answers to them {behind:,} tokens behind a prompt"
    assert f"turns     {shown}" in text
    assert (
        f"max_episode_tokens are {100 + behind:,} together, and the model was made for 256" in text
    )
    assert re.search(rf"policy tokens out +up to {amount(2 * 8 * behind)} ", text)
    short = {"max_observation_tokens": 8, "max_episode_tokens": 100}
    update = {"policy": config.policy.model_copy(update=short)}
    assert dry_run(config.model_copy(update=update), Console(file=screen, width=200)) == 0
    assert screen.getvalue().count("WARNING: policy.max") == 1


async def test_an_evaluation_warns_of_sequences_longer_than_the_model(tmp_path: Path) -> None:
    config = make_config(
        {
            "environment": "talk_environment:Talk",
            "strategy_model": str(checkpoint()),
            "policy": {"max_prompt_tokens": 100, "max_new_tokens": 4, "device": "cpu"},
            "evaluation": {"final_problems": 1, "final_samples": 1},
        }
    )
    screen = io.StringIO()
    with open_evaluation(config, (), None, tmp_path / "out", False) as opened:
        await run_evaluation(opened, Console(file=screen, width=200))
    assert "are 1,264 together, and the model was made for 256 positions" in screen.getvalue()
