"""scripts/instructions/verinstruct_*.sh: the command that each makes of its variables, what it
refuses, and that no key of a server is in it."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from flowright.config.loading import load_models
from flowright.environments.registry import load_config

ROOT = Path(__file__).parents[2]
CONFIGS = {
    "RL": "verinstruct_rl",
    "RuscaRL": "verinstruct_ruscarl",
    "RL_verif": "verinstruct_rl_verif",
    "RuscaRL_verif": "verinstruct_ruscarl_verif",
}


def call(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(
        ["bash", str(ROOT / f"scripts/instructions/verinstruct_{name}.sh"), *arguments],
        env=kept | {"PYTHON": sys.executable} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def keys_of(name: str, *arguments: str, **variables: str) -> list[str]:
    """The keys of the command."""
    done = call(name, "--dry-run", *arguments, **variables)
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout)
    config = str(ROOT / f"config/{CONFIGS[name]}.yaml")
    assert words[:4] == [sys.executable, str(ROOT / "train.py"), "--config", config]
    return words[4:]


@pytest.mark.parametrize("name", CONFIGS)
def test_without_variables_the_configuration_stands(name: str) -> None:
    verif = name.endswith("verif")
    assert keys_of(name) == ["instructions.rules=skip"] * verif, "the judge alone, by default"
    assert keys_of(name, VERIF_SKIP_RULES="0") == keys_of(name, VERIF_IGNORE_RULES="1") == []


def test_variables_become_keys_and_secrets_do_not(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    file.touch()
    given = {
        "TRAIN_FILE": str(file),
        "RUBRIC_FILE": str(file),
        "TRAIN_BATCH_SIZE": "8",
        "PPO_MINI_BATCH_SIZE": "4",
        "MICRO_BATCH_SIZE": "2",
        "TOTAL_STEPS": "3",
        "VERIF_LLM_MAX_RETRIES": "2",
        "VERIF_MAX_THREADS": "16",
        "VLLM_BASE_URL": "http://one/v1,http://two/v1",
        "VLLM_API_KEY": "sk-hidden",
    }
    keys = keys_of("RuscaRL_verif", "grpo.group_size=4", **given)
    assert keys == [
        f"instructions.train_files=[{file}]",
        f"instructions.scaffolding.files=[{file}]",
        "instructions.rules=skip",
        "judge.max_attempts=3",
        "llm.max_concurrency=16",
        "grpo.prompts_per_step=8",
        "grpo.steps=3",
        "grpo.micro_batch_tokens=16384",  # 2 x (4096 + 4096)
        "grpo.minibatches=2",
        "grpo.group_size=4",
    ]
    config = load_config(ROOT / "config/verinstruct_ruscarl_verif.yaml", keys)
    assert config.instructions.scaffolding.enabled and config.grpo.micro_batch_tokens == 16384


def test_what_cannot_be_had_is_refused_by_name(tmp_path: Path) -> None:
    done = call("RL_verif", "--dry-run", MIN_INTERVAL_S="2", VERIF_LLM_BACKEND="own", VAL_FILE="no")
    assert done.returncode == 2
    said = done.stderr.splitlines()
    assert [line.partition("=")[0] for line in said] == [
        "VAL_FILE", "VERIF_LLM_BACKEND", "MIN_INTERVAL_S",
    ]  # fmt: skip
    told = call("RL", "--help").stdout
    assert "VLLM_BASE_URL" in told and "RUBRIC_FILE" not in told


def test_the_judge_s_servers_are_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_BASE_URL", "http://one/v1, http://two/v1")
    monkeypatch.setenv("VLLM_API_KEY", "sk-1,sk-2")
    monkeypatch.setenv("VLLM_MODEL", "judge")
    monkeypatch.setenv("VLLM_STREAM", "true")
    entry = load_models(ROOT / "config/aflow_llm.yaml")["instructions-judge"]
    assert entry.base_urls == ("http://one/v1", "http://two/v1")
    assert entry.api_keys == ("sk-1", "sk-2") and entry.stream and entry.model_name == "judge"


def test_the_embedded_policy_is_scaffolded_and_judged_in_a_run(tmp_path: Path) -> None:
    """Two steps, the first scaffolded, as small as can be."""
    rubric = [{"criterion": f"It says `{word}`.", "points": 2} for word in ("fig", "pear")]
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Name fruit, please. {n}"}],
            "reward_model": {"style": "rubric", "rubrics": rubric},
        }
        for n in range(8)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tiny = {"hidden_size": 24, "layers": 1, "heads": 2, "kv_heads": 1, "vocab_size": 300}
    tiny |= {"examples": 8, "programs": 1, "steps": 2, "batch_size": 2}
    keys = [f"policy.tiny.{key}={value}" for key, value in tiny.items()]
    keys += [
        f"policy.tiny.cache_dir={tmp_path}",
        "strategy_model=tiny",
        "judge.model=simulated",
        "instructions.val_files=[]",
    ]
    keys += ["policy.max_prompt_tokens=512", "policy.max_new_tokens=8", "grpo.group_size=3"]
    keys += ["grpo.prompts_per_step=2", "grpo.minibatches=1", "evaluation.every=0"]
    keys += ["evaluation.final_problems=1", "instructions.scaffolding.decay=step_linear"]
    given = {"TRAIN_FILE": str(file), "TOTAL_STEPS": "2", "SAVE_PATH": str(tmp_path / "run")}
    done = call("RuscaRL", *keys, OMP_NUM_THREADS="1", **given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIMULATED" in done.stdout
    _, first, last = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    shown = ("rollout/scaffolded_frac", "rollout/scaffold_share", "rollout/scaffold_left_out")
    assert [first[name] for name in shown] == [pytest.approx(2 / 3), pytest.approx(1 / 2), 0]
    assert [last[name] for name in shown] == [0, 0, 0]
    assert first["rollout/unscored"] == 0
