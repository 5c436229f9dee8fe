"""Rows of an evaluation: kept as they come, taken up again, never mixed with another's."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from flowright.core.errors import RunError
from flowright.evaluation.evaluator import Score, TableRow, row_of
from flowright.evaluation.ledger import Ledger
from flowright.runs.run_files import EVALUATION, rollout_steps

ABOUT = {"config": {"seed": 1}, "problems": "abc"}
SCORE = Score(3, 0.5, 0.1, 0.9, None, None, None, 1.0, 0.0, 2.0, 10.0, 0.25)
ROW = TableRow(
    "fixed: a", "baseline", {"all": SCORE}, {"s": SCORE}, {"math": {"answer": 1.0}}, False
)


def files(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def test_a_row_comes_back_as_it_was(tmp_path: Path):
    ledger = Ledger(tmp_path / "out", ABOUT)
    assert files(tmp_path / "out").keys() == {"lock", "rows.jsonl"}  # still empty
    assert "nothing was measured" in ledger.summary()
    ledger.put("problems", asdict(ROW))
    assert "1 row is kept" in ledger.summary()
    ledger.close()
    again = Ledger(tmp_path / "out", ABOUT)
    known = again.get("problems", "fixed: a")
    assert known is not None and row_of(known) == ROW
    assert again.get("selection", "fixed: a") is None
    assert not again.complete
    again.finish({"rows": []})
    again.close()
    done = Ledger(tmp_path / "out", ABOUT)
    assert done.complete
    done.close()
    assert json.loads((tmp_path / "out/evaluation.json").read_text()) == {"rows": []}


def test_a_row_torn_by_a_kill_is_measured_again(tmp_path: Path):
    ledger = Ledger(tmp_path, ABOUT)
    ledger.put("problems", asdict(ROW))
    ledger.close()
    with (tmp_path / "rows.jsonl").open("a") as out:
        out.write('{"on": "problems", "row": {"na')
    again = Ledger(tmp_path, ABOUT)
    again.put("selection", asdict(ROW))
    again.close()
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 3


def test_another_evaluation_is_refused_with_what_differs_and_nothing_changes(tmp_path: Path):
    ledger = Ledger(tmp_path, ABOUT)
    ledger.put("problems", asdict(ROW))
    ledger.close()
    before = files(tmp_path)
    with pytest.raises(RunError, match=r"config\.seed: 1 -> 2; give another --out, or --overwrite"):
        Ledger(tmp_path, {**ABOUT, "config": {"seed": 2}})
    assert files(tmp_path) == before
    replaced = Ledger(tmp_path, {**ABOUT, "config": {"seed": 2}}, overwrite=True)
    assert files(tmp_path).keys() - {"lock"} == before.keys()
    replaced.put("problems", asdict(ROW))
    replaced.close()
    with pytest.raises(RunError, match=r"config\.seed: 2 -> 1"):
        Ledger(tmp_path, ABOUT)


def test_attempts_are_kept_with_their_row_and_go_with_what_is_replaced(tmp_path: Path):
    ledger = Ledger(tmp_path, ABOUT)
    ledger.begin({"seed": 1})
    ledger.keep_rollouts(0, [{"step": 0}], EVALUATION)
    ledger.put("problems", asdict(ROW))
    ledger.keep_rollouts(4, [{"step": 4}], EVALUATION)  # stopped before its row
    ledger.close()
    again = Ledger(tmp_path, ABOUT)
    again.begin({"seed": 1})
    assert rollout_steps(tmp_path / EVALUATION) == [0, 4]
    again.close()
    replaced = Ledger(tmp_path, ABOUT, overwrite=True)
    replaced.begin({"seed": 2})
    replaced.close()
    assert rollout_steps(tmp_path / EVALUATION) == []
    assert json.loads((tmp_path / "config.json").read_text()) == {"seed": 2}


def test_a_training_run_is_not_written_over(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
    for overwrite in (False, True):
        with pytest.raises(RunError, match="a training run is here; give another --out"):
            Ledger(tmp_path, ABOUT, overwrite)


def test_an_earlier_result_without_its_rows_is_refused(tmp_path: Path):
    (tmp_path / "evaluation.json").write_text("{}")
    with pytest.raises(RunError, match="an earlier result is here"):
        Ledger(tmp_path, ABOUT)
    assert files(tmp_path).keys() == {"evaluation.json"}


def test_two_at_a_time_and_a_folder_that_cannot_be_written(tmp_path: Path):
    ledger = Ledger(tmp_path / "out", ABOUT)
    with pytest.raises(RunError, match="another evaluation is using this folder"):
        Ledger(tmp_path / "out", ABOUT)
    ledger.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write here"):
        Ledger(tmp_path / "file/out", ABOUT)
