"""Rubrics that a model proposes: what is kept, what is chosen by labels, what is frozen."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from command_lines import command

from flowright.core.errors import DataError
from flowright.criteria.rubrics.rows import Item, read_rubrics
from flowright.data.task import Pair
from flowright.judging.measuring.measured_judges import GameOutcome, Games
from flowright.judging.rubrics.proposals import (
    CRITERIA,
    about_pairs,
    about_task,
    merge_criteria,
    read_criteria,
    to_items,
)
from flowright.judging.rubrics.selection import check_labels, games_share, rubric_share, select
from flowright.llm.chat import Message

Main = Callable[[Sequence[str]], int]
PAIR = Pair("1", "s", (Message("user", "Why is the sky blue?"),), "Rayleigh.", "It is.", "second")


def item(text: str, points: float = 1.0) -> Item:
    return Item(text, points)


def test_a_list_of_criteria_is_read_strictly() -> None:
    good = [{"criterion": "It names a source.", "points": 3}]
    for text in (
        json.dumps({"reason": "because", "criteria": good}),
        "Sure.\nCriteria: " + json.dumps(good),
        "<think>criteria: [1]</think>```json\n" + json.dumps({"criteria": good}) + "\n```",
    ):
        read = read_criteria(text, "text", (CRITERIA,))
        assert read.fault is None
        assert to_items(str(read.values["criteria"])) == [item("It names a source.", 3.0)]
    for bad in (
        '{"criteria": []}',
        '{"criteria": ["It names a source."]}',
        '{"criteria": [{"criterion": "x", "points": 9}]}',
        '{"criteria": [{"criterion": "x", "points": true}]}',
        '{"criteria": [{"criterion": " ", "points": 1}]}',
        '{"criteria": [{"criterion": "cut',
        "",
    ):
        assert read_criteria(bad, "text", (CRITERIA,)).values == {}


def test_leaks_and_repetitions_are_left_out() -> None:
    answer = "The molecules of the air scatter blue light far more than red light."
    proposed = [
        item("The answer names the scattering of light."),
        item("The answer is Response A."),
        item("It is like the better answer."),
        item("It states that the air scatter blue light far more than red light."),
        item("It answers a question that was asked.", 2.0),
    ]
    again = [item("the answer names the scattering of Light")]
    kept, left_out = merge_criteria([(proposed, [answer]), (again, [])], 9)
    assert [each.criterion for each in kept] == [
        "The answer names the scattering of light.",
        "It answers a question that was asked.",
    ]
    assert left_out == {
        "names an answer by its label": 2, "quotes an answer": 1, "repeats another": 1
    }  # fmt: skip
    assert merge_criteria([(proposed, [answer])], 1)[0] == [
        item("It answers a question that was asked.", 2.0)
    ]


def test_requests_show_labels_of_pairs_alone() -> None:
    text = about_pairs([PAIR]).user_message("text").content
    assert "BETTER ANSWER 1\nIt is." in text and "WORSE ANSWER 1\nRayleigh." in text
    assert "BETTER ANSWER 1" not in about_task("Letters.").user_message("text").content


def test_criteria_are_chosen_by_labels() -> None:
    items = [item(name) for name in ("always", "good", "bad", "also good", "ungraded")]
    graded = [
        ((True, True, False, n != 0, None), (True, False, n < 6, False, False)) for n in range(8)
    ]
    chosen, counts = select(items, graded, 6)
    assert [each.criterion for each in chosen] == ["good", "also good"]
    # log((8 + 1) / (0 + 1)) and log((7 + 1) / (0 + 1))
    assert [each.points for each in chosen] == [2.2, 2.08]
    assert [(each.better_only, each.worse_only) for each in counts] == [
        (0, 0), (8, 0), (0, 6), (7, 0), (0, 0)
    ]  # fmt: skip
    assert [each.points for each in counts] == [0, 2.2, 0, 2.08, 0]
    unlearned, _ = select(items[2:3], [((False,), (True,))], 6)
    assert unlearned == (items[2],)


def test_what_decides_nothing_counts_half() -> None:
    items = [item("a", 2.0), item("b", 1.0)]
    assert rubric_share(items, ((True, False), (False, True))) == 1
    assert rubric_share(items, ((False, True), (True, False))) == 0
    assert rubric_share(items, ((True, None), (True, True))) == 0.5
    assert rubric_share([], ((), ())) == 0.5
    won, lost, tie = (GameOutcome(side) for side in ("second", "first", "tie"))
    assert games_share(PAIR, Games(won, won)) == 1
    assert games_share(PAIR, Games(won, lost)) == games_share(PAIR, Games(tie, tie)) == 0.5
    assert games_share(PAIR, Games(won, GameOutcome(None, "unreadable"))) == 0.75
    check = check_labels([(PAIR, items)] * 20, [((True, True), (False, True))] * 20, [0.5] * 20)
    assert check["pairs"] == 20
    found = check["figures"]
    assert found["rubric"]["agreement"]["value"] == 1.0
    assert found["judge, no rubric"]["lead"]["value"] == 0.5
    assert found["judge, no rubric"]["undecided"] == 20
    assert found["length"]["agreement"]["value"] == 0.0  # the worse answer is the longer one


@pytest.fixture(scope="module")
def main() -> Main:
    return command("data rubrics")


def pairs_file(path: Path, word: str = "gladly") -> Path:
    """Twenty pairs; the better answer has a word that no other has."""
    rows = [
        {
            "question": f"Case {n}?",
            "first": f"Number {n} we {word} settle." if n % 2 else f"Number {n} waits.",
            "second": f"Number {n} waits." if n % 2 else f"Number {n} we {word} settle.",
            "label": "first" if n % 2 else "second",
        }
        for n in range(20)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rubrics_from_pairs_are_frozen_and_resumed(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rubric.jsonl"
    arguments = ["--pairs", str(pairs_file(tmp_path / "pairs.jsonl")), "--judge", "simulated"]
    arguments += ["--out", str(out), "--require"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "SIMULATED" in shown and 'has the word "gladly"' in shown and "length" in shown
    manifest_file = tmp_path / "rubric.rubrics.json"
    manifest, rows = json.loads(manifest_file.read_text()), out.read_bytes()
    assert manifest["simulated"] and manifest["check"]["predicts"]
    assert manifest["check"]["pairs"] + manifest["questions"]["answers of training pairs"] / 2 == 20
    found = read_rubrics([out]).rows
    assert len(found) == 20 and {row.items for row in found} == {found[0].items}
    assert found[0].items[0].tags == {"basis": "pairs", "simulated": "true"}

    # A killed command: the last replies are missing, and a line is torn.
    journal = tmp_path / "rubric.rubrics.outcomes.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:9])
    out.unlink()
    assert main(arguments) == 0
    assert json.loads(manifest_file.read_text()) == manifest and out.read_bytes() == rows
    assert len(journal.read_bytes().splitlines()) == len(lines)

    # Changed criteria are refused wherever rubrics are read.
    out.write_bytes(rows.replace(b"gladly", b"madly"))
    with pytest.raises(DataError, match=r"not those that rubric\.rubrics\.json has frozen"):
        read_rubrics([out])


def test_a_rubric_that_predicts_nothing_is_unproven(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = pairs_file(tmp_path / "pairs.jsonl", word="can")  # too short for the simulated writer
    arguments = ["--task", "Letters about violins", "--pairs", str(pairs), "--judge", "simulated"]
    arguments += ["--out", str(tmp_path / "task.jsonl")]
    assert main(arguments) == 0
    assert "WARNING: unproven rubric: it does not predict" in capsys.readouterr().out
    assert main([*arguments, "--require"]) == 1


def test_rubrics_of_each_prompt(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "each.jsonl"
    asked = ["Write about walnuts.", [{"role": "user", "content": "Write about herrings."}]]
    prompts.write_text("".join(json.dumps({"prompt": each}) + "\n" for each in asked))
    assert main(["--prompts", str(prompts), "--judge", "simulated", "--out", str(out)]) == 0
    assert "no labels to check it with" in capsys.readouterr().out
    rows = read_rubrics([out]).rows
    assert ['has the word "walnuts"' in str(row.items) for row in rows] == [True, False]


def test_mistakes_are_lines(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--judge", "simulated", "--out", "rubric.csv", "--held-out", "1"]) == 2
    shown = capsys.readouterr().err
    assert "name --task, --pairs" in shown and "rubric.csv: .jsonl" in shown and "1.0" in shown
