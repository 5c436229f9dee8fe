"""Downloading, against an HTTP server on the loopback."""

import gzip
import hashlib
import io
import json
import socket
import tarfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from flowright.data.download import (
    Download,
    Downloader,
    FetchError,
    Web,
    extract,
    write_parquet_rows,
)
from flowright.data.sources.dataset import Dataset, File
from flowright.data.sources.registry import (
    AFLOW,
    DATASETS,
    DEFAULT_DATASETS,
    load_dataset,
    preference_source,
    read_preferences,
)

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Upstream:
    """A server's files and misdeeds. ``cut`` ends that many answers after so many bytes."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)
    requests: list[tuple[str, str | None]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    upstream: Upstream

    def do_HEAD(self) -> None:
        self.answer(None)

    def do_GET(self) -> None:
        upstream, wanted = self.upstream, self.headers.get("Range")
        upstream.requests.append((self.path, wanted))
        self.answer(wanted)

    def answer(self, wanted: str | None) -> None:
        content = self.upstream.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if wanted and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "c0" * 20)  # which the hub's answers have
        self.end_headers()
        if self.command == "HEAD":
            return
        end = start + self.upstream.cut.pop(0) if self.upstream.cut else len(content)
        with suppress(ConnectionError):  # the client may have heard enough
            self.wfile.write(content[start:end])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    monkeypatch.setenv("no_proxy", "*")  # the machine's proxies do not serve the loopback
    state = Upstream()
    handler = type("Handler", (Handler,), {"upstream": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = False  # server_close waits for them
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield state
    server.shutdown()
    server.server_close()
    thread.join(timeout=600)
    assert not thread.is_alive()


# One transfer.


def test_a_file_arrives(upstream: Upstream, tmp_path: Path) -> None:
    upstream.files = {"/a": CONTENT, "/hub/datasets/o/n/resolve/r/deep/a": CONTENT[::-1]}
    web, target = Web(f"{upstream.url}/hub"), tmp_path / "deep" / "a"
    web.from_address(f"{upstream.url}/a", target)
    assert target.read_bytes() == CONTENT
    web.from_hub("o/n@r/deep/a", target)
    assert target.read_bytes() == CONTENT[::-1]
    assert [path.name for path in target.parent.iterdir()] == ["a"]


def test_a_transfer_that_breaks_off_is_taken_up(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100_000)
    upstream.files["/a"] = CONTENT
    upstream.cut = [300_000]
    Web().from_address(f"{upstream.url}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert [wanted for _, wanted in upstream.requests] == [None, "bytes=300000-"]


@pytest.mark.parametrize(
    ("left", "ranges"),
    [
        (CONTENT[:1000], ["bytes=1000-"]),
        (CONTENT, [f"bytes={len(CONTENT)}-"]),
        (CONTENT + b"more", [f"bytes={len(CONTENT) + 4}-", None]),
        (b"x" * 1000, ["bytes=1000-", None]),  # of another version
    ],
)
def test_a_later_call_goes_on(upstream: Upstream, tmp_path: Path, left, ranges) -> None:
    upstream.files["/a"] = CONTENT
    (tmp_path / "a.part").write_bytes(left)
    Web().from_address(f"{upstream.url}/a", tmp_path / "a", SHA256)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert [wanted for _, wanted in upstream.requests] == ranges
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_without_a_hash_nothing_is_taken_up(upstream: Upstream, tmp_path: Path) -> None:
    upstream.files["/a"] = CONTENT
    (tmp_path / "a.part").write_bytes(CONTENT[:1000])
    Web().from_address(f"{upstream.url}/a", tmp_path / "a")
    assert upstream.requests == [("/a", None)]


def test_a_file_that_is_not_there_is_asked_for_once(upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="/a: HTTP 404 Not Found"):
        Web().from_address(f"{upstream.url}/a", tmp_path / "a")
    assert len(upstream.requests) == 1
    with pytest.raises(FetchError, match=r"/hub/datasets/o/n/resolve/r/a: HTTP 404 Not Found"):
        Web(f"{upstream.url}/hub").from_hub("o/n@r/a", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_web_page_is_not_a_file(upstream: Upstream, tmp_path: Path) -> None:
    upstream.files["/a"] = b"\n<!DOCTYPE html>quota"
    with pytest.raises(FetchError, match="sent a web page instead of the file"):
        Web().from_address(f"{upstream.url}/a", tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_host_that_is_down_is_asked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    browser = Web(f"http://127.0.0.1:{port}")
    with pytest.raises(FetchError, match=rf"127\.0\.0\.1:{port} can't be reached"):
        browser.from_hub("o/n@r/a", tmp_path / "a")
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(0.1)
        with pytest.raises(FetchError, match="can't be reached"):
            browser.from_address(f"http://127.0.0.1:{port}/b", tmp_path / "b")
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_place_that_cannot_be_written(upstream: Upstream, tmp_path: Path) -> None:
    upstream.files["/a"] = CONTENT
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FetchError, match=r"file: (File exists|Not a directory)"):
        Web().from_address(f"{upstream.url}/a", tmp_path / "file" / "a")


# All files of a dataset.


def dataset(upstream: Upstream, *files: File, archive: File | None = None) -> Dataset:
    return Dataset(name="made", kind="math", licence="MIT", files=files, archive=archive)


def run(
    upstream: Upstream | None, folder: Path, made: Dataset, from_folder: Path | None = None
) -> list[Download]:
    web = None if upstream is None else Web(f"{upstream.url}/hub")
    downloader = Downloader(folder, web=web, from_folder=from_folder)
    return list(downloader.run([made]))


def test_the_hub_first_then_the_official_address_then_the_folder(
    upstream: Upstream, tmp_path: Path
) -> None:
    files = [
        File(f"made/{name}", f"{upstream.url}/official/{name}", SHA256, hub=f"o/n@r1/data/{name}")
        for name in ("a", "b", "c", "d")
    ]
    upstream.files = {
        "/hub/datasets/o/n/resolve/r1/data/a": CONTENT,
        "/official/a": b"not asked for",
        "/official/b": CONTENT,
    }
    brought = tmp_path / "brought"
    (brought / "made").mkdir(parents=True)
    (brought / "made" / "c").write_bytes(CONTENT)
    outcomes = run(upstream, tmp_path / "raw", dataset(upstream, *files), brought)
    assert [outcome.origin for outcome in outcomes] == ["hub", "official", "folder", None]
    assert [outcome.size for outcome in outcomes] == [len(CONTENT)] * 3 + [0]
    assert len(outcomes[3].notes) == 3, "one line for each place where it is not"
    assert "HTTP 404" in outcomes[3].notes[0] and "no such file" in outcomes[3].notes[2]

    again = run(None, tmp_path / "raw", dataset(upstream, *files))
    assert [outcome.origin for outcome in again] == ["present"] * 3 + [None]


def test_a_wrong_hash_is_told_and_the_file_stays(upstream: Upstream, tmp_path: Path) -> None:
    upstream.files["/a"] = b"another version"
    found = hashlib.sha256(b"another version").hexdigest()
    [outcome] = run(
        upstream, tmp_path, dataset(upstream, File("made/a", f"{upstream.url}/a", SHA256))
    )
    assert outcome.origin == "official" and outcome.differs
    assert outcome.notes == [f"{tmp_path}/made/a: SHA-256 is {found}, known is {SHA256}"]
    assert (tmp_path / "made" / "a").read_bytes() == b"another version"


def test_parquet_of_the_hub_without_datasets_goes_to_the_official_address(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.files["/a"] = CONTENT
    file = File("made/a.jsonl", f"{upstream.url}/a", SHA256, parquet=("o/n@main/x.parquet",))
    [outcome] = run(upstream, tmp_path, dataset(upstream, file))
    assert outcome.origin == "official"
    assert any("pip install datasets" in note or "HTTP 404" in note for note in outcome.notes)


def test_parquet_rows_become_json_lines(upstream: Upstream, tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="it takes 260 MB and is not installed here")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"question": "où?", "choices": {"label": ["A"], "text": ["x"]}}, {"question": "b"}]
    for number, row in enumerate(rows):
        parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / f"{number}.parquet")
        content = (tmp_path / f"{number}.parquet").read_bytes()
        upstream.files[f"/hub/datasets/o/n/resolve/main/{number}"] = content
    target = tmp_path / "rows.jsonl"
    assert write_parquet_rows([tmp_path / "0.parquet", tmp_path / "1.parquet"], target) == 2
    assert [json.loads(line) for line in target.read_text().splitlines()] == rows

    file = File("made/a.jsonl", None, SHA256, parquet=("o/n@main/0", "o/n@main/1"))
    [outcome] = run(upstream, tmp_path, dataset(upstream, file))
    assert (outcome.origin, outcome.path) == ("hub rows", "made/a.hub.jsonl")
    assert (tmp_path / "made" / "a.hub.jsonl").read_text() == target.read_text()
    [outcome] = run(None, tmp_path, dataset(upstream, file))
    assert (outcome.origin, outcome.path) == ("present", "made/a.hub.jsonl")

    upstream.files["/hub/datasets/o/n/resolve/main/1"] = b"PAR1 no"
    file = replace(file, path="made/b.jsonl")
    [outcome] = run(upstream, tmp_path, dataset(upstream, file))
    assert outcome.origin is None and "parquet can't be read" in outcome.notes[0]


def test_preferences_of_the_hub(upstream: Upstream, tmp_path: Path) -> None:
    rows = {
        "preference/preference.jsonl.gz": {
            "prompt": "a\n<extra_id_1>Assistant\nb\n<extra_id_1>User\nc",
            "response_1": "d",
            "response_2": "e",
            "preference_strength": -2,
            "split": "val",
        },
        "train.jsonl.gz": {"prompt": "a", "response": "b", "helpfulness": 4},
        "validation.jsonl.gz": {"prompt": "c", "response": "d", "helpfulness": 0},
    }
    helpsteer2 = preference_source("helpsteer2")
    revision = "990b2711a36180dd19d9c94b8627844866f8982a"
    for name, row in rows.items():
        address = f"/hub/datasets/nvidia/HelpSteer2/resolve/{revision}/{name}"
        upstream.files[address] = gzip.compress(json.dumps(row).encode())
    downloader = Downloader(tmp_path, web=Web(f"{upstream.url}/hub"))
    outcomes = list(downloader.run([helpsteer2]))
    assert [outcome.origin for outcome in outcomes] == ["hub"] * 3
    assert all(outcome.differs for outcome in outcomes), "another version than the known one"
    found = read_preferences("helpsteer2", tmp_path)
    assert [(pair.label, pair.strength, len(pair.conversation)) for pair in found.pairs] == [
        ("first", 2.0, 3)
    ]
    assert [rated.label for rated in found.rated] == [4, 0]


def test_rewardbench2_comes_as_rows_of_the_hub(upstream: Upstream, tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="it takes 260 MB and is not installed here")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = {"id": "0", "prompt": "a", "chosen": ["b"], "rejected": ["c", "d", "e"], "subset": "Math"}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "made")
    path = "/hub/datasets/allenai/reward-bench-2/resolve/main/data/test-00000-of-00001.parquet"
    upstream.files[path] = (tmp_path / "made").read_bytes()
    downloader = Downloader(tmp_path, web=Web(f"{upstream.url}/hub"))
    [outcome] = downloader.run([preference_source("rewardbench2")])
    assert (outcome.origin, outcome.path) == ("hub rows", "rewardbench2/test.hub.jsonl")
    assert json.loads((tmp_path / outcome.path).read_text()) == row


def packed(names: list[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(CONTENT)
            tar.addfile(member, io.BytesIO(CONTENT))
    return buffer.getvalue()


def test_an_archive_is_unpacked(upstream: Upstream, tmp_path: Path) -> None:
    upstream.files["/data.tar.gz"] = packed(["data/a.jsonl", "../../b.jsonl", "data/other"])
    archive = File("made/data.tar.gz", f"{upstream.url}/data.tar.gz")
    files = [File(f"made/{name}.jsonl", sha256=SHA256) for name in "abc"]
    made = dataset(upstream, *files, archive=archive)
    outcomes = run(upstream, tmp_path / "raw", made)
    assert [outcome.origin for outcome in outcomes] == ["official", "present", "present", None]
    assert not outcomes[0].required and not outcomes[1].differs
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {"data.tar.gz", "a.jsonl", "b.jsonl"}
    assert (tmp_path / "raw" / "made" / "b.jsonl").read_bytes() == CONTENT


def test_a_damaged_archive_is_named(upstream: Upstream, tmp_path: Path) -> None:
    upstream.files["/data.tar.gz"] = packed(["a.jsonl"])[:-2000]
    archive = File("made/data.tar.gz", f"{upstream.url}/data.tar.gz")
    made = dataset(upstream, File("made/a.jsonl"), archive=archive)
    outcomes = run(upstream, tmp_path, made)
    assert "cannot be unpacked" in outcomes[0].notes[0]
    assert outcomes[1].origin is None
    with pytest.raises((OSError, EOFError, tarfile.TarError)):
        extract(tmp_path / "made" / "data.tar.gz", [tmp_path / "made" / "a.jsonl"])


def test_every_file_of_the_registry_has_an_address_and_a_hash() -> None:
    for made in map(load_dataset, DATASETS):
        for file in made.files:
            assert file.path.startswith(f"{made.name.removesuffix('_sanitized')}/")
            assert (file.url or file.hub or file.parquet) and (file.url or "http")[:4] == "http"
            is_known = made.name in DEFAULT_DATASETS or file.sha256 is not None
            assert not is_known or len(file.sha256 or "") == 64
            for address in (*file.parquet, *([file.hub] if file.hub else [])):
                repository, _, rest = address.partition("@")
                assert repository.count("/") == 1 and "/" in rest
    assert AFLOW.archive is not None and AFLOW.archive.url is not None
    assert len(AFLOW.files) == 12
