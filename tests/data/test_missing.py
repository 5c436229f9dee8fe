"""A clone has no data: what it says of that, and that what it says works."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flowright.core.errors import DataError
from flowright.data.loading import load_problems
from flowright.data.sources.registry import AFLOW, DATASETS, load_dataset
from flowright.data.task import read_tasks

ROOT = Path(__file__).parents[2]


def test_the_page_of_the_folder_has_every_file_with_its_licence_and_hash() -> None:
    page = (ROOT / "data/README.md").read_text(encoding="utf-8")
    rows = {match[1]: match[0] for match in re.finditer(r"^\| `([^`]+)` \|.*$", page, re.MULTILINE)}
    known = [load_dataset(name) for name in DATASETS]
    for dataset in (*known, AFLOW):
        for file in (*dataset.files, *filter(None, [dataset.archive])):
            row = rows[file.path]
            assert (f"`{file.sha256}`" if file.sha256 else "unknown") in row
            assert file.url is None or f"<{file.url}>" in row
            assert dataset is AFLOW or dataset.licence in row


def test_git_has_the_page_and_nothing_else_of_the_folder() -> None:
    def ignored(name: str) -> bool:
        asked = ["git", "check-ignore", "--quiet", "--no-index", f"data/{name}"]
        return subprocess.run(asked, cwd=ROOT, check=False).returncode == 0

    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git: an archive has no .gitignore to ask about")
    assert not ignored("README.md")
    for name in ("raw/x", "mixed/train_mixed.jsonl", "own/x", "cache/x", "preferences/x"):
        assert ignored(name)


def test_a_missing_mixture_names_the_commands_that_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        load_problems("data/mixed/train_mixed.jsonl", "train")
    (line,) = caught.value.problems
    network, offline = line.partition("make it with ")[2].split(" or, without a network, ")
    download, create = network.split(" && ")
    for command in (download, create):
        assert _run(f"{command} --help").returncode == 0
    assert download.endswith("download_all_datasets.py") and f"{create} --offline" == offline
    done = _run(f"{offline} --train 12 --val 3 --test 3")  # smaller, for the time it takes
    assert done.returncode == 0, done.stderr
    assert len(read_tasks(Path("data/mixed/train_mixed.jsonl"))) == 12

    with pytest.raises(DataError) as caught:
        load_problems("other folder/val_mixed.jsonl", "val")
    elsewhere = caught.value.problems[0].partition(" or, without a network, ")[2]
    assert elsewhere == f"{create} --out 'other folder' --offline"


def _run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)


def test_another_missing_file_names_how_to_make_one_of_your_own(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_tasks(tmp_path / "mine.jsonl")
    (line,) = caught.value.problems
    command = line.partition("rows of your own, ")[2].partition(" makes one")[0]
    (tmp_path / "FILE").touch()
    done = subprocess.run(
        ["bash", "-c", command.replace("FILE", "none.jsonl")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert done.returncode == 2 and done.stderr == "none.jsonl: no such file\n"


def test_a_line_that_lacks_a_field_is_shown_one_that_does_not(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"question": "x?", "reference": "y"}\n')
    with pytest.raises(DataError) as caught:
        read_tasks(file)
    (line,) = caught.value.problems
    assert line.startswith(f"{file}:1: the task lacks id, kind, source; such a line is {{")
    whole = tmp_path / "whole.jsonl"
    whole.write_text(line.partition("such a line is ")[2].partition("; ")[0] + "\n")
    assert len(read_tasks(whole)) == 1


def test_a_folder_and_what_no_reader_takes_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a folder, not a file; of rows of your own"):
        load_problems(str(tmp_path), "train")
    for line in ("[" * 100_000, '{"id": ' + "9" * 5000 + "}"):
        (tmp_path / "mine.jsonl").write_text(f"{line}\n")
        with pytest.raises(DataError, match=r"mine\.jsonl:1: a number is too long, or lists too"):
            load_problems(str(tmp_path / "mine.jsonl"), "train")
