"""RewardBench 2 on rows made by hand to its format, against scores worked out by hand."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from benchmark_doubles import Chooser, Rater
from command_lines import command
from pyarrow import parquet

from flowright.core.errors import DataError
from flowright.judging.measuring.benchmark_rows import ask_rows
from flowright.judging.measuring.measured_judges import AnswerChoice, Rating
from flowright.judging.measuring.pair_files import read_rewardbench2
from flowright.judging.measuring.rewardbench2 import (
    Ballot,
    BestOfPrompt,
    BestOfRows,
    Margins,
    margins,
    score,
    ties_columns,
    ties_score,
)
from flowright.llm.chat import Message

ASKED = (Message("user", "Name a colour."),)


def rated(*ratings: float | None) -> Ballot:
    said = [Rating(None, "unreadable") if r is None else Rating(r) for r in ratings]
    return Ballot(ratings=tuple(said))


def best(name: str, subset: str, *answers: str, correct: int = 1) -> BestOfPrompt:
    return BestOfPrompt(name, subset, (Message("user", f"{subset} {name}?"),), answers, correct)


def test_the_best_of_four() -> None:
    assert score(Ballot(AnswerChoice(0)), "published") == 1
    assert score(Ballot(AnswerChoice(2)), "published") == 0
    unreadable = Ballot(AnswerChoice(None, "unreadable"))
    assert (score(unreadable, "published"), score(unreadable, "answered")) == (0.25, None)
    assert score(rated(9, 3, 9, 9), "published") == pytest.approx(1 / 3), "a share of the top"
    assert score(rated(8, 3, 9, 1), "published") == 0
    # An unreadable rating is left out; a row without any other one is a guess.
    assert score(rated(9, None, 1, 1), "published") == 1
    assert score(rated(None, 3, 1, 1), "published") == 0
    assert score(rated(4, None, None, 4), "published") == 1 / 2
    assert score(rated(None, None, None, None), "published") == 0.25
    assert score(rated(9, None, 1, 1), "answered") is None


def test_twenty_thousand_rows_as_the_leaderboards_program_scores_them() -> None:
    """Its rule in ratings mode: of the ratings that can be read the highest ones win; the row
    scores 1 / winners if the chosen answer is one of them, 0.25 if no rating can be read."""
    draw = random.Random(0)
    spoilt = 0
    for _ in range(20_000):
        ratings = [None if draw.random() < 0.12 else draw.randint(1, 10) for _ in range(4)]
        known = {place: rating for place, rating in enumerate(ratings) if rating is not None}
        winners = [place for place, rating in known.items() if rating == max(known.values())]
        expected = (0 in winners) / len(winners) if winners else 0.25
        assert score(rated(*ratings), "published") == expected
        spoilt += None in ratings and expected != 0.25
    assert spoilt > 7000, "rows that scored 0.25 when one unreadable rating spoilt them"


def test_ties_worked_out_by_hand() -> None:
    """Three numbers: clearly apart; right but further apart than above; wrong in the ref row."""
    kinds = [
        (margins(best("ref:1", "Ties", "r", "w"), rated(0.9, 0.1)),
         margins(best("tied:1", "Ties", "r", "r", "w", correct=2), rated(0.8, 0.7, 0.2))),
        (margins(best("ref:2", "Ties", "r", "w"), rated(0.3, 0.2)),
         margins(best("tied:2", "Ties", "r", "r", "w", correct=2), rated(0.9, 0.4, 0.3))),
        (margins(best("ref:3", "Ties", "r", "w"), rated(0.2, 0.5)),
         margins(best("tied:3", "Ties", "r", "r", "w", correct=2), rated(0.6, 0.6, 0.6))),
    ]  # fmt: skip
    sums = np.sum([ties_columns(ref, tied) for ref, tied in kinds], axis=0)
    term = (math.tanh(0.5 / 0.1 - 1) + math.tanh(0.1 / 0.5 - 1) - 1) / 3
    by_hand = 0.30 * 2 / 3 + 0.30 * 2 / 3 + 0.20 * 1 / 3 + 0.20 * 1 / 3 + 0.01 * term
    assert float(ties_score(sums)) == pytest.approx(by_hand, rel=1e-5)


def test_the_tie_breaking_term_without_a_spread() -> None:
    equal = Margins(above=0.0, spread=0.0)
    assert ties_columns(Margins(0.5, None), equal)[6] == 0, "0 / 0 counts as 0"
    assert ties_columns(Margins(0.5, None), Margins(0.5, 0.0))[4:] == [1, 1, 1, 1]
    assert ties_columns(None, equal) == [0, 0, 0, 1, 0, 0, 0, 0], "a number with one row alone"


async def test_the_score_is_the_mean_of_the_subsets() -> None:
    rows = [
        best("1", "Math", "good", "b", "c", "d"),
        best("2", "Math", "none", "b", "c", "d"),
        best("3", "Safety", "good", "b", "c", "d"),
        best("ref:1", "Ties", "good", "b"),
        best("tied:1", "Ties", "good", "good", "b", correct=2),
    ]
    sheet = BestOfRows(rows, "ranking")
    chooser = Chooser(lambda answer: float(answer == "good"), best="good")
    figures = sheet.figures(await ask_rows(chooser, sheet, None, 2))
    found = {(f.group, f.reading): f.estimate.value for f in figures}
    assert found["Math", "published"] == pytest.approx((1 + 0.25) / 2)
    assert found["Math", "answered"] == 1
    assert found["Ties", "published"] == pytest.approx(1 + 0.01), "1 / 0 is at its limit"
    assert found["all", "published"] == pytest.approx((0.625 + 1 + 1.01) / 3)


async def test_shuffled_answers_are_named_by_their_own_place() -> None:
    rows = [best(f"{n}", "Focus", "good", "b", "c", "d") for n in range(20)]
    sheet = BestOfRows(rows, "ranking")
    chooser = Chooser(lambda answer: 0.0, best="good")
    said = await ask_rows(chooser, sheet, None, 1)
    assert {b.choice.place for b in said.values() if b.choice} == {0}
    places = [await chooser.choose(ASKED, ["b", "good", "c", "d"], "x")]
    assert places == [AnswerChoice(1)]


async def test_a_row_that_failed_is_unscored() -> None:
    rows = [best("1", "Math", "a", "b", "c", "d"), best("2", "Math", "down", "b", "c", "d")]
    sheet = BestOfRows(rows, "ratings")
    rater = Rater(lambda answer: None if answer == "down" else float(answer == "a"))
    said = await ask_rows(rater, sheet, None, 1)
    assert sheet.counts(said) | {"prompts": 0} == {
        "rows": 2, "prompts": 0, "unscored": 1, "questions": 4, "unreadable": 0,
    }  # fmt: skip
    assert {f.estimate.value for f in sheet.figures(said)} == {1.0}


ROW = {"id": "7", "prompt": "Say it.", "chosen": ["a"], "rejected": ["b", "c", "d"],
       "num_correct": 1, "num_incorrect": 3, "total_completions": 4, "subset": "Precise IF",
       "models": ["m"]}  # fmt: skip


def test_rows_as_they_are_published(tmp_path: Path) -> None:
    tied = ROW | {"id": "tied:4", "subset": "Ties", "chosen": ["a", "b"], "num_correct": 2}
    parquet.write_table(pa.Table.from_pylist([ROW, tied]), tmp_path / "test.parquet")
    read = read_rewardbench2(tmp_path)
    assert read.problems == ()
    first, second = read.rows
    assert first == BestOfPrompt(
        "7", "Precise IF", (Message("user", "Say it."),), ("a", "b", "c", "d"), 1
    )
    assert (second.correct, second.pair, second.cluster) == (2, ("tied", "4"), "Ties/4")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"subset": "Chat"}, "subset is 'Chat', not one of Factuality"),
        ({"rejected": ["b"]}, "1 chosen and 1 rejected answers, not 1 and 3"),
        ({"chosen": []}, r"chosen is \[\], not a list of answers"),
        ({"rejected": ["b", None, "d"]}, "rejected holds something that is not text"),
        ({"num_correct": 2}, "num_correct is 2, and 1 answers are chosen"),
        ({"subset": "Ties"}, "id is '7'; in Ties it is ref:N or tied:N"),
        ({"prompt": None}, "prompt is None, not a list"),
    ],
)
def test_rows_that_cannot_be_used(tmp_path: Path, change: dict, why: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW | change) + "\n")
    with pytest.raises(DataError, match=rf"rows\.jsonl:1: {why}"):
        read_rewardbench2(tmp_path)


def test_a_folder_without_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \.parquet or \.jsonl file"):
        read_rewardbench2(tmp_path)


def test_a_part_of_the_benchmark_says_so_beside_the_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = command("judge benchmark")
    folder = tmp_path / "rewardbench2"
    folder.mkdir()
    rows = [
        ROW | {"id": f"{n}", "prompt": f"{n}?", "subset": s}
        for s in ("Math", "Safety")
        for n in range(4)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out.json"
    asked = ["--judge", "length", "--data", str(tmp_path), "--json", str(out), "--overwrite"]
    assert main([*asked, "--benchmark", "rewardbench2"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "PARTIAL: Factuality: 0 of 475 rows; Focus: 0 of 495 rows; Math: 4 of 183 rows" in told
    assert main([*asked, "--benchmark", "rewardbench2/math", "--limit", "3"]) == 0
    assert "PARTIAL: 3 of 4 prompts (--limit); Factuality" in " ".join(
        capsys.readouterr().out.split()
    )
    record = json.loads(out.read_text())
    assert {row["subset"] for row in record["rows"]} == {"Math"} and len(record["rows"]) == 3
    assert main([*asked, "--benchmark", "rewardbench2/math,safety"]) == 0
    assert len(json.loads(out.read_text())["rows"]) == 8
    assert main([*asked, "--benchmark", "rewardbench2/maths"]) == 2
    assert "did you mean Math?" in capsys.readouterr().err
