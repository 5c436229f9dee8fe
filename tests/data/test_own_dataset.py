"""A user's own dataset: the page in the docs as it is written, from a folder of the user's."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_lines import command
from documented import write_programs

from flowright.core.checkout import SCRIPTS
from flowright.core.errors import ConfigError, DataError
from flowright.data.loading import load_problems
from flowright.data.sources.registry import load_dataset
from flowright.data.task import read_tasks, write_tasks
from flowright.environments.registry import load_config

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with the page's module in it and a file of its rows."""
    assert {"my_data.py", "capitals.yaml"} <= {*write_programs("extending.md", tmp_path)}
    rows = [{"country": f"Country {i}", "capital": f"City {i}"} for i in range(10)]
    (tmp_path / "brought/capitals").mkdir(parents=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "brought/capitals/train.jsonl").write_text(lines)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("my_data", None)


def script(name: str, *arguments: str) -> int:
    return command(SCRIPTS[f"scripts/{name}.py"])(arguments)


def test_the_page_s_function_is_a_training_set(folder: Path) -> None:
    problems = load_problems(load_config("capitals.yaml").train_dataset, "train")
    assert [problem.reference for problem in problems] == ["Vienna", "Lima", "Nairobi"]
    write_tasks(folder / "mine.jsonl", problems)
    assert load_problems(str(folder / "mine.jsonl"), "val") == list(problems)
    assert load_problems("offline", "val") != load_problems("offline", "train")


def test_the_page_s_dataset_is_fetched_and_mixed(folder: Path, capsys) -> None:
    brought = ["--no-network", "--from", "brought", "--out", "raw"]
    assert script("download_all_datasets", *brought, "my_data:DATASET") == 0
    assert "licence: CC0" in capsys.readouterr().out
    share = ["--share", "my_data:DATASET=1", "--train", "6"]
    assert script("create_mixed_dataset", "--from", "raw", "--out", "mixed", *share) == 0
    assert len(read_tasks(folder / "mixed/train_mixed.jsonl")) == 6
    assert len(read_tasks(folder / "mixed/val_mixed.jsonl")) == 2
    facts = json.loads((folder / "mixed/manifest.json").read_text())
    assert facts["shares"] == {"capitals": 1.0}
    assert script("create_mixed_dataset", "--from", "raw", "--share", "my_data:NONE=1") == 2
    assert "dataset my_data:NONE: my_data has no NONE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("[{}]", "number 1 is dict, not a flowright.data.task.Problem"),
        ("2 * train()[:1]", "number 2: id 'capitals/Austria' is there already"),
    ],
)
def test_what_a_function_may_not_return(folder: Path, returned: str, message: str) -> None:
    with (folder / "my_data.py").open("a") as module:
        module.write(f"\n\ndef bad():\n    return {returned}\n")
    with pytest.raises(DataError, match=re.escape(f"my_data:bad: {message}")):
        load_problems("my_data:bad", "train")


def test_what_is_not_there(folder: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl: no such file"):
        load_problems("nowhere.jsonl", "train")
    with pytest.raises(ConfigError, match="no module nowhere in"):
        load_problems("nowhere:train", "train")
    with pytest.raises(ConfigError, match="no dataset 'gsm9k'; did you mean gsm8k"):
        load_dataset("gsm9k")
    with pytest.raises(ConfigError, match="a Dataset is wanted, this is function"):
        load_dataset("my_data:train")
