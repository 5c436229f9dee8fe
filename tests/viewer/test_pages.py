"""The viewer's pages by HTTP: every one of them there, deaf to what it quotes, and read-only."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import httpx2
import pyarrow.parquet
import pytest
from html_page import Document
from starlette.testclient import TestClient
from viewer_run import GROUPS, HOSTILE, hostile, records_of, write_run

from flowright.core.errors import RunError
from flowright.core.files import write_json
from flowright.runs.run_files import read_rollouts, write_rollouts
from flowright.viewer.layout import policy
from flowright.viewer.run_list import RunList, find_root
from flowright.viewer.runs_page import pair_problems
from flowright.viewer.search import Solved
from flowright.viewer.server import create_app, export_pages

OURS = {"html", "head", "body", "title", "style", "script", "meta", "main", "dialog", "button"}
RUN = "/run/one"
INSPECT_PYTHON = os.environ.get("FLOWRIGHT_INSPECT_PYTHON", "")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> RunList:
    """Two runs, of which one kept attempts at held-out problems, and one whose every text is
    hostile, names of tasks and settings among them."""
    root = tmp_path_factory.mktemp("runs")
    one = write_run(root / "one")
    for step in (0, 3):
        write_rollouts(one / "evaluation", step, [r | {"step": step} for r in records_of(1)])
    write_run(root / "two", seed=1)
    bad = write_run(root / "bad", 1)
    write_rollouts(bad, 1, [hostile(r, HOSTILE) | {"step": 1} for r in records_of(1)])
    write_json(bad / "config.json", {"strategy_model": HOSTILE, HOSTILE: {"key": HOSTILE}})
    state = json.loads((bad / "state.json").read_text())
    write_json(bad / "state.json", hostile(state, HOSTILE) | {"warnings": [HOSTILE]})
    shelf = RunList(root)
    for run in shelf.runs():
        for one in shelf.parts(run):
            one.update()
    return shelf


@pytest.fixture(scope="module")
def client(shelf: RunList) -> Iterator[httpx2.Client]:
    with TestClient(create_app(shelf), "http://localhost", raise_server_exceptions=True) as client:
        yield client


def addresses(run: str) -> list[str]:
    return [
        f"/run/{run}/",
        f"/run/{run}/attempts",
        f"/run/{run}/attempts?q=note1&sort=reward&dir=asc",
        *(f"/run/{run}/attempt/1/{group}/{index}" for group in range(GROUPS) for index in (0, 1)),
        f"/run/{run}/group/1/0",
        f"/compare?run={run}&run=one",
    ]


def check(page: str) -> Document:
    """Of every page: our own script and style alone, nothing to load, nothing to run."""
    document = Document(page)
    tags = [tag for tag, _ in document.tags]
    assert tags.count("script") == tags.count("style") == 1
    assert not {"img", "iframe", "object", "embed", "link", "base"} & set(tags)
    for tag, attributes in document.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("href", "src", "action"):
            address = attributes.get(name) or ""
            assert not re.match(r"\s*(?:\w+:|//)", address), (tag, address)
    assert "unsafe" not in policy() and "http" not in policy()
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u2066\u2028]", page)
    return document


@pytest.mark.parametrize("run", ["one", "bad"])
def test_every_page_is_there_and_only_quotes(client: httpx2.Client, run: str) -> None:
    plain = Document(client.get("/run/one/attempts").text).scripts
    for address in ["/", "/?against=bad", *addresses(run)]:
        answer = client.get(address)
        assert answer.status_code == 200, address
        assert answer.headers["content-security-policy"] == policy()
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert check(answer.text).scripts == plain, address


def test_all_links_of_a_run_lead_somewhere(client: httpx2.Client) -> None:
    seen, left = set[str](), ["/", "/run/bad/attempts"]
    while left and len(seen) < 70:
        address = left.pop()
        if address in seen or address.startswith("#"):
            continue
        seen.add(address)
        answer = client.get(address)
        assert answer.status_code == 200, address
        if "text/html" in answer.headers["content-type"]:
            links = [attrs.get("href") or "" for _, attrs in Document(answer.text).tags]
            left += [link for link in links if link.startswith("/") and link not in seen]
    assert len(seen) == 70
    kinds = {word for address in seen for word in re.split(r"[/?]", address)[3:4]}
    assert {"attempt", "group", "problem", "attempts"} <= kinds


def test_tables_and_forms_tell_what_they_are(client: httpx2.Client) -> None:
    tags = Document(client.get(f"{RUN}/attempts").text).tags
    names = [tag for tag, _ in tags]
    assert names.count("caption") == names.count("table")
    assert all("scope" in attrs for tag, attrs in tags if tag == "th")
    labels = names.count("label")
    fields = [attrs for tag, attrs in tags if tag in ("input", "select")]
    assert labels == len([attrs for attrs in fields if attrs.get("type") != "hidden"])


def test_the_list_shows_what_was_chosen_and_says_what_it_cannot_read(client: httpx2.Client) -> None:
    page = client.get(f"{RUN}/attempts?outcome=unscored&reward=much&sort=colour").text
    assert "reward: &#x27;much&#x27; is no range" in page and "sort: one of step" in page
    assert page.count(">unscored<") + page.count(">judge_failed<") >= 1
    assert 'value="unscored" selected' in page
    page = client.get(f"{RUN}/attempts?q=---").text
    assert "nothing in it can be searched for" in page


def test_an_attempt_shows_all_of_its_record(client: httpx2.Client, shelf: RunList) -> None:
    run = shelf.run("one")
    assert run is not None
    record = next(
        r for r in read_rollouts(run.path, 1) if r["execution"] and r["verdict"]["correct"]
    )
    place = f"{record['step']}/{record['group']}/{record['index']}"
    page = client.get(f"{RUN}/attempt/{place}").text
    for text in ("sells 48 rolls", "is compared with", "math_verify", "correctness", 'rel="next"'):
        assert text in page
    assert page.count('class="call"') >= 3
    assert "<svg" in page and "call-1" in page


def test_the_line_that_failed_is_marked(client: httpx2.Client, shelf: RunList) -> None:
    run = shelf.run("one")
    assert run is not None
    records = [r for step in (1, 2, 3) for r in read_rollouts(run.path, step)]
    broken = hostile(next(r for r in records if r["workflow"]), "")
    broken["failure"] = {"reason": "crashed", "blame": "policy", "message": "oh", "line": 2}
    write_rollouts(run.path, 4, [broken | {"step": 4, "group": 0, "index": 0}])
    run.update()
    page = client.get(f"{RUN}/attempt/4/0/0").text
    assert page.count('class="bad"') == 1 and "crashed (the policy" in page
    (run.path / "rollouts" / "step_000004.jsonl.zst").unlink()
    assert client.get(f"{RUN}/attempt/4/0/0").status_code == 404
    run.update()


def test_two_runs_are_compared_problem_by_problem(client: httpx2.Client) -> None:
    page = client.get("/compare?run=one&run=two").text
    assert "3 problems were tried by both" in page and "randomization test" in page
    assert "settings differ" in page and "Simulated numbers" in page
    page = client.get("/compare?run=one&steps1=1&steps2=x..").text
    assert "is no range" in page
    assert client.get("/compare?run=one&run=none").status_code == 404


def test_where_gold_knows_of_some_problems_only_these_are_compared_by_it() -> None:
    tried = Solved(known=2, right=1, scored=2, reward=1.0)
    failed = Solved(failed=2, scored=2, reward=-2.0)
    open_ended = Solved(scored=2, reward=1.5)
    first = {"a": tried, "b": failed, "c": open_ended, "d": tried, "alone": tried}
    second = {"a": failed, "b": failed, "c": failed, "d": tried}
    pairs, measured, left_out = pair_problems(first, second)
    assert pairs == [("a", 0.5, 0.0), ("d", 0.5, 0.5)]
    assert (measured, left_out) == ("share right by gold", 2)
    found = pair_problems({"b": failed, "c": open_ended}, {"b": failed, "c": failed})
    assert found == ([("b", -1.0, -1.0), ("c", 0.75, -1.0)], "mean reward", 0)
    assert pair_problems({"a": tried}, {"b": tried}) == ([], "mean reward", 0)


@pytest.mark.parametrize(
    "address",
    [
        "/run/none/",
        "/run/..%2f..%2fetc/attempts",
        "/run/one/attempt/1/0/99",
        "/run/one/attempt/99999999999999999999/0/0",
        "/run/one/group/77/0",
        "/run/one/problem?task=none",
        "/run/one/export.exe",
        "/nothing",
    ],
)
def test_what_is_not_there_is_a_page_that_says_so(client: httpx2.Client, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 404
    if "html" in answer.headers["content-type"]:
        check(answer.text)


def test_it_answers_to_its_own_names_and_changes_nothing(
    client: httpx2.Client, shelf: RunList
) -> None:
    files = {p: p.stat().st_mtime_ns for p in shelf.root.rglob("*") if p.is_file()}
    for host, status in (("evil.example", 400), ("[::1]:8765", 200), ("127.0.0.1:1", 200)):
        assert client.get("/", headers={"host": host}).status_code == status
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, f"{RUN}/attempts").status_code == 405
    client.get("/")
    kept = {path: path.stat().st_mtime_ns for path in files}
    assert {p for p in kept if kept[p] != files[p] and "viewer.sqlite" not in p.name} == set()


def test_a_selection_is_exported_whole(client: httpx2.Client, shelf: RunList) -> None:
    run = shelf.run("one")
    assert run is not None
    all_records = [r for step in (1, 2, 3) for r in read_rollouts(run.path, step)]
    wanted = [r for r in all_records if r["reward"]["value"] is None]
    got = client.get(f"{RUN}/export.jsonl?outcome=unscored&sort=reward")
    assert [json.loads(line) for line in got.text.splitlines()] == wanted
    table = pyarrow.parquet.read_table(BytesIO(client.get(f"{RUN}/export.parquet").content))
    assert table.num_rows == len(all_records)
    assert table.column("reward").to_pylist() == [r["reward"]["value"] for r in all_records]
    assert [json.loads(r) for r in table.column("record").to_pylist()] == all_records
    log = client.get(f"{RUN}/export.inspect.json").json()
    assert log["version"] == 2 and len(log["samples"]) == len(all_records)
    scored = [sample for sample in log["samples"] if "reward" in sample["scores"]]
    assert len(scored) == len(all_records) - len(wanted)  # unscored: no score, not 0
    hostile_log = client.get("/run/bad/export.inspect.json")
    assert hostile_log.json()["samples"]
    assert client.get("/run/bad/export.parquet").status_code == 200


@pytest.mark.skipif(not INSPECT_PYTHON, reason="FLOWRIGHT_INSPECT_PYTHON names none")
def test_inspect_reads_its_log(client: httpx2.Client, tmp_path: Path) -> None:
    """The real package, in an environment of its own."""
    code = (
        "import sys; from inspect_ai.log import read_eval_log; log = read_eval_log(sys.argv[1]); "
        "print(log.status, len(log.samples), *(score.name for score in log.results.scores))"
    )
    for run, count in (("one", 36), ("bad", 12)):
        file = tmp_path / f"{run}.json"
        file.write_bytes(client.get(f"/run/{run}/export.inspect.json").content)
        done = subprocess.run([INSPECT_PYTHON, "-c", code, file], capture_output=True, text=True)
        assert done.stdout.split() == ["success", str(count), "reward", "judge", "gold"], (
            done.stderr
        )


def test_attempts_at_held_out_problems_are_looked_at_as_a_run_is(
    client: httpx2.Client, shelf: RunList
) -> None:
    assert "one~evaluation" not in [run.name for run in shelf.runs()]
    for address in addresses("one~evaluation"):
        check(client.get(address).text)
    page = client.get("/run/one/").text
    assert 'href="/run/one~evaluation/attempts"' in page and "one~validation" not in page
    assert client.get("/run/one~validation/attempts").status_code == 404
    lines = client.get("/run/one~evaluation/export.jsonl?step=3").text.splitlines()
    run = shelf.run("one~evaluation")
    assert run and run.path.name == "one"
    assert [json.loads(line) for line in lines] == list(read_rollouts(run.folder, 3))
    attempt = client.get("/run/one~evaluation/attempt/3/0/0").text
    assert "replay.py" in attempt and "evaluation/3/0/0" in attempt
    compared = client.get("/compare?run=one~evaluation").text
    assert "one~evaluation, steps 0..0" in compared and "one~evaluation, steps 3..3" in compared
    assert "The second less the first: +0.000" in compared, "the same attempts twice"


def test_a_run_that_has_just_begun_and_an_evaluation_on_its_own_are_listed(tmp_path: Path) -> None:
    """Neither has steps."""
    for name in ("begun", "measured"):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "config.json", {})
    write_json(tmp_path / "measured/evaluation.json", {"rows": []})
    write_rollouts(tmp_path / "measured/evaluation", 0, records_of(1))
    shelf = RunList(tmp_path)
    with TestClient(create_app(shelf), "http://localhost") as client:
        page = client.get("/").text
        check(page)
        rows = page.split("<tr")
        for name, status in (("begun", "starting"), ("measured", "finished")):
            assert any(f"/run/{name}/" in row and f">{status}<" in row for row in rows), page
        for name in ("begun", "measured"):
            assert "Curves" not in check(client.get(f"/run/{name}/").text).text
        check(client.get("/run/measured~evaluation/attempts").text)


def test_pages_without_a_server(tmp_path: Path, shelf: RunList) -> None:
    folder = tmp_path / "pages"
    count = export_pages(shelf.root, folder, "outcome=wrong&sort=reward", 3)
    files = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert len(files) == count
    assert {"index.html", "one.html", "one-attempts.html", "two.html"} <= files.keys()
    assert "one~evaluation-attempts.html" in files and "one~evaluation.html" not in files
    for name, page in files.items():
        for tag, attributes in check(page).tags:
            to = attributes.get("href") or ""
            if tag == "a" and not to.startswith("#"):
                assert to in files, (name, to)
    with pytest.raises(RunError, match="not empty"):
        export_pages(shelf.root, folder, "", 3)
    with pytest.raises(RunError, match="is no range"):
        export_pages(shelf.root, tmp_path / "more", "reward=x", 3)


def test_the_folder_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "outputs" / "mine").mkdir(parents=True)
    assert find_root("mine", tmp_path / "outputs") == tmp_path / "outputs" / "mine"
    assert find_root(None, tmp_path / "outputs") == tmp_path / "outputs"
    for name, folder in (("other", "outputs"), (None, "none")):
        with pytest.raises(RunError):
            find_root(name, tmp_path / folder)
