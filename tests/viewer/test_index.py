"""The index beside a run: it follows the run, can be lost at any time, and finds what is there."""

import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import example, given, settings, strategies as st
from viewer_run import records_of, write_run

from flowright.core.errors import UserError
from flowright.runs.run_files import read_lines, read_rollouts, rollouts_path, write_rollouts
from flowright.viewer.index import Indexer, Progress, index_path
from flowright.viewer.rollout_records import escape_surrogates, record_at, step_files
from flowright.viewer.search import AttemptSearch
from flowright.viewer.selection import Filter, Range, fts_query, merge_query, step_ids

STEPS = 3


def updated(run: Path) -> Progress:
    *_, last = Indexer(run).update()
    return last


def places(run: Path, **query: str) -> list[str]:
    with AttemptSearch(index_path(run)) as found:
        return [attempt.place for attempt in found.each(Filter.read(query))]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(tmp_path_factory.mktemp("runs") / "one", STEPS)
    updated(path)
    return path


def every(run: Path) -> list[dict[str, Any]]:
    return [record for step in range(1, STEPS + 1) for record in read_rollouts(run, step)]


def place(record: Mapping[str, Any]) -> str:
    return f"{record['step']}/{record['group']}/{record['index']}"


def value(record: Mapping[str, Any]) -> Any:
    return record["reward"]["value"]


def said(record: Mapping[str, Any], who: str) -> bool | None:
    return (record[who] or {}).get("correct")


def reason(record: Mapping[str, Any]) -> str | None:
    return (record["failure"] or {}).get("reason")


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, lambda r: True),
        ({"step": "2"}, lambda r: r["step"] == 2),
        ({"step": ">1"}, lambda r: r["step"] > 1),
        ({"kind": "math"}, lambda r: r["task"]["kind"] == "math"),
        ({"kind": "math,code"}, lambda r: r["task"]["kind"] in ("math", "code")),
        ({"outcome": "failed"}, lambda r: (r["failure"] or {}).get("blame") == "policy"),
        ({"outcome": "unscored"}, lambda r: value(r) is None),
        ({"outcome": "right"}, lambda r: not r["failure"] and said(r, "verdict") is True),
        ({"outcome": "failed, unscored"}, lambda r: bool(r["failure"]) or value(r) is None),
        ({"task": "task-1,task-2"}, lambda r: r["task"]["id"] in ("task-1", "task-2")),
        (
            {"against": "too_generous,too_strict"},
            lambda r: (
                None not in (said(r, "verdict"), said(r, "gold"))
                and said(r, "verdict") is not said(r, "gold")
            ),
        ),
        ({"repair": "any,none"}, lambda r: True),
        ({"failure": "syntax"}, lambda r: reason(r) == "syntax"),
        ({"blame": "infrastructure"}, lambda r: reason(r) == "judge_failed"),
        (
            {"against": "too_generous"},
            lambda r: said(r, "verdict") is True and said(r, "gold") is False,
        ),
        ({"reward": "0.5..0.95"}, lambda r: value(r) is not None and 0.5 <= value(r) <= 0.95),
        ({"reward": "<0"}, lambda r: value(r) is not None and value(r) < 0),
        ({"advantage": ">0.4"}, lambda r: r["advantage"] is not None and r["advantage"] > 0.4),
        ({"operator": "answer"}, lambda r: r["task"]["kind"] == "math" and bool(r["execution"])),
        ({"repair": "any"}, lambda r: False),
        ({"task": "task-1"}, lambda r: r["group"] == 1),
        ({"task": "no such"}, lambda r: False),
        ({"q": "note2", "in": "replies"}, lambda r: r["index"] == 2 and bool(r["execution"])),
        ({"q": "baker", "in": "problem"}, lambda r: r["task"]["kind"] == "math"),
        ({"q": '"sells 48 rolls"', "in": "problem"}, lambda r: r["task"]["kind"] == "math"),
        ({"q": "baker -sells", "in": "problem"}, lambda r: False),
        ({"q": "task-0 note2"}, lambda r: (r["group"], r["index"]) == (0, 2)),
        ({"q": "task-1"}, lambda r: r["task"]["id"] == "task-1"),
        ({"q": "nowhere"}, lambda r: False),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "so",
)
def test_a_filter_finds_what_the_records_say(
    run: Path, query: dict[str, str], wanted: Callable[[Any], bool]
) -> None:
    expected = [place(record) for record in every(run) if wanted(record)]
    assert sorted(places(run, **query)) == sorted(expected)
    assert expected or query.keys() & {"repair", "task", "q"}


def test_a_value_with_a_comma_can_be_chosen(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first, *others = records_of(1)
    write_rollouts(run, 1, [first | {"task": first["task"] | {"source": "a, b"}}, *others])
    updated(run)
    assert places(run, source="a, b") == [place(first)]


def test_what_is_not_understood_is_said() -> None:
    chosen = Filter.read(merge_query([("outcom", "wrong"), ("kind", "math"), ("kind", "code")]))
    assert chosen.values == {"kind": "math,code"}
    assert chosen.problems == ("outcom: no filter has this name; did you mean outcome?",)
    long = Filter.read({"q": " ".join("abcdefghijklmn")})
    assert "the first 12 words" in long.problems[0]
    assert "against" not in Filter.read({"against": "agree,no_such"}).values


@pytest.mark.parametrize("sort", ["step", "reward", "advantage", "seconds", "llm_tokens"])
@pytest.mark.parametrize("down", ["asc", "desc"])
def test_pages_by_key_are_all_attempts_once_in_order(run: Path, sort: str, down: str) -> None:
    chosen = Filter.read({"sort": sort, "dir": down})
    seen = []
    with AttemptSearch(index_path(run)) as found:
        while True:
            attempts, after = found.page(chosen, 5)
            seen += attempts
            if not after:
                break
            chosen = Filter.read({"sort": sort, "dir": down, "after": after})
        for before, after in pairwise(seen):
            assert found.beside(chosen, before)[1] == after
            assert found.beside(chosen, after)[0] == before
        assert found.beside(chosen, seen[0])[0] is None
        assert found.beside(chosen, seen[-1])[1] is None
    assert len({attempt.id for attempt in seen}) == len(seen) == len(every(run))
    keys = [attempt.id if sort == "step" else getattr(attempt, sort) for attempt in seen]
    known = [key for key in keys if key is not None]
    assert known == sorted(known, reverse=down == "desc")
    assert keys == known + [None] * (len(keys) - len(known))  # what has no value comes last


def test_a_record_is_found_by_its_place(run: Path) -> None:
    with AttemptSearch(index_path(run)) as found:
        for attempt in found.each(Filter()):
            record = record_at(run, attempt.step, attempt.start, attempt.size)
            assert place(record) == attempt.place
            assert value(record) == attempt.reward


def test_the_index_follows_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 2)
    assert updated(run) == Progress(2, 2, 24, 0, 0)
    before = index_path(run).stat()
    write_rollouts(run, 3, records_of(3))
    assert updated(run).attempts == 36
    write_rollouts(run, 2, records_of(2, seed=5)[:5])  # as a resume would
    rollouts_path(run, 1).unlink()
    assert updated(run) == Progress(2, 2, 17, 0, 0)
    assert index_path(run).stat().st_ino == before.st_ino
    assert len(places(run, step="2")) == 5
    assert places(run, step="1", q="note1") == []
    with AttemptSearch(index_path(run)) as found:
        texts = found.rows("SELECT count(*) FROM texts")
        assert texts[0][0] == 17
        assert all(attempt.step in (2, 3) for attempt in found.each(Filter()))


def test_an_index_that_is_lost_damaged_or_of_another_version_is_made_anew(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1)
    assert updated(run).attempts == 12
    index_path(run).unlink()
    assert places(run) == []
    assert updated(run).attempts == 12
    index_path(run).write_bytes(b"no database at all" * 300)
    for suffix in ("-wal", "-shm"):
        index_path(run).with_name(index_path(run).name + suffix).unlink(missing_ok=True)
    assert updated(run).attempts == 12
    base = sqlite3.connect(index_path(run))
    base.execute("PRAGMA user_version = 99")
    base.close()
    assert updated(run).attempts == 12
    assert len(places(run)) == 12


def test_what_is_half_written_is_left_out_and_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1)
    rows = [json.dumps(record) for record in records_of(2)]
    data = ("\n".join(rows)[:-40]).encode()  # the last record ends in the middle
    rollouts_path(run, 2).write_bytes(zstandard.ZstdCompressor().compress(data))
    whole = zstandard.ZstdCompressor().compress("".join(f"{row}\n" for row in rows * 40).encode())
    rollouts_path(run, 3).write_bytes(whole[: len(whole) // 2])  # the compressed data end
    rollouts_path(run, 4).write_bytes(b"not zstd")
    broken = b'[1]\nnull\n{"step": 5}\n'
    rollouts_path(run, 5).write_bytes(zstandard.ZstdCompressor().compress(broken))
    progress = updated(run)
    assert progress.steps == progress.of_steps == 5
    assert progress.unread >= 3
    assert len(places(run, step="2")) == 11
    assert places(run, step="4") == []
    assert places(run, step="5") == ["5/0/0"]


def test_words_of_attempts_that_were_replaced_are_found_no_more(tmp_path: Path) -> None:
    run = tmp_path / "run"
    old = [r | {"completion": "zebra"} for r in records_of(1)]
    new = [r | {"completion": "walrus"} for r in records_of(1)]
    write_rollouts(run, 1, old)
    updated(run)
    rollouts_path(run, 1).unlink()  # as a resume does that takes the step back
    updated(run)
    write_rollouts(run, 1, new)
    updated(run)
    assert not places(run, q="zebra")
    assert len(places(run, q="walrus")) == len(places(run)) == len(new)


def test_the_sums_of_a_run_follow_its_steps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 3)
    updated(run)
    write_rollouts(run, 2, records_of(2)[:5])
    rollouts_path(run, 3).unlink()
    updated(run)
    left = len(places(run))
    with closing(sqlite3.connect(index_path(run))) as base:
        for table, counted, key in (
            ("combinations", "counts", "combination"),
            ("operators", "uses", "operators"),
        ):
            kept = dict(base.execute(f"SELECT id, attempts FROM {table} WHERE attempts"))
            summed = f"SELECT {key}, sum(attempts) FROM {counted} GROUP BY {key}"
            assert kept == dict(base.execute(summed))
            assert sum(kept.values()) == left > 0


def test_what_only_looks_like_a_step_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1)
    rollouts_path(run, 2).mkdir()
    rollouts_path(run, 1 << 40).write_bytes(b"")
    assert [file.step for file in step_files(run)] == [1]
    assert updated(run).attempts == len(places(run)) > 0


def test_a_step_that_is_moved_away_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", 2)
    there = step_files(run)
    rollouts_path(run, 2).unlink()
    monkeypatch.setattr("flowright.viewer.index.step_files", lambda _: there)
    updated(run)
    assert {found.split("/")[0] for found in places(run)} == {"1"}


def test_a_long_line_is_read_whole_and_searched_in_part(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1)
    record = records_of(1)[0] | {"completion": "early " + "x" * 5_000_000 + " late"}
    write_rollouts(run, 1, [record, records_of(1)[1]])
    assert updated(run).cut == 1
    assert places(run, q="early") == ["1/0/0"]
    assert places(run, q="late") == []
    file = step_files(run)[0]
    assert [len(line.data) > 5_000_000 for line in read_lines(file.path)] == [True, False]
    with pytest.raises(UserError, match="no record there"):
        record_at(run, 1, 7, 20)


def test_where_a_run_cannot_be_written_the_index_is_in_the_cache() -> None:
    assert "flowright/viewer" in index_path(Path("/proc/self")).as_posix()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.2..0.8", Range(0.2, 0.8)),
        ("..3", Range(high=3)),
        ("-1..", Range(low=-1)),
        (">0.5", Range(low=0.5, low_open=True)),
        ("<= 2", Range(high=2)),
        ("7", Range(7, 7)),
        ("1e-3", Range(0.001, 0.001)),
        ("", None),
        ("..", None),
        ("a", None),
        ("1..b", None),
        ("nan", None),
    ],
)
def test_ranges(text: str, found: Range | None) -> None:
    assert Range.read(text) == found


@pytest.mark.parametrize(
    ("text", "steps"),
    [("2..4", {2, 3, 4}), (">2", {3, 4, 5}), ("<2", {0, 1}), ("2.5", set()), ("1.5..3.5", {2, 3})],
)
def test_ranges_of_steps(text: str, steps: set[int]) -> None:
    chosen = Range.read(text)
    assert chosen is not None
    low, high = step_ids(chosen)
    assert {step for step in range(6) if low <= step << 28 < high} == steps
    assert step_ids(Range(-math.inf, math.inf)) == (0, 1 << 62)


@settings(max_examples=30)
@given(st.text(max_size=40))
@example('"')
@example('a AND NOT "b* OR (c:')
@example("-only")
@example("x\0y {col} : ^z")
def test_no_search_is_obeyed_as_syntax(text: str) -> None:
    words = Filter.read({"q": text}).values.get("q") and fts_query(escape_surrogates(text))
    if not words:
        return
    base = sqlite3.connect(":memory:")
    try:
        base.execute("CREATE VIRTUAL TABLE t USING fts5(a)")
        base.execute("SELECT rowid FROM t WHERE t MATCH ?", (words,)).fetchall()
    finally:
        base.close()
