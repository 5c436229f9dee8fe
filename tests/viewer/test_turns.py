"""Attempts of several turns: pages, index, exports, report and terminal."""

import io
import json
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import pyarrow.parquet
import pytest
from html_page import Document
from rich.console import Console
from starlette.testclient import TestClient
from viewer_run import HOSTILE, hostile, records_of, write_run

from flowright.environments import episode
from flowright.runs.run_files import read_rollouts, write_rollouts
from flowright.viewer.rendering.record_blocks import REPORT, WHOLE
from flowright.viewer.rendering.terminal import UNICODE
from flowright.viewer.rollout_records import reward_arithmetic
from flowright.viewer.run_list import RunList
from flowright.viewer.run_report import write_report
from flowright.viewer.screen import Panels, Screen
from flowright.viewer.selection import Filter
from flowright.viewer.server import create_app, export_pages
from flowright.viewer.snapshot import load_rollouts, take_snapshot
from flowright.viewer.turns import STOPS, by_turn, turns_html

ENDS = ("done", "max_turns", "overflow", "failed")


def turn(number: int, answered: bool = True, **more: Any) -> dict[str, Any]:
    observation = {"text": f"marble {number}", "role": "tool", "reward": 0.25, "failed": False}
    return {
        "completion": f"guess {number}",
        "tokens": 10 + number,
        "finish_reason": "stop",
        "policy_version": 4,
        "context_tokens": 100 * number,
        "continued": number > 1,
        "observation": observation | {"state": f"square {number}"} if answered else None,
        **more,
    }


def with_turns(record: dict[str, Any]) -> dict[str, Any]:
    """A record with as many turns as its number, from one."""
    count = record["index"] + 1
    turns = [turn(n, n < count or count > 1) for n in range(1, count + 1)]
    lengths = [each["tokens"] for each in turns]
    tokens = {
        "ids": [*range(sum(lengths))],
        "texts": ["t"] * sum(lengths),
        "sampler": [-1.0] * sum(lengths),
        "learner": None,
        "turns": lengths,
    }
    more = {"turns": turns, "stop": ENDS[record["index"]], "token_logprobs": tokens}
    return record | more | {"tokens": sum(lengths)}


METRICS = {
    "turns/mean": 2.5,
    "turns/max": 4.0,
    "turns/stop/done": 0.25,
    "turns/stop/max_turns": 0.75,
    "turns/unparsed": 0.125,
    "tokens/observation_mean": 31.0,
    "tokens/trained_as_sampled": 0.99,
    "policy/logprob_gap/turn_1": 1e-4,
    "policy/logprob_gap/turn_2": 3e-3,
}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> RunList:
    """A run of several turns, the same with hostile texts, and one from before there were turns."""
    root = tmp_path_factory.mktemp("runs")
    several, bad = write_run(root / "several", 2), write_run(root / "bad", 1)
    for step in (1, 2):
        write_rollouts(several, step, [with_turns(r) for r in read_rollouts(several, step)])
    rows = [json.loads(line) for line in (several / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps(row | METRICS) for row in rows]
    (several / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    records = [hostile(with_turns(r), HOSTILE) | {"step": 1} for r in records_of(1)]
    write_rollouts(bad, 1, records)
    old = write_run(root / "old", 1)
    # Runs of single completions have the gap of their only turn.
    gap = json.loads((old / "metrics.jsonl").read_text()) | {"policy/logprob_gap/turn_1": 1e-4}
    (old / "metrics.jsonl").write_text(f"{json.dumps(gap)}\n")
    kept = [{key: r[key] for key in r.keys() - {"schema"}} for r in read_rollouts(old, 1)]
    write_rollouts(old, 1, kept)
    shelf = RunList(root)
    for run in shelf.runs():
        run.update()
    return shelf


@pytest.fixture(scope="module")
def client(shelf: RunList) -> Iterator[httpx2.Client]:
    with TestClient(create_app(shelf), "http://localhost") as client:
        yield client


def found(shelf: RunList, run: str, **query: str) -> list[str]:
    viewed = next(each for each in shelf.runs() if each.name == run)
    with viewed.found() as search:
        return sorted(attempt.place for attempt in search.each(Filter.read(query)))


def places(*indices: int) -> list[str]:
    return sorted(f"{step}/{g}/{i}" for step in (1, 2) for g in range(3) for i in indices)


@pytest.mark.parametrize(
    ("query", "indices"),
    [
        ({"turns": "3"}, [2]),
        ({"turns": ">1"}, [1, 2, 3]),
        ({"turns": "1..2"}, [0, 1]),
        ({"stop": "overflow"}, [2]),
        ({"stop": "done,failed"}, [0, 3]),
        ({"turns": ">2", "stop": "max_turns"}, []),
        ({"q": "marble"}, [1, 2, 3]),
        ({"q": '"marble 3"', "in": "replies"}, [2, 3]),
        ({"q": '"guess 2"', "in": "workflow"}, [2, 3]),
        ({"q": "marble", "in": "reasons"}, []),
    ],
)
def test_attempts_are_found_by_their_turns(
    shelf: RunList, query: dict[str, str], indices: list[int]
) -> None:
    assert found(shelf, "several", **query) == places(*indices)
    assert found(shelf, "old", **query) == []


def test_the_list_has_turns_where_there_are_some(client: httpx2.Client) -> None:
    page = Document(client.get("/run/several/attempts?sort=turns").text)
    names = {attributes.get("name") for _, attributes in page.tags}
    assert {"turns", "stop"} <= names and "Turns" in page.text and "max_turns (6)" in page.text
    old = Document(client.get("/run/old/attempts").text)
    assert not {"turns", "stop"} & {attributes.get("name") for _, attributes in old.tags}
    assert "Turns" not in old.text


def test_the_page_of_an_attempt_shows_its_turns(client: httpx2.Client) -> None:
    text = Document(client.get("/run/several/attempt/1/0/2").text).text
    assert "3, stop reason overflow" in text and "policy.max_episode_tokens" in text
    for number in (1, 2, 3):
        assert f"Turn {number}" in text and f"guess {number}" in text
        assert f"marble {number}" in text and f"square {number}" in text
        assert f"saw {100 * number} tokens, wrote {10 + number} (stop)" in text
        assert f"Turn {number}: {10 + number} tokens, mean log-probability sampler -1" in text
    assert text.count("unseen by the policy") == 1
    assert "policy of step" not in text  # the same in all turns
    group = Document(client.get("/run/several/group/1/0").text).text
    assert "Turn 4" in group and "marble 4" in group
    old = Document(client.get("/run/old/attempt/1/0/2").text).text
    assert "Turn" not in old


def test_credit_is_shown_by_turn() -> None:
    turns = [
        turn(1, advantage=0.5),
        turn(2, continued=False, policy_version=5, advantage=None),
        turn(3, answered=False, advantage=-0.125),
    ]
    turns[1]["observation"]["failed"] = True
    reward = {"value": 0.5, "unpenalised": 0.75, "parts": {}}
    parts = turns_html({"turns": turns, "stop": "done", "reward": reward}, WHOLE)
    first, second, third = (Document(part).text for part in parts)
    assert "policy of step 4, reward +0.250, advantage +0.500" in first
    assert "saw 200 tokens (rendered anew), wrote 12 (stop), policy of step 5" in second
    assert "not parsed" in second and "not trained on" in second
    assert "reward +0.250, advantage -0.125" in third  # what is left of 0.75
    unscored = turns_html({"turns": turns, "reward": {"value": None}}, WHOLE)
    assert "reward" not in Document("".join(unscored)).text


def test_a_reward_is_shown_with_and_without_penalties() -> None:
    reward = {"value": 0.5, "unpenalised": 0.75, "parts": {"right": 0.75, "kl": -0.25}}
    shown = reward_arithmetic({"reward": reward, "advantage": 1.0})
    without = "(0.75 without the penalties of the training)"
    assert shown == f"right 0.75 - kl 0.25 = 0.50 {without}; advantage +1.00"


def test_of_many_turns_the_first_are_shown() -> None:
    found = turns_html({"turns": [turn(n) for n in range(1, 31)]}, REPORT)
    assert len(found) == REPORT.calls + 1 and f"and {30 - REPORT.calls} more turns" in found[-1]


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([2, 3], [2, 3]), ([5], [5]), (None, [5]), ([2, 2], [5]), ([-2, 7], [5]), ("ab", [5])],
)
def test_tokens_are_split_by_turn(lengths: object, sizes: list[int]) -> None:
    parts = by_turn(lengths, "abcde")
    assert [len(part) for part in parts] == sizes and "".join(map("".join, parts)) == "abcde"


def test_texts_of_turns_are_only_quoted(client: httpx2.Client, tmp_path: Path) -> None:
    for path in ("attempt/1/0/3", "group/1/0", "attempts?q=marble", "export.inspect.json"):
        answer = client.get(f"/run/bad/{path}")
        assert answer.status_code == 200
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u2066\u2028]", answer.text)
        if path.startswith("export"):
            continue
        tags = Document(answer.text).tags
        assert [tag for tag, _ in tags].count("script") == 1 and "img" not in {t for t, _ in tags}
        assert not [n for _, attributes in tags for n in attributes if n.startswith("on")]
    odd: list[Any] = [None, 7, "x", [], [None], [HOSTILE], [{}], [{"observation": HOSTILE}], {}]
    odd += [
        [{"tokens": HOSTILE, "advantage": [1], "observation": {"text": {}, "state": [HOSTILE]}}]
    ]
    run = write_run(tmp_path / "odd", 1)
    base = records_of(1)[0]
    garbage = [base | {"index": n, "turns": v, "stop": v} for n, v in enumerate(odd)]
    write_rollouts(run, 1, garbage)
    shelf = RunList(tmp_path)
    for each in shelf.runs():
        each.update()
    with TestClient(create_app(shelf), "http://localhost") as pages:
        for n in range(len(odd)):
            answer = pages.get(f"/run/odd/attempt/1/0/{n}")
            assert answer.status_code == 200 and "<script>alert" not in answer.text
        assert pages.get("/run/odd/attempts").status_code == 200
    assert export_pages(tmp_path, tmp_path / "pages", "step=1", 9)


def test_exports_have_turns(client: httpx2.Client) -> None:
    content = client.get("/run/several/export.parquet?turns=2").content
    rows = pyarrow.parquet.read_table(BytesIO(content)).to_pylist()
    assert {(row["turns"], row["stop"]) for row in rows} == {(2, "max_turns")}
    log = client.get("/run/several/export.inspect.json?turns=3&step=1").json()
    first = log["samples"][0]["messages"][1:6]
    assert [message["role"] for message in first] == ["assistant", "tool"] * 2 + ["assistant"]
    assert [message["content"] for message in first[:4]] == [
        *("guess 1", "marble 1", "guess 2", "marble 2")
    ]


def test_report_and_terminal_have_turns_where_a_run_has_some(shelf: RunList) -> None:
    paths = {run.name: run.folder for run in shelf.runs()}
    report = Document(write_report(paths["several"]).read_text()).text
    for title in (
        "Turns of an attempt, mean",
        "Ends of attempts, share",
        "turns 1 to 6",
        "guess 2",
    ):
        assert title in report
    assert "Turns" not in Document(write_report(paths["old"]).read_text()).text
    now = take_snapshot(paths["several"])
    rows = [line.plain for line in Panels(now, (), 80, UNICODE).policy()]
    assert any(re.match(r"turns +2\.50 ", row) for row in rows)
    assert any(re.match(r"as sampled +99\.0 % !", row) for row in rows)
    assert any(re.match(r"stops +done 25\.0 %  max_turns 75\.0 %", row) for row in rows)
    assert any("turn_1 1.0e-04  turn_2 3.0e-03" in row for row in rows)
    out = io.StringIO()
    Console(file=out, width=80, height=24).print(Screen(now, load_rollouts(paths["several"], 2)))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert Panels(take_snapshot(paths["old"]), (), 80, UNICODE).policy() == []


def test_the_run_page_names_tokens_that_were_not_sampled(client: httpx2.Client) -> None:
    assert "99.0 % of the trained tokens are the sampled ones" in client.get("/run/several/").text


def test_every_end_of_an_attempt_has_its_meaning() -> None:
    assert tuple(STOPS) == tuple(episode.STOPS) == ENDS
