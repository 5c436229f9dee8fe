"""Win rates of one set of answers over another, and two judges on the same pairs."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_lines import command

from flowright.core.errors import DataError
from flowright.core.statistics import Array, Resampler, sign_test
from flowright.judging.measuring.benchmark_report import benchmark_report, read_record
from flowright.judging.measuring.pair_files import read_two_sets
from flowright.judging.measuring.win_rates import length_controlled
from flowright.viewer.rendering.report import report_html

Main = Callable[[Sequence[str]], int]


@pytest.fixture(scope="module")
def main() -> Main:
    return command("judge benchmark")


def _synthetic(seed: int) -> tuple[Array, Array, Array]:
    """Wins that depend on the model, on the length, and on the difficulty of the question."""
    draws = np.random.default_rng(seed)
    gap, difficulty = draws.normal(200, 400, 300), draws.normal(size=300)
    logits = -0.4 + 1.5 * np.tanh(gap / gap.std(ddof=1)) + 0.7 * difficulty
    wins = (draws.random(300) < 1 / (1 + np.exp(-logits))).astype(float)
    wins[:30] = 0.5
    return wins, gap, difficulty


def _descended(wins: Array, gap: Array, difficulty: Array | None) -> float:
    """The same model by gradient descent on its penalised loss."""
    columns = [np.ones_like(gap), np.tanh(gap / gap.std(ddof=1))]
    columns += [] if difficulty is None else [difficulty]
    features = np.stack(columns, axis=1)
    found = np.zeros(features.shape[1])
    for _ in range(20_000):
        chances = 1 / (1 + np.exp(-features @ found))
        found -= 0.01 * ((chances - wins) @ features + 0.01 * found)
    features[:, 1] = 0
    return float((1 / (1 + np.exp(-features @ found))).mean())


@pytest.mark.parametrize("has_difficulty", [False, True])
def test_the_length_controlled_win_rate_is_that_of_an_independent_fit(has_difficulty: bool) -> None:
    wins, gap, difficulty = _synthetic(0)
    names = [str(number) for number in range(len(wins))]
    known = difficulty if has_difficulty else None
    found = length_controlled(
        Resampler(names, 200, 0), names, wins.tolist(), gap.tolist(),
        [] if known is None else known.tolist(),
    )  # fmt: skip
    assert found.value == pytest.approx(_descended(wins, gap, known), abs=1e-6)
    assert found.low is not None and found.high is not None
    assert found.low < found.value < found.high < wins.mean(), "the first set is longer"


def test_without_differences_in_length_it_is_the_win_rate() -> None:
    names = ["a", "b", "c", "d"]
    found = length_controlled(Resampler(names, 100, 0), names, [1, 1, 0.5, 0], [0, 0, 0, 0])
    assert found.value == pytest.approx(5 / 8, abs=0.01)  # the penalty's share


def test_wins_that_the_length_decides_alone_have_a_finite_fit() -> None:
    """Without a penalty no fit of separable wins is finite."""
    names = [str(number) for number in range(40)]
    gap = [10.0] * 30 + [-10.0] * 10
    won = length_controlled(Resampler(names, 100, 0), names, [float(g > 0) for g in gap], gap)
    assert won.value is not None and 0.5 < won.value < 0.65, "won 75 %, all of them by length"
    assert length_controlled(Resampler([], 10, 0), [], [], []).value is None


@pytest.mark.parametrize(("above", "below"), [(0, 0), (5, 0), (3, 9), (10, 10), (700, 800)])
def test_the_sign_test_is_twice_the_smaller_tail(above: int, below: int) -> None:
    count = above + below
    tail = math.fsum(
        math.exp(
            math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
            - count * math.log(2)
        )
        for k in range(min(above, below) + 1)
    )  # fmt: skip
    assert sign_test(above, below) == sign_test(below, above)
    assert sign_test(above, below) == pytest.approx(min(1, 2 * tail), rel=1e-9)


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(list(rows)))
    return path


def _outputs(folder: Path) -> list[str]:
    new = [
        {"instruction": f"Q{n}", "output": "long " * (n + 1), "generator": "new", "difficulty": n}
        for n in range(6)
    ]
    old = [
        {"instruction": f"Q{n}", "output": "ten chars.", "generator": "old"} for n in range(1, 7)
    ]
    return [str(_write(folder / f"{n}.json", rows)) for n, rows in enumerate((new, old))]


def test_two_sets_of_answers_have_a_win_rate(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "won.json"
    answers = _outputs(tmp_path)
    assert main(["--judge", "length", "--answers", *answers, "--json", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "new against old" in shown and "win rate, length-controlled" in shown
    assert "PARTIAL: 2 questions have one answer only" in shown
    record = read_record(out)
    figures = {f["measure"]: f for f in record["figures"] if f["reading"] == "published"}
    assert figures["win_rate"]["value"] == pytest.approx(4.5 / 5)  # "long long " is a tie
    assert figures["length_controlled"]["rows"] == 5
    assert "difficulty" in record["benchmark"]["rule"]
    assert "labelled_ties" not in record["counts"] and "label" not in record["rows"][0]
    with pytest.raises(DataError, match="no question in common"):
        read_two_sets(
            [Path(answers[0]), _write(tmp_path / "x.json", [{"prompt": "?", "answer": ""}])]
        )
    rows = [{"prompt": "Q0", "output": "a"}, {"prompt": "Q0", "output": "b"}, {"prompt": "Q1"}]
    sets = read_two_sets([Path(answers[0]), _write(tmp_path / "x.json", rows)])
    assert [(pair.first, pair.second) for pair in sets.pairs] == [("long ", "a")]
    assert sets.names == ("new", "x") and sets.difficulty and len(sets.partial) == 3


def test_two_judges_are_compared_on_the_same_pairs(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shorter answers are better in two pairs of eight; the judge by length has those wrong."""
    rows = [
        {"question": f"Q{n}", "first": "a" * (1 if n < 2 else 9), "second": "bbb", "label": "first"}
        for n in range(8)
    ]
    path, out = _write(tmp_path / "pairs.json", rows), tmp_path / "length.json"
    arguments = ["--pairs", str(path), "--json", str(out)]
    assert main([*arguments, "--judge", "length", "--against", "random", "--seed", "3"]) == 0
    shown = capsys.readouterr().out
    record, other = read_record(out), read_record(tmp_path / "length.against.json")
    right = [[row["right"] for row in each["rows"]] for each in (record, other)]
    assert right[0] == [False] * 2 + [True] * 6
    against = record["against"]
    table = [sum(pair == (a, b) for pair in zip(*right, strict=True))
             for a, b in ((True, True), (True, False), (False, True), (False, False))]  # fmt: skip
    names = ("both_right", "only_first", "only_second", "neither")
    assert [against[name] for name in names] == table
    assert against["difference"]["value"] == pytest.approx((table[1] - table[2]) / 8)
    assert against["p"] == sign_test(table[1], table[2])
    assert "only length" in shown and "exact p (McNemar)" in shown
    assert "Two judges" in report_html(benchmark_report(record))
    # A judge against its own record differs nowhere.
    assert main([*arguments, "--judge", "length", "--against", str(out), "--seed", "3"]) == 0
    assert read_record(out)["against"]["p"] == 1
    answers = ["--answers", *_outputs(tmp_path), "--json", str(tmp_path / "a.json")]
    assert main([*answers, "--judge", "length", "--against", "random"]) == 2
    assert "no row has a label" in capsys.readouterr().err
