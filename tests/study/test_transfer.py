"""Policies graded by each other's judges: answers are kept, asked about once, and never guessed.

The policies are fixed choices; questions, answers and judges are those of the presentation world.
"""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from flowright.core.errors import RunError
from flowright.core.files import write_json
from flowright.environments.base import make_environment
from flowright.environments.episode import Episode
from flowright.environments.registry import load_config
from flowright.evaluation.evaluator import keep_answers
from flowright.policy.sampling import Sample
from flowright.runs.run_files import read_answers
from flowright.study.command import StudyRequest, run_study
from flowright.study.config import load_study
from flowright.study.runs import StudyRun, cells_of, runs_of, settle_claims
from flowright.study.transfer import read_verdicts

BASE = Path(__file__).parents[2] / "config/study/world.yaml"
PROBLEMS = 40
NEVER_WRONG = {"simulated.judge_true_positive": 1.0, "simulated.judge_false_positive": 0.0}
ARMS = [
    {"name": "gold", "set": {"presentation.reward": "gold"}},
    {"name": "wordy", "set": {"simulated.judge_biases": {"verbosity": 0.9}}},
    {"name": "decorated", "set": {"simulated.judge_biases": {"formatting": 0.9}}},
]
SAYS = {"gold": "plain answer", "wordy": "elaborate fully", "decorated": "decorate headings"}
WAYS = {"sum": "columns carrying", "order": "recall memory", "letters": "glance briefly"}


def written(folder: Path, **changes: Any) -> Path:
    given = {"name": "t", "base": str(BASE), "seeds": 2, "control": "gold", "set": NEVER_WRONG}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(given | {"arms": ARMS} | changes))
    return path


async def finish(run: StudyRun, nonsense: int = 0) -> None:
    """A finished run whose policy says one thing whatever is asked; of each problem's attempts the
    last is ``nonsense``."""
    environment = make_environment(load_config(BASE, run.overrides))
    groups = []
    for task in environment.tasks().val[:PROBLEMS]:
        said = [f"{WAYS.get(task.kind, 'guess quickly')}: {SAYS[run.cell.name]}", "what?"]
        texts = said[: 1 + nonsense]
        samples = [Sample((), (), text, "stop", 0) for text in texts]
        groups.append([Episode.single(task, s, f"{task.id}/{i}") for i, s in enumerate(samples)])
    run.folder.mkdir(parents=True)
    keep_answers(run.folder, environment, await environment.rollout(groups))
    write_json(run.folder / "state.json", {"status": "finished", "simulated": True})
    (run.folder / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')


def studied(folder: Path, nonsense: int = 0, **changes: Any) -> tuple[Path, Path, list[StudyRun]]:
    path, out = written(folder, **changes), folder / "out"
    study = load_study(path)
    runs = runs_of(study, cells_of(study), out)
    out.mkdir()
    settle_claims(study, out, began=False)
    for run in runs:
        asyncio.run(finish(run, nonsense))
    return path, out, runs


def transferred(path: Path, out: Path) -> tuple[int, str, dict[tuple[str, str], dict[str, Any]]]:
    console = Console(record=True, width=200, file=io.StringIO())
    status = run_study(StudyRequest(path, out=out, transfer=True), console)
    rows = pq.read_table(out / "transfer.parquet").to_pylist()
    cells = {(row["trained_under"], row["graded_by"]): row for row in rows}
    return status, console.export_text(), cells


def all_said(out: Path) -> list[dict[str, Any]]:
    texts = [file.read_text() for file in out.glob("transfer/*.jsonl")]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def test_what_a_judge_pays_for_it_alone_pays_for(tmp_path: Path) -> None:
    path, out, runs = studied(tmp_path)
    status, told, cells = transferred(path, out)
    assert status == 0 and "6 policies x 3 judges" in told and " 0 not asked" in told
    own = [a for run in runs[1:2] + runs[4:5] for a in read_answers(run.folder)]
    assert [run.cell.name for run in (runs[1], runs[4])] == ["wordy", "wordy"]
    wordy = cells["wordy", "wordy"]
    assert wordy["right"] == pytest.approx(sum(a["correct"] for a in own) / len(own))
    assert wordy["gold"] == pytest.approx(sum(a["gold"] for a in own) / len(own))
    assert wordy["same_judge"] and wordy["runs"] == 2 and wordy["attempts"] == 2 * PROBLEMS
    assert wordy["problems"] == PROBLEMS and wordy["excess_low"] > 0.1
    for one, other in (("wordy", "decorated"), ("decorated", "wordy")):
        assert cells[one, one]["excess"] > 0.1 > abs(cells[one, other]["excess"])
    # Without errors or biases a judge says what gold does, of whatever policy.
    assert all(cells[arm["name"], "gold"]["excess"] == 0 for arm in ARMS)

    page = (out / "report.html").read_text()
    assert "Transfer: trained under one judge, graded by another" in page
    assert "Called right minus gold, points" in page and "Simulated numbers." in page
    files = {file.name: file.read_text() for file in out.glob("transfer/*.jsonl")}
    assert len(files) == 6  # the draws of these judges are a seed's own
    torn = out / "transfer" / min(files)
    torn.write_text(files[torn.name][:-10])
    again = transferred(path, out)
    assert again[2] == cells
    assert len(torn.read_text().splitlines()) == len(files[torn.name].splitlines())
    whole = {n: f for n, f in files.items() if n != torn.name}
    assert {n: (out / "transfer" / n).read_text() for n in whole} == whole  # asked once


def test_no_verdict_is_no_score_and_is_asked_for_again(tmp_path: Path) -> None:
    arms = [ARMS[0], ARMS[1] | {"set": {"simulated.faults.hang": 0.5, "llm.attempts": 1}}]
    arms[1]["set"]["judge.max_attempts"] = 1
    path, out, _ = studied(tmp_path, nonsense=1, arms=arms, seeds=1)
    _, told, cells = transferred(path, out)
    lossy = cells["gold", "wordy"]
    assert 0 < lossy["unscored"] < PROBLEMS and lossy["attempts"] == 2 * PROBLEMS
    assert f"{sum(c['unscored'] for c in cells.values())} unscored" in told
    # Half of the attempts are no answer: wrong, whoever judges. The others are right or left out.
    scored = 2 * PROBLEMS - lossy["unscored"]
    lines = all_said(out)
    assert {line["status"] for line in lines} == {"ok", "timeout"}
    assert all((line["right"] is None) == (line["status"] == "timeout") for line in lines)
    assert 0 < lossy["right"] <= (scored - PROBLEMS) / scored
    assert cells["gold", "gold"]["unscored"] == 0 and cells["gold", "gold"]["right"] <= 0.5
    lost = sum(line["status"] == "timeout" for line in lines)
    transferred(path, out)
    assert len(all_said(out)) == len(lines) + lost


def test_what_cannot_be_graded_is_named(tmp_path: Path) -> None:
    path, out, runs = studied(tmp_path, seeds=1)
    (runs[1].folder / "answers.jsonl.zst").unlink()
    status, told, cells = transferred(path, out)
    assert status == 1 and "missing   wordy/seed_0: kept no answers" in told
    assert {one for one, _ in cells} == {"gold", "decorated"}  # a policy without; three judges
    assert {judge for _, judge in cells} == {"gold", "wordy", "decorated"}
    damaged = next(out.glob("transfer/*.jsonl"))
    damaged.write_text('{"query": 3}\n' + damaged.read_text())
    with pytest.raises(RunError, match=f"{damaged.name}:1: damaged"):
        read_verdicts(damaged)
