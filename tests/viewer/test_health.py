"""How busy servers are, by what they say of themselves."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from flowright.viewer.monitoring.screen import Screen
from flowright.viewer.monitoring.server_health import Health, Watch, ask, read_metrics_page
from flowright.viewer.monitoring.snapshot import Snapshot
from flowright.viewer.rendering.terminal import UNICODE

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="qwen"} 12.0
vllm:num_requests_running{engine="1",model_name="qwen"} 3.0
vllm:num_requests_waiting{engine="0",model_name="qwen"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="qwen"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="qwen"} 7.5e-01
"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 404)
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


def test_engines_are_summed_and_the_fullest_cache_counts() -> None:
    assert read_metrics_page(PAGE) == Health(15, 4, 0.75)
    older = read_metrics_page('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n')
    assert older == Health(cache=0.5)
    assert read_metrics_page("python_info 1\n").trouble == "no vLLM metrics there"
    assert read_metrics_page("vllm:num_requests_running 1.2.3\n").trouble


def test_a_server_is_asked_and_one_that_is_gone_is_said(url: str) -> None:
    assert ask(url) == Health(15, 4, 0.75)
    gone = ask("http://127.0.0.1:1")
    assert gone.running is None and "refused" in gone.trouble
    assert ask("nonsense").trouble
    health = Watch([url, "http://127.0.0.1:1"]).look()
    screen = Screen(Snapshot(Path("run"), {"step": 1, "steps": 2}, ({"step": 1},)), health=health)
    lines = [line.plain for line in screen.lines(200, None, UNICODE)]
    assert any("15 running, 4 waiting, KV cache 75.0 %" in line for line in lines)
    assert any("127.0.0.1:1" in line and "refused" in line for line in lines)
