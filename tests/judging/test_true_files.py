"""The command on the benchmarks' true files, where they are at hand: counts, and the length of
answers counted anew from the files by plain code; skipped where they are not."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import true_preferences
from command_lines import command

from flowright.judging.measuring.benchmark_report import read_record

ROOT = Path(__file__).parents[2]
Main = Callable[[Sequence[str]], int]
Counted = tuple[str, str, str]
"""The two answers and the label (first, second, tie) of a pair."""


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return true_preferences.link(tmp_path_factory.mktemp("raw"))


@pytest.fixture(scope="module")
def main() -> Main:
    return command("judge benchmark")


def read(path: Path) -> Any:
    """JSON, or JSON Lines, with Unix line ends in its texts."""
    text = path.read_text(encoding="utf-8").replace("\\r\\n", "\\n")
    if path.name.startswith("autoj"):
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)


def llmbar(raw: Path) -> list[Counted]:
    paths = sorted((raw / "llmbar").rglob("dataset.json"))
    rows = [row for path in paths for row in read(path)]
    return [(r["output_1"], r["output_2"], {1: "first", 2: "second"}[r["label"]]) for r in rows]


def pandalm(raw: Path) -> list[Counted]:
    def label(row: dict[str, Any]) -> str:
        votes = Counter(row[f"annotator{n}"] for n in (1, 2, 3))
        return {0: "tie", 1: "first", 2: "second"}[votes.most_common(1)[0][0]]

    rows = read(raw / "pandalm/testset-v1.json")
    return [(*(_cell(row[f"response{n}"]) for n in (1, 2)), label(row)) for row in rows]


def _cell(value: object) -> str:
    return "" if isinstance(value, float) else str(value)


def autoj(raw: Path) -> list[Counted]:
    labels = {0: "first", 1: "second", 2: "tie"}
    rows = read(raw / "autoj/autoj_pairwise.json")
    return [(r["response 1"], r["response 2"], labels[r["label"]]) for r in rows]


def hhh(raw: Path) -> list[Counted]:
    def answer(text: str) -> str:
        return text.split("###Response to evaluate:\n")[1].split("###Score Rubrics:")[0].strip()

    rows = read(raw / "hhh/hhh_alignment_eval.json")
    return [
        (answer(r["chosen_instruction"]), answer(r["rejected_instruction"]), "first") for r in rows
    ]


def evalbiasbench(raw: Path) -> list[Counted]:
    table = read(raw / "evalbiasbench/biasbench.json")
    rows = [row for rows in table.values() for row in rows]
    return [(r["response1"], r["response2"], {1: "first", 2: "second"}[r["label"]]) for r in rows]


PLAIN: dict[str, tuple[Callable[[Path], list[Counted]], int]] = {
    "llmbar": (llmbar, 419),
    "pandalm": (pandalm, 999),
    "autoj": (autoj, 1392),
    "hhh": (hhh, 221),
    "evalbiasbench": (evalbiasbench, 80),
}


def longer(first: str, second: str) -> str:
    return "tie" if len(first) == len(second) else "first" if len(first) > len(second) else "second"


def measured(main: Main, raw: Path, out: Path, *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--data", str(raw), "--json", str(out)]) == 0
    return dict(read_record(out))


def figure(record: dict[str, Any], measure: str, part: str = "figures") -> Any:
    return next(
        figure
        for figure in record[part]
        if (figure["measure"], figure["group"], figure["reading"]) == (measure, "all", "published")
    )


@pytest.mark.parametrize("name", PLAIN)
def test_the_length_of_answers_is_counted_as_by_hand(
    main: Main, raw: Path, tmp_path: Path, name: str
) -> None:
    plain, count = PLAIN[name]
    pairs = plain(raw)
    page = tmp_path / "page.html"
    told = ["--judge", "length", "--benchmark", name, "--html", str(page)]
    record = measured(main, raw, tmp_path / "length.json", *told)
    assert record["counts"]["rows"] == len(record["rows"]) == len(pairs) == count
    assert Counter(row["label"] for row in record["rows"]) == Counter(label for *_, label in pairs)
    said = [longer(first, second) for first, second, _ in pairs]
    both = [(one, label) for one, (*_, label) in zip(said, pairs, strict=True)]
    same = sum(one == label for one, label in both) / count
    half = sum(one == "tie" != label for one, label in both) / 2 / count
    right = same + half  # LLMBar's program gives equal ratings a half
    assert figure(record, "agreement")["value"] == pytest.approx(right)
    assert figure(record, "agreement", "length")["value"] == pytest.approx(right)
    if name == "pandalm":
        right = same
        assert figure(record, "three_class")["value"] == pytest.approx(right)
    assert record["counts"]["ties"] == 2 * said.count("tie")
    assert record["counts"]["unscored"] == record["counts"]["unreadable"] == 0
    assert record["about"].keys() >= {"judge", "data", "sha256", "seed", "version", "simulated"}
    assert f"{right:.1%}".replace("%", " %") in page.read_text()
    main_figure = figure(record, "three_class" if name == "pandalm" else "agreement")
    assert main_figure["low"] < right < main_figure["high"]


def test_a_coin_is_right_by_chance(main: Main, raw: Path, tmp_path: Path) -> None:
    arguments = ["--judge", "random", "--benchmark", "hhh"]
    record = measured(main, raw, tmp_path / "random.json", *arguments)
    assert 0.4 < figure(record, "agreement")["value"] < 0.6  # 442 tosses of a seeded coin
    assert "trained_on" not in record["about"] and record["about"]["simulated"] is False


def test_the_embedded_judge_on_a_part(
    main: Main, raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--judge", "simulated", "--benchmark", "evalbiasbench", "--limit", "6"]
    page = tmp_path / "page.html"
    record = measured(main, raw, tmp_path / "judged.json", *arguments, "--html", str(page))
    assert record["counts"]["prompts"] == 6 and record["about"]["simulated"] is True
    assert record["counts"]["unreadable"] == record["counts"]["unscored"] == 0
    assert "SIMULATED" in capsys.readouterr().out
    assert "SIMULATED" in page.read_text()
