"""Training files of preferences: what is held out, which side a prompt is on, the four forms."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import true_preferences
from command_lines import command

from flowright.core.errors import DataError
from flowright.data.contamination import TrainedOn, conversation_key
from flowright.data.preference_files import (
    HELD_OUT,
    Form,
    Row,
    RowOptions,
    rows_of,
    split_preferences,
    write_training_file,
)
from flowright.data.sources.dataset import read_table
from flowright.data.sources.registry import PREFERENCES, read_pairs
from flowright.data.task import Pair, Preferred, Rated
from flowright.llm.chat import Message

ROOT = Path(__file__).parents[2]
Main = Callable[[Sequence[str]], int]


@pytest.fixture(scope="module")
def make() -> Main:
    return command("data preferences")


@pytest.fixture(scope="module")
def download() -> Main:
    return command("data download")


def write(folder: Path, path: str, value: Any) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(json.dumps(value))


def _llmbar(number: int, label: int = 1) -> dict[str, object]:
    return {"input": f"Say {number}.", "output_1": f"{number}", "output_2": "no", "label": label}


def _autoj(number: int, label: int, answer: str = "b") -> str:
    values = {"prompt": f"Plan {number}.", "response 1": "a", "response 2": answer}
    return json.dumps(values | {"scenario": "planning", "label": label})


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Hand-written files: LLMBar's five, Auto-J with a tie, an empty answer, equal answers and one
    bad row, EvalBiasBench with a prompt of LLMBar's natural subset."""
    folder = tmp_path / "raw"
    write(folder, "llmbar/Natural/dataset.json", [_llmbar(n, 1 + n % 2) for n in range(40)])
    for number, name in enumerate(("GPTInst", "GPTOut", "Manual", "Neighbor"), start=1):
        path = f"llmbar/Adversarial/{name}/dataset.json"
        write(folder, path, [_llmbar(1000 * number), _llmbar(5)])
    lines = [_autoj(n, n % 2) for n in range(20)]
    lines += [_autoj(20, 2), _autoj(21, 0, " "), _autoj(22, 1, "a"), _autoj(23, 7)]
    (folder / "autoj").mkdir()
    (folder / "autoj/autoj_pairwise.json").write_text("\n".join(lines))
    biased = {"bias": "length bias", "response1": "a", "response2": "b", "label": 1}
    write(
        folder,
        "evalbiasbench/biasbench.json",
        {"length bias": [{**biased, "instruction": " say  7. "}]},
    )
    return folder


def ids(rows: Sequence[Row]) -> set[str]:
    return {f"{row.source}/{row.id}" for row in rows}


# What is trained on.


def test_no_prompt_is_on_two_sides_and_what_is_left_out_is_named(raw: Path) -> None:
    split = split_preferences(["llmbar", "autoj"], raw, val_share=0.2)
    validation = [row for row in split.val if isinstance(row, Pair)]
    assert len(validation) > 5
    trained_on = TrainedOn.of(split.train).conversations
    assert not any(conversation_key(pair.conversation) in trained_on for pair in validation)
    assert split.left_out == {
        "cannot be read": (f"{raw}/autoj/autoj_pairwise.json:24: label is 7, not one of 0, 1, 2",),
        "its conversation is held out": ("llmbar/natural/5", "llmbar/natural/7"),
        "an answer is empty": ("autoj/21",),
        "one of two equal answers is preferred": ("autoj/22",),
    }
    assert len(split.train) + len(split.val) == 38 + 21
    assert split.held_out == dict.fromkeys(HELD_OUT[:4], 2)
    assert split.unread == ()
    assert not any(row.category in ("gptinst", "manual") for row in (*split.train, *split.val))


def test_the_held_out_benchmarks_can_be_measured_on(raw: Path) -> None:
    trained = split_preferences(["llmbar", "autoj"], raw).trained_on
    held_out = [pair for pair in read_pairs("llmbar", raw) if f"llmbar/{pair.category}" in HELD_OUT]
    trained.check([*held_out, *read_pairs("evalbiasbench", raw)])
    with pytest.raises(DataError, match="llmbar/natural: the judge was trained on it"):
        trained.check(read_pairs("llmbar", raw))


def test_a_prompt_stays_on_its_side(raw: Path) -> None:
    one = split_preferences(["llmbar"], raw, val_share=0.3)
    both = split_preferences(["autoj", "llmbar"], raw, val_share=0.3)
    assert ids(one.val) <= ids(both.val) and ids(one.train) <= ids(both.train)
    assert 0.1 < len(both.val) / (len(both.train) + len(both.val)) < 0.5
    again = split_preferences(["autoj", "llmbar"], raw, val_share=0.3)
    assert again == both and len(both.sha256) == 64
    other = split_preferences(["autoj", "llmbar"], raw, val_share=0.3, seed=1)
    assert other.sha256 != both.sha256 and ids(other.val) != ids(both.val)
    keys = [conversation_key(row.conversation) for row in both.train]
    assert keys != [conversation_key(row.conversation) for row in one.train]


def test_another_choice_of_what_is_held_out(raw: Path) -> None:
    split = split_preferences(["llmbar"], raw, held_out=["llmbar/manual"])
    assert split.held_out == {"llmbar/manual": 2}
    sharing = ("natural/5", "gptinst/1", "gptout/1", "neighbor/1")
    named = split.left_out["its conversation is held out"]
    assert named == tuple(f"llmbar/{name}" for name in sharing)
    assert split_preferences(["evalbiasbench", "autoj"], raw, held_out=[]).held_out == {}


def test_a_benchmark_whose_file_is_not_there_is_named(raw: Path) -> None:
    (raw / "evalbiasbench/biasbench.json").unlink()
    split = split_preferences(["llmbar"], raw)
    assert split.unread == ("evalbiasbench",)
    assert split.left_out["its conversation is held out"] == ("llmbar/natural/5",)


@pytest.mark.parametrize(
    ("names", "held_out", "why"),
    [
        (["evalbiasbench"], HELD_OUT, "evalbiasbench: nothing is left to train on"),
        (["autoj", "judgebench"], [], "judgebench: no licence is stated"),
        (["autoj"], ["llmbar/manuel"], "llmbar/manuel: no such subset; did you mean llmbar/manual"),
        (["autoj"], ["lmbar"], "lmbar: no such preferences; did you mean llmbar"),
        (["hhh"], [], "hhh_alignment_eval.json: no such file"),
        (["evalbiasbench"], [], "to train and"),
    ],
)
def test_what_cannot_be_split(raw: Path, names: list[str], held_out: list[str], why: str) -> None:
    with pytest.raises(DataError, match=why):
        split_preferences(names, raw, held_out=held_out)


# The four forms.


def pair(label: Preferred = "second", strength: float | None = None) -> Pair:
    asked = (
        Message("system", "s"),
        Message("user", "q"),
        Message("assistant", "w"),
        Message("user", "où?"),
    )
    return Pair("p", "hhh", asked, "one", "two", label, "other", strength)


ASKED = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "w"},
    {"role": "user", "content": "où?"},
]
RATED = Rated("r", "helpsteer2", (Message("user", "q"),), "answer", 3, "train")


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_sft_has_the_whole_conversation_and_the_better_answer() -> None:
    best = Rated("b", "helpsteer2", (Message("user", "q"),), "best", 4)
    rows = rows_of("sft", [pair(), pair("tie"), RATED, best], RowOptions())
    assert rows == [
        {"id": "p", "source": "hhh", "messages": [*ASKED, said("two")]},
        {
            "id": "b",
            "source": "helpsteer2",
            "messages": [{"role": "user", "content": "q"}, said("best")],
        },
    ]


def test_bradley_terry_has_json_strings() -> None:
    (row,) = rows_of("bradley_terry", [pair(strength=2.0), pair("tie"), RATED], RowOptions())
    assert json.loads(row["chosen"]) == [*ASKED, said("two")]
    assert json.loads(row["rejected"]) == [*ASKED, said("one")]
    assert (row["id"], row["source"], row["strength"]) == ("p", "hhh", 2.0)
    (tie,) = rows_of("bradley_terry", [pair("tie")], RowOptions(ties=True))
    assert tie["strength"] == 0.0 and json.loads(tie["chosen"])[-1] == said("one")


def test_pointwise_has_rated_answers_and_pairs_only_where_grades_are_given() -> None:
    rows = rows_of("pointwise", [pair(), RATED], RowOptions())
    answer = {**said("answer"), "label": {"helpfulness": 3}}
    assert rows == [
        {
            "id": "r",
            "source": "helpsteer2",
            "input": [{"role": "user", "content": "q"}],
            "output": [{"answer": answer}],
        }
    ]
    graded = rows_of("pointwise", [pair(), pair("first"), pair("tie")], RowOptions(grades=(0, 1)))
    outputs = [row["output"][0]["answer"] for row in graded]
    assert [(a["content"], a["label"]["helpfulness"]) for a in outputs] == [
        ("one", 0),
        ("two", 1),
        ("one", 1),
        ("two", 0),
    ]
    assert [row["id"] for row in graded] == ["p/1", "p/2"] * 2 and graded[0]["input"] == ASKED


def test_pairwise_turns_half_of_the_pairs_round() -> None:
    pairs = [
        Pair(str(n), "hhh", (Message("user", "q"),), "good", "bad", "first", strength=1.0)
        for n in range(400)
    ]
    letters = []
    for row in rows_of("pairwise", pairs, RowOptions()):
        first, second = (output["answer"] for output in row["output"])
        assert (first["label"]["response_id"], second["label"]["response_id"]) == ("A", "B")
        assert first["label"]["preference"] == second["label"]["preference"]
        assert first["label"]["preference_strength"] == 1.0
        letters.append(first["label"]["preference"])
        assert {"A": first, "B": second}[letters[-1]]["content"] == "good"
    assert 150 < letters.count("A") < 250
    (tie,) = rows_of("pairwise", [pair("tie")], RowOptions())
    assert tie["output"][0]["answer"]["label"]["preference"] == "tie"
    assert tie["input"] == ASKED


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize("form", ["sft", "bradley_terry", "pointwise", "pairwise"])
def test_a_file_gives_back_its_rows(tmp_path: Path, form: Form, suffix: str) -> None:
    rows = rows_of(form, [pair(), RATED, pair("first")], RowOptions(grades=(0, 4)))
    path = tmp_path / f"deep/x.{suffix}"
    write_training_file(path, form, rows)
    assert [dict(row.values) for row in read_table(path)] == rows
    assert [each.name for each in path.parent.iterdir()] == [path.name]


# The scripts.


def read(path: Path) -> list[Mapping[str, Any]]:
    return [row.values for row in read_table(path)]


def test_the_script_writes_all_forms(make: Main, raw: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    arguments = ["llmbar", "autoj", "--from", str(raw), "--val-share", "0.2", "--as", "jsonl"]
    assert make([*arguments, "--out", str(out), "--grades", "0,4", "--ties"]) == 0
    forms = ("sft", "bradley_terry", "pointwise", "pairwise")
    names = {f"{form}_{side}.jsonl" for form in forms for side in ("train", "val")}
    assert {path.name for path in out.iterdir()} == names | {"manifest.json", "trained_on.json"}
    manifest = json.loads((out / "manifest.json").read_text())
    counts = {name: sum(found.values()) for name, found in manifest["rows"].items()}
    assert {name: len(read(out / name)) for name in names} == counts
    assert counts["pairwise_train.jsonl"] + counts["pairwise_val.jsonl"] == 59
    assert manifest["left_out"]["an answer is empty"] == ["autoj/21"]
    assert len(manifest["inputs_sha256"]) == 6
    trained = TrainedOn.read(out)
    assert trained is not None and trained.subsets == {"llmbar/natural", "autoj/planning"}
    printed = capsys.readouterr().out
    assert f"split by prompt, SHA-256 {manifest['split_sha256']}" in printed
    assert "left out, one of two equal answers is preferred: 1 (autoj/22)" in printed
    assert "held out: llmbar/manual, 2" in printed

    again = tmp_path / "again"
    assert make([*arguments, "--out", str(again), "--grades", "0,4", "--ties"]) == 0
    for path in out.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_a_form_without_rows_is_said_and_leaves_no_old_file(
    make: Main, raw: Path, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "out"
    asked = ["autoj", "--from", str(raw), "--out", str(out), "--val-share", "0.3"]
    assert make([*asked, "--form", "pointwise", "--grades", "0,1"]) == 0
    assert (out / "pointwise_train.parquet").is_file()
    assert make([*asked, "--form", "pointwise", "--form", "pairwise"]) == 0
    assert "pointwise_train.parquet: not written" in capsys.readouterr().out
    assert not (out / "pointwise_train.parquet").exists()
    assert make([*asked, "--form", "pointwise"]) == 2
    assert "no row fits any of the forms" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            ["autoj", "--grades", "1,1", "--val-share", "1", "--hold-out", "none"],
            [
                "--grades 1,1: write WORSE,BETTER, numbers from 0 to 4, such as 0,1",
                "--val-share 1.0: above 0 and below 1",
            ],
        ),
        (
            ["autoj", "--grades", "01,2"],
            ["--grades 01,2: write WORSE,BETTER, numbers from 0 to 4, such as 0,1"],
        ),
        (
            ["autoj", "--hold-out", "none", "--hold-out", "hhh"],
            ["--hold-out none: goes with no other --hold-out"],
        ),
        (["autoj", "--off-topic", "9"], ["--off-topic 9.0: from 0 to 8"]),
        (["autoj", "--only-off-topic"], ["--only-off-topic: say how many, such as --off-topic 1"]),
        (["judgebench"], ["judgebench: no licence is stated: to be measured on only"]),
    ],
)
def test_mistakes_of_the_user(
    make: Main, raw: Path, tmp_path: Path, capsys, arguments: list[str], lines: list[str]
) -> None:
    assert make([*arguments, "--from", str(raw), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.splitlines() == lines
    assert not (tmp_path / "out").exists()


def test_off_topic_pairs_are_trained_on_and_do_not_validate(
    make: Main, raw: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ["autoj", "llmbar", "--as", "jsonl", "--from", str(raw), "--out", str(out)]
    assert make([*arguments, "--off-topic", "0.5"]) == 0

    rows = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in out.glob("*.jsonl")
    }
    made = {
        name: sum(row["source"].endswith(", off topic") for row in those)
        for name, those in rows.items()
    }
    pairs = len(rows["bradley_terry_train"]) - made["bradley_terry_train"]
    assert 0 < made["bradley_terry_train"] <= round(pairs / 2)
    assert made["pairwise_train"] == made["bradley_terry_train"]
    assert made["sft_train"] == made["bradley_terry_val"] == made["pairwise_val"] == 0
    assert json.loads((out / "manifest.json").read_text())["off_topic"] == 0.5

    assert make([*arguments, "--off-topic", "0.5", "--only-off-topic"]) == 0
    alone = (out / "bradley_terry_train.jsonl").read_text().splitlines()
    assert len(alone) == made["bradley_terry_train"]
    assert all(json.loads(line)["source"].endswith(", off topic") for line in alone)


def test_help_needs_none_of_the_heavy_packages() -> None:
    script = str(ROOT / "scripts/judge_training/make_preferences.py")
    command = [sys.executable, "-X", "importtime", script, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"rich", "pydantic", "pyarrow", "flowright.data", "numpy", "torch"}


def test_the_downloader_brings_the_preferences(
    download: Main, raw: Path, tmp_path: Path, capsys
) -> None:
    arguments = ["--no-network", "--from", str(raw), "--out", str(tmp_path / "out")]
    assert download([*arguments, "autoj", "llmbar"]) == 0
    printed = capsys.readouterr().out
    assert "licence: Apache-2.0" in printed and "SHA-256 is" in printed
    assert len(read_pairs("llmbar", tmp_path / "out")) == 48
    assert download([*arguments, "--only", "preferences"]) == 1
    printed = capsys.readouterr().out
    assert "judgebench: left out, its authors state no licence" in printed
    assert "helpsteer2  licence: CC BY 4.0" in printed and "gsm8k" not in printed
    assert download([*arguments, "judgebench"]) == 1
    assert "none stated: to measure with" in capsys.readouterr().out
    assert download([*arguments, "--only", "all"]) == 1
    printed = capsys.readouterr().out
    assert "gsm8k  licence: MIT" in printed and "hhh  licence: Apache-2.0" in printed
    assert download([*arguments]) == 1
    assert "pandalm" not in capsys.readouterr().out, "tasks alone, as ever"
    assert download([*arguments, "autoj", "--only", "tasks"]) == 2
    assert "names say it already" in capsys.readouterr().err


def test_the_page_of_the_data_folder_has_every_file() -> None:
    page = (ROOT / "data/README.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    for source in PREFERENCES.values():
        for file in source.files:
            row = rows[file.path]
            assert source.licence in row
            assert f"`{file.sha256}`" in row if file.sha256 else "not known" in row
            for address in (file.url, file.hub, *file.parquet):
                assert address is None or address in row


def test_training_files_of_the_true_rows(tmp_path: Path) -> None:
    """2,712 pairs when LLMBar-Adversarial is held out: 100 + 999 + 1,392 + 221."""
    true_preferences.link(tmp_path)
    split = split_preferences(["llmbar", "pandalm", "autoj", "hhh"], tmp_path)
    left_out = {reason: len(named) for reason, named in split.left_out.items()}
    assert left_out == {
        "its conversation is held out": 4,
        "an answer is empty": 55,
        "one of two equal answers is preferred": 1,
    }
    assert len(split.train) + len(split.val) == 2712 - 60
    split.trained_on.check(read_pairs("evalbiasbench", tmp_path))
    assert split.sha256 == "331515fa6faf30d991ff7d77ed9118f69769a257c2e605ec968c9580b29c31bf"
