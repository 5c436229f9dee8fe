"""A study as a command: what it leaves, how it goes on, what it refuses."""

import io
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest
from fake_study import ARMS_WITH_DOSES, STRENGTH, command, started, written
from rich.console import Console

from flowright.core.checkout import child_environment
from flowright.core.errors import RunError
from flowright.core.files import Lock, write_json
from flowright.runs.run_files import read_state
from flowright.study.arm_comparison import outcomes
from flowright.study.collect import Collected
from flowright.study.command import StudyRequest, run_study
from flowright.study.config import load_study
from flowright.study.runs import StudyJournal, cells_of, digest, runs_of

FAKE_STUDY = Path(__file__).parents[1] / "doubles/fake_study.py"
CLAIMS = [
    {
        "id": "worse",
        "hypothesis": "Gold falls under a judge that pays for length.",
        "arm": "wordy@0.9",
        "measure": "final_gold",
        "direction": "less",
        "test": "t",
    },
    {
        "id": "slope",
        "hypothesis": "The more it pays the worse.",
        "arm": "wordy",
        "measure": "final_gold",
        "direction": "less",
        "test": "t",
    },
    {
        "id": "opens",
        "hypothesis": "The gap opens.",
        "kind": "construction",
        "arm": "wordy@0.9",
        "measure": "final_gap",
        "direction": "greater",
    },
    {
        "id": "early",
        "hypothesis": "Exploitation begins earlier.",
        "arm": "wordy@0.9",
        "measure": "onset",
        "direction": "less",
        "test": "log_rank",
    },
]


def run(path: Path, out: Path, **asked: object) -> tuple[int, str]:
    console = Console(record=True, width=200, file=io.StringIO())
    status = run_study(
        StudyRequest(path, out=out, command=command, start=started, **asked), console
    )  # type: ignore[arg-type]
    return status, console.export_text()


def test_a_study_from_its_plan_to_its_report(tmp_path: Path) -> None:
    path = written(tmp_path, arms=ARMS_WITH_DOSES, claims=CLAIMS)
    out = tmp_path / "out"
    status, told = run(path, out, dry_run=True)
    assert status == 0 and not out.exists()
    assert "6 (3 arms x 2 seeds), 6 left" in told and "time      unknown" in told
    assert "smallest p 0.25: 2 seeds cannot hold it; give 5" in told  # by sign flips
    assert told.count("smallest p by signs alone 0.25: 2 seeds cannot hold it; give 5") == 2

    status, told = run(path, out, limit=1)
    assert status == 0 and "finished  1 of 6 runs" in told
    assert "Not decided yet" in (out / "report.html").read_text()
    claims = json.loads((out / "claims.json").read_text())
    status, told = run(path, out, dry_run=True)
    assert "5 left" in told and "a run, as 1 took" in told

    status, told = run(path, out)
    assert status == 0 and "finished  6 of 6 runs" in told
    assert json.loads((out / "claims.json").read_text()) == claims
    calls = [*out.glob("runs/*/*/calls.txt")]
    assert len(calls) == 6 and all(c.read_text() == "resumed=False\n" for c in calls)

    rows = pq.read_table(out / "results.parquet").to_pylist()
    assert [row["run"] for row in rows[:3]] == [
        *("honest/seed_0", "wordy@0.3/seed_0", "wordy@0.9/seed_0"),
    ]
    strong = rows[2]
    assert strong["finished"] and strong["dose"] == 0.9 and strong["calls"] == 12 * 64
    assert strong["onset"] is not None and not strong["onset_censored"]
    assert rows[0]["onset"] is None and rows[0]["onset_censored"] is None  # it is about none
    assert rows[0]["onset_censored_elaborate"] is True
    assert strong["exploitation"] > 0.2 > rows[0]["exploitation"] == 0
    assert strong["final_gap"] == pytest.approx(strong["final_proxy"] - strong["final_gold"])
    curves = pq.read_table(out / "curves.parquet").to_pylist()
    assert len(curves) == 6 * 12 and curves[0]["attempts"] == 64

    page = (out / "report.html").read_text()
    for words in (
        *("Simulated numbers.", claims["sha256"], "before the first run started"),
        *("2 seeds can hold no claim: final gold of wordy@0.9 minus honest", "too few seeds"),
        *("for each unit of the dose", "Claimed findings: 3. Shown: 0, not shown: 3"),
        *("Exploitation begins earlier. ", "; share of runs with one +100.0"),
        *("By construction of the simulation", "Kaplan-Meier", "runs/honest/seed_0/report.html"),
        *("wordy: dose and response", "An audit: seen to the end", "intervals are too narrow"),
    ):
        assert words in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")

    status, told = run(path, out, report_only=True)
    assert status == 0 and (out / "report.html").read_text() == page


def test_a_run_that_is_over_is_read_once(tmp_path: Path) -> None:
    path, out = written(tmp_path), tmp_path / "out"
    run(path, out)
    page = (out / "report.html").read_text()
    table = pq.read_table(out / "curves.parquet")
    cache = out / "cache/wordy/seed_0.json"
    whole = cache.read_bytes()
    for rollouts in out.glob("runs/*/*/rollouts"):
        shutil.rmtree(rollouts)
    run(path, out, report_only=True)
    assert (out / "report.html").read_text() == page
    assert pq.read_table(out / "curves.parquet") == table

    metrics = out / "runs/wordy/seed_0/metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:6]))
    run(path, out, dry_run=True)
    assert cache.read_bytes() == whole  # a plan writes nothing
    run(path, out, report_only=True)
    steps = pq.read_table(out / "curves.parquet").to_pylist()
    assert [row["attempts"] for row in steps if row["run"] == "wordy/seed_0"] == [0] * 6
    assert [row["attempts"] for row in steps if row["run"] == "wordy/seed_1"] == [64] * 12
    cache.write_text("{")
    run(path, out, report_only=True)
    assert len(pq.read_table(out / "curves.parquet")) == len(steps)


def test_remedies_are_held_against_what_they_mend_and_all_of_it_can_be_kept(tmp_path: Path) -> None:
    mended = {"shortcut": "elaborate", "remedy_for": "wordy@0.9"}
    grid = {"over": {"bias": [0.1, 0.2], "seed": [0, 1]}}
    arms = [
        *ARMS_WITH_DOSES,
        {"name": "half", "set": {STRENGTH: 0.45}, **mended},
        {"name": "grid", **grid, "set": {STRENGTH: "${bias}", "simulated.seed": "${seed}"}},
    ]
    path = written(tmp_path, arms=arms, claims=CLAIMS[:1])
    out, folder = tmp_path / "out", tmp_path / "kept"
    status, told = run(path, out, keep=folder)
    assert status == 0 and f"kept      {folder / 'fake'}" in told and "not kept" not in told
    page = (out / "report.html").read_text()
    for words in (
        *("What helps, and what it costs", "stop at the alarm (audit: proxy minus gold)"),
        *("remedies for wordy@0.9", "Exploitation begins, over 1 arm, at a strength of 0.3 in"),
        *("Of what would mend wordy@0.9, ", "grid: gold over training, points against honest"),
        "The least gold after training is that of wordy@0.9: -2",
    ):
        assert words in page, words
    kept = folder / "fake"
    for name in ("claims.json", "results.parquet", "curves.parquet"):
        assert (kept / name).read_bytes() == (out / name).read_bytes()
    drawn = {path.stem: ElementTree.parse(path).getroot() for path in kept.glob("*.svg")}
    assert {"learning", "doses", "errors", "alarms_warning", "onsets_wordy"} <= {*drawn}
    words = " ".join(drawn["onsets_wordy_0_9_remedies"].itertext())
    assert "half, onset in " in words and "prefers-color-scheme: dark" in words


def test_claims_are_fixed_once_a_run_exists(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = written(tmp_path, claims=[CLAIMS[0] | {"arm": "wordy"}])
    with pytest.raises(RunError, match="no run to report on"):
        run(path, out, report_only=True)
    run(path, out, limit=1)
    for changes, said in (
        ({"claims": [CLAIMS[0] | {"arm": "wordy", "alpha": 0.1}]}, "claims.worse changed"),
        ({"claims": []}, "claims.worse changed"),
        ({"claims": [CLAIMS[0] | {"arm": "wordy"}], "seeds": 3}, "seeds changed"),
    ):
        with pytest.raises(RunError, match=said):
            run(written(tmp_path, **changes), out)
    about = [{"name": "honest"}, {"name": "wordy", "remedy_for": "honest"}]
    with pytest.raises(RunError, match=r"arms\.wordy changed"):
        run(written(tmp_path, claims=[CLAIMS[0] | {"arm": "wordy"}], arms=about), out)
    arms = [{"name": "honest", "set": {"grpo.steps": 7}}, {"name": "wordy"}]
    with pytest.raises(RunError, match="honest/seed_0: started with other settings"):
        run(written(tmp_path, claims=[CLAIMS[0] | {"arm": "wordy"}], arms=arms), out)
    written(tmp_path, claims=[CLAIMS[0] | {"arm": "wordy"}])
    kept = json.loads((out / "claims.json").read_text())
    (out / "claims.json").write_text(json.dumps(kept | {"control": "wordy"}))
    with pytest.raises(RunError, match="SHA-256"):
        run(path, out)


def test_a_study_of_a_former_version_goes_on(tmp_path: Path) -> None:
    """Its claims said nothing of arms, and its journal has other hashes of settings."""
    out = tmp_path / "out"
    path = written(tmp_path, claims=[CLAIMS[0] | {"arm": "wordy"}])
    run(path, out, limit=1)
    kept = json.loads((out / "claims.json").read_text())
    old = {key: kept[key] for key in kept if key not in ("sha256", "written", "arms")}
    write_json(out / "claims.json", {**old, "sha256": digest(old), "written": kept["written"]})
    study = load_study(path)
    (first, *_) = runs_of(study, cells_of(study), out)
    journal = out / "journal.jsonl"
    journal.write_text(journal.read_text().replace(first.config_hash, first.former_hash))
    status, _ = run(path, out)
    assert status == 0
    assert json.loads((out / "claims.json").read_text())["written"] == kept["written"]
    with pytest.raises(RunError, match=r"claims\.worse changed"):
        run(written(tmp_path, claims=[]), out)


def test_a_journal_that_a_power_cut_tore_is_read_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = written(tmp_path)
    run(path, out, limit=1)
    journal = out / "journal.jsonl"
    torn = '{"time": 1, "event": "st'
    # A torn line as former versions left it, and an event of no run.
    damaged = f'{torn}\n{{"event": "end"}}\n'
    journal.write_text(damaged + journal.read_text() + torn)
    last = len(journal.read_text().splitlines())
    assert StudyJournal.read(out).damaged == [1, 2, last]
    status, output = run(path, out)
    assert status == 0
    assert f"cannot read line 1, 2, {last}; its seconds and failures are missing" in output
    assert StudyJournal.read(out).damaged == [1, 2]  # what was torn is cut off
    assert len(StudyJournal.read(out).histories) == 4
    assert journal.read_text().startswith(damaged)


def test_a_claim_that_lacks_seeds_makes_the_others_no_stronger(tmp_path: Path) -> None:
    wordy = CLAIMS[0] | {"arm": "wordy"}
    claims = [wordy, wordy | {"id": "late", "measure": "last_gold"}]
    study = load_study(written(tmp_path, claims=claims, seeds=5))
    cells = cells_of(study)
    rows = [
        {"run": f"{cell.name}/{seed}", "cell": cell.name, "seed": seed, "finished": True,
         "final_gold": 0.5 - (0.1 + 0.001 * seed) * (cell.name == "wordy"),
         "last_gold": 0.5 - (0.1 + 0.001 * seed) * (cell.name == "wordy")}
        for cell in cells
        for seed in range(5)
    ]  # fmt: skip
    both = outcomes(study, cells, Collected(rows))
    assert all(one.holm == pytest.approx(2 * (one.p or 0)) for one in both)
    rows[-1]["last_gold"] = None
    known, lacking = outcomes(study, cells, Collected(rows))
    assert known.holm == both[0].holm and known.holds
    # Two differences of 12 and 14 points: p 0.024 by Student's t, and two seeds hold nothing.
    two = load_study(written(tmp_path, claims=[wordy], seeds=2))
    drop = {"wordy/0": 0.12, "wordy/1": 0.14}
    few = [row | {"final_gold": 0.3 - drop.get(row["run"], 0)} for row in rows if row["seed"] < 2]
    (one,) = outcomes(two, cells, Collected(few))
    assert one.p == pytest.approx(0.0245, abs=1e-3) and one.too_few and one.holds is False
    assert lacking.pairs == 4 and lacking.holm is None and lacking.holds is None


def test_a_failing_run_is_tried_twice_and_named_while_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    path = written(tmp_path, seeds=1)
    monkeypatch.setenv("FAKE_FAIL", "honest/seed_0:2;wordy/seed_0:1")
    status, told = run(path, out)
    assert status == 1 and "finished  1 of 2 runs" in told
    assert "failed    honest/seed_0, exit status 3" in told
    assert (out / "logs/honest/seed_0.log").read_text() == "no memory left\n" * 2
    rows = {r["cell"]: r for r in pq.read_table(out / "results.parquet").to_pylist()}
    assert (rows["honest"]["failures"], rows["wordy"]["failures"]) == (2, 1)
    assert not rows["honest"]["finished"] and rows["honest"]["final_gold"] is None
    status, told = run(path, out)  # the same command tries it again
    assert status == 0 and "finished  2 of 2 runs" in told


def test_an_interrupted_study_stops_its_runs_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = written(tmp_path, seeds=1)
    words = [sys.executable, str(FAKE_STUDY), str(path), str(out)]
    environment = {**child_environment(), "FAKE_WAIT": "wordy/seed_0"}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    waits = out / "runs/wordy/seed_0/waits"
    until = time.monotonic() + 60
    while not waits.exists() and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
    with pytest.raises(RunError, match="another study"):
        Lock(out, ("study", "folder", "--out"))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "what is under way is saved; go on: " in said
    assert read_state(waits.parent)["status"] == "interrupted"
    events = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    assert [(e["run"], e["event"]) for e in events[:2]] == [
        *(("honest/seed_0", "start"), ("honest/seed_0", "end")),
    ]
    assert events[-1]["asked"] and events[-1]["status"] == 130

    status, told = run(path, out)
    assert status == 0 and "finished  2 of 2 runs" in told and "1 left" in told
    assert (waits.parent / "calls.txt").read_text() == "resumed=False\nresumed=True\n"
    rows = pq.read_table(out / "results.parquet").to_pylist()
    assert [row["failures"] for row in rows] == [0, 0]
    assert [row["starts"] for row in rows] == [1, 2]


def test_a_run_without_a_checkpoint_begins_again_and_what_it_had_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = written(tmp_path, seeds=1)
    run(path, out, limit=1)
    folder = out / "runs/honest/seed_0"
    state = read_state(folder) | {"status": "running"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "checkpoints/step_000002").rmdir()
    status, _ = run(path, out)
    assert status == 0 and (folder / "calls.txt").read_text() == "resumed=False\n"
    assert (out / "set_aside/honest/seed_0-1/metrics.jsonl").exists()


def test_a_run_that_somebody_else_works_at_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = written(tmp_path, seeds=1)
    run(path, out, limit=1)
    folder = out / "runs/wordy/seed_0"
    folder.mkdir(parents=True)
    lock = Lock(folder)
    try:
        with pytest.raises(RunError, match="still in use"):
            run(path, out)
    finally:
        lock.release()
    assert [*folder.iterdir()] == []
