"""The figures of a run are the same on every screen, and a run on fixed data has screens of its
own."""

import io
import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from html_page import Document
from monitoring_run import evaluation, make_rollout, make_run, record_of
from rich.console import Console
from starlette.testclient import TestClient

from flowright.app.time_plan import compare_with_plan
from flowright.core.files import write_json
from flowright.environments.registry import make_config
from flowright.runs.directory import RunDirectory
from flowright.runs.run_files import read_metrics, write_rollouts
from flowright.runs.totals import requests, seconds_by_phase
from flowright.study.collect import read_steps
from flowright.viewer.live import summary
from flowright.viewer.rendering.terminal import UNICODE
from flowright.viewer.run_list import RunList
from flowright.viewer.run_report import write_report
from flowright.viewer.screen import Screen
from flowright.viewer.server import create_app
from flowright.viewer.snapshot import AGREEMENT, CUT, take_snapshot

ASKED = {"servers/executor/calls": 100.0, "servers/judge/calls": 11.0}


def terminal(run: Path, width: int = 80) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    console.print(Screen(take_snapshot(run), full=True))
    return out.getvalue()


def page(run: Path, address: str) -> str:
    run_list = RunList(run.parent)
    for each in run_list.runs():
        each.update()
    with TestClient(create_app(run_list), "http://localhost") as client:
        return Document(client.get(address).text).text


def screens(run: Path) -> dict[str, str]:
    return {
        "terminal": terminal(run),
        "report": Document(write_report(run).read_text()).text,
        "runs": page(run, "/"),
        "run": page(run, f"/run/{run.name}/"),
    }


def a_run(path: Path, status: str, finished: bool) -> Path:
    """A run of 12 steps, each of which asked, stopped in the middle of step 13 or compared."""
    run = make_run(path, 12, status, evaluated=finished)
    state = json.loads((run / "state.json").read_text())
    write_json(run / "state.json", state | {"step": 12 if finished else 13})
    rows = [
        json.dumps(row | ASKED | {"tokens/prompt_mean": 9.0}) + "\n" for row in read_metrics(run)
    ]
    (run / "metrics.jsonl").write_text("".join(rows))
    if finished:
        asked = {"servers/executor/calls": 5000.0, "servers/judge/calls": 400.0}
        write_json(run / "evaluation.json", evaluation() | {"seconds": 600.0, "servers": asked})
        total = {"executor_calls": 1.0, "judge_calls": 1.0, "seconds": 1.0}
        plan = {"phases": {"training": {}}, "total": total, "seconds": {}, "usd": {}, "bounds": []}
        write_json(run / "plan.json", {"planned": plan | {"source": "by hand"}})
    return run


def test_a_finished_run_has_the_same_figures_on_every_screen(tmp_path: Path) -> None:
    run = a_run(tmp_path / "whole", "finished", finished=True)
    rows, table = read_metrics(run), json.loads((run / "evaluation.json").read_text())
    phases, asked = seconds_by_phase(rows, table), requests(rows, table)
    steps = sum(row.get("time/step", 0.0) for row in rows)
    assert phases["evaluations"] == pytest.approx(3.2 * 2)
    assert sum(phases.values()) == pytest.approx(steps + 3.2 + 600), "step 0 is only evaluated"
    assert asked["servers/executor/calls"] == 6300.0 and asked["servers/judge/calls"] == 543.0
    compare_with_plan(run, make_config())
    measured = json.loads((run / "plan.json").read_text())["measured"]
    assert measured["seconds"] == pytest.approx(sum(phases.values()))
    assert (measured["executor_calls"], measured["judge_calls"]) == (6300.0, 543.0)
    told = summary(take_snapshot(run), {})
    assert told["seconds"]["whole"] == pytest.approx(measured["seconds"])
    assert told["requests"] == asked
    drift = take_snapshot(run).recent_drift
    assert told["drift"] == drift is not None
    known = told["held_out"]
    assert (known["before"], known["after"]) == pytest.approx((1.13 / 3, 1.94 / 3))
    assert known["where"] == "evaluation of 180 problems"
    trained = sum(row["calls"] for row in read_steps(run))
    assert trained == 6843.0 - 5400.0, "a study's calls are those of training"
    for name, shown in screens(run).items():
        assert "11 min" in shown, name
        assert f"{100 * drift:+.1f}" in shown, name
        assert ("37.7 % → 64.7 %" in shown) or "64.7 %  was 37.7 %" in shown, name
        assert name == "runs" or "6,300" in shown, name


def test_a_run_that_goes_on_or_was_stopped_in_a_step_has_them_too(tmp_path: Path) -> None:
    for status, step in (("running", 12), ("interrupted", 12), ("died", 12)):
        run = a_run(tmp_path / status, "running" if status == "died" else status, finished=False)
        told = summary(take_snapshot(run), {})
        assert told["step"] == step, "what is broken off is no step"
        assert told["held_out"]["where"] == "validation, steps 0 and 10"
        shown = screens(run)
        before, after = (f"{100 * told['held_out'][key]:.1f} %" for key in ("before", "after"))
        for name, text in shown.items():
            assert f"{before} → {after}" in text or f"{after}  was {before}" in text, name
            assert f"{100 * told['drift']:+.1f}" in text, name
            assert f"{step}/24" in text or f"step {step} of 24" in text, name


def test_a_resumed_run_keeps_its_first_start(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 2)
    state = json.loads((run / "state.json").read_text())
    write_json(run / "state.json", state | {"started": 1_000_000.0})
    config = make_config(run={"name": "run", "output_dir": str(tmp_path), "tensorboard": False})
    with closing(RunDirectory(run, config, resume=True)) as again:
        again.state(status="running", step=2, steps=3)
        again.resume_after(2)
    state = json.loads((run / "state.json").read_text())
    assert state["started"] == 1_000_000.0 < state["resumed"]
    text = Document(write_report(run).read_text()).text
    assert "Started 1970-01-12 13:46 UTC, resumed 2" in text and " apart" not in text


def trained_on_data(path: Path, accuracy: bool, finished: bool) -> Path:
    """A run on fixed data: the losses, of pairs the accuracies, too."""
    config = make_config(
        environment="judging",
        judging={"method": "bradley_terry" if accuracy else "sft", "data": "known_rule"},
        grpo={"loss": "bradley_terry" if accuracy else "sft", "steps": 3, "kl_coefficient": 0},
        policy={"head": "score" if accuracy else "language_model"},
        run={"name": path.name, "output_dir": str(path.parent), "tensorboard": False},
    )
    with closing(RunDirectory(path, config)) as run:
        right = {"val/accuracy": 0.5} if accuracy else {}
        run.record(0, {"val/loss": 0.7, "time/evaluate": 1.0, **right})
        for step in (1, 2, 3):
            right = {"train/accuracy": 0.5 + step / 10} if accuracy else {}
            loss = 0.7 - step / 10
            row = {"train/loss": loss, "policy/loss": loss, "time/step": 2.0, "time/update": 1.5}
            run.record(step, {**row, **right, "tokens/completion_mean": 5.0})
        right = {"val/accuracy": 0.75} if accuracy else {}
        run.record(3, {"val/loss": 0.45, **right})
        status = "finished" if finished else "running"
        run.state(status=status, step=3, steps=3, stage="save", policy="tiny")
    return path


def test_a_run_on_fixed_data_shows_its_losses_and_accuracies(tmp_path: Path) -> None:
    for accuracy in (False, True):
        run = trained_on_data(tmp_path / f"data{accuracy}", accuracy, finished=True)
        told = summary(take_snapshot(run), {})
        assert told["metrics"]["train/loss"] == pytest.approx(0.4)
        assert told["held_out"]["measure"] == ("accuracy" if accuracy else "loss")
        small = Screen(take_snapshot(run)).lines(80, 24, UNICODE)
        text = "\n".join(line.plain for line in small)
        assert "no step finished" not in text and "loss       0.400" in text
        assert "val loss   0.450  was 0.700" in text
        assert ("accuracy   80.0 %" in text) is accuracy
        assert ("val acc.   75.0 %  was 50.0 %" in text) is accuracy
        shown = screens(run)
        for name in ("report", "run"):
            assert "Training loss 0.600 → 0.400" in shown[name] or "0.600 → 0.400" in shown[name]
            assert "0.700 → 0.450" in shown[name] and "Learning curves" in shown[name]
            assert ("50.0 % → 75.0 %" in shown[name]) is accuracy
            for word in ("eward", "ollout", "attempts that are right", "Reward"):
                assert word not in shown[name].split("Configuration")[0], (name, word)
        assert "0.600 → 0.400" in shown["runs"] and "Reward" not in shown["runs"]
        assert "samples nothing" in page(run, f"/run/{run.name}/attempts")
    both = page(run, "/compare?run=dataFalse&run=dataTrue")
    assert "Loss, held out" in both and "Problem by problem" not in both


def test_a_prompt_that_was_cut_says_so_and_shows_what_the_policy_saw(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 2)
    assert "CUT" not in page(run, "/run/run/attempt/2/0/0"), "records of older runs have no mark"
    rollout = make_rollout(2, 0, True, True, note="x" * 5000)
    records = [
        record_of(replace(rollout, cut_prompt="A baker <begin> ... [cut] ... end?"), 2, 0, index)
        for index in range(2)
    ]
    write_rollouts(run, 2, [records[0], records[1] | {"reward": {"value": 0.1, "parts": {}}}])
    rows = [row | ({CUT: 0.5} if row["step"] == 2 else {}) for row in read_metrics(run)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    problem = quote(records[0]["task"]["id"])
    for address in ("attempt/2/0/0", "group/2/0", f"problem?task={problem}"):
        text = page(run, f"/run/run/{address}")
        assert "A baker <begin> ... [cut] ... end?" in text, address
        assert "CUT: what the policy saw" in text, address
        assert f"Problem, 4,000 of {len(rollout.task.problem):,} characters" in text, address
    shown = screens(run)
    assert "cut        50.0 % !" in shown["terminal"]
    for name in ("report", "run"):
        assert "Prompts cut" in shown[name] and "25.0 %" in shown[name], name
    assert "CUT for the policy" in shown["report"] and "A baker <begin>" in shown["report"]


def test_the_terminal_and_the_page_of_a_run_remark_on_the_same_values(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 12)
    before = read_metrics(run)
    run_list = RunList(tmp_path)
    for each in run_list.runs():
        each.update()
    with TestClient(create_app(run_list), "http://localhost") as client:
        for metric, good, bad, label, words in (
            (AGREEMENT, 0.9, 0.7, "agreement", "agrees with gold on 70.0 %"),
            ("rollout/unscored", 0.005, 0.25, "unscored", "25.0 % unscored"),
            ("rollout/valid_frac", 0.95, 0.5, "valid", "50.0 % valid"),
            (CUT, 0.0, 0.125, "cut", "12.5 % of the prompts cut"),
        ):
            for value in (good, bad):
                rows = [row | ({metric: value} if row["step"] else {}) for row in before]
                text = "".join(json.dumps(row) + "\n" for row in rows)
                (run / "metrics.jsonl").write_text(text)
                remark = re.search(rf"^{label} +[0-9.]+ % !", terminal(run), re.MULTILINE)
                listed = words in Document(client.get("/run/run/").text).text
                assert (remark is not None, listed) == (value == bad, value == bad), label
