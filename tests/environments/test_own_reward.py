"""A reward function and weighted terms in a run's environments."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documented import write_programs
from lost_sandbox import LostSandbox
from own_modules import import_own
from pydantic import ValidationError
from workflow_doubles import ScriptedModel, task

from flowright.app.preflight_checks import check_terms
from flowright.config.root import Config
from flowright.config.workflow import RewardSection, WorkflowSection
from flowright.core.errors import ConfigError, Reason
from flowright.environments.base import make_environment
from flowright.environments.episode import Episode
from flowright.environments.registry import load_config, make_config
from flowright.environments.rollout import Rollout, outcome_metrics, to_record
from flowright.environments.workflow.reward import WorkflowRollouts
from flowright.grpo.advantages import group_advantages
from flowright.judging.build import open_terms
from flowright.judging.terms import NoJudge
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import Usage
from flowright.policy.sampling import Sample
from flowright.runs.run_files import read_metrics, read_rollouts
from flowright.sandbox import Sandbox
from flowright.viewer.rollout_records import record_facts
from flowright.workflows.executor import Executor

ROOT = Path(__file__).parents[2]

OWN = '''
CALLS = []


def near(prompts, completions, answer, program, kind, completion_ids, **columns):
    """1 less the distance to the reference, None for an answer that is no number."""
    CALLS.append((prompts, completions, kind, completion_ids))
    assert all("async def workflow" in text for text in program)
    return [
        1 - abs(float(right) - float(text)) / 10 if text.isdigit() else None
        for right, text in zip(answer, completions)
    ]


def starts(prompts, completions, topic, **columns):
    """Rows of messages: the reply has to name the topic."""
    CALLS.append((prompts, completions, topic))
    return [float(one in reply[0]["content"]) for one, reply in zip(topic, completions)]


def fails(completions, **columns):
    raise KeyError("topic")
'''


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_own(tmp_path, monkeypatch, "own_reward", OWN)


class Half:
    """Calls everything right that ends with a 2."""

    name = "half"

    async def judge(self, query: JudgeQuery) -> Verdict:
        right = query.answer.endswith("2")
        return Verdict(float(right), right, "llm", "ok", "", 1, self.name, Usage(1, 10, 5))


def completions(of: Any, *texts: str) -> list[Episode]:
    return [
        Episode.single(of, Sample((7, n), (0.0, 0.0), text, "stop", 0), f"0/1/0/{n}")
        for n, text in enumerate(texts)
    ]


async def rolled_out(reward: Any, *texts: str) -> list[Rollout]:
    section = RewardSection.model_validate(reward)
    config = make_config(reward=reward)
    terms = open_terms(section, config.judge)
    judge = Half() if section.judge_weight else NoJudge()
    async with (
        Sandbox(workers=1) as sandbox,
        Executor(ScriptedModel(), sandbox, WorkflowSection(workers=1)) as executor,
    ):
        rollouts = WorkflowRollouts(executor, judge, sandbox, section, config.judge, terms=terms)
        (group,) = await rollouts.rollout([completions(task("math"), *texts)])
    return group


def says(text: str) -> str:
    return f"async def workflow(problem):\n    return {text!r}"


async def test_a_function_is_the_reward_of_workflows() -> None:
    import own_reward  # pyright: ignore[reportMissingImports]

    own_reward.CALLS.clear()
    group = await rolled_out("own_reward:near", says("4"), says("6"), says("four"), "no program")
    reference = float(group[0].task.reference)
    near = [1 - abs(reference - value) / 10 for value in (4, 6)]
    assert [r.reward.value for r in group] == [*near, None, RewardSection().invalid]
    assert group[0].reward.parts == {"validity": 0.0, "correctness": 0.0, "near": near[0]}
    assert [r.verdict for r in group] == [None] * 4  # gold is still there (law 3)
    assert group[0].gold is not None and group[0].gold.correct is not None
    assert group[2].failure is not None and group[2].failure.reason is Reason.REWARD_FAILED
    (call,) = own_reward.CALLS  # the group in one call, without the attempt that failed
    prompts, answers, kinds, ids = call
    assert answers == ["4", "6", "four"] and prompts == [group[0].task.problem] * 3
    assert kinds == ["math"] * 3 and ids == [[7, 0], [7, 1], [7, 2]]
    (advantages,) = group_advantages([[r.reward.value for r in group]], "none")
    assert advantages.values[2] == 0.0 and advantages.values[0] != 0.0
    metrics = outcome_metrics(group)
    assert metrics["reward/terms/near"] == sum(near) / 2
    assert metrics["rollout/unscored"] == metrics["rollout/failed/reward_failed"] == 0.25


async def test_terms_are_added_to_the_judges_reward() -> None:
    reward = {
        "judge_weight": 2,
        "terms": [
            {"name": "long", "rule": "words", "arguments": {"most": 4}, "weight": -0.5},
            {"name": "right", "rule": "gold", "weight": 0},
        ],
    }
    group = await rolled_out(reward, says("It is 42"), says("7"))
    assert [r.reward.value for r in group] == [2 - 0.5 * 0.75, 0 - 0.5 * 0.25]
    assert group[0].reward.terms == {"long": 0.75, "right": float(bool(group[0].gold.correct))}  # pyright: ignore[reportOptionalMemberAccess]
    assert group[0].verdict is not None and group[0].verdict.correct  # the judge's, for the audit
    record = json.loads(json.dumps(to_record(group[0], {}, 1, 0, 0, 0.5)))
    shown = {fact.name: fact.text for fact in record_facts(record)}
    assert shown["Reward"].startswith("correctness 2.00 - long 0.38 = 1.62")
    assert shown["Terms"].startswith("long 0.75, right ")


async def test_a_function_that_fails_scores_nothing() -> None:
    group = await rolled_out({"terms": [{"name": "x", "function": "own_reward:fails"}]}, says("42"))
    assert group[0].reward.value is None and group[0].verdict is not None
    assert "KeyError: 'topic'" in str(group[0].failure)


async def test_an_attempt_that_we_lost_stays_lost() -> None:
    section = RewardSection.model_validate("own_reward:fails")
    terms = open_terms(section, make_config().judge)
    sandbox = LostSandbox(workers=1)
    async with Executor(ScriptedModel(), sandbox, WorkflowSection(workers=1)) as executor:
        rollouts = WorkflowRollouts(executor, NoJudge(), sandbox, section, terms=terms)
        (group,) = await rollouts.rollout([completions(task("code"), says("def add(): pass"))])
    assert group[0].failure is not None and group[0].failure.reason is Reason.SANDBOX_LOST


def prompts_config(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> Config:
    file = folder / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    section = {"data": "files", "train_files": [str(file)], "held_out": 1}
    return make_config(environment="instructions", instructions=section, **keys)


async def graded(config: Config, *texts: str) -> list[Rollout]:
    environment = make_environment(config)
    tasks = environment.tasks()
    async with environment.open(tasks.train):
        group = completions(tasks.train[0], *texts)
        (rollouts,) = await environment.rollout([group])
        assert environment.summarise(rollouts)["reward/mean"] is not None
        assert environment.record(rollouts[0])["instructions"]["words"] == len(texts[0].split())
    return rollouts


def test_rows_of_instructions_need_a_prompt_alone(tmp_path: Path) -> None:
    import own_reward  # pyright: ignore[reportMissingImports]

    own_reward.CALLS.clear()
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Cats?"}]
    rows = [
        {"prompt": turns, "topic": "cat"},
        {"prompt": [*turns[:1], {**turns[1], "content": "Dogs?"}], "topic": "cat"},
    ]
    config = prompts_config(tmp_path, rows, reward="own_reward:starts")
    assert config.models == frozenset() and config.judge_names == ("none",)
    rollouts = asyncio.run(graded(config, "A cat.", "A dog."))
    assert [r.reward.value for r in rollouts] == [1.0, 0.0]
    ((prompts, replies, topics),) = own_reward.CALLS
    assert prompts[0][0] == turns[0] and topics == ["cat", "cat"]
    assert replies == [[{"role": "assistant", "content": text}] for text in ("A cat.", "A dog.")]
    assert make_environment(config).reward_bounds is not None


def test_the_gold_check_reads_a_reference_column(tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {n} + 0?", "solution": n} for n in (4, 4)]
    rows[1]["prompt"] = "What is 4?"
    reward = {"judge_weight": 0, "terms": [{"name": "right", "rule": "gold"}]}
    rollouts = asyncio.run(graded(prompts_config(tmp_path, rows, reward=reward), "4", "It is 5."))
    assert [r.reward.value for r in rollouts] == [1.0, 0.0]


def test_constraints_and_the_known_rule_take_terms() -> None:
    reward = {"terms": [{"name": "long", "rule": "words", "arguments": {"most": 10}, "weight": -1}]}
    keys = {"environment": "instructions", "reward": reward}
    both = make_config(**keys, instructions={"reward": "constraints"})
    (one,) = asyncio.run(graded(both, "Nothing of it."))
    assert one.reward.value == -0.3 and one.gold is not None
    with pytest.raises(ValidationError, match=r"own: give reward\.judge_weight: 0"):
        make_config(**keys, instructions={"reward": "own"})


@pytest.mark.parametrize("environment", ["judging", "presentation"])
def test_environments_with_a_reward_of_their_own_refuse_terms(environment: str) -> None:
    with pytest.raises(ValidationError, match="has a reward of its own"):
        make_config(environment=environment, reward="own_reward:fails")


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({}, r"raise reward.invalid \(-0.2\), reward.crashed \(-0.1\)"),
        ({"environment": "judging", "judging": {"method": "pairwise"}}, "judging.unreadable"),
        (
            {
                "reward": {
                    "invalid": 0,
                    "crashed": 0,
                    "terms": [{"name": "long", "rule": "gold", "weight": -1}],
                }
            },
            r"the weight of reward.terms long \(-1\)",
        ),
    ],
)
def test_maxrl_refuses_rewards_below_0(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        make_config(grpo={"advantage_scale": "maxrl"}, **keys)


def test_maxrl_takes_rewards_from_0_on() -> None:
    fine = {"invalid": 0, "crashed": 0}
    assert make_config(grpo={"advantage_scale": "maxrl"}, reward=fine).reward.invalid == 0
    assert make_config(grpo={"advantage_scale": "maxrl"}, environment="instructions")


def test_costs_need_a_judge() -> None:
    with pytest.raises(ValidationError, match="cost_weight: ranks answers judged right"):
        given = {"judge_weight": 0, "terms": [{"name": "a", "rule": "gold"}], "cost_weight": 0.1}
        make_config(reward=given)


SMALL = (
    *("policy.max_prompt_tokens=64", "policy.max_new_tokens=8", "policy.lora.rank=4"),
    *("policy.tiny.hidden_size=32", "policy.tiny.heads=2", "policy.tiny.kv_heads=2"),
    *("policy.tiny.vocab_size=300", "policy.tiny.steps=40", "policy.tiny.examples=100"),
    *("grpo.steps=1", "grpo.prompts_per_step=2", "grpo.group_size=4", "run.name=own"),
    *("evaluation.problems=2", "evaluation.final_problems=2"),
)


@pytest.mark.slow
def test_the_run_of_the_documentation_trains(tmp_path: Path) -> None:
    assert {"my_rewards.py", "own_reward.yaml", "weighted.yaml"} <= {
        *write_programs("extending.md", tmp_path)
    }
    rows = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((4, 5), (6, 7))]
    rows += [{"prompt": f"What is {a} + 1?", "answer": str(a + 1)} for a in range(8)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    call = [sys.executable, str(ROOT / "train.py"), "--config", "own_reward.yaml", *SMALL]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIMULATED" not in done.stdout and "Mean reward on" in done.stdout
    run = tmp_path / "outputs/own"
    row = read_metrics(run)[1]
    assert row["reward/mean"] == pytest.approx(row["reward/terms/right_and_short"])
    assert row["rollout/unscored"] == 0
    record = next(iter(read_rollouts(run, 1)))
    parts, answer = record["reward"]["parts"], record["completion"].split()
    named = float(record["task"]["reference"] in answer)
    assert parts["right_and_short"] == pytest.approx(named - 0.01 * len(answer))
    shown = load_config(run / "config.json").reward.terms[0]
    assert (shown.function, shown.weight) == ("my_rewards:right_and_short", 1.0)


def test_the_weights_of_the_documentation_are_read(tmp_path: Path) -> None:
    write_programs("extending.md", tmp_path)
    config = load_config("weighted.yaml")
    assert config.reward.formula == "1 judge - 0.2 concise + 0.1 no_comma + 0.3 polite + 0.5 mine"
    assert check_terms(config) == config.reward.formula
    with pytest.raises(ConfigError, match="no module my_rewardz"):
        check_terms(load_config("own_reward.yaml", ["reward=my_rewardz:right_and_short"]))
