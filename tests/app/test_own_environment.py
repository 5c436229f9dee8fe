"""An environment in one file outside the package goes everywhere that workflows go."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from documented import write_programs
from starlette.testclient import TestClient

from flowright.cli.commands import main
from flowright.environments.display import name_environment
from flowright.runs.run_files import read_metrics, read_rollouts, read_state, rollout_steps
from flowright.viewer.run_list import RunList as Shelf
from flowright.viewer.server import create_app

ROOT = Path(__file__).parents[2]


KEYED = '''"""Sums with keys of their own."""

from pydantic import Field

import flowright
from flowright.config.root import Config
from sums import Sums


class SumsSection(flowright.EnvironmentSection):
    """Sums of two digits."""

    key = "sums"

    most: int = Field(default=9, ge=1, le=9)
    """Largest digit of a sum."""
    bonus: float = 0.0
    """Added to the reward of a right sum."""

    def check(self, config: Config) -> None:
        if self.bonus and config.reward.cost_weight:
            raise ValueError("sums.bonus: leave it out where reward.cost_weight counts")

    def problems_from(self, config: Config) -> str:
        return f"sums up to {self.most} + {self.most}"


class KeyedSums(Sums):
    Config = SumsSection

    def tasks(self):
        most = self.config.own(SumsSection).most
        sets = super().tasks()
        both = sets.train, sets.val
        sides = ([t for t in side if max(map(int, t.id.split("+"))) <= most] for side in both)
        return flowright.TaskSets(*sides)
'''


def call(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    assert {"sums.py", "sums.yaml"} <= {*write_programs("extending.md", folder)}
    (folder / "mine.py").write_text(KEYED, encoding="utf-8")
    run = (folder / "sums.yaml").read_text(encoding="utf-8")
    run = run.replace("environment: sums:Sums", "environment: mine:KeyedSums", 1)
    (folder / "sums.yaml").write_text(f"{run}\nsums: {{most: 8}}\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> subprocess.CompletedProcess[str]:
    return call(folder, str(ROOT / "train.py"), "--config", "sums.yaml")


@pytest.mark.slow
def test_it_is_trained_and_compared(folder: Path, trained: subprocess.CompletedProcess[str]):
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "SIMULATED" not in trained.stdout and "executor" not in trained.stdout
    assert "always 9" in trained.stdout and "small" in trained.stdout
    rows = read_metrics(folder / "outputs/sums")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    names = {"reward/mean", "gold/accuracy", "gold/accuracy/small", "rollout/valid_frac"}
    assert names <= rows[1].keys() and "val/gold/large" in rows[2]
    assert not [name for row in rows for name in row if name.startswith(("operators", "sandbox"))]
    kept = json.loads((folder / "outputs/sums/config.json").read_text())
    assert kept["sums"] == {"most": 8, "bonus": 0.0}
    assert not {"workflow", "judging", "instructions", "presentation"} & kept.keys()
    assert "problems  sums up to 8 + 8" in trained.stdout
    record = next(iter(read_rollouts(folder / "outputs/sums", 1)))
    assert record["task"]["source"] == "sums" and "workflow" not in record
    table = json.loads((folder / "outputs/sums/evaluation.json").read_text())
    assert {"untrained policy", "trained policy", "always 9"} == {r["name"] for r in table["rows"]}


@pytest.mark.slow
def test_a_run_goes_on(folder: Path, trained: subprocess.CompletedProcess[str]):
    again = call(
        folder, str(ROOT / "train.py"), "--config", "sums.yaml", "--resume", "grpo.steps=6"
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "resumed from" in again.stdout
    assert [row["step"] for row in read_metrics(folder / "outputs/sums")][-1] == 6
    assert read_state(folder / "outputs/sums")["status"] == "finished"


@pytest.mark.slow
def test_it_is_checked_evaluated_watched_and_reported(
    folder: Path, trained: subprocess.CompletedProcess[str]
):
    dry = call(
        folder, str(ROOT / "train.py"), "--config", "sums.yaml", "--dry-run", "run.name=next"
    )
    assert dry.returncode == 0, dry.stdout + dry.stderr
    assert "small" in dry.stdout and "ready" in dry.stdout
    checkpoint = "outputs/sums/checkpoints/step_000004"
    script = str(ROOT / "scripts/evaluate.py")
    command = (script, "--config", "sums.yaml", "--checkpoint", checkpoint, "--out", "out")
    found = call(folder, *command, "--papers")
    assert found.returncode == 0, found.stdout + found.stderr
    assert (folder / "out/evaluation.json").exists()
    assert "Ours has no problems of GSM8K" in (folder / "out/papers.md").read_text()
    papers = json.loads((folder / "out/papers.json").read_text())
    assert "executor of environment mine:KeyedSums, not known" in papers["models_used"]
    assert found.stdout.index("AFlow [1]") < found.stdout.index("out/evaluation.json")
    attempts = folder / "out/evaluation"
    assert rollout_steps(attempts) == [0, 4], "the untrained policy, and the checkpoint's step"
    answers = {row["completion"] for row in read_rollouts(attempts, 4)}
    played = call(
        folder, str(ROOT / "scripts/replay.py"), "out", "evaluation/4/0/0", "--json", "--trust"
    )
    assert played.returncode == 0, played.stdout + played.stderr
    now = json.loads(played.stdout)
    assert now["recorded"]["completion"] in answers
    assert now["now"]["reward"] == now["recorded"]["reward"]
    shown = ("--environment", "mine:KeyedSums")
    watched = call(folder, str(ROOT / "monitor_training_live.py"), "--once", "outputs/sums", *shown)
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert "gold" in watched.stdout
    report = (folder / "outputs/sums/report.html").read_text()
    assert "always 9" in report and "Answer" in report
    shown = report.split("<main>")[1].split("Configuration")[0]
    assert "udge" not in shown + watched.stdout, "a run without a judge shows none"
    assert "Operator mix" not in report and "executor" not in report.split("Configuration")[0]


def test_a_name_that_is_none_lists_what_there_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)

    def problems(*overrides: str) -> str:
        assert main(["train", "--config", "sums.yaml", *overrides]) == 2
        return capsys.readouterr().err

    wrong = problems("environment=workflows")
    assert "did you mean workflow?" in wrong and "package.module:name" in wrong
    assert "no module summs" in problems("environment=summs:Sums")
    assert "advantage sums:By" in problems("grpo.advantage_scale=sums:By")
    unknown = problems("grpo.advantage_scale=sums:By", "grpo.loss=dappo")
    assert "did you mean dapo?" in unknown
    assert "did you mean Sums?" in problems("environment=sums:Sum")


def test_its_keys_are_checked_and_listed_as_all_are(folder: Path):
    def problems(*overrides: str) -> list[str]:
        code = (
            "import sys; from flowright.core.errors import ConfigError\n"
            "from flowright.environments.registry import load_config\n"
            "try: load_config('sums.yaml', sys.argv[1:])\n"
            "except ConfigError as error: print('\\n'.join(error.problems))\n"
            "assert 'torch' not in sys.modules"
        )
        done = call(folder, "-c", code, *overrides)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert problems() == []
    assert problems("sums.mst=3", "judging.methd=sft", "seed=x") == [
        "command line: judging.methd: unknown key; did you mean judging.method?",
        "command line: seed: input should be a valid integer, unable to parse string as an integer "
        "(got 'x')",
        "command line: sums.mst: unknown key; did you mean sums.most?",
    ]
    (line,) = problems("sums.most=10")
    assert line.startswith("command line: sums.most: input should be less than or equal to 9")
    (line,) = problems("sums.bonus=1", "reward.cost_weight=0.1")
    assert line == "sums.yaml: sums.bonus: leave it out where reward.cost_weight counts"
    listed = call(
        folder, str(ROOT / "scripts/write_config_docs.py"), "--environment", "mine:KeyedSums"
    )
    assert listed.returncode == 0, listed.stderr
    assert "## `sums`" in listed.stdout and "`sums.most`" in listed.stdout
    assert "Largest digit of a sum." in listed.stdout


@pytest.mark.slow
def test_its_run_is_a_page_of_the_viewer(
    folder: Path, trained: subprocess.CompletedProcess[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    name_environment("mine:KeyedSums")
    shelf = Shelf(folder / "outputs")
    for run in shelf.runs():
        for part in shelf.parts(run):
            part.update()
    with TestClient(create_app(shelf), "http://localhost") as client:
        page = client.get("/run/sums/attempt/1/0/0").text
    assert "Answer" in page and "Shown without its environment" not in page


def test_an_environment_of_several_turns_is_trained(tmp_path: Path):
    names = write_programs("extending/environment.md", tmp_path)
    assert names == ["guess.py", "guess.yaml", "train_trl.py"]
    done = call(tmp_path, str(ROOT / "train.py"), "--config", "guess.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_metrics(tmp_path / "outputs/guess")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(row["tokens/trained_as_sampled"] == 1 for row in rows if "turns/mean" in row)
    assert all(row["turns/max"] <= 4 for row in rows[1:])
    go_on = ("--config", "guess.yaml", "--resume", "grpo.steps=5")
    assert call(tmp_path, str(ROOT / "train.py"), *go_on).returncode == 0
