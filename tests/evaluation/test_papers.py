"""The papers' table: whose figures, from where, and what keeps ours from being compared."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.markdown import Markdown

from flowright.app.launch import evaluate
from flowright.app.measuring import open_evaluation
from flowright.config.root import Config
from flowright.core.errors import Failure, Reason
from flowright.core.statistics import Estimate
from flowright.data.loading import AFLOW_TEST, Provenance, provenance_of
from flowright.data.sources.registry import AFLOW
from flowright.data.task import Kind, Problem, write_tasks
from flowright.environments.base import Environment, make_environment
from flowright.environments.registry import make_config
from flowright.environments.rollout import UNSCORED, Reward, Rollout
from flowright.evaluation.evaluator import Score, TableRow, make_row, row_of
from flowright.evaluation.papers import (
    DATASETS,
    METRICS,
    PUBLISHED,
    TITLES,
    Models,
    PaperTable,
    differences,
    models_of,
    paper_table,
)
from flowright.grading import Gold
from flowright.policy.sampling import Sample

HOSTILE = "trained policy: \x1b[2Jx|y <b>[red]`*\u202e\n# head"
REAL = Models("Qwen/Qwen2.5-7B", "/models/gpt-4o-mini-2024-07-18", "gpt-oss-120b")
SIMULATED = Models("tiny", "the embedded server", "the embedded server", ("executor", "judge"))
KNOWN = {file.path: file.sha256 for file in AFLOW.files if file.sha256 is not None}
AFLOW_SPLIT = Provenance("data/mixed/test_mixed.jsonl", "aflow", "test", KNOWN)


def score(gold: float | None, problems: int = 100) -> Score:
    ends = (None, None) if gold is None else (gold - 0.05, gold + 0.05)
    return Score(problems, gold, *ends, None, None, None, 1.0, 0.0, 1.0, 10.0, 1.0)


def evaluation(rows: Sequence[TableRow], simulated: bool = False) -> dict[str, Any]:
    told = {"problems": 100, "simulated": simulated, "rows": [asdict(row) for row in rows]}
    return json.loads(json.dumps({**told, "summary": {"best_single": "fixed: best"}}))


def policy(sources: Mapping[str, Score], name: str = "trained policy", **more: Any) -> TableRow:
    return TableRow(name, "policy", {"all": score(0.5)}, sources, **more)


def printed(table: PaperTable) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(Markdown(table.markdown()))
    return console.export_text()


def test_every_published_figure_has_a_source_and_lies_between_0_and_100():
    for row in PUBLISHED:
        assert "arXiv 2" in row.source or "openreview.net" in row.source
        assert row.figures or row.mean
        assert set(row.figures) <= set(TITLES)
        assert all(0 < figure["value"] <= 100 for figure in row.figures.values())
        assert all(figure["metric"] in (None, *METRICS) for figure in row.figures.values())
    systems = [row.system for row in PUBLISHED]
    assert len(set(systems)) == len(systems)
    aflow = PUBLISHED[0]
    values = [figure["value"] for figure in aflow.figures.values()]
    assert sum(values) / 6 == pytest.approx(aflow.mean, abs=0.05)
    # Without all six there is no mean of six, unless its authors print one.
    assert all(row.mean is None for row in PUBLISHED if 0 < len(row.figures) < 6)


def test_ours_stands_below_others_with_its_interval_and_a_missing_dataset_is_empty():
    row = policy({"gsm8k": score(0.9, 1055), "humaneval": score(None, 3), "mmlu": score(1.0)})
    table = paper_table(evaluation([row]), REAL, AFLOW_SPLIT, samples=3)
    (ours,) = table.ours
    assert set(ours.cells) == {"gsm8k", "humaneval"}
    assert (ours.cells["gsm8k"].text, ours.cells["gsm8k"].interval) == ("90.0", "85-95")
    assert ours.cells["humaneval"].text == "-"  # not scored is not 0
    assert ours.mean is None and ours.repetitions == 3
    lines = table.markdown().splitlines()
    assert r"| AFlow \[1\] | 93.5 | 56.2 | 94.7 | 83.4 | 73.5 | 80.6 | 80.3 |" in lines
    assert (
        r"| FlowSteer (gpt-4o-mini) \[4\] | 96.09 | 81.25 | 92.96 | 84.38 | 84.98 |  |  |" in lines
    )
    assert r"| ScoreFlow \[2\] |  |  |  |  |  |  | 85.3 |" in lines
    assert "| ours: trained policy | 90.0 (85-95), n=1055 |  | -, n=3 |  |  |  |  |" in lines
    assert "Ours has no problems of MATH, MBPP, HotpotQA, DROP." in table.notes
    assert any(note.startswith("Repetitions of ours: 3 a problem") for note in table.notes)
    drawn = replace(row, group="baseline", outcomes=((1.0, 0.0),))
    (fixed,) = paper_table(evaluation([drawn]), REAL, AFLOW_SPLIT, samples=3).ours
    assert fixed.repetitions == 2, "as many as the row has"
    assert "mmlu" not in table.markdown()


def test_another_dataset_has_a_column_where_ours_was_measured():
    exact = {"nq_open": Estimate(0.25, 0.2, 0.3)}
    sources = {"gsm8k": score(0.9), "nq_open": score(0.5), "aime25": score(0.1, 30)}
    table = paper_table(evaluation([policy(sources, exact=exact)]), REAL, Provenance("f"), 16)
    assert [*table.columns][-2:] == ["aime25", "nq_open"] and table.to_json()["datasets"]["nq_open"]
    assert "| AIME 25 | NQ | mean |" in table.markdown()
    cells = table.ours[0].cells
    assert (cells["nq_open"].value, cells["nq_open"].metric) == (0.25, "EM")
    assert any(note.startswith("NQ: 100 problems of f") for note in table.notes)
    flowsteer = next(line for line in table.markdown().splitlines() if "FlowSteer (gpt" in line)
    assert flowsteer.endswith("| 26.67 | 54.69 |  |")
    assert table.ours[0].mean is None


def test_a_mean_needs_all_six():
    shares = dict(zip(DATASETS, (0.5, 0.6, 0.7, 0.8, 0.9, 1.0), strict=True))
    row = policy({name: score(share) for name, share in shares.items()})
    (ours,) = paper_table(evaluation([row]), REAL, AFLOW_SPLIT, 1).ours
    assert ours.mean == pytest.approx(0.75)
    del shares["drop"]
    row = policy({name: score(share) for name, share in shares.items()})
    (ours,) = paper_table(evaluation([row]), REAL, AFLOW_SPLIT, 1).ours
    assert ours.mean is None


def test_what_differs_is_said_dataset_by_dataset():
    sources = {name: score(0.8, size) for name, size in AFLOW_TEST.items()}
    f1 = {"drop": Estimate(0.7, 0.6, 0.8)}
    aflow, flowsteer = PUBLISHED[0], PUBLISHED[3]

    def found(models: Models, split: Provenance) -> dict[str, list[str]]:
        table = paper_table(evaluation([policy(sources, f1=f1)]), models, split, 3)
        cells = table.ours[0].cells
        assert cells["drop"].metric == "F1" and cells["drop"].value == 0.7
        assert cells["hotpotqa"].metric == "accuracy" and cells["hotpotqa"].value == 0.8
        return {name: differences(cells[name], name, table, aflow) for name in cells}

    same = found(REAL, AFLOW_SPLIT)
    assert same.pop("hotpotqa") == ["metric"]
    assert not any(same.values())
    assert found(SIMULATED, AFLOW_SPLIT)["gsm8k"] == ["executor"]
    other_bytes = Provenance("x", "aflow", "test", dict.fromkeys(KNOWN, "0" * 64))
    assert found(REAL, other_bytes)["gsm8k"] == ["split"]
    for mode, split in (("aflow", "val"), ("official", "test"), ("offline", "test"), (None, None)):
        assert found(REAL, Provenance("x", mode, split, KNOWN))["mbpp"] == ["split"]
    named = Models("p", "gpt-4o-mini-2024-07-18", "j", ("executor",))  # a name proves nothing
    assert found(named, AFLOW_SPLIT)["drop"] == ["executor"]

    table = paper_table(evaluation([policy(sources, f1=f1)]), REAL, AFLOW_SPLIT, 3)
    assert differences(table.ours[0].cells["gsm8k"], "gsm8k", table, flowsteer) == [
        "split",
        "executor",
    ]
    notes = {note.partition(":")[0]: note for note in table.notes}
    assert "1,055 problems of its 1,055 of AFlow's test split" in notes["GSM8K"]
    assert KNOWN["aflow/gsm8k_test.jsonl"][:12] in notes["GSM8K"]
    assert "split, metric and executor as AFlow" in notes["GSM8K"]
    assert "kept no F1" in notes["HotpotQA"] and "kept no F1" not in notes["DROP"]
    assert "not comparable with AFlow" in notes["HotpotQA"]


def test_part_of_a_test_split_is_another_split():
    table = paper_table(evaluation([policy({"drop": score(0.8, 799)})]), REAL, AFLOW_SPLIT, 1)
    assert "split" in differences(table.ours[0].cells["drop"], "drop", table, PUBLISHED[0])


def test_simulated_models_are_called_so_wherever_a_figure_of_ours_is():
    row = policy({"gsm8k": score(0.9)})
    table = paper_table(evaluation([row], simulated=True), SIMULATED, Provenance("f"), 1)
    for text in (table.markdown(), printed(table)):
        assert "trained policy, simulated" in text
        assert (
            "executor the embedded server (simulated); judge the embedded server (simulated)"
            in text
        )
        assert "are no claims about any model" in " ".join(text.split())
    honest = paper_table(evaluation([row]), REAL, Provenance("f"), 1)
    assert "simulated" not in honest.markdown() + printed(honest)


def test_hostile_names_are_shown_and_not_obeyed():
    row = policy({"gsm8k": score(0.9)}, HOSTILE)
    models = Models(HOSTILE, HOSTILE, HOSTILE)
    table = paper_table(evaluation([row]), models, Provenance(HOSTILE), 1)
    text = table.markdown()
    for shown in (text, printed(table)):
        assert "\x1b" not in shown and "\u202e" not in shown
    (line,) = (line for line in text.splitlines() if line.startswith("| ours"))
    assert r"x\|y \<b\>\[red\]\`\*" in line
    assert line.replace(r"\|", "").count("|") == 9  # no further column
    assert not [line for line in text.splitlines() if line.startswith("# head")]
    assert "[red]" in printed(table)
    json.dumps(table.to_json(), allow_nan=False)


def test_of_baselines_those_are_shown_that_the_comparison_shows():
    def baseline(name: str, shown: bool) -> TableRow:
        sources = {"gsm8k": score(0.5)}
        return TableRow(name, "baseline", {"all": score(0.5)}, sources, shown=shown)

    rows = [baseline("a", True), baseline("b", False), baseline("fixed: best", False)]
    table = paper_table(evaluation(rows), REAL, Provenance("f"), samples=4)
    assert [(row.name, row.repetitions) for row in table.ours] == [("a", 1), ("fixed: best", 1)]


def problem(number: int, kind: Kind = "qa", source: str = "drop", **more: Any) -> Problem:
    tests = ("assert True",) if kind == "code" else ()
    return Problem(f"{source}/{number}", kind, source, "q", "a", hidden_tests=tests, **more)


def answered(of: Problem, right: bool, f1: float | None) -> Rollout:
    gold = Gold(right, "test", f1=f1)
    return Rollout(
        of,
        Sample((), (), "", "stop", -1),
        Reward(float(right), {"correctness": float(right)}),
        gold=gold,
    )


def failed(of: Problem, reason: Reason) -> Rollout:
    return Rollout(of, Sample((), (), "", "stop", -1), UNSCORED, Failure(reason, "why"))


def test_f1_is_a_mean_over_problems_to_which_faults_of_ours_do_not_count():
    drop = [problem(number) for number in range(4)]
    choice = problem(0, source="mmlu", choices=(("A", "x"), ("B", "y")))
    groups = [
        [answered(drop[0], True, 1.0), answered(drop[0], False, 0.5)],
        [failed(drop[1], Reason.SYNTAX)],
        [failed(drop[2], Reason.LLM_UNAVAILABLE)],
        [answered(drop[3], False, 0.25)],
        [answered(choice, True, None)],
        [answered(problem(0, "math", "gsm8k"), True, None)],
    ]
    row = make_row("p", "policy", groups, Environment(make_config()))
    assert set(row.f1) == {"drop"}
    assert row.f1["drop"].value == pytest.approx((0.75 + 0.0 + 0.25) / 3)
    assert row.sources["drop"].gold == pytest.approx((0.5 + 0.0 + 0.0) / 3)
    unknown = make_row(
        "p", "policy", [*groups, [answered(drop[3], True, None)]], Environment(make_config())
    )
    assert unknown.f1 == {}  # part of a dataset has no mean of the whole
    known = json.loads(json.dumps(asdict(row)))
    assert row_of(known).f1 == row.f1
    del known["f1"]  # as evaluations were kept before
    assert row_of(known).f1 == {}


def test_a_verdict_that_is_lost_leaves_gold_and_f1():
    lost = failed(problem(0), Reason.JUDGE_FAILED)
    lost = Rollout(lost.task, lost.sample, UNSCORED, lost.failure, gold=Gold(False, "", f1=0.5))
    assert (lost.gold_score, lost.word_score("f1")) == (0.0, 0.5)


def mixture(folder: Path, counts: Mapping[str, int], mode: str = "aflow") -> Path:
    path = folder / "test_mixed.jsonl"
    write_tasks(path, [problem(i, "math", s) for s, n in counts.items() for i in range(n)])
    told = {"split": mode, "counts": {"test": {"math": dict(counts)}}, "inputs_sha256": KNOWN}
    (folder / "manifest.json").write_text(json.dumps(told))
    return path


def test_a_task_file_is_of_the_split_that_its_manifest_says_if_it_fits(tmp_path: Path):
    path = mixture(tmp_path, {"gsm8k": 3, "math": 1})
    found = provenance_of(str(path), "val")
    assert (found.mode, found.split) == ("aflow", "test")
    assert found.sha256("gsm8k") == KNOWN["aflow/gsm8k_test.jsonl"]
    assert found.sha256("math") is None
    manifest = tmp_path / "manifest.json"
    told = json.loads(manifest.read_text())
    for wrong in (
        {**told, "split": "guessed"},
        {**told, "counts": {"test": {"math": {"gsm8k": 4, "math": 1}}}},
        {**told, "counts": []},
        [],
    ):
        manifest.write_text(json.dumps(wrong))
        assert provenance_of(str(path), "val") == Provenance(str(path))
    manifest.unlink()
    assert provenance_of(str(path), "val").mode is None
    assert provenance_of("package.module:function", "val").mode is None
    assert provenance_of("offline", "val") == Provenance("offline", "offline", "val")


def found_models(config: Config) -> Models:
    return models_of(config, make_environment(config))


def test_models_are_called_what_their_servers_call_them(tmp_path: Path):
    llm = tmp_path / "llm.yaml"
    llm.write_text(
        "models: {big: {api_type: openai, base_url: 'http://localhost:1/v1', api_key: k, "
        "model_name: /path/to/gpt-oss-120b}}"
    )
    config = make_config({"llm": {"file": llm}, "aflow_executor_model": "big"})
    assert found_models(config) == Models("tiny", "/path/to/gpt-oss-120b", "/path/to/gpt-oss-120b")
    config = make_config({"llm": {"file": llm}, "judge": {"model": "big"}})
    found = found_models(config)
    assert (found.judge, found.simulated) == ("/path/to/gpt-oss-120b", ("executor",))
    own = found_models(make_config({"environment": "presentation"}))
    assert own.executor == "of environment presentation, not known" and not own.simulated


def test_a_finished_evaluation_gets_its_table_without_asking_anybody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """No server is there that could be asked."""
    llm, out = tmp_path / "llm.yaml", tmp_path / "out"
    llm.write_text(
        "models: {big: {api_type: openai, base_url: 'http://127.0.0.1:9/v1', api_key: k, "
        "model_name: big-one}}"
    )
    data = tmp_path / "mine.jsonl"
    write_tasks(data, [problem(0, "math", "gsm8k")])
    given = {
        "llm": {"file": llm},
        "aflow_executor_model": "big",
        "val_dataset": str(data),
        "evaluation": {"samples": 2},
    }
    config = make_config(given)
    with open_evaluation(config, (), None, out, False) as opened:
        row = policy({"gsm8k": score(1.0, 1)})
        opened.ledger.put("problems", asdict(row))
        opened.ledger.finish(evaluation([row]))
    before = (out / "evaluation.json").read_bytes()
    assert evaluate(config, out=out, papers=True) == 0
    said = capsys.readouterr().out
    assert "already measured" in said
    assert "Models really used: policy tiny; executor big-one" in said
    assert (out / "evaluation.json").read_bytes() == before
    told = json.loads((out / "papers.json").read_text())
    assert told["ours"][0]["cells"]["gsm8k"]["value"] == 1.0
    assert told["ours"][0]["repetitions"] == 2
    assert told["published"][0]["figures"]["gsm8k"]["value"] == 93.5
    assert told["models"]["executor"] == "big-one"
    assert "of which split is not known" in (out / "papers.md").read_text()
