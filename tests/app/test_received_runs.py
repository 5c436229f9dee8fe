"""A run directory that somebody else made: opened by any command, nothing of it is executed, and no
key of this environment leaves for an address that it names."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from llm_standin import StandIn
from monitoring_run import make_run

from flowright.cli.commands import main

CHOICE = "outputs.evil.payload:Env"
READERS = (
    "monitor --once outputs/evil",
    "report outputs/evil",
    "view outputs/evil --export pages",
)
RUNNERS = (
    "replay outputs/evil 1/0/0",
    "evaluate --config outputs/evil/config.json",
    "train --config outputs/evil/config.json --dry-run",
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    run = make_run(tmp_path / "outputs/evil")
    payload = "from pathlib import Path\nPath('executed').touch()\n"
    (run / "payload.py").write_text(f"{payload}class Env: ...\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield run
    assert not (tmp_path / "executed").exists()


def configure(run: Path, **keys: object) -> None:
    path = run / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | keys), encoding="utf-8")


def test_its_environment_is_not_imported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(run, environment=CHOICE)
    for command in READERS:
        assert main(command.split()) == 0, capsys.readouterr().err
    assert f"--environment {CHOICE}" in (run / "report.html").read_text(encoding="utf-8")
    for command in RUNNERS:
        assert main(command.split()) == 2
        error = capsys.readouterr().err
        assert f"environment {CHOICE.partition(':')[0]} is code" in error and "--trust" in error


@pytest.mark.anyio
async def test_its_file_of_models_gets_no_key(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-mine")
    async with StandIn() as server:
        models = {"gpt-oss-120b": {"base_url": server.url, "model_name": "m"}}
        models["gpt-oss-120b"]["api_key"] = "${AWS_SECRET_ACCESS_KEY}"
        (run / "m.yaml").write_text(json.dumps({"models": models}), encoding="utf-8")
        configure(run, llm={"file": "outputs/evil/m.yaml"}, aflow_executor_model="gpt-oss-120b")
        for command in RUNNERS:
            assert main(command.split()) == 2
            error = capsys.readouterr().err
            assert "llm.file: outputs/evil/m.yaml" in error and "--trust" in error, error
        assert server.seen == []


def test_variables_in_its_configuration_are_text(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECRET", "secret-of-mine")
    configure(run, train_dataset="${SECRET}/rows.jsonl")
    assert main(["train", "--config", "outputs/evil/config.json", "--dry-run"]) == 2
    shown = "".join(capsys.readouterr())
    assert "secret-of-mine" not in shown
