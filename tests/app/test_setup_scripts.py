"""scripts/quickstart.sh and scripts/test.sh with a stand-in Python that notes what pip is asked."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAVED = "outputs/quickstart/checkpoints/step_000000"

PYTHON = """#!/usr/bin/env bash
if [[ "$*" == "-m venv "* ]]; then
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
elif [[ "$*" == "-m pip install "* ]]; then
    echo "$*" >>{house}/pip.log
    exit ${{PIP_STATUS:-0}}
elif [[ "$1 $2" == "-m ruff" || "$1 $2" == "-m basedpyright" || "$1 $2" == "-m pytest" ]]; then
    echo "$*" >>{house}/checks.log
    [[ "$2" != "${{BREAKS:-}}" ]]
elif [[ "$1" == train.py ]]; then
    echo "$*" >>{house}/train.log
    [[ -z ${{SAVES:-}} ]] || mkdir -p "{house}/$SAVES"
    exit ${{TRAIN_STATUS:-0}}
elif [[ "$1" == -c && "$2" == *ensurepip* ]]; then
    exit ${{VENV_STATUS:-0}}
elif [[ "$1" == - || "$1" == -c ]]; then
    exec {python} "$@"
fi
"""


class House:
    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "scripts").mkdir()
        (path / "config").mkdir()
        for name in ("quickstart.sh", "test.sh", "environment.sh"):
            shutil.copy(ROOT / "scripts" / name, path / "scripts")
        (path / "config/quickstart.yaml").write_text("run: {name: quickstart}\n")
        (path / "docs").mkdir()
        shutil.copy(ROOT / "docs/configuration.md", path / "docs")
        (path / "src").symlink_to(ROOT / "src")
        for name in ("requirements.txt", "requirements-test.txt", "pyproject.toml"):
            (path / name).write_text("")
        self.python = path / "python3"
        self.python.write_text(PYTHON.format(house=path, python=sys.executable))
        self.python.chmod(0o755)

    def call(self, script: str, *arguments: str, **environment: str):
        return subprocess.run(
            ["bash", self.path / "scripts" / script, *arguments],
            env={"PATH": "/usr/bin:/bin", "PYTHON": str(self.python)} | environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def log(self, name: str) -> list[str]:
        path = self.path / f"{name}.log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_quickstart_installs_once_and_names_every_run(house: House) -> None:
    first = house.call("quickstart.sh", "grpo.steps=3")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "making .venv" in first.stdout and re.search(r"^took +\d+ s", first.stdout, re.M)
    run = house.path / "outputs/quickstart"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").touch()

    second = house.call("quickstart.sh")
    assert second.returncode == 0 and "install" not in second.stdout
    named = house.call("quickstart.sh", "run.name=mine")
    assert named.returncode == 0
    assert house.log("train") == [
        "train.py --config config/quickstart.yaml grpo.steps=3 run.name=quickstart",
        "train.py --config config/quickstart.yaml run.name=quickstart-2",
        "train.py --config config/quickstart.yaml run.name=mine run.name=mine",
    ]
    assert len(house.log("pip")) == 1 and "-r requirements.txt" in house.log("pip")[0]

    (house.path / "requirements.txt").write_text("torch\n")
    house.call("quickstart.sh")
    assert len(house.log("pip")) == 2


def test_quickstart_says_how_to_go_on_with_a_run_that_stopped(house: House) -> None:
    done = house.call("quickstart.sh", "seed=1", TRAIN_STATUS="3", SAVES=SAVED)
    assert done.returncode == 3
    assert "config/quickstart.yaml seed=1 run.name=quickstart --resume" in done.stderr


def test_quickstart_reports_a_configuration_mistake_before_training(house: House) -> None:
    done = house.call("quickstart.sh", "grpo.stepz=3")
    assert done.returncode == 2 and "did you mean grpo.steps?" in done.stderr
    assert house.log("train") == []
    option = house.call("quickstart.sh", "--resume")
    assert option.returncode == 2 and "key=value only" in option.stderr


def test_quickstart_checks_its_arguments_before_it_installs(house: House) -> None:
    done = house.call("quickstart.sh", "lr=1", "grpo.stepz=3", "seed", "=1", "grpo.steps=2")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "command line: lr: unknown key; did you mean grpo.learning_rate?",
        "command line: grpo.stepz: unknown key; did you mean grpo.steps?",
        "command line: 'seed': write key=value, such as grpo.steps=10",
        "command line: '=1': write key=value, such as grpo.steps=10",
    ]
    assert house.log("pip") == []
    fine = ("grpo={steps: 2}", "simulated.judge_biases.verbosity=1", "judge.model=")
    assert house.call("quickstart.sh", *fine).returncode == 0


def test_the_command_that_goes_on_works_where_it_is_printed(house: House) -> None:
    done = house.call("quickstart.sh", "grpo={steps: 2}", TRAIN_STATUS="3", SAVES=SAVED)
    command = done.stderr.splitlines()[-1].removeprefix("go on: ")
    again = subprocess.run(["bash", "-c", command], cwd="/", check=False)
    assert again.returncode == 0
    asked = "train.py --config config/quickstart.yaml grpo={steps: 2} run.name=quickstart"
    assert house.log("train") == [asked, f"{asked} --resume"]


def test_a_failed_installation_is_tried_again(house: House) -> None:
    assert house.call("quickstart.sh", PIP_STATUS="1").returncode == 2
    assert house.log("train") == []
    assert house.call("quickstart.sh").returncode == 0
    assert len(house.log("pip")) == 2


def test_a_python_without_venv_is_named_with_the_remedy(house: House) -> None:
    done = house.call("quickstart.sh", VENV_STATUS="1")
    assert done.returncode == 2 and "apt-get install python3-venv" in done.stderr
    assert not (house.path / ".venv").exists()


def test_a_python_that_is_too_old_is_named_with_the_remedy(house: House) -> None:
    old = house.path / "old"
    old.write_text("#!/bin/sh\n[ $1 = --version ] && echo Python 3.9.2 && exit\nexit 1\n")
    old.chmod(0o755)
    tools = house.path / "tools"  # a PATH without any other Python
    tools.mkdir()
    for name in ("bash", "cat", "cut", "dirname", "head", "readlink", "sha256sum"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    done = house.call("quickstart.sh", PYTHON=str(old), PATH=str(tools))
    assert done.returncode == 2
    assert f"Python 3.11 or newer is needed; {old} is Python 3.9.2" in done.stderr


def test_every_check_runs_even_after_one_failed(house: House) -> None:
    done = house.call("test.sh", "-k", "sandbox", BREAKS="basedpyright")
    assert done.returncode == 1 and "failed: [basedpyright]" in done.stdout
    assert sorted(house.log("checks")) == [  # basedpyright runs beside pytest
        "-m basedpyright --level error",
        "-m pytest -n auto --maxprocesses 4 --max-worker-restart 0 --dist loadfile "
        "--no-loadscope-reorder -k sandbox",
        "-m ruff check",
        "-m ruff format --check",
    ]
    installed = house.log("pip")
    named = ("-r requirements.txt", "-r requirements-test.txt", "-r requirements-constraints.txt")
    assert [each.endswith(name) for each, name in zip(installed, named, strict=True)] == [True] * 3
    assert house.call("test.sh").returncode == 0
    assert len(house.log("pip")) == 3


def test_help_of_every_shell_script_starts_nothing(tmp_path: Path) -> None:
    scripts = [ROOT / "launch_vllm_safe.sh", ROOT / "monitor.sh", *ROOT.glob("scripts/**/*.sh")]
    for script in scripts:
        if script.name == "environment.sh":
            continue
        for options in (["--help"], ["--help", "--more"]):
            shown = subprocess.run(
                ["bash", str(script), *options],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHON": sys.executable},
            )
            assert shown.returncode == 0, (script, shown.stderr)
            assert "installing" not in shown.stdout and len(shown.stdout.splitlines()) > 3, script


def test_continuous_integration_runs_what_people_run() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert lines[-1] == "exec bash scripts/test.sh --all"
    assert not any("pip install" in line for line in lines)
