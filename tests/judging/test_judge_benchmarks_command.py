"""A measurement as a user holds it: the command, its files, what interrupts it, what is refused."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmark_doubles import Rater, pair
from command_lines import command
from rich.console import Console

from flowright.core.batch_calls import ServerDown
from flowright.core.errors import DataError, RunError
from flowright.judging.measuring.benchmark_report import benchmark_report, read_record
from flowright.judging.measuring.benchmark_rows import (
    BENCHMARKS,
    PairRows,
    RowJournal,
    ask_rows,
    file_benchmark,
    journal_path,
)
from flowright.viewer.rendering.report import report_html, report_text

ROOT = Path(__file__).parents[2]
Main = Callable[[Sequence[str]], int]


@pytest.fixture(scope="module")
def main() -> Main:
    return command("judge benchmark")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Six pairs; the longer answer is the better one in four."""
    rows = [
        {
            "question": f"Question {n}?",
            "first": "short" if n < 2 else "a longer answer",
            "second": "an even longer answer" if n < 2 else "no",
            "label": "first",
            "category": "a" if n % 2 else "b",
        }
        for n in range(6)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def figure(record: Mapping[str, Any], measure: str, group: str = "all") -> float | None:
    return next(
        f["value"]
        for f in record["figures"]
        if (f["measure"], f["group"], f["reading"]) == (measure, group, "published")
    )


def test_a_baseline_on_pairs_of_a_file(
    main: Main, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "out/length.json", tmp_path / "page.html"
    arguments = ["--judge", "length", "--pairs", str(pairs), "--json", str(out)]
    assert main([*arguments, "--html", str(page)]) == 0
    told = capsys.readouterr().out
    assert "same in both orders" in told and "66.7 %" in told and str(out) in told
    assert "…" not in told
    record = read_record(out)
    assert figure(record, "agreement") == figure(record, "two_games") == pytest.approx(4 / 6)
    assert figure(record, "consistency") == 1 and figure(record, "first_place") == 0.5
    assert record["counts"]["rows"] == record["counts"]["prompts"] == 6
    assert record["rows"][0] | {"straight": 0, "swapped": 0} == {
        "id": "1", "source": "pairs.jsonl", "label": "first", "category": "b", "right": False,
        "prompt": record["rows"][0]["prompt"],
        "straight": 0, "swapped": 0, "rated": True,
    }  # fmt: skip
    assert record["rows"][0]["straight"]["preferred"] == "second"
    assert record["rows"][0]["swapped"]["scores"] == [5.0, 21.0]
    html = page.read_text()
    assert "66.7 %" in html and "http:" not in html and "https:" not in html


def test_the_embedded_judge_says_that_it_is_simulated(
    main: Main, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "judged.json"
    assert main(["--judge", "simulated", "--pairs", str(pairs), "--json", str(out)]) == 0
    assert "SIMULATED" in capsys.readouterr().out
    record = read_record(out)
    assert record["about"]["simulated"] is True and record["about"]["way"] == "pairwise"
    assert record["counts"]["unreadable"] == record["counts"]["unscored"] == 0
    assert record["rows"][0]["straight"]["replies"], "raw replies are kept"
    assert "SIMULATED" in report_html(benchmark_report(record))
    kept = journal_path(out).read_text().splitlines()
    assert len(kept) == 1 + 6 and '"asked"' in kept[0]


def test_published_outputs_are_counted_without_a_judge(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(name: str, source: str, *decisions: str | None) -> dict[str, Any]:
        judgments = [{"judgment": {"judge_model": "m"}, "decision": d} for d in decisions]
        return {"pair_id": name, "source": source, "question": f"{name}?", "response_A": "a",
                "response_B": "b", "label": "A>B", "judgments": judgments}  # fmt: skip

    rows = [
        row("1", "mmlu-pro-law", "A>B", "B>A"),  # 2
        row("2", "mmlu-pro-math", "A>B", "A>B"),  # 0: the place shown first
        row("3", "livecodebench", "A>B", None),  # 1
        row("4", "livebench-math", "A=B", "A>B"),  # -1
        {"pair_id": "5"},
    ]
    path, out = tmp_path / "outputs.jsonl", tmp_path / "counted.json"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert main(["--outputs", str(path), "--json", str(out)]) == 0
    told = capsys.readouterr()
    assert "outputs.jsonl:5: the row lacks question" in told.err
    assert "1 row cannot be used" in told.err and "o1-mini" in told.out
    record = read_record(out)
    assert figure(record, "two_games") == 2 / 4
    assert figure(record, "two_games", "mean of subsets") == pytest.approx((0.5 + 1 + 0) / 3)
    assert figure(record, "two_games", "knowledge") == 0.5
    assert record["counts"]["unreadable"] == 1


def test_subsets_of_a_benchmark_are_measured_alone(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Natural's longer answer is the better one, the adversarial ones' the worse."""
    folders = {"Natural": 2} | {f"Adversarial/{x}": 1 for x in ("GPTInst", "GPTOut", "Neighbor")}
    for folder, label in (folders | {"Adversarial/Manual": 2}).items():
        row = {
            "input": f"{folder}?",
            "output_1": "Yes.",
            "output_2": "Yes, indeed.",
            "label": label,
        }
        path = tmp_path / "llmbar" / folder / "dataset.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps([row]))
    given = ["--judge", "length", "--data", str(tmp_path), "--json"]

    def right(name: str) -> tuple[float | None, int]:
        out = tmp_path / f"{name.replace('/', '-')}.json"
        assert main([*given, str(out), "--benchmark", name]) == 0
        record = read_record(out)
        return figure(record, "agreement"), record["counts"]["rows"]

    assert right("llmbar") == (2 / 5, 5)
    assert right("llmbar/natural") == right("llmbar/manual") == (1, 1)
    assert right("llmbar/adversarial") == (1 / 4, 4)
    assert "LLMBar, adversarial" in capsys.readouterr().out
    assert main([*given, str(tmp_path / "o.json"), "--benchmark", "llmbar/adverse"]) == 2
    assert "did you mean adversarial?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--judge", "length", "--benchmark", "llmber"], "did you mean llmbar"),
        (["--judge", "length", "--benchmark", "rewardbench2"], "no .parquet or .jsonl file"),
        (["--judge", "none-such", "--pairs", "PAIRS"], "no 'none-such'"),
        (["--judge", "none.yaml", "--pairs", "PAIRS"], "none.yaml"),
        (["--judge", "PAIRS", "--pairs", "PAIRS"], "a judge is a baseline"),
        (["--judge", "./", "--pairs", "PAIRS"], "no model: no checkpoints"),
        (["--judge", "simulated", "--pairs", "PAIRS", "judge.combine=mean"], "judge.combine"),
        (["--judge", "length", "--pairs", "none.jsonl"], "no such file"),
        (["--outputs", "none.jsonl"], "no such file"),
    ],
)
def test_mistakes_are_one_line(
    main: Main,
    pairs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    given = [str(pairs) if word == "PAIRS" else word for word in arguments]
    assert main([*given, "--json", str(tmp_path / "o.json"), "--data", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_arguments_that_do_not_go_together(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = (["--judge", "length"], ["--pairs", "x"], ["--judge", "x", "--outputs", "y"])
    for arguments in wrong:
        assert main(arguments) == 2
    assert "give --judge NAME, or --outputs FILE" in capsys.readouterr().err


def test_a_server_that_is_down(
    main: Main, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--judge", "http://127.0.0.1:9", "--pairs", str(pairs)]
    assert main([*arguments, "--json", str(tmp_path / "o.json")]) == 1
    told = capsys.readouterr().err
    assert "127.0.0.1:9: cannot be reached" in told and "nothing was measured" in told
    assert not (tmp_path / "o.json").exists()


# What is kept of a measurement that was cut off.


def sheet(count: int = 8) -> PairRows:
    return PairRows([pair(f"{n}") for n in range(count)], file_benchmark(False))


async def test_an_interrupted_measurement_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "o.outcomes.jsonl"
    left = iter([1.0] * 10)

    def until_it_stops(answer: str) -> float:
        return next(left)  # StopIteration becomes an error of the task that asked

    journal = RowJournal(path, {"judge": "rater"})
    with pytest.raises(RuntimeError):
        await ask_rows(Rater(until_it_stops), sheet(), journal, 1)
    journal.close()
    with path.open("a") as file:
        file.write('{"row": "mine/7", "sa')  # killed while writing
    journal = RowJournal(path, {"judge": "rater"})
    assert len(journal.kept) == 5
    rest = Rater(lambda answer: 1.0)
    said = await ask_rows(rest, sheet(), journal, 4)
    journal.close()
    assert sorted(set(rest.asked)) == ["mine/5", "mine/6", "mine/7"] and len(said) == 8
    assert len(path.read_text().splitlines()) == 1 + 8


async def test_rows_that_failed_are_unscored_and_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "o.outcomes.jsonl"
    journal = RowJournal(path, {})
    broken = Rater(lambda answer: None if " 3" in answer else float(len(answer)))
    said = await ask_rows(broken, sheet(), journal, 1)
    counts = sheet().counts(said)
    assert (counts["rows"], counts["unscored"], counts["questions"]) == (8, 1, 14)
    (all_of_them, *_) = sheet().figures(said)
    assert (all_of_them.rows, all_of_them.estimate.value) == (7, 0.0), "the label is the shorter"
    journal.close()
    journal = RowJournal(path, {})
    mended = Rater(lambda answer: 1.0)
    await ask_rows(mended, sheet(), journal, 1)
    journal.close()
    assert set(mended.asked) == {"mine/3"}


async def test_a_journal_that_somebody_has_edited(tmp_path: Path) -> None:
    for said in ({}, {"straight": 1, "swapped": {}}, {"straight": {"status": "ok"}, "swapped": {}}):
        journal = RowJournal(tmp_path / "o.outcomes.jsonl", {}, overwrite=True)
        journal.put("mine/0", said)
        with pytest.raises(RunError, match="--overwrite starts again"):
            await ask_rows(Rater(lambda answer: 1.0), sheet(), journal, 1)
        journal.close()


async def test_a_judge_that_is_down_from_the_start() -> None:
    with pytest.raises(ServerDown, match="8 calls in a row failed"):
        await ask_rows(Rater(lambda answer: None), sheet(), None, 4)


def test_a_journal_of_another_measurement(tmp_path: Path) -> None:
    path = tmp_path / "o.outcomes.jsonl"
    first = RowJournal(path, {"judge": "a", "seed": 0})
    with pytest.raises(RunError, match=r"another process.* writes into this file"):
        RowJournal(path, {"judge": "a", "seed": 0})
    first.put("x", {"straight": 1})
    first.close()
    with pytest.raises(RunError, match="judge: a -> b; give another --json"):
        RowJournal(path, {"judge": "b", "seed": 0})
    again = RowJournal(path, {"judge": "b", "seed": 0}, overwrite=True)
    assert again.kept == {}
    again.close()
    path.write_text("[]\n")
    with pytest.raises(RunError, match="cannot be read"):
        RowJournal(path, {})


# What is drawn of a record.


def test_texts_of_others_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    counted = sheet(3)
    record: dict[str, Any] = {
        "about": {"judge": "<b>\x1b[1m", "data": "x", "sha256": "0" * 64, "version": "1"},
        "benchmark": {"title": "T", "paper": "", "rule": "R.", "measures": []},
        "counts": counted.counts({}),
        "figures": [
            {"measure": "agreement", "group": "<i>", "reading": "published", "rows": 0,
             "value": None, "low": None, "high": None}
        ],
        "length": [],
        "published": [],
        "rows": [],
    }  # fmt: skip
    html = report_html(benchmark_report(record))
    assert "&lt;b&gt;" in html and "<b>\x1b" not in html and "&lt;i&gt;" in html
    text = io.StringIO()
    Console(width=80, file=text).print(report_text(benchmark_report(record)))
    assert "\x1b" not in text.getvalue() and "<b>␛[1m on T" in text.getvalue()


def test_files_without_a_record(tmp_path: Path) -> None:
    path = tmp_path / "o.json"
    with pytest.raises(DataError, match="no such file"):
        read_record(path)
    for text, why in (("{}", "not a record"), ("[", "not JSON"), ("[]", "not list")):
        path.write_text(text)
        with pytest.raises(DataError, match=why):
            read_record(path)


def test_every_benchmark_is_told_by_figures_that_there_are() -> None:
    rows = [pair(f"{n}", category="ab"[n % 2]) for n in range(4)]
    for benchmark in BENCHMARKS.values():
        assert benchmark.published == () or benchmark.title == "JudgeBench"
        told = PairRows(rows, benchmark).figures({})
        assert {figure.measure for figure in told} == set(benchmark.measures)
        assert {figure.estimate.value for figure in told} == {None}
