"""Runs whose files hold what nobody expects there: every page and screen is still made, since one
odd value must not hide the rest.
"""

import copy
import io
import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
import zstandard
from monitoring_run import make_run
from rich.console import Console
from starlette.testclient import TestClient
from viewer_run import records_of, write_run

from flowright.core.errors import RunError, UserError
from flowright.core.files import DEEPEST, write_json
from flowright.runs.run_files import (
    MOST_LINE,
    MOST_LINES,
    read_lines,
    read_rollouts,
    rollouts_path,
    write_rollouts,
)
from flowright.viewer.index import index_path
from flowright.viewer.live import screen_of, summary
from flowright.viewer.run_list import RunList
from flowright.viewer.run_report import write_report
from flowright.viewer.server import create_app, export_pages
from flowright.viewer.snapshot import Snapshot, Watcher

ODD = (None, 5, "x", [5], {"a": 1}, 10**400)
Path_ = tuple[Any, ...]


def places(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Where something stands in a JSON value; of lists the first item."""
    if at:
        yield at
    if isinstance(value, Mapping):
        for key in value:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*at, 0))


def changed(value: Any, at: Path_, odd: Any) -> Any:
    """A copy with something else at a place."""
    value = copy.deepcopy(value)
    inner = value
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = odd
    return value


def client_of(root: Path) -> TestClient:
    shelf = RunList(root)
    for run in shelf.runs():
        run.update()
    return TestClient(create_app(shelf), "http://localhost", raise_server_exceptions=True)


def test_an_attempt_is_shown_whatever_its_record_holds(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", 1)
    seen: set[Path_] = set()
    records: list[dict[str, Any]] = []
    for record in records_of(1):
        for at in places(record):
            if at in seen or at[0] in ("step", "group", "index"):
                continue
            for index, odd in enumerate(ODD):
                own = {"step": 1, "group": len(seen), "index": index}
                records.append(changed(record, at, odd) | own)
            seen.add(at)
    assert len(seen) > 40
    write_rollouts(run, 1, records)
    with client_of(tmp_path) as client:
        for group in range(len(seen)):
            attempts = [f"attempt/1/{group}/{index}" for index in range(len(ODD))]
            for page in (*attempts, f"group/1/{group}"):
                reply = client.get(f"/run/one/{page}")
                assert reply.status_code == 200, (page, reply.text)
        for page in ("", "attempts", "export.jsonl", "export.parquet", "export.inspect.json"):
            assert client.get(f"/run/one/{page}").status_code == 200
        assert client.get("/").status_code == 200


@pytest.mark.parametrize("name", ["state.json", "evaluation.json", "metrics.jsonl"])
def test_a_run_is_shown_whatever_its_files_hold(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path / "one", steps=3)
    lines = (run / name).read_text().splitlines()
    given = json.loads(lines[-1] if name == "metrics.jsonl" else "".join(lines))
    if name == "evaluation.json":  # cells of two kinds and of one set are like all others
        for row in given["rows"]:
            row["kinds"] = {kind: row["kinds"][kind] for kind in ("all", "math")}
            row["sources"] = {"GSM8K": row["sources"]["GSM8K"]}
    console = Console(file=io.StringIO(), width=100)
    with client_of(tmp_path) as client:
        for number, at in enumerate(at for at in places(given) if at != ("step",)):
            odd = ODD[number % 5]
            told = changed(given, at, odd)
            if name == "metrics.jsonl":
                (run / name).write_text("\n".join([*lines[:-1], json.dumps(told)]) + "\n")
            else:
                write_json(run / name, told)
            for page in ("/", "/run/one/", "/run/one/attempts"):
                reply = client.get(page)
                assert reply.status_code == 200, (page, at, odd)
                assert "its files hold something" not in reply.text, (page, at, odd)
            json.dumps(summary(Watcher(run).look(), {}))
            console.print(screen_of(Watcher(run), {}, full=True))
        write_report(run)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx2.Client]:
    write_run(tmp_path / "one", 1)
    write_run(tmp_path / "two", 1)
    with client_of(tmp_path) as client:
        yield client


@pytest.mark.parametrize("text", ["[1]", "null", "{", "\x00", '{"step": NaN, "steps": 1e999}'])
@pytest.mark.parametrize("name", ["state.json", "config.json", "evaluation.json"])
def test_a_damaged_run_hides_no_other(
    client: httpx2.Client, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "one" / name).write_text(text)
    page = client.get("/").text
    assert "/run/two/" in page
    assert (">damaged<" in page) is not text.startswith('{"step"')
    for _ in range(2):  # its index is up to date; that does not mend the file
        told = client.get("/run/one/attempts").text
        assert (f"{name}: " in told) is not text.startswith('{"step"')
    try:
        Watcher(tmp_path / "one").look()
    except UserError as error:
        assert name in str(error)


@pytest.mark.parametrize(
    ("address", "status"),
    [
        (f"/run/one/attempt/{'9' * 5000}/0/0", 404),
        ("/run/one/attempt/1/x/0", 404),
        ("/run/one/group/-1/0", 404),
        ("/run/one/export.jsonl?step=1e999", 200),
        ("/run/one/attempts?step=1e999..&reward=1e999", 200),
        (f"/run/one/attempts?reward={'1' * 400}", 200),
        ("/run/one/attempts?after=" + "[" * 5000, 200),
        ("/compare?run=one&run=two&steps1=1e999", 200),
    ],
)
def test_odd_addresses(client: httpx2.Client, address: str, status: int) -> None:
    assert client.get(address).status_code == status


def test_runs_of_one_name_links_and_names_that_are_no_text(tmp_path: Path) -> None:
    for name in ("a/b", "a~b", "index", "bad\udcff"):
        write_run(tmp_path / name, 1)
    write_run(tmp_path / "one~evaluation", 1)
    write_rollouts(write_run(tmp_path / "one", 1) / "evaluation", 0, records_of(1))
    (tmp_path / "a" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again").symlink_to(tmp_path / "one", target_is_directory=True)
    shelf = RunList(tmp_path)
    runs = shelf.runs()
    names = {run.name for run in runs}
    assert names == {"a~b", "a~b~2", "index", "bad\\udcff", "one", "one~evaluation"}
    (one,) = [run for run in runs if run.name == "one"]
    assert [part.name for part in shelf.parts(one)] == ["one", "one~evaluation~2"]
    assert {run.name for run in shelf.runs()} == names
    with client_of(tmp_path) as client:
        for run in runs:
            assert client.get(f"/run/{run.name}/").status_code == 200


def test_the_others_are_followed_where_one_run_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "one", 2)
    shelf = RunList(tmp_path)
    (opened,) = shelf.runs()
    rollouts_path(run, 2).write_bytes(b"no zstd")
    opened.update()
    assert not opened.trouble and opened.progress.attempts > 0

    def lost(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("flowright.viewer.index.step_files", lost)
    opened.update()
    assert "Permission denied" in opened.trouble
    monkeypatch.undo()
    opened.update()
    assert not opened.trouble


def test_what_nobody_thought_of_in_one_run_leaves_the_others_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        write_run(tmp_path / name, 1)
    whole = Watcher.look

    def look(self: Watcher) -> Snapshot:
        if self.run.name == "one":
            raise KeyError("unheard of")
        return whole(self)

    monkeypatch.setattr(Watcher, "look", look)
    with client_of(tmp_path) as client:
        page = client.get("/").text
    assert "/run/two/" in page and "unheard of" in page


def test_pages_of_runs_with_odd_names_are_exported(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for name in ("index", "bad\udcff"):
        write_run(root / name, 1)
    count = export_pages(root, tmp_path / "pages", "kind=math", 3)
    pages = {path.name for path in (tmp_path / "pages").iterdir()}
    assert len(pages) == count and {"index.html", "index-run.html", "bad\\udcff.html"} <= pages
    assert 'href="index-run.html"' in (tmp_path / "pages/index.html").read_text()
    with pytest.raises(RunError, match="no filter has this name"):
        export_pages(root, tmp_path / "other", "knd=math", 3)
    write_run(root / "index-attempts", 1)
    with pytest.raises(RunError, match="two runs have a page of this name"):
        export_pages(root, tmp_path / "third", "", 3)


# --- files that are none, and more than a file should hold ----------------------------------------

FILES = (
    *("state.json", "config.json", "metrics.jsonl", "evaluation.json", "plan.json"),
    *("calibration.json", "best.json", "lock", "viewer.sqlite", "viewer.sqlite-wal"),
    "rollouts/step_000002.jsonl.zst",
)


def shown_on_all_screens(root: Path) -> list[str]:
    """Pages, terminal and report of all runs; the messages of those that cannot be shown."""
    refused: list[str] = []
    with client_of(root) as client:
        for name in ("one", "two"):
            for page in ("", f"run/{name}/", f"run/{name}/attempts", f"run/{name}/group/1/0"):
                assert client.get(f"/{page}").status_code == 200, page
            for draw in (write_report, lambda run: screen_of(Watcher(run), {}, full=True)):
                try:
                    draw(root / name)
                except RunError as error:
                    refused += error.problems
    return refused


def test_a_pipe_in_the_place_of_a_file_holds_nothing_up(tmp_path: Path) -> None:
    write_run(tmp_path / "two", 2)
    done: list[str] = []

    def look() -> None:
        for name in FILES:
            run = write_run(tmp_path / "one", 2)
            write_json(run / "state.json", {"status": "running", "step": 1, "steps": 2})
            (run / name).unlink(missing_ok=True)
            os.mkfifo(run / name)
            refused = shown_on_all_screens(tmp_path)
            assert all("regular file" in line for line in refused), (name, refused)
            done.append(name)
            shutil.rmtree(run)

    thread = threading.Thread(target=look, daemon=True)  # an open pipe waits for ever
    thread.start()
    thread.join(60)
    assert done == list(FILES)


def test_no_link_of_a_run_leads_a_writer_out_of_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("mine")
    root = tmp_path / "runs"
    write_run(root / "two", 2)
    run = write_run(root / "one", 2)
    for name in ("report.html", "report.html.part"):
        (run / name).symlink_to(outside / "kept")
    for name in ("viewer.sqlite", "viewer.sqlite-wal", "viewer.sqlite-journal"):
        (run / name).symlink_to(outside / f"made-{name}")
        assert index_path(run).parent != run
    assert shown_on_all_screens(root) == []
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "mine"
    assert not (run / "report.html").is_symlink()


def test_what_unpacks_without_end_is_read_within_bounds(tmp_path: Path) -> None:
    write_run(tmp_path / "two", 2)
    run = write_run(tmp_path / "one", 2)
    file = rollouts_path(run, 2)
    for text in (b"[" * (3 * MOST_LINE // 2), b"\n" * (2 << 20)):
        file.write_bytes(zstandard.ZstdCompressor().compress(text))
        assert file.stat().st_size < 50_000
        lines = list(read_lines(file))
        assert len(lines) <= MOST_LINES
        assert sum(len(line.data) for line in lines) < 1.1 * MOST_LINE
        assert shown_on_all_screens(tmp_path) == []
        with pytest.raises((ValueError, zstandard.ZstdError)):
            list(read_rollouts(run, 2))


def test_a_broken_off_file_of_rollouts_is_no_shorter_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", 1)
    whole = rollouts_path(run, 1).read_bytes()
    rollouts_path(run, 1).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(zstandard.ZstdError):
        list(read_rollouts(run, 1))


def test_lists_too_deep_to_follow_are_damage(tmp_path: Path) -> None:
    write_run(tmp_path / "two", 2)
    for name in FILES[:7]:
        for depth in (DEEPEST + 1, 1_000_000):
            run = write_run(tmp_path / "one", 2)
            (run / name).write_text(f'{{"step": 1, "a": {"[" * depth}{"]" * depth}}}\n')
            refused = shown_on_all_screens(tmp_path)
            assert all(name in line for line in refused), (name, depth, refused)
            shutil.rmtree(run)
