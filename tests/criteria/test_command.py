"""scripts/evaluate_instructions.py: its record and screen, what it refuses, and the answers that
others published, counted as they counted."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_lines import command

from flowright.criteria.constraints.checkers import REASONS
from flowright.criteria.constraints.language import missing

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("FLOWRIGHT_SHARED_DATA", ROOT.parent / "shared" / "data"))
NEEDED = pytest.mark.skipif(bool(missing()), reason="needs requirements-constraints.txt")
Main = Callable[[Sequence[str]], int]


@pytest.fixture(scope="module")
def main() -> Main:
    return command("instructions evaluate")


def write(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    ids = ["punctuation:no_comma", "startend:quotation"]
    rows = [
        {"key": n, "prompt": f"p{n}", "instruction_id_list": ids, "kwargs": [{}, {}]}
        for n in range(3)
    ]
    return write(tmp_path / "data.jsonl", rows)


def test_answers_that_were_given_are_scored(
    main: Main, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": "p0", "response": '"a"'}, {"prompt": "p1", "response": 'So, here:\n"b"'},
            {"prompt": "p9", "response": "c"}]  # fmt: skip
    answers, out = write(tmp_path / "answers.jsonl", rows), tmp_path / "to" / "out.json"
    asked = ["--benchmark", "ifeval", "--data", str(data), "--responses", str(answers)]
    assert main([*asked, "--json", str(out)]) == 0
    screen = capsys.readouterr().out
    assert "2 of 3 prompts answered; 1 missing" in screen
    assert "answers to no prompt of these: 1" in screen
    record = json.loads(out.read_text())
    told = record["benchmarks"]["ifeval"]
    assert told["missing"] == ["2"]
    assert told["counts"]["canonical"] == {
        "strict": {"prompts": 1, "instructions": 2},
        "loose": {"prompts": 2, "instructions": 4},
    }
    assert [(r["prompt"], r["strict"], r["loose"]) for r in record["rows"]] == [
        ("p0", [True, True], [True, True]),
        ("p1", [False, False], [True, True]),
    ]
    verdicts = write(tmp_path / "theirs.jsonl", record["rows"])
    assert main([*asked, "--verdicts", str(verdicts)]) == 0
    assert "(2 strict, 2 loose): 0 differ" in capsys.readouterr().out


def test_both_commands_read_a_response_alike(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the thinking that it opens with; a response of null is missing, and named."""
    thought = "<think>\nA comma, a quote, no matter.\n</think>\n\n"
    given = ["no commas here", "one, two", None, f"{thought}one, two", f"{thought}none here"]
    rows = [
        {"key": n, "prompt": f"p{n}", "instruction_id_list": ["punctuation:no_comma"],
         "kwargs": [{}], "response": response, "responses": response}
        for n, response in enumerate(given)
    ]  # fmt: skip
    file, out = str(write(tmp_path / "rows.jsonl", rows)), tmp_path / "out.json"
    asked = ["--benchmark", "ifeval", "--data", file, "--responses", file, "--json", str(out)]
    assert main(asked) == 0
    screen = capsys.readouterr().out
    assert "2 responses open with thinking, which is not scored" in screen
    assert "4 of 5 prompts answered; 1 missing, in no figure: 2" in screen
    strict = [row["strict"] for row in json.loads(out.read_text())["rows"]]
    assert strict == [[True], [False], [False], [True]]
    score = command("instructions score")
    other = tmp_path / "scores.json"
    assert score([f"data.path={file}", "--reward", "constraints", "--json", str(other)]) == 0
    screen = capsys.readouterr().out
    assert "2 responses open with thinking, which is not scored" in screen
    assert "a response is missing (null), in no mean, in rows 3" in screen
    values = [row["values"] for row in json.loads(other.read_text())["rows"]]
    assert values == [[1.0], [0.0], [None], [0.0], [1.0]]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--benchmark", "ifevall"], "did you mean ifeval"),
        (["--benchmark", "ifeval,ifbench"], "one at a time"),
        (["--benchmark", "ifeval"], "no answer to a prompt"),
    ],
)
def test_what_cannot_be_measured_says_why(
    main: Main, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    asked: list[str], said: str,
) -> None:  # fmt: skip
    answers = write(tmp_path / "answers.jsonl", [{"prompt": "p", "response": "a"}])
    assert main([*asked, "--data", str(data), "--responses", str(answers)]) == 2
    assert said in capsys.readouterr().err


def test_a_benchmark_that_was_not_fetched_says_from_where(
    main: Main, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--benchmark", "ifbench", "--folder", str(tmp_path), "--responses", str(data)]
    assert main(asked) == 2
    assert "download_all_datasets.py ifbench fetches it" in capsys.readouterr().err


def published(main: Main, out: Path, name: str, *files: Path) -> Any:
    for file in files:
        if not file.exists():
            pytest.skip(f"no published answers at {file}")
    data, responses, verdicts = map(str, files)
    asked = ["--benchmark", name, "--data", data, "--responses", responses]
    assert main([*asked, "--verdicts", verdicts, "--json", str(out)]) == 0
    return json.loads(out.read_text())["benchmarks"][name]


@NEEDED
@pytest.mark.parametrize(
    ("model", "counts"),
    [
        ("Qwen__Qwen2.5-7B-Instruct-GPTQ-Int4", (395, 672, 410, 689)),
        ("mistralai__Mistral-7B-Instruct-v0.3", (255, 492, 278, 529)),
        ("gpt-4o-2024-08-06", (455, 739, 475, 761)),
    ],
)
def test_published_verdicts_of_ifeval(
    main: Main, tmp_path: Path, model: str, counts: tuple[int, int, int, int]
) -> None:
    """Equal but where the benchmark draws, and then within the band."""
    folder = SHARED / "ifeval/published"
    files = ("en_input_data", f"{model}.responses", f"{model}.verdicts")
    told = published(main, tmp_path / "o", "ifeval", *(folder / f"{f}.jsonl" for f in files))
    drawn = {"1122", "1129", "1813", "3456", "3617", "279", "3112"}
    assert {one["key"] for one in told["compared"]["differences"]} <= drawn
    figures = [f for f in told["figures"] if f["kind"] == "canonical"]
    for figure, count in zip(figures, counts, strict=True):
        assert figure["fewest"] <= count <= figure["most"]
        assert abs(figure["followed"] - count) <= len(drawn)


def test_the_page_has_every_checker_whose_kinds_differ() -> None:
    page = (ROOT / "docs/instructions.md").read_text(encoding="utf-8")
    assert [f"{name}: {why}" for name, why in REASONS.items() if f"{name}: {why}" not in page] == []
