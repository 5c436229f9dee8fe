"""Scores made of verdicts: two readings, what is missing, what a draw decides, others' verdicts.
No package beyond the project's own is needed for these instructions."""

import json
from pathlib import Path

import pytest

from flowright.core.errors import DataError
from flowright.criteria.constraints.checkers import (
    InstructedPrompt,
    Verdicts,
    join,
    read_answers,
    read_prompts,
    read_verdicts,
    score,
    variants,
)
from flowright.evaluation.responses.instruction_figures import (
    InstructionFigure,
    compare,
    figures_of,
)

COMMA, QUOTED = "punctuation:no_comma", "startend:quotation"
LETTER = "keywords:letter_frequency"
EXCLAMATIONS = {"letter": "!", "let_frequency": 2, "let_relation": "at least"}


def prompt(text: str, *ids: str) -> InstructedPrompt:
    drawn = {LETTER: EXCLAMATIONS}
    return InstructedPrompt(text, text, ids, tuple(drawn.get(name, {}) for name in ids))


def figure(figures: list[InstructionFigure], reading: str, level: str) -> InstructionFigure:
    return next(f for f in figures if (f.kind, f.reading, f.level) == ("canonical", reading, level))


def test_the_eight_texts_of_the_loose_reading() -> None:
    assert variants("*a*\nb\nc*") == [
        "*a*\nb\nc*", "b\nc*", "*a*\nb", "b", "a\nb\nc", "b\nc", "a\nb",
    ]  # fmt: skip
    assert variants("a") == ["a"]
    assert variants(" \n*\n") == [" \n*\n", "*"]
    assert variants(" \n ") == []


def test_loose_forgives_a_first_line_and_stars() -> None:
    followed = score(prompt("p", COMMA, QUOTED), 'Well, here:\n*"a"*').followed["canonical"]
    assert (followed.strict, followed.loose) == ((False, False), (True, True))


def test_an_empty_answer_follows_nothing_and_none_is_missing() -> None:
    prompts = [prompt("p", COMMA), prompt("q", COMMA), prompt("r", COMMA)]
    joined = join(prompts, {"p": " \n", "q": "fine", "q ": "another prompt"})
    assert [p.key for p in joined.missing] == ["r"]
    assert joined.strangers == 1
    scored = [score(*one) for one in joined.answered]
    by_prompt = figure(figures_of(scored), "loose", "prompt")
    assert (by_prompt.followed, by_prompt.total) == (1, 2)


def test_shares_by_prompt_and_by_instruction_with_intervals() -> None:
    answers = {"p": 'a, "', "q": '"a"', "r": "a", "s": '"b"'}
    scored = [score(prompt(text, COMMA, QUOTED), answer) for text, answer in answers.items()]
    figures = figures_of(scored)
    by_prompt = figure(figures, "strict", "prompt")
    assert (by_prompt.followed, by_prompt.total) == (2, 4)
    assert by_prompt.low == pytest.approx(0.1500, abs=1e-4)  # Wilson, of 2 in 4
    assert by_prompt.high == pytest.approx(0.8500, abs=1e-4)
    by_instruction = figure(figures, "strict", "instruction")
    assert (by_instruction.followed, by_instruction.total) == (5, 8)
    assert by_instruction.low is not None and by_instruction.high is not None
    assert by_instruction.low < by_instruction.share < by_instruction.high


def test_a_band_where_the_benchmark_draws() -> None:
    scored = [score(prompt("p", LETTER), "a banana"), score(prompt("q", LETTER, COMMA), "x, x")]
    by_prompt = figure(figures_of(scored), "strict", "prompt")
    assert (by_prompt.fewest, by_prompt.followed, by_prompt.most) == (0, 1, 1)
    by_instruction = figure(figures_of(scored), "strict", "instruction")
    assert (by_instruction.fewest, by_instruction.followed, by_instruction.most) == (0, 1, 2)


def test_others_verdicts_are_compared_prompt_by_prompt() -> None:
    scored = [
        score(prompt("p", COMMA), "a, b"),
        score(prompt("q", LETTER), "a banana"),
        score(prompt("r", COMMA), "a"),
    ]
    theirs = {"p": Verdicts((True,), None), "q": Verdicts((False,), (False,))}
    found = compare(scored, theirs)
    assert found.compared == {"strict": 2, "loose": 1}
    assert found.absent == 1
    assert [(d.key, d.reading, d.ids, d.is_drawn) for d in found.differences] == [
        ("p", "strict", (COMMA,), False),
        ("q", "strict", (LETTER,), True),
        ("q", "loose", (LETTER,), True),
    ]


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_files_are_read_and_null_padding_is_dropped(tmp_path: Path) -> None:
    padded = {"keywords": None, "num_bullets": 0}
    row = {"key": 7, "prompt": " a\r\n", "instruction_id_list": ["en:" + COMMA], "kwargs": [{}]}
    other = {"key": 8, "prompt": "b", "kwargs": [padded],
             "instruction_id_list": ["detectable_format:number_bullet_lists"]}  # fmt: skip
    read = read_prompts(write(tmp_path / "a.jsonl", row, other))
    assert [(p.key, p.text) for p in read] == [("7", " a\r\n"), ("8", "b")]
    answers = read_answers([write(tmp_path / "b.jsonl", {"prompt": "b", "response": "* a"})])
    assert score(read[1], answers["b"]).followed["canonical"].strict == (False,)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"instruction_id_list": ["punctuation:no_coma"], "kwargs": [{}]}, "did you mean"),
        ({"instruction_id_list": [COMMA], "kwargs": []}, "1 instructions, arguments of 0"),
        ({"instruction_id_list": [COMMA], "kwargs": [{"a": 1}]}, "unknown argument a"),
        ({"instruction_id_list": [COMMA], "kwargs": [3]}, "its arguments are an object"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(
    tmp_path: Path, row: dict[str, object], said: str
) -> None:
    path = write(tmp_path / "a.jsonl", {"key": 41, "prompt": "p", **row})
    with pytest.raises(DataError, match=said) as refused:
        read_prompts(path)
    assert f"{path}:1: key 41" in refused.value.problems[0]


def test_two_answers_to_one_prompt_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"prompt": "p", "response": "a"},
                 {"prompt": "p", "response": "b"})  # fmt: skip
    with pytest.raises(DataError, match="another answer"):
        read_answers([path])


def test_answers_as_generate_writes_them(tmp_path: Path) -> None:
    rows = [{"prompt": p, "responses": [r]} for p, r in (("p", "a"), ("q", None))]
    assert read_answers([write(tmp_path / "a.jsonl", *rows)]) == {"p": "a"}
    several = write(tmp_path / "b.jsonl", {"prompt": "p", "responses": ["a", "b"]})
    with pytest.raises(DataError, match=r"b.jsonl:1: responses: 2 to one prompt; .*--n-samples 1"):
        read_answers([several])
    with pytest.raises(DataError, match="the row lacks 'response'"):
        read_answers([write(tmp_path / "c.jsonl", {"prompt": "p", "answer": "a"})])


def test_verdicts_in_both_forms(tmp_path: Path) -> None:
    both = write(tmp_path / "a.jsonl", {"prompt": "p", "strict": [True], "loose": [True]})
    assert read_verdicts([both]) == {"p": Verdicts((True,), (True,))}
    row = {"prompt": "p", "follow_instruction_list": [False]}
    strict = write(tmp_path / "eval_results_strict.jsonl", row)
    assert read_verdicts([strict]) == {"p": Verdicts((False,), None)}
    with pytest.raises(DataError, match="strict or loose"):
        read_verdicts([write(tmp_path / "results.jsonl", row)])
