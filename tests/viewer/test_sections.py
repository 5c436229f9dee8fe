"""Sections of the report and the screen: requests by role and server, and mean rewards."""

import io
import re
from pathlib import Path
from typing import Any

from monitoring_run import make_run
from rich.console import Console

from flowright.config.run import RunSection
from flowright.core.files import write_json
from flowright.environments.registry import make_config
from flowright.runs.directory import RunDirectory
from flowright.viewer.rendering.terminal import UNICODE
from flowright.viewer.run_report import Selection, render, select_groups
from flowright.viewer.screen import Panels, Screen
from flowright.viewer.snapshot import Snapshot, take_snapshot
from flowright.viewer.trust import traffic

CALM = {"rollout/unscored": 0.0, "servers/judge/calls": 10.0, "servers/judge/http_429": 0.0}
BUSY = {
    "rollout/unscored": 0.0,
    "servers/judge/calls": 20.0,
    "servers/judge/attempts": 31.0,
    "servers/judge/http_429": 7.0,
    "servers/judge/timeouts": 2.0,
    "servers/judge/failures": 10.0,
    "servers/judge/wait_seconds": 90.0,
    "servers/judge/10.0.0.1:8002/attempts": 30.0,
    "servers/judge/10.0.0.2:8002/attempts": 1.0,
    "servers/judge/10.0.0.2:8002/failures": 1.0,
    "servers/executor/calls": 5.0,
}


def snapshot(*rows: dict[str, float]) -> Snapshot:
    return Snapshot(Path("run"), {}, [{"step": i, **row} for i, row in enumerate(rows, 1)])


def servers(*rows: dict[str, float]) -> list[str]:
    return [line.plain for line in Panels(snapshot(*rows), (), 80, UNICODE).servers()]


def test_counts_are_summed_by_role_and_server() -> None:
    found = traffic([CALM, BUSY, {"reward/mean": 1.0}])
    assert list(found) == ["judge", "executor"]
    assert found["judge"].counts["calls"] == 30.0
    assert found["judge"].troubles == {"429": 7.0, "timeouts": 2.0, "other failures": 1.0}
    assert found["judge"].servers["10.0.0.2:8002"] == {"attempts": 1.0, "failures": 1.0}
    assert found["executor"].troubles == {}
    assert traffic([]) == {}


def test_the_terminal_has_a_line_a_role_with_an_alarm_for_late_troubles() -> None:
    judge, executor = servers(CALM, BUSY)
    assert re.fullmatch(
        r"judge +30 calls  429 7  timeouts 2  other failures 1 !  each waited 3.0 s", judge
    )
    assert executor == "executor   5 calls"
    assert servers(BUSY, *[CALM] * 10) == ["judge      100 calls of 120 in the run"]
    assert servers({"reward/mean": 1.0}) == []


def test_the_report_has_a_table_and_charts(tmp_path: Path) -> None:
    page = render(snapshot(CALM, BUSY), Selection())
    rows = re.findall(r"<tr[^>]*><th[^>]*>(.*?)</th>(.*?)</tr>", page.split('id="servers"')[1])
    cells = {name: re.findall(r">([^<]*)</td>", row) for name, row in rows}
    assert cells["judge"] == ["30", "31", "7", "-", "2", "10", "2 min", "-", "-"]
    assert cells["10.0.0.2:8002"] == ["-", "1", "-", "-", "-", "1", "-", "-", "-"]
    assert "Failed attempts, per step" in page
    assert "429, 5xx and timeouts, per step" in page
    assert 'href="#servers"' in page
    without = render(take_snapshot(make_run(tmp_path / "run", steps=2)), Selection())
    assert 'id="servers"' not in without


# --- mean rewards ---------------------------------------------------------------------------------


def row(name: str, group: str, mean: float) -> dict[str, Any]:
    def cell(value: float) -> dict[str, Any]:
        ends = {"reward_low": value - 0.05, "reward_high": value + 0.05}
        other = {"gold": None, "gold_low": None, "gold_high": None, "judge": 0.9, "tokens": 0.0}
        return {"reward": value, **ends, **other, "valid": 1.0, "unscored": 0.0}

    kinds = {"all": cell(mean), "essay": cell(mean)}
    return {"name": name, "group": group, "kinds": kinds, "sources": {"letters": cell(mean / 2)}}


DRIFT = {
    "perplexity": {"before": 20.0, "after": 22.0, "change": 1.1, "low": 1.05, "high": 1.15},
    "completion_tokens": {
        "before": 80.0,
        "after": 60.5,
        "change": -19.5,
        "low": None,
        "high": None,
    },
}


def run_of(path: Path, evaluated: bool) -> Path:
    run = RunDirectory(path, make_config(run=RunSection(tensorboard=False)))
    run.record(0, {"val/reward": 0.31, "val/judge": 0.4})
    run.record(1, {"reward/mean": 0.5, "reward/by_kind/essay": 0.5, "rollout/valid_frac": 1.0})
    run.record(2, {"reward/mean": 0.6, "reward/by_kind/essay": 0.6, "val/reward": 0.87})
    run.state(status="finished", step=2, steps=2)
    run.close()
    rows = [
        row("untrained policy", "policy", 0.32),
        row("trained policy", "policy", 0.93),
        row("always: I do not know.", "baseline", 0.02),
    ]
    if evaluated:
        told = {"simulated": False, "problems": 200, "rows": rows, "summary": {}}
        write_json(path / "evaluation.json", {**told, "drift": {"trained policy": DRIFT}})
    return path


def test_the_report_tells_mean_rewards(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", evaluated=True)
    page = render(take_snapshot(run), select_groups(run))
    for told in (
        *("Held-out mean reward", "0.32 → 0.93", "+0.61; intervals do not overlap"),
        *("mean reward with its 95 % interval", "0.88 to 0.98", "validation, reward"),
        *("By dataset", "letters"),
    ):
        assert told in page, told
    assert "accuracy" not in page.split("Configuration")[0].split("<main>")[1]
    assert "Share of the way" not in page


def test_the_report_tells_what_else_changed(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", evaluated=True)
    page = render(take_snapshot(run), select_groups(run)).partition("What else changed")[2]
    rows = re.findall(r"<tr>(.*?)</tr>", page)[1:3]
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    assert cells == [
        ["Perplexity of a text not trained on", "20.00", "22.00", "× 1.100", "× 1.050 to × 1.150"],
        ["Tokens of a completion", "80.0", "60.5", "-19.5", "-"],
    ]


def test_before_its_evaluation_a_run_is_shown_by_its_validation(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", evaluated=False)
    assert "0.31 → 0.87" in render(take_snapshot(run), select_groups(run))
    out = io.StringIO()
    Console(file=out, width=80, highlight=False).print(Screen(take_snapshot(run), [], full=True))
    (line,) = [line for line in out.getvalue().splitlines() if "validation" in line]
    assert " ".join(line.split()) == "validation 0.87 was 0.31 (validation, steps 0 and 2)"
