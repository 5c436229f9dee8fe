"""The report: self-contained, honest about what it shows, and deaf to what it quotes."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from html_page import Document
from monitoring_run import evaluation, make_rollout, make_run, record_of

from flowright.core.errors import Failure, Reason, RunError
from flowright.core.formatting import short_percent
from flowright.core.report import ChangeChart, LineChart, ScatterChart, ScatterDot, Series
from flowright.environments.workflow.display import DISPLAY
from flowright.runs.run_files import write_rollouts
from flowright.viewer.before_after import accuracy_against_tokens
from flowright.viewer.rendering.charts import chart_html
from flowright.viewer.rendering.svg import Scale
from flowright.viewer.rollout_records import reward_arithmetic
from flowright.viewer.run_report import (
    Selection,
    group_rollouts,
    render,
    select_groups,
    write_report,
)
from flowright.viewer.sections import settings
from flowright.viewer.snapshot import Snapshot, take_snapshot
from flowright.viewer.trust import MEANINGS

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = (
    "</pre></script></style><script>alert(1)</script><img src=x onerror=alert(2)>"
    "\" onmouseover=alert(3) x='<!--<svg onload=alert(4)> \x1b[31m\u202e\ud800"
    "<a href=javascript:alert(5)>"
)


def report_of(run: Path) -> tuple[str, Document]:
    page = write_report(run).read_text(encoding="utf-8")
    return page, Document(page)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("report") / "a-run", steps=100)


def test_it_is_one_small_file_that_loads_nothing(run: Path) -> None:
    page, document = report_of(run)
    assert len(page.encode()) < 1_500_000
    assert document.count("script") == 1
    for _, attributes in document.tags:
        assert not {"src", "srcset", "data", "action", "xlink:href"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in page
    assert "@import" not in page


def test_the_policy_of_the_page_admits_its_own_script_alone(run: Path) -> None:
    _, document = report_of(run)
    policy = next(a["content"] for t, a in document.tags if t == "meta" and "http-equiv" in a)
    digest = hashlib.sha256(document.texts["script"].encode()).digest()
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in policy


def test_a_policy_that_was_made_here_says_from_what(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a-run", steps=2)
    state = json.loads((run / "state.json").read_text())
    (run / "state.json").write_text(json.dumps(state | {"policy_origin": "made by <hand>"}))
    assert "Policy: made by <hand>." in report_of(run)[1].text


def test_everything_asked_of_a_report_is_there(run: Path) -> None:
    _, document = report_of(run)
    anchors = {attributes.get("id") for _, attributes in document.tags}
    assert anchors >= {"table", "curves", "operators", "failures", "judge", "learner", "cost"}
    assert {"attempts", "configuration"} <= anchors
    links = [a["href"] for t, a in document.tags if t == "a"]
    assert all(link and link[1:] in anchors for link in links)
    for told in (
        *("a-run", "finished", "step 100 of 100", "Simulated numbers.", "Judge drift from gold"),
        *("37.7 % → 64.7 %", "+27.0 points; intervals do not overlap", "self-consistency 5"),
        *("Widest groups", "Worst groups", "Best groups", "Disputed verdicts", "write_code"),
        *("an operator that does not exist, or wrong arguments", "no operator `solve`"),
        *("Best attempt", "Worst attempt", "differs from the judge", "grpo.learning_rate"),
        *("By dataset", "Share of the way"),
    ):
        assert told in document.text, told


def test_the_same_files_give_the_same_report(run: Path) -> None:
    assert write_report(run).read_bytes() == write_report(run).read_bytes()
    assert not list(run.glob("*.part"))


def test_hostile_texts_are_shown_and_change_nothing(tmp_path: Path) -> None:
    calm = make_run(tmp_path / "calm", steps=12)
    hostile = make_run(
        tmp_path / "hostile", steps=12, hostile=HOSTILE, message=HOSTILE, isolation=HOSTILE
    )
    state = json.loads((hostile / "state.json").read_text())
    (hostile / "state.json").write_text(json.dumps({**state, "policy": HOSTILE, "judge": HOSTILE}))
    table = evaluation()
    table["rows"][0]["name"] = HOSTILE
    table["summary"] = {HOSTILE: HOSTILE}
    (hostile / "evaluation.json").write_text(json.dumps(table))
    page, document = report_of(hostile)
    assert "<script>alert(1)</script>" in document.text
    assert "\\u{202e}\\u{d800}" in document.text
    assert document.count("script") == 1
    assert document.count("style") == 1
    assert document.count("img") == 0
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", page)
    allowed = {tag for tag, _ in report_of(calm)[1].tags}
    assert {tag for tag, _ in document.tags} <= allowed
    for _, attributes in document.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")


def test_drift_is_on_the_first_screen_whatever_it_is(tmp_path: Path) -> None:
    def tile(run: Path) -> str:
        page = write_report(run).read_text()
        first_screen = page[page.index('class="tiles"') : page.index("<nav>")]
        return next(t for t in first_screen.split('<div class="tile') if "Judge drift" in t)

    assert tile(make_run(tmp_path / "calm", steps=12)).startswith(" good")
    assert tile(make_run(tmp_path / "drifting", steps=12, drifting=True)).startswith(" alarm")
    row = {"step": 1, "reward/mean": 0.1}
    unaudited = Snapshot(Path("run"), {"status": "running"}, [row | {"judge/status/ok": 1.0}])
    assert "no step has both verdicts and gold checks" in render(unaudited, Selection())
    unjudged = Snapshot(Path("run"), {"status": "running"}, [row])
    assert "udge" not in render(unjudged, Selection()).split("<main>")[1]


def test_a_run_that_has_hardly_begun_has_a_report(tmp_path: Path) -> None:
    begun = make_run(tmp_path / "begun", steps=0, status="running", evaluated=False)
    _, document = report_of(begun)
    assert "The trainer died." in document.text
    one = make_run(tmp_path / "one", steps=1, status="interrupted", evaluated=False)
    assert "Widest groups" in report_of(one)[1].text
    bare = render(Snapshot(Path("bare"), {"status": "running"}), Selection())
    assert "running" in Document(bare).text
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="not a run directory"):
        write_report(tmp_path / "empty")


def test_keys_of_another_version_may_be_absent(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2, evaluated=False)
    (run / "evaluation.json").write_text(
        json.dumps(
            {"rows": [{"name": "trained policy", "kinds": {"all": {}, "math": {"gold": 1}}}]}
        )
    )
    bare = {"step": 2, "group": 0, "reward": {"value": 0.5}}
    rows = [bare, {**bare, "reward": {"value": None}}, {**bare, "reward": {"value": 0.1}}, {}]
    write_rollouts(run, 2, rows)
    _, document = report_of(run)
    assert "mean reward 0.30, spread 0.20" in document.text


# --- which groups -------------------------------------------------------------------------------


def records(step: int, group: int, rewards: list[float | None]) -> list[dict[str, Any]]:
    found = []
    for index, value in enumerate(rewards):
        record = record_of(make_rollout(step, group, True, True), step, group, index)
        found.append({**record, "reward": {"value": value, "parts": {}}})
    return found


def test_unscored_attempts_are_in_no_statistic_and_come_last() -> None:
    (group,) = group_rollouts(records(1, 0, [0.0, None, 1.0, None]))
    assert [a["reward"]["value"] for a in group.attempts] == [1.0, 0.0, None, None]
    assert (group.mean, group.spread) == (0.5, 0.5)


def test_the_widest_best_and_worst_groups_are_chosen(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    steps = {
        1: [[0.0, 1.0], [1.0, 1.0], [0.5, 0.5]],  # early: the widest of all, for math
        8: [[0.2, 0.2], [0.9, 1.0], [0.7, 0.7]],
        9: [[0.1, 0.1], [0.8, 1.0], [None, 1.0]],  # a group with one score is no group
    }
    for step, groups in steps.items():
        rows = [row for number, g in enumerate(groups) for row in records(step, number, g)]
        write_rollouts(tmp_path, step, rows)
    chosen = select_groups(tmp_path)
    assert (chosen.searched, chosen.kept) == (3, 3)
    # One of each kind, widest first.
    assert [(g.step, g.task["kind"]) for g in chosen.widest] == [
        (1, "math"),
        (9, "code"),
        (8, "qa"),
    ]
    # Of the last third (step 9), what was not shown already.
    assert [(g.step, g.task["kind"]) for g in chosen.worst] == [(9, "math")]
    assert chosen.best == []


def test_disputed_verdicts_and_messages_are_the_newest(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    for step in (1, 2, 3):
        broken = make_rollout(step, 0, False, True, Failure(Reason.TYPE, f"in step {step}"))
        attempts = [make_rollout(step, 0, False, True), make_rollout(step, 0, True, True), broken]
        rows = [record_of(rollout, step, 0, i) for i, rollout in enumerate(attempts)]
        write_rollouts(tmp_path, step, rows)
    chosen = select_groups(tmp_path)
    assert [(r["step"], r["index"]) for r in chosen.disputed] == [(3, 0), (2, 0), (1, 0)]
    assert chosen.messages == {"type": "in step 3"}


def test_a_long_run_is_searched_evenly_with_both_its_ends(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    for step in range(1, 102):
        write_rollouts(tmp_path, step, records(step, 0, [step / 200, 0.0]))
    chosen = select_groups(tmp_path)
    assert (chosen.searched, chosen.kept) == (40, 101)
    assert chosen.widest[0].step == 101


# --- sums and drawings --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "parts", "advantage", "told"),
    [
        (
            0.96,
            {"validity": 0.0, "correctness": 1.0, "cost": -0.04},
            0.5,
            "correctness 1.00 - cost 0.04 = 0.96; advantage +0.50",
        ),
        (-0.2, {"validity": -0.2, "correctness": 0.0}, -1.25, "validity -0.20 = -0.20; advantage"),
        (0.0, {"validity": 0.0, "correctness": 0.0}, None, "validity 0.00 = 0.00"),
        (0.7, {"a": 0.3, "b": 0.3}, None, "0.70 (of a 0.30 + b 0.30)"),
        (0.7, {}, None, "0.70"),
    ],
)
def test_reward_arithmetic(
    value: float, parts: dict[str, float], advantage: float | None, told: str
) -> None:
    record = {"reward": {"value": value, "parts": parts}, "advantage": advantage}
    assert reward_arithmetic(record).startswith(told)


def test_an_attempt_without_a_reward_has_a_reason() -> None:
    lost = {"reward": {"value": None, "parts": {}}, "advantage": 0.0}
    assert reward_arithmetic(lost).startswith("no reward: its group has no other answer")
    lost["failure"] = {"reason": "judge_failed", "message": "away"}
    assert reward_arithmetic(lost).startswith("no reward: our failure, the attempt left its group")


def test_every_reason_of_the_taxonomy_has_its_meaning() -> None:
    assert {*MEANINGS, *DISPLAY.meanings} == set(Reason)


def test_a_scale_maps_its_ends_and_ticks_are_round() -> None:
    scale = Scale(0.0, 0.8, 180, 10)
    assert (scale(0.0), scale(0.8), scale(0.4)) == (180, 10, 95)
    assert scale.ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert Scale(3, 97, 0, 1).ticks(5) == [20, 40, 60, 80]
    assert Scale(0, 12, 0, 1).ticks(5, whole=True) == [0, 3, 6, 9, 12]


def test_curves_carry_their_values_and_long_ones_their_means() -> None:
    assert chart_html(LineChart("none", [Series("a", "c1", [])], short_percent)) is None
    course = [(i, float(i % 2)) for i in range(1000)]
    chart = chart_html(LineChart("t", [Series("a", "c1", course)], short_percent))
    data = next(a["data-chart"] for t, a in Document(chart or "").tags if t == "svg")
    points = json.loads(data or "")["series"][0]["p"]
    assert len(points) == 250
    assert points[0] == [2, "50 %"]


def test_flat_curves_and_zeros_can_be_drawn() -> None:
    for value in (0.0, 1.0, -3.0, 1e-9, 1e12):
        series = [Series("a", "c1", [(1, value), (2, value)])]
        chart = chart_html(LineChart("t", series, short_percent, low=0.0))
        assert "nan" not in (chart or "nan")
    assert chart_html(ScatterChart("t", [ScatterDot("a", "c1", 0.0, 0.0)], "tokens"))
    assert chart_html(ScatterChart("t", [], "tokens")) is None
    assert chart_html(ChangeChart("t", [("a", 0.0, 0.0)]))
    assert chart_html(ChangeChart("t", [])) is None


def test_accuracy_against_tokens_is_a_file_that_stands_by_itself(tmp_path: Path) -> None:
    table = evaluation()
    table["rows"][0]["name"] = HOSTILE
    table["rows"][2]["kinds"]["all"]["tokens"] = 0.0  # a logarithmic scale has no 0
    table["rows"][3]["kinds"]["all"]["gold"] = None
    file = accuracy_against_tokens(table, tmp_path / "plot.svg")
    picture = ElementTree.parse(file)
    words = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "Gold accuracy, 180 problems, 95 % intervals, simulated" in words
    assert "6 best fixed workflow per kind" in words
    assert not [node for node in picture.iter() if "href" in node.attrib or "script" in node.tag]
    nothing = {**table, "rows": [table["rows"][3]]}
    ElementTree.parse(accuracy_against_tokens(nothing, file))


def test_a_logarithmic_scale() -> None:
    scale = Scale(1, 1000, 0, 300, log=True)
    assert (scale(1), scale(10), scale(1000)) == (0, 100, 300)
    assert scale.ticks() == [1, 3, 10, 30, 100, 300, 1000]


def test_settings_are_flat() -> None:
    config = {"seed": 0, "grpo": {"steps": 5, "lora": {"rank": 8}}, "empty": {}}
    assert settings(config) == [
        ("seed", "0"),
        ("grpo.steps", "5"),
        ("grpo.lora.rank", "8"),
        ("empty", "{}"),
    ]


def test_the_command_writes_the_newest_run_and_says_where(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    script = [sys.executable, str(ROOT / "scripts" / "make_report.py"), "--output-dir"]
    done = subprocess.run([*script, str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, f"{run / 'report.html'}\n")
    assert (run / "report.html").stat().st_size > 10_000
    nothing = subprocess.run(
        [*script, str(tmp_path / "none")], capture_output=True, text=True, timeout=600
    )
    assert nothing.returncode == 2
    assert "no run here yet" in nothing.stderr


def test_a_real_looking_run_is_read_as_it_was_written(run: Path) -> None:
    now = take_snapshot(run)
    assert len(now.training_rows) == 100
    assert now.evaluation is not None
    assert now.setting("grpo", "group_size") == 8
