"""What the requests of a run came to, by role and server: on the terminal and in the report."""

import re
from pathlib import Path

from monitoring_run import make_run

from flowright.viewer.monitoring.attempt_groups import Selection
from flowright.viewer.monitoring.report import render
from flowright.viewer.monitoring.screen import Panels
from flowright.viewer.monitoring.snapshot import Snapshot, take_snapshot
from flowright.viewer.monitoring.trust import traffic
from flowright.viewer.rendering.terminal import UNICODE

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
    assert servers(BUSY, *[CALM] * 10) == ["judge      100 calls"]
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
