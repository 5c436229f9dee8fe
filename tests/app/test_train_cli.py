"""train.py as a command: quick to answer, and clear about what is missing."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowright.cli.commands import main

ROOT = Path(__file__).parents[2]
Call = Callable[..., tuple[int, str, str]]


def train(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "train.py", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_help_and_mistakes_do_not_wait_for_torch(tmp_path: Path) -> None:
    """What is imported before the configuration is known to be good."""
    config = tmp_path / "mine.yaml"
    config.write_text("grpo: {stepz: 3}\n")
    program = """
import runpy, sys
sys.argv[0] = "train.py"
try:
    runpy.run_path("train.py", run_name="__main__")
except SystemExit as end:
    heavy = {"torch", "transformers", "peft", "openai", "tensorboard", "matplotlib"}
    print("imported:", sorted(heavy & set(sys.modules)))
    sys.exit(end.code)
"""
    for arguments, code in ((["--help"], 0), (["--config", str(config)], 2)):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout.splitlines()[-1]) == (code, "imported: []")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """A command in this process: its exit status, output and errors."""
    monkeypatch.chdir(ROOT)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["config/none.yaml"], "config/none.yaml: No such file or directory"),
        (
            ["config/quickstart.yaml", "grpo.stepz=1"],
            "command line: grpo.stepz: unknown key; did you mean grpo.steps?",
        ),
    ],
)
def test_a_configuration_mistake_is_one_line_and_exit_2(
    call: Call, arguments: list[str], told: str
) -> None:
    assert call("train", "--config", *arguments) == (2, "", f"{told}\n")


def test_the_dry_run_of_the_quickstart_finds_all_it_needs(call: Call, tmp_path: Path) -> None:
    status, shown, errors = call(
        *("train", "--config", "quickstart", "--dry-run", f"run.output_dir={tmp_path}")
    )
    assert status == 0, shown + errors
    assert "SIMULATED" in shown and "ready" in shown
    assert "off_policy ratio, clip -0.2 +0.28" in shown
    assert list(tmp_path.iterdir()) == []


def test_the_dry_run_names_every_missing_thing_at_once(tmp_path: Path) -> None:
    """config/training.yaml without data, model, hub, GPU and server, whatever this machine has."""
    models = tmp_path / "models.yaml"
    models.write_text(
        "models: {gpt-oss-120b: {base_url: 'http://127.0.0.1:9/v1', model_name: none}}\n"
    )
    done = train(
        "--config",
        "config/training.yaml",
        "--dry-run",
        f"train_dataset={tmp_path}/train.jsonl",
        f"llm.file={models}",
        "physical_gpus=[]",
        CUDA_VISIBLE_DEVICES="",
        HF_HOME=str(tmp_path / "empty"),
        HF_ENDPOINT="http://127.0.0.1:9",  # nothing listens there
        HF_HUB_OFFLINE="0",
    )
    assert done.returncode == 2 and done.stderr == ""
    plan, _, missing = done.stdout.partition("to mend before this run can start:")
    assert "300 steps of 32 problems x 16 attempts" in plan
    for told in (
        f"{tmp_path}/train.jsonl: no such file",
        "strategy_model: Qwen/Qwen2.5-7B-Instruct is neither a folder, nor in the",
        "policy.device: cuda, but torch sees no GPU",
        "http://127.0.0.1:9/v1: cannot be reached",
    ):
        assert told in missing


@pytest.mark.parametrize("dry", [("--dry-run",), ()])
def test_problems_that_are_too_few_are_named_before_anything_is_loaded(
    call: Call, tmp_path: Path, dry: tuple[str, ...]
) -> None:
    empty, one, other = (tmp_path / f"{name}.jsonl" for name in ("empty", "one", "other"))
    empty.write_text("")
    row = '{"id": "1", "kind": "math", "source": "s", "question": "1 + 1?", "reference": "2"}\n'
    one.write_text(row)
    other.write_text(row.replace("1 + 1", "2 + 0").replace('"1"', '"2"'))
    for train_file, val_file, told in (
        (empty, one, [f"train_dataset: {empty}: no problem"]),
        (one, empty, [f"train_dataset: {one}: 1 problem", f"val_dataset: {empty}: no problem"]),
        (one, other, [f"train_dataset: {one}: 1 problem, fewer than a step's 30; give more"]),
    ):
        status, shown, errors = call(
            *("train", "--config", "quickstart", *dry, f"run.output_dir={tmp_path}/out"),
            *(f"train_dataset={train_file}", f"val_dataset={val_file}"),
        )
        assert status == 2, shown
        lines = (shown if dry else errors).splitlines()
        assert all(any(words in line for line in lines) for words in told)
        assert dry or len(lines) == len(told)
        assert "ready" not in shown
    assert not (tmp_path / "out").exists()


def test_a_model_that_no_file_names_is_told_before_anything_is_loaded(
    call: Call, tmp_path: Path
) -> None:
    status, shown, errors = call(
        *("train", "--config", "quickstart", f"run.output_dir={tmp_path}/out"),
        "aflow_executor_model=simulatd",
    )
    assert status == 2 and "loading" not in shown
    assert errors == (
        "config/aflow_llm.yaml: models: no 'simulatd'; did you mean simulated? "
        "(config/aflow_llm.yaml.example shows the form)\n"
    )


def test_an_evaluation_of_what_is_not_there_is_named_before_anything_is_loaded(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    status, shown, errors = call(
        *("evaluate", "--config", "quickstart"),
        *("--checkpoint", f"{tmp_path}/none", "--out", f"{tmp_path}/file/out"),
        *("--data", f"{tmp_path}/none.jsonl"),
    )
    assert status == 2
    missing, unwritable, data = errors.splitlines()
    assert missing.startswith(f"{tmp_path}/none: no adapter in it")
    assert unwritable == f"{tmp_path}/file/out: cannot write here (Not a directory)"
    assert data.startswith(f"{tmp_path}/none.jsonl: no such file")
    assert "loading" not in shown
