"""Uploading an exported folder, up to what a stand-in for the hub is asked."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flowright.core.errors import RunError, UserError
from flowright.policy.export.folder import hub_token, push


class _Hub(BaseHTTPRequestHandler):
    asked: list[tuple[str, str, bytes]]
    keys: set[str | None]
    refuses = False

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        self.asked.append((self.command, path, body))
        self.keys.add(self.headers.get("Authorization"))
        url = f"http://{self.headers['Host']}"
        value: dict[str, Any] = {"url": f"{url}/me/judge", "name": "me/judge", "sha": "0" * 40}
        if path.endswith("/preupload/main"):
            files = [{"path": file["path"]} for file in json.loads(body)["files"]]
            kept = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            value = {"files": [file | kept for file in files]}
        if path.endswith("/commit/main"):
            value = {"commitUrl": f"{url}/me/judge/commit/0", "commitOid": "0" * 40}
        data = json.dumps(value).encode()
        self.send_response(403 if self.refuses else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def hub(refuses: bool = False) -> Iterator[tuple[str, Any]]:
    handler: Any = type("Hub", (_Hub,), {"asked": [], "keys": set(), "refuses": refuses})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "README.md").write_text("# judge\n")
    return path


def test_a_folder_becomes_a_private_repository(tmp_path: Path) -> None:
    with hub() as (endpoint, stand_in):
        address = push(folder(tmp_path / "out"), "me/judge", "hf_key", endpoint)
    assert address == f"{endpoint}/me/judge"
    assert stand_in.keys == {"Bearer hf_key"}
    asked = {path: body for _, path, body in stand_in.asked}
    made = json.loads(asked["/api/repos/create"])
    assert made["name"] == "judge" and made["organization"] == "me"
    assert made.get("private") is True or made.get("visibility") == "private"
    lines = [json.loads(line) for line in asked["/api/models/me/judge/commit/main"].splitlines()]
    files = {
        line["value"]["path"]: base64.b64decode(line["value"]["content"])
        for line in lines
        if line["key"] == "file"
    }
    assert files == {"config.json": b"{}", "README.md": b"# judge\n"}


def test_a_refusal_keeps_the_folder_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = folder(tmp_path / "out")
    with (
        hub(refuses=True) as (endpoint, _),
        pytest.raises(RunError, match=r"--push-to-hub me/judge: .*403.*hf upload me/judge"),
    ):
        push(out, "me/judge", "hf_key", endpoint)
    with pytest.raises(RunError, match="--push-to-hub a/b/c: "):
        push(out, "a/b/c", "hf_key", "http://127.0.0.1:1")
    assert (out / "config.json").is_file()


def test_the_key_comes_from_the_environment_alone() -> None:
    assert hub_token({"HF_TOKEN": " hf_key\n"}) == "hf_key"
    for given in ({}, {"HF_TOKEN": " "}):
        with pytest.raises(UserError, match="HF_TOKEN is not set"):
            hub_token(given)
