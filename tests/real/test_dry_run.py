"""`train.py --dry-run` against real servers: what fits is ready, what does not is named."""

import subprocess
import sys
from pathlib import Path

import pytest
from real_vllm import POLICY, ROOT, SHORT_COLD_START, RealVllm

pytestmark = pytest.mark.real

FITS = ("executor.max_tokens=512", "judge.max_tokens=512")


def dry_run(path: Path, url: str, served: str, *changes: str) -> tuple[int, str]:
    """With an executor that is a real server; exit code and what was said."""
    models = path / "models.yaml"
    models.write_text(f'models: {{large: {{base_url: "{url}", model_name: "{served}"}}}}\n')
    done = subprocess.run(
        [
            *(sys.executable, "train.py", "--config", "config/quickstart.yaml", "--dry-run"),
            *(f"llm.file={models}", "aflow_executor_model=large", f"run.output_dir={path}"),
            *(*SHORT_COLD_START, *changes),
        ],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def sampled_by(server: RealVllm, *changes: str) -> tuple[str, ...]:
    """With the policy's folder in the place of its name: what a user's own model is."""
    return (
        *(f"strategy_model={server.folder}", "policy.device=cpu"),
        *("policy.sampler=vllm", f"policy.vllm.base_urls=[{server.url}]"),
        *(f"policy.vllm.model_name={POLICY}", *changes),
    )


def test_servers_that_fit_are_ready(
    large: RealVllm, policy_server: RealVllm, tmp_path: Path
) -> None:
    code, said = dry_run(tmp_path, large.url, large.name, *FITS, *sampled_by(policy_server))
    assert code == 0 and "ready" in said, said
    assert large.url in said and policy_server.url in said


def test_a_wrong_model_and_a_wrong_rank_are_named(
    large: RealVllm, policy_server: RealVllm, tmp_path: Path
) -> None:
    rank = sampled_by(policy_server, "policy.lora.rank=96")
    code, said = dry_run(tmp_path, large.url, "smollm-135m", *FITS, *rank)
    assert code == 2, said
    assert "models.large" in said and "model_name" in said and large.name in said
    assert "policy.lora.rank" in said and "--max-lora-rank" in said


def test_a_policy_server_of_another_model_is_named(
    large: RealVllm, policy_server: RealVllm, tmp_path: Path
) -> None:
    other = sampled_by(policy_server, "policy.vllm.model_name=Qwen/Qwen2.5-7B-Instruct")
    code, said = dry_run(tmp_path, large.url, large.name, *FITS, *other)
    assert code == 2 and "policy.vllm.model_name" in said and POLICY in said, said


def test_lengths_beyond_the_servers_are_named(
    large: RealVllm, policy_server: RealVllm, tmp_path: Path
) -> None:
    long = sampled_by(policy_server, "policy.max_new_tokens=1000")
    code, said = dry_run(tmp_path, large.url, large.name, "executor.max_tokens=8192", *long)
    assert code == 2, said
    assert "executor.max_tokens" in said and "4096" in said
    assert "policy.max_new_tokens" in said and "--max-model-len" in said


def test_an_address_without_its_end_is_named(large: RealVllm, tmp_path: Path) -> None:
    code, said = dry_run(tmp_path, large.url.removesuffix("/v1"), large.name, *FITS)
    assert code == 2 and "base_url" in said and "/v1" in said, said
