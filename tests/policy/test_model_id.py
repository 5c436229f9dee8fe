"""A model is known by its content: what was made from another one is not reused."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from command_lines import command
from tiny_policy import checkpoint, shake

from flowright.app.preflight_checks import check_warm_start, warm_start_recipe
from flowright.config.grpo import GrpoSection
from flowright.config.policy import LoraSection, PolicySection
from flowright.core.errors import RunError, UserError
from flowright.criteria.constraints.language import missing
from flowright.environments.registry import make_config
from flowright.evaluation.responses.instruction_benchmarks import record_place
from flowright.grpo.checkpoint import load_weights, save_checkpoint
from flowright.grpo.learner import Learner
from flowright.policy.base_models import Origin, model_id
from flowright.policy.export.source import export_id, find_source
from flowright.policy.model import Policy, load_policy

SCRIPTS = Path(__file__).parents[2] / "scripts/instructions"


def base_at(folder: Path) -> Path:
    return Path(shutil.copytree(checkpoint(), folder))


def policy_on(base: Path, seed: int = 5) -> Policy:
    section = PolicySection(device="cpu", lora=LoraSection(rank=4, alpha=8))
    policy = load_policy(str(base), section, seed=3)
    shake(policy, seed, scale=1.0)
    return policy


def step_of(run: Path, policy: Policy) -> Path:
    learner = Learner(policy, GrpoSection(), 1.0, 0)
    return save_checkpoint(run / "checkpoints", 10, policy, learner, 2)


def flip(file: Path, at: int) -> None:
    """Change one byte and nothing that a listing shows."""
    stat = file.stat()
    with file.open("r+b") as opened:
        opened.seek(at)
        (old,) = opened.read(1)
        opened.seek(at)
        opened.write(bytes([old ^ 1]))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_the_hash_is_of_the_content_alone(tmp_path: Path) -> None:
    one, other = base_at(tmp_path / "one"), base_at(tmp_path / "other")
    for file in other.iterdir():
        os.utime(file, (1, 1))
    (other / "README.md").write_text("made on a Tuesday")
    assert model_id(one) == model_id(other) is not None
    weights = model_id(other, settings=False)
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert model_id(one) != model_id(other)
    assert model_id(other, settings=False) == weights
    flip(other / "model.safetensors", -9 + (other / "model.safetensors").stat().st_size)
    assert model_id(other, settings=False) != weights
    assert model_id(tmp_path / "nowhere") is None
    os.mkfifo(one / "pipe.json")
    assert model_id(one) is not None


def test_of_a_large_file_the_ends_and_blocks_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as opened:
        opened.truncate((1 << 30) + (1 << 20))  # of no size on the disk
    before = model_id(tmp_path)
    size = file.stat().st_size
    for at, seen in ((100, True), (size - 5, True), (size // 2, True), (size // 2 + 40_000, False)):
        flip(file, at)
        assert (model_id(tmp_path) != before) is seen
        flip(file, at)


@pytest.mark.skipif(bool(missing()), reason="needs requirements-constraints.txt")
def test_two_checkpoints_of_one_name_have_two_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = base_at(tmp_path / "base")
    arms = [step_of(tmp_path / arm, policy_on(base, seed)) for arm, seed in (("a", 5), ("b", 17))]
    ids = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    data = tmp_path / "data.jsonl"
    data.write_text("".join(f"{json.dumps({'key': n, 'prompt': f'q{n}', **ids})}\n"
                            for n in range(40)))  # fmt: skip
    export, evaluate = command("export"), command("instructions evaluate")
    scores, records = [], []
    for step in arms:
        capsys.readouterr()
        assert export([str(step), "--merge", "--id"]) == 0
        made_from = capsys.readouterr().out.strip()
        model = tmp_path / f"merged-{made_from}"
        assert export([str(step), "--merge", "--out", str(model)]) == 0
        assert json.loads((model / "origin.json").read_text())["recipe"] == {"id": made_from}
        asked = ["--benchmark", "ifeval", "--data", str(data), "--model", str(model)]
        asked += ["--max-tokens", "24", "--json", str(tmp_path / "ifeval.json")]
        answers = tmp_path / f"{len(scores)}.jsonl"
        assert evaluate([*asked, "--save-responses", str(answers)]) == 0
        records.append(Path(capsys.readouterr().out.split()[-1]))
        record = json.loads(records[-1].read_text())
        scores.append(record["benchmarks"]["ifeval"]["counts"])
    assert scores[0] != scores[1]
    assert records[0] == tmp_path / "ifeval.json"
    assert records[1].name == f"ifeval-{model_id(model)}.json"
    assert evaluate([*asked, "--save-responses", str(tmp_path / "0.jsonl")]) == 2
    assert "0.answers.jsonl: has other settings: weights:" in capsys.readouterr().err


def test_an_export_is_known_by_its_base_and_settings_too(tmp_path: Path) -> None:
    base = base_at(tmp_path / "base")
    source = find_source(step_of(tmp_path / "run", policy_on(base)))
    before = export_id(source)
    assert export_id(source, dtype="bfloat16") != before
    flip(base / "model.safetensors", -9 + (base / "model.safetensors").stat().st_size)
    assert export_id(source) != before


def test_records_of_one_model_replace_each_other(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    ours = {"ifeval": {"model": "m/step_000010", "weights": "1f"}}
    for before, name in (
        ({"ifeval": {"model": "n/step_000010", "weights": "1f"}}, "r.json"),
        ({"ifeval": {"model": "m/step_000010", "weights": "2e"}}, "r-1f.json"),
        ({}, "r.json"),
    ):
        path.write_text(json.dumps({"generation": before}))
        assert record_place(path, ours).name == name


STUB = """#!/bin/bash
case $1 in *export_model.py) ;; *) echo "asked ${@: -1}" && exit ;; esac
id=$(cksum <"$2/weights" | cut -d' ' -f1)
[[ $* == *--id* ]] && echo "$id" && exit
mkdir -p "${@: -1}" && echo "{\\"id\\": \\"$id\\"}" >"${@: -1}/origin.json"
echo made >>"${@: -1}/config.json"
"""


def test_the_scripts_reuse_a_merged_model_of_the_same_checkpoint_alone(tmp_path: Path) -> None:
    stub = tmp_path / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)
    (tmp_path / "val").touch()
    steps = [tmp_path / arm / "step_000010" for arm in "ab"]
    for step in steps:
        step.mkdir(parents=True)
        (step / "weights").write_text(str(step))
    environment = {**os.environ, "PYTHON": str(stub), "DATA_PATH": str(tmp_path / "val")}
    made: list[list[str]] = []
    for out, script in (("i", "ifeval_eval_vllm.sh"), ("v", "verinstruct_eval_ckpt.sh")):
        for step in (*steps, *steps):
            given = ["--ckpt-dir", step, "--merge-target", tmp_path / out / "m"]
            given = given if out == "i" else [step, tmp_path / out]
            done = subprocess.run(
                ["bash", SCRIPTS / script, *given], env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
        made.append(sorted(file.read_text() for file in (tmp_path / out).glob("*/config.json")))
    assert made == [["made\n"] * 2] * 2
    assert (tmp_path / "i/m/config.json").exists()


def test_a_checkpoint_is_not_loaded_beside_another_base(tmp_path: Path) -> None:
    base = base_at(tmp_path / "base")
    step = step_of(tmp_path / "run", policy_on(base))
    moved = Path(shutil.copytree(base, tmp_path / "elsewhere" / "base"))
    load_weights(step, policy_on(moved))
    flip(moved / "model.safetensors", -9 + (base / "model.safetensors").stat().st_size)
    with pytest.raises(RunError, match="are not those that it was trained beside"):
        load_weights(step, policy_on(moved))


def test_a_warm_start_is_of_its_base_and_its_data(tmp_path: Path) -> None:
    base, folder = base_at(tmp_path / "base"), base_at(tmp_path / "warm")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("1")
    config = make_config(
        {"environment": "words_environment:Words", "strategy_model": str(base),
         "train_dataset": str(rows), "policy": {"warm_start": {"folder": folder}}}
    )  # fmt: skip
    recipe = warm_start_recipe(config)
    Origin("made", recipe).write(folder)
    assert check_warm_start(config, folder) == "made"
    rows.write_text("2")
    with pytest.raises(UserError, match=r"made with other settings \(data: "):
        check_warm_start(config, folder)
    Origin("made", {key: recipe[key] for key in recipe if key not in ("data", "weights")}).write(
        folder
    )
    assert check_warm_start(config, folder) == "made", "by an older version"
