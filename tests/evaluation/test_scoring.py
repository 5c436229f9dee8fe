"""Scores of files with responses: means by hand, what is left out, and what is asked again."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_lines import command
from criteria_doubles import CriteriaModel

from flowright.config.judge import JudgeSection
from flowright.core.batch_calls import ServerDown
from flowright.core.errors import DataError
from flowright.criteria.constraints.language import missing
from flowright.data.row_files import UnusableRow
from flowright.evaluation.responses.instruction_benchmarks import (
    conversation_of,
    joined_rows,
    responses_by_conversation,
)
from flowright.evaluation.responses.score_responses import (
    Grade,
    ResponseColumns,
    ResponseRow,
    Reward,
    grade_all,
    read_responses,
    row_graders,
    scores,
)
from flowright.judging.measuring.benchmark_rows import RowJournal
from flowright.judging.rubrics.criteria_judge import criteria_judge
from flowright.judging.rubrics.rewards import Rules
from flowright.sandbox import Sandbox

ROOT = Path(__file__).parents[2]
NEEDED = pytest.mark.skipif(bool(missing()), reason="needs requirements-constraints.txt")
USER = [{"role": "user", "content": "Which fruit?"}]
Main = Callable[[Sequence[str]], int]


def rubric(*points: tuple[str, float]) -> dict[str, Any]:
    items = [{"criterion": f"It says `{word}`.", "points": p, "tags": {}} for word, p in points]
    return {"style": "rubric", "rubrics": items}


def verif() -> dict[str, Any]:
    source = "def check_following(instruction, response):\n    return len(response) < 12\n"
    truth = {"checkers": ["[llm] It says `pie`.", "[rule] Short."], "functions": ["", source]}
    return {"style": "rm", "ground_truth": json.dumps(truth)}


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def graded(
    path: Path,
    reward: Reward,
    sandbox: Sandbox,
    keys: ResponseColumns | None = None,
    model: CriteriaModel | None = None,
    rules: Rules = "run",
) -> tuple[list[ResponseRow], dict[str, Grade], dict[str, int]]:
    judge = criteria_judge(model or CriteriaModel(), JudgeSection())
    rows = read_responses(
        path, keys or ResponseColumns(), row_graders(reward, judge, sandbox, rules)
    )
    ledger = RowJournal(path.with_suffix(".grades"), {"reward": reward})
    try:
        return rows, *await grade_all(rows, ledger, 2)
    finally:
        ledger.close()


async def test_the_mean_over_rows_of_the_mean_over_samples(tmp_path: Path, sandbox: Sandbox):
    both = rubric(("apple", 3), ("pie", 1), ("rot", -2))
    path = lines(
        tmp_path / "r.jsonl",
        [
            {"q": USER, "rm": both, "from": "a", "said": ["apple pie", "apple rot", "none"]},
            {"q": USER, "rm": both, "from": "a", "said": ["pie", None]},
            {"q": USER, "rm": both, "from": "a", "said": [None]},
            {"q": USER, "rm": both, "from": "b", "said": "rot"},
        ],
    )
    keys = ResponseColumns(prompt="q", responses="said", source="from", reward_model="rm")
    rows, grades, whys = await graded(path, "rubric", sandbox, keys)
    found = scores(rows, grades)
    assert found["a"].score == pytest.approx(((1 + 0.25 + 0) / 3 + 0.25) / 2)
    assert (found["a"].rows, found["a"].responses, found["a"].missing) == (3, 6, 2)
    assert (found["a"].ungraded, found["a"].unscored_rows) == (0, 1)
    assert (found["b"].score, grades["3/0"].share) == (0.0, -0.5)
    assert whys == {}


async def test_what_nobody_could_grade_is_counted_apart_and_asked_again(
    tmp_path: Path, sandbox: Sandbox
):
    row = {"prompt": USER, "reward_model": rubric(("apple", 1)), "data_source": "a"}
    path = lines(tmp_path / "r.jsonl", [{**row, "responses": ["apple", "no"]}])
    rows, grades, whys = await graded(path, "rubric", sandbox, model=CriteriaModel(empty=1.0))
    assert (grades, sum(whys.values())) == ({}, 2)
    found = scores(rows, grades)["a"]
    assert (found.score, found.ungraded, found.missing, found.unscored_rows) == (None, 2, 0, 1)
    model = CriteriaModel()
    _, grades, _ = await graded(path, "rubric", sandbox, model=model)
    assert [grade.value for grade in grades.values()] == [1.0, 0.0]
    asked = len(model.requests)
    await graded(path, "rubric", sandbox, model=model)
    assert len(model.requests) == asked, "what was graded is kept"


async def test_a_judge_that_is_down_ends_it(tmp_path: Path, sandbox: Sandbox):
    row = {"prompt": USER, "reward_model": rubric(("apple", 1)), "responses": ["x"] * 30}
    path = lines(tmp_path / "r.jsonl", [row])
    with pytest.raises(ServerDown, match="calls in a row failed"):
        await graded(path, "rubric", sandbox, model=CriteriaModel(lost=1.0))


@pytest.mark.parametrize(
    ("rules", "values"),
    [("run", [1.0, 0.0, 0.0]), ("ignore", [1.0, 1.0, 0.0])],
)
async def test_verif_is_the_rules_times_the_verdict(
    tmp_path: Path, sandbox: Sandbox, rules: Rules, values: list[float]
):
    said = ["pie", "pie, and much more of it", "no"]
    path = lines(
        tmp_path / "r.jsonl", [{"prompt": USER, "reward_model": verif(), "responses": said}]
    )
    _, grades, _ = await graded(path, "verif", sandbox, rules=rules)
    assert [grades[f"0/{n}"].value for n in range(3)] == values


async def test_rows_without_anything_to_be_graded_by_are_named(tmp_path: Path, sandbox: Sandbox):
    made = row_graders("rubric", criteria_judge(CriteriaModel(), JudgeSection()), sandbox)
    good = {"prompt": USER, "reward_model": rubric(("a", 1)), "responses": ["x"]}
    path = lines(
        tmp_path / "r.jsonl", [good, {**good, "reward_model": verif()}, {**good, "responses": 3}]
    )
    with pytest.raises(DataError) as caught:
        read_responses(path, ResponseColumns(), made)
    assert [problem.split(":")[1] for problem in caught.value.problems] == ["2", "3"]


async def test_healthbench_joins_by_the_whole_conversation(tmp_path: Path, sandbox: Sandbox):
    made = row_graders("rubric", criteria_judge(CriteriaModel(), JudgeSection()), sandbox)
    turns = [{"role": "system", "content": "Be short."}, *USER]
    items = rubric(("apple", 1))["rubrics"]
    data = lines(
        tmp_path / "d.jsonl",
        [{"prompt": USER, "rubrics": items}, {"prompt": turns, "rubrics": items}],
    )
    given = responses_by_conversation(
        [
            lines(tmp_path / "a.jsonl", [{"prompt": json.dumps(turns), "response": "apple"}]),
            lines(tmp_path / "b.jsonl", [{"prompt": "another", "responses": ["x", None]}]),
        ]
    )
    rows = joined_rows(data, given, made, None)
    assert [row.responses for row in rows] == [(None,), ("apple",)]
    with pytest.raises(DataError, match="no response to a conversation"):
        joined_rows(data, {conversation_of("another"): ("x",)}, made, None)
    with pytest.raises(UnusableRow):
        conversation_of([{"role": "assistant", "content": "x"}])


async def test_healthbenchs_figure_grades_empty_answers_and_a_reward_does_not(
    sandbox: Sandbox,
) -> None:
    """An empty answer does nothing that is penalised: 0, as in the benchmark's own program."""
    row = {"prompt": USER, "rubrics": rubric(("apple", 3), ("rot", -2))["rubrics"]}
    row["rubrics"] += [{"criterion": "It does not say `pie`.", "points": 1, "tags": {}}]
    judge = criteria_judge(CriteriaModel(), JudgeSection(), "each")
    for grades_empty, share in ((False, -0.5), (True, 0.0)):
        made = row_graders("rubric", judge, sandbox, calls="each", grades_empty=grades_empty)
        for text in ("", "  \n", "<think>apple</think>"):
            grade = await made(row, "d:1", Path("d"))(text, "k")
            assert (grade.value, grade.share) == (0.0, share)
    grade = await made(row, "d:1", Path("d"))("apple rot", "k")
    assert grade.share == 0.25


def test_healthbench_by_theme_and_axis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tagged = [
        {"criterion": "It says `apple`.", "points": 3, "tags": ["level:example", "axis:accuracy"]},
        {"criterion": "It says `rot`.", "points": -2, "tags": ["axis:accuracy"]},
        {"criterion": "It says `pie`.", "points": 1, "tags": ["axis:completeness"]},
    ]
    rows = [
        {"prompt": [{"role": "user", "content": f"{n}?"}], "rubrics": tagged,
         "example_tags": ["physician_agreed_category:x", f"theme:{theme}"]}
        for n, theme in enumerate(("hedging", "hedging", "global_health"))
    ]  # fmt: skip
    said = ({"prompt": f"{n}?", "response": text} for n, text in enumerate(("apple", "", "pie")))
    asked = ["--benchmark", "healthbench", "--data", str(lines(tmp_path / "d.jsonl", rows))]
    asked += ["--responses", str(lines(tmp_path / "a.jsonl", [*said])), "--judge", "simulated"]
    out = tmp_path / "out.json"
    assert command("instructions evaluate")([*asked, "--limit", "2", "--json", str(out)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "the first 2 rows alone (--limit)" in told and "theme: hedging" in told
    record = json.loads(out.read_text())["healthbench"]
    assert {name: part["samples"] for name, part in record["by"].items()} == {
        "theme: hedging": 2, "axis: completeness": 2, "axis: accuracy": 2,
    }  # fmt: skip
    assert record["by"]["theme: hedging"]["score"] == record["score"]


@pytest.fixture(scope="module")
def main() -> Main:
    return command("instructions score")


@NEEDED
def test_constraints_are_scored_without_a_judge(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = ["punctuation:no_comma", "startend:quotation"]
    row = {"key": 1, "prompt": "p", "instruction_id_list": ids, "kwargs": [{}, {}]}
    data = lines(
        tmp_path / "i.jsonl",
        [{**row, "responses": ['"a"', '<think>a, b</think>"a"', '"a, b"', "", None]}],
    )
    assert main([f"data.path={data}", "--reward", "constraints"]) == 0
    assert "test_score/i" in capsys.readouterr().out
    record = json.loads((tmp_path / "i.scores.json").read_text())
    assert record["scores"] == {"test_score/i": 0.5}
    assert record["rows"][0]["values"] == [1.0, 1.0, 0.0, 0.0, None]
    assert not record["simulated"]


def test_the_embedded_judge_says_that_it_is_simulated(
    main: Main,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = {"prompt": USER, "reward_model": rubric(("apple", 1)), "responses": ["apple"]}
    data, out = lines(tmp_path / "r.jsonl", [row]), tmp_path / "s.json"
    asked = [f"data.path={data}", "--reward", "rubric", "--judge", "simulated"]
    assert main([*asked, "--json", str(out)]) == 0
    assert "SIMULATED" in capsys.readouterr().out
    assert json.loads(out.read_text())["simulated"]
    function = "custom_reward_function"
    theirs = [f"{function}.path=health_bench/scaleai_batch_reward_fn.py"]
    theirs += [f"{function}.name=compute_score", "--judge", "simulated", "--json", str(out)]
    assert main([f"data.path={data}", *theirs]) == 0, "as of verl's main_eval"
    assert json.loads(out.read_text())["reward"] == "rubric"
    monkeypatch.setenv("VLLM_BASE_URL", "http://127.0.0.1:9/v1")
    assert main([f"data.path={data}", *theirs[:2], "--json", str(out)]) != 0
    assert "note: --judge instructions-judge, the servers of VLLM_BASE_URL" in (
        " ".join(capsys.readouterr().err.split())
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--reward", "rubric", "data.path=x.jsonl"], "--judge NAME is required"),
        (["--reward", "rubric", "data.pth=x.jsonl"], "did you mean"),
        (["--reward", "rubric", "data.prompt_key=x"], "data.path=FILE"),
        (["--reward", "constraints", "data.path=x", "--judge", "b"], "leave it out"),
        (["--reward", "rubric", "custom_reward_function.path=x.py"], "--reward, rubric"),
        (["data.path=x.jsonl"], "--reward: one of rubric, verif, constraints"),
        (
            ["--reward", "rubric", "--calls", "brackets", "--judge", "b", "data.path=x"],
            "is for --reward verif",
        ),
    ],
)
def test_what_is_asked_wrongly_is_named(
    main: Main, given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given) == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(
    not (Path(os.environ.get("FLOWRIGHT_SHARED_DATA", "")) / "rubrics").is_dir()
    and not (ROOT.parent / "shared/data/rubrics").is_dir(),
    reason="needs RuscaRL's files",
)
async def test_ruscarls_validation_files_can_be_scored(tmp_path: Path, sandbox: Sandbox) -> None:
    """All their rows, with no response yet."""
    import pyarrow as pa
    from pyarrow import parquet

    shared = Path(os.environ.get("FLOWRIGHT_SHARED_DATA", ROOT.parent / "shared/data"))
    judge = criteria_judge(CriteriaModel(), JudgeSection())
    rewards: Mapping[str, tuple[Reward, int]] = {
        "healthbench_val": ("rubric", 500),
        "verinstruct_val": ("rubric", 275),
        "verinstruct_verif_val": ("verif", 274),
    }
    for name, (reward, count) in rewards.items():
        table = parquet.read_table(shared / "rubrics" / f"{name}.parquet")
        nothing = pa.array([[None]] * len(table), pa.list_(pa.string()))
        parquet.write_table(table.append_column("responses", nothing), tmp_path / "r.parquet")
        rows = read_responses(
            tmp_path / "r.parquet", ResponseColumns(), row_graders(reward, judge, sandbox)
        )
        assert len(rows) == count
