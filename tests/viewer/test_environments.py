"""Runs of environments that this package does not know: by their own display, or by none."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flowright.config.run import RunSection
from flowright.core.files import write_json
from flowright.core.report import Fact, Text
from flowright.environments.display import Display, blocks_of, display_of, name_environment
from flowright.environments.registry import make_config
from flowright.environments.workflow.display import DISPLAY
from flowright.runs.directory import RunDirectory
from flowright.viewer.run_report import write_report
from flowright.viewer.screen import Screen
from flowright.viewer.snapshot import (
    kinds,
    load_rollouts,
    mean_seconds,
    take_snapshot,
)

OWN = "own_environment:Game"
name_environment(OWN)
ELSEWHERE = "a_package_of_another_machine:Game"


def game(path: Path, environment: str | None) -> Path:
    """A run without workflow, verdict, gold and reference, of two kinds of task."""
    run = RunDirectory(path, make_config(run=RunSection(tensorboard=False)))
    for step in (1, 2, 3):
        records = [record(step, group, index) for group in range(2) for index in range(3)]
        run.keep_rollouts(step, records)
        run.record(
            step,
            {
                "reward/mean": 0.1 * step,
                "rollout/valid_frac": 0.9,
                "rollout/unscored": 0.0,
                "reward/by_kind/easy": 0.2,
                "reward/by_kind/hard": 0.1,
                "time/step": 2.0,
                "openings/easy/centre": 0.5,
                "game/moves": 4.0 + step,
                "time/thinking": 1.5,
                "rollout/failed/crashed": 0.1,
            },
        )
    run.state(status="finished", step=3, steps=3, policy="tiny", executor="none")
    run.close()
    write_json(path / "config.json", {} if environment is None else {"environment": environment})
    return path


def record(step: int, group: int, index: int) -> dict[str, Any]:
    return {
        "step": step,
        "group": group,
        "index": index,
        "task": {"id": f"g{group}", "kind": ("easy", "hard")[group], "problem": "Your move."},
        "completion": f"<move>e{index}</move>",
        "moves": ["d4", f"e{index}"],
        "board": "x . .\n. o .",
        "reward": {"value": 0.5 * index, "parts": {"win": 0.5 * index}},
        "advantage": 0.0,
    }


def screen(run: Path) -> str:
    out = io.StringIO()
    shown = Screen(take_snapshot(run), load_rollouts(run, 3), full=True)
    Console(file=out, width=80).print(shown)
    return out.getvalue()


def test_an_environment_of_a_user_is_shown_by_its_own_display(tmp_path: Path) -> None:
    run = game(tmp_path / "run", OWN)
    now = take_snapshot(run)
    assert kinds(now) == ["hard", "easy"]
    assert mean_seconds(now, now.display.seconds) == {"thinking": 1.5}
    page = write_report(run).read_text()
    for told in (
        *("Valid moves", "Openings", "Share of the games.", "Moves of a game", "centre", "win"),
        *("<dt>Moves</dt><dd>d4 e2</dd>", '<p class="cap">Board</p>', "Your move."),
    ):
        assert told in page, told
    for told in ("Operator", "Workflow", "workflow", "executor", "Reference", "None", "nan"):
        assert told not in page.split("<main>")[1].split("All settings")[0], told
    text = screen(run)
    assert "Sample board" in text
    assert ". o ." in text
    assert "moves      7" in text
    assert "Judge against gold" not in text


def test_one_that_is_not_here_is_shown_plainly_and_says_so(tmp_path: Path) -> None:
    run = game(tmp_path / "run", ELSEWHERE)
    note = f"Shown without its environment {ELSEWHERE}: "
    page = write_report(run).read_text()
    assert note in page
    assert f"its code is not run; to show it as it does: --environment {ELSEWHERE}" in page
    assert "&lt;move&gt;e2&lt;/move&gt;" in page
    assert "Valid completions" in page
    text = " ".join(screen(run).split())
    assert "Sample completion" in text
    assert note in text


def test_whose_display_a_run_has() -> None:
    assert display_of({}) is display_of({"environment": "workflow"}) is DISPLAY
    assert display_of({"environment": OWN}).completion == "move"
    assert "own_environment:Gane" in display_of({"environment": "own_environment:Gane"}).note
    for name in (
        "own_environments:G",
        *(f"own_environment:{n}" for n in ("Gane", "Wrong", "Moves")),
    ):
        name_environment(name)
    assert "no module own_environments" in display_of({"environment": "own_environments:G"}).note
    assert "did you mean Game" in display_of({"environment": "own_environment:Gane"}).note
    assert "its display is a str" in display_of({"environment": "own_environment:Wrong"}).note
    assert display_of({"environment": "own_environment:Moves"}) == Display()


def test_a_display_that_fails_on_a_record_says_so_and_shows_the_completion() -> None:
    display = display_of({"environment": OWN})
    said, completion = blocks_of(display, {"completion": "e4"})
    assert said == Fact("Not shown", "its display: KeyError: 'moves'")
    assert completion == Text("Completion", "e4")


@pytest.mark.parametrize("bare", [{}, {"workflow": None, "execution": {}}, {"completion": None}])
def test_a_workflow_record_may_lack_everything(bare: dict[str, Any]) -> None:
    (program,) = DISPLAY.blocks(bare)
    assert getattr(program, "title", "") == "Completion (no valid workflow)"
