"""The two data scripts as a user calls them."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from command_lines import command

from flowright.core.checkout import SCRIPTS
from flowright.data.build import Splits, check_disjoint
from flowright.data.sources.registry import no_prompts
from flowright.data.task import read_tasks

ROOT = Path(__file__).parents[2]
Main = Callable[[Sequence[str]], int]


def script(name: str) -> Main:
    return command(SCRIPTS[f"scripts/{name}.py"])


@pytest.fixture(scope="module")
def create() -> Main:
    return script("create_mixed_dataset")


@pytest.fixture(scope="module")
def download() -> Main:
    return script("download_all_datasets")


@pytest.fixture
def shared() -> Path:
    default = ROOT.parent / "shared" / "data"
    folder = Path(os.environ.get("FLOWRIGHT_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"the upstream files are not at {folder} (FLOWRIGHT_SHARED_DATA)")
    return folder


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A folder with hand-written files of three datasets."""
    folder = tmp_path / "raw"
    rows = {
        "gsm8k/train.jsonl": [_gsm8k(i) for i in range(40)],
        "gsm8k/test.jsonl": [_gsm8k(i) for i in range(38, 48)],
        "mbpp/mbpp.jsonl": [_mbpp(i) for i in (*range(11, 31), *range(511, 516), *range(601, 621))],
        "commonsenseqa/train_rand_split.jsonl": [_commonsense(i) for i in range(40)],
        "commonsenseqa/dev_rand_split.jsonl": [_commonsense(i) for i in range(40, 50)],
    }
    for path, values in rows.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("".join(json.dumps(value) + "\n" for value in values))
    return folder


def _gsm8k(number: int) -> dict[str, object]:
    return {"question": f"What is {number} + 1?", "answer": f"Easy.\n#### {number + 1}"}


def _mbpp(number: int) -> dict[str, object]:
    tests = [f"assert f{number}({i}) == {i + number}" for i in range(3)]
    code = f"def f{number}(x):\r\n  return x + {number}"
    return {"task_id": number, "text": f"Add {number}.", "code": code, "test_list": tests}


def _commonsense(number: int) -> dict[str, object]:
    choices = [{"label": "A", "text": "here"}, {"label": "B", "text": "there"}]
    question = {"stem": f"Where is {number}?", "choices": choices}
    return {"id": f"c{number}", "question": question, "answerKey": "B"}


def read(folder: Path) -> Splits:
    names = ("train", "val", "test")
    return Splits(*(tuple(read_tasks(folder / f"{name}_mixed.jsonl")) for name in names))


# create_mixed_dataset.py


def test_official_mixture(create: Main, raw: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "mixed"
    sizes = ["--train", "30", "--val", "9", "--test", "12"]
    assert create(["--from", str(raw), "--out", str(out), *sizes]) == 0
    splits = read(out)
    check_disjoint(splits)
    assert Counter(task.kind for task in splits.train) == {"math": 10, "code": 10, "qa": 10}
    assert Counter(task.kind for task in splits.val) == {"math": 3, "code": 3, "qa": 3}
    assert Counter(task.kind for task in splits.test) == {"math": 4, "code": 4, "qa": 4}
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["split"] == "official" and manifest["seed"] == 0
    assert manifest["dropped_from_train_and_val"] == {"gsm8k": 2}
    assert manifest["counts"]["train"] == {
        "math": {"gsm8k": 10},
        "code": {"mbpp": 10},
        "qa": {"commonsenseqa": 10},
    }
    assert len(manifest["inputs_sha256"]) == 5
    assert (
        "humaneval: no test problems, humaneval/HumanEval.jsonl.gz is absent"
        in (manifest["absent"])
    )
    captured = capsys.readouterr()
    assert "mixture (official)" in captured.out and "gsm8k/train.jsonl: SHA-256 is" in captured.err

    again = tmp_path / "again"
    assert create(["--from", str(raw), "--out", str(again), *sizes]) == 0
    for path in out.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()
    assert create(["--from", str(raw), "--out", str(again), *sizes, "--seed", "1"]) == 0
    assert (again / "train_mixed.jsonl").read_bytes() != (out / "train_mixed.jsonl").read_bytes()


def test_shares(create: Main, raw: Path, tmp_path: Path) -> None:
    arguments = ["--share", "gsm8k=0.75", "--share", "mbpp=0.25", "--train", "20", "--val", "4"]
    assert create(["--from", str(raw), "--out", str(tmp_path / "m"), *arguments]) == 0
    splits = read(tmp_path / "m")
    assert Counter(task.source for task in splits.train) == {"gsm8k": 15, "mbpp": 5}
    assert Counter(task.source for task in splits.val) == {"gsm8k": 3, "mbpp": 1}
    assert Counter(task.source for task in splits.test) == {"gsm8k": 10, "mbpp": 3}


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            ["--share", "gsm9k=1", "--share", "mbpp", "--share", "mbpp=-1"],
            [
                "--share gsm9k=1: no such dataset; did you mean gsm8k?",
                "--share mbpp: write NAME=NUMBER, such as gsm8k=0.3",
                "--share mbpp=-1: a share is above 0",
            ],
        ),
        (["--share", "mmlu=1", "--split", "aflow"], ["mmlu: has no aflow split"]),
        (
            ["--share", "mbpp=1", "--share", "mbpp_sanitized=1"],
            ["mbpp and mbpp_sanitized are the same problems: give a share to one"],
        ),
        (
            ["--share", "humaneval=1"],
            ["humaneval: no test problems, humaneval/HumanEval.jsonl.gz is absent"],
        ),
        (["--train", "0", "--val", "-1"], ["--train 0: at least 1", "--val -1: at least 1"]),
        (
            ["--offline", "--share", "gsm8k=1"],
            ["--share: the offline mixture has fixed shares, a third for each kind"],
        ),
    ],
)
def test_mistakes_of_the_user(
    create: Main, raw: Path, tmp_path: Path, capsys, arguments: list[str], lines: list[str]
) -> None:
    assert create(["--from", str(raw), "--out", str(tmp_path / "m"), *arguments]) == 2
    printed = capsys.readouterr().err.splitlines()
    assert printed[: len(lines)] == lines
    assert not (tmp_path / "m").exists()


def test_bad_input(create: Main, raw: Path, tmp_path: Path, capsys) -> None:
    out = ["--out", str(tmp_path / "m")]
    with (raw / "gsm8k" / "train.jsonl").open("a") as file:
        file.write('{"question": "What?"}\n')
    assert create(["--from", str(raw), *out]) == 2
    expected = f"{raw}/gsm8k/train.jsonl:41: the row lacks 'answer'; it has question\n"
    assert capsys.readouterr().err == expected
    assert create(["--from", str(tmp_path / "nowhere"), *out]) == 2
    assert "no such folder; fetch the datasets with" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert create(["--from", str(tmp_path / "empty"), *out]) == 2
    assert "nothing to mix" in capsys.readouterr().err
    (tmp_path / "m").write_text("a file in the way")
    (raw / "gsm8k" / "train.jsonl").unlink()
    assert create(["--from", str(raw), *out]) == 2
    assert f"{tmp_path}/m: File exists" in capsys.readouterr().err


def test_offline_mixture(create: Main, tmp_path: Path, capsys) -> None:
    sizes = ["--train", "60", "--val", "9", "--test", "9"]
    assert create(["--offline", "--out", str(tmp_path), *sizes]) == 0
    splits = read(tmp_path)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (60, 9, 9)
    assert json.loads((tmp_path / "manifest.json").read_text())["split"] == "offline"
    assert create(["--offline", "--split", "aflow"]) == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_aflow_mixture_of_the_true_files(
    create: Main, shared: Path, tmp_path: Path, capsys
) -> None:
    assert create(["--from", str(shared), "--split", "aflow", "--out", str(tmp_path)]) == 0
    splits = read(tmp_path)
    assert Counter(task.source for task in splits.train + splits.val) == {
        "gsm8k": 264,
        "humaneval": 33,
        "mbpp": 86,
        "hotpotqa": 200,
        "drop": 195,
    }
    assert len(splits.val) == 154
    test = Counter(task.source for task in splits.test)
    hotpot = (shared / "aflow" / "hotpotqa_test.jsonl").is_file()
    assert test == {"gsm8k": 1055, "humaneval": 131, "mbpp": 341, "drop": 800} | (
        {"hotpotqa": 800} if hotpot else {}
    )
    told = capsys.readouterr().err
    assert "drop: 5 problems of train or val" in told
    assert hotpot or "hotpotqa: no test problems, aflow/hotpotqa_test.jsonl is absent" in told


def test_official_mixture_of_the_true_files(create: Main, shared: Path, tmp_path: Path) -> None:
    arguments = ["--split", "official", "--train", "900", "--out", str(tmp_path)]
    assert create(["--from", str(shared), *arguments]) == 0
    splits = read(tmp_path)
    assert {task.source for task in splits.train} >= {"gsm8k", "mbpp", "mmlu", "commonsenseqa"}
    assert not any(task.source == "humaneval" for task in splits.train + splits.val)
    assert all(
        601 <= int(task.id.removeprefix("mbpp/")) <= 974
        for task in splits.train
        if task.source == "mbpp"
    )


# download_all_datasets.py


def test_files_brought_in_a_folder(download: Main, raw: Path, tmp_path: Path, capsys) -> None:
    arguments = ["--no-network", "--from", str(raw), "--out", str(tmp_path / "out")]
    assert download([*arguments, "gsm8k", "commonsenseqa"]) == 0
    assert (tmp_path / "out/gsm8k/test.jsonl").read_bytes() == (
        raw / "gsm8k/test.jsonl"
    ).read_bytes()
    printed = capsys.readouterr().out
    assert "licence: MIT" in printed and "SHA-256 differs" in printed
    assert download([*arguments, "drop", "gsm8k"]) == 1
    printed = capsys.readouterr().out
    assert "1 files are missing" in printed and "present" in printed
    assert f"{raw}/drop/drop_dataset.zip: no such file" in printed


def test_the_true_files(download: Main, shared: Path, tmp_path: Path, capsys) -> None:
    arguments = ["--no-network", "--from", str(shared), "--out", str(tmp_path)]
    assert download([*arguments, "gsm8k", "humaneval", "mbpp", "commonsenseqa"]) == 0
    assert "differs" not in capsys.readouterr().out


def test_mistakes_in_downloading(download: Main, tmp_path: Path, capsys) -> None:
    assert download(["--no-network", "--out", str(tmp_path), "gsm9k"]) == 2
    assert "gsm9k: no such dataset; did you mean gsm8k?" in capsys.readouterr().err
    assert download(["--no-network", "--from", str(tmp_path / "nowhere"), "gsm8k"]) == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["create_mixed_dataset", "download_all_datasets"])
def test_help_needs_none_of_the_heavy_packages(name: str) -> None:
    command = [sys.executable, "-X", "importtime", str(ROOT / "scripts" / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert "usage:" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"rich", "pydantic", "reasoning_gym", "flowright.data", "numpy"}


def test_the_benchmarks_of_instruction_following_come_by_group_and_by_name(
    download: Main, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file has the known SHA-256."""
    out = tmp_path / "raw"
    brought = ["--from", str(shared), "--no-network", "--out", str(out)]
    assert download(["--only", "instructions", *brought]) == 0
    assert "SHA-256" not in capsys.readouterr().out
    copies = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("verinstruct*/*")}
    assert copies == {
        "verinstruct/verinstruct_val.parquet",
        "verinstruct_verif/verinstruct_verif_val.parquet",
    }, "where the configurations look"
    assert {path.relative_to(out).as_posix() for path in out.rglob("*.*")} == {
        "ifeval/input_data.jsonl",
        "ifbench/IFBench_test.jsonl",
        "rubrics/healthbench_val.parquet",
        "rubrics/verinstruct_val.parquet",
        "rubrics/verinstruct_verif_val.parquet",
    }
    assert download(["verinstrukt", *brought]) == 2
    assert "verinstruct" in capsys.readouterr().err


def test_a_missing_file_of_prompts_is_answered_with_its_command() -> None:
    for path, said in (
        ("data/verinstruct/verinstruct_val.parquet", "verinstruct fetches it"),
        ("data/verinstruct_verif/verinstruct_verif_val.parquet", "verinstruct fetches it"),
        ("data/raw/rubrics/healthbench_val.parquet", "healthbench fetches it"),
        ("data/raw/ifeval/input_data.jsonl", "ifeval fetches it"),
        ("data/verinstruct/verinstruct_train.parquet", "by TRAIN_FILE or instructions.train_files"),
        ("mine/verinstruct_val.parquet", "no such file"),
    ):
        assert no_prompts(path).startswith("no such file") and no_prompts(path).endswith(said), path
