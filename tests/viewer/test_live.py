"""The terminal view: at every size, through a pipe, in a real terminal, with and without a run."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import product
from pathlib import Path

import pytest
from command_lines import command
from monitoring_run import make_run
from rich.cells import cell_len
from rich.console import Console

from flowright.core.errors import RunError
from flowright.core.formatting import duration
from flowright.viewer.live import (
    Health,
    Watch,
    ask,
    find_run,
    load_of,
    read_keys,
    read_metrics_page,
)
from flowright.viewer.rendering.terminal import ASCII, UNICODE, sparkline
from flowright.viewer.screen import Screen, View
from flowright.viewer.snapshot import Snapshot, load_rollouts, take_snapshot

monitor = command("monitor")
ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "\x1b[31m\x1b]0;owned\x07\x9b2J\u202e[bold]x[/bold]" + "漢" * 60


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "a-run"
    warnings = ["WEAKER ISOLATION than required: processes alone"]
    return make_run(path, steps=12, gpu=True, hostile=HOSTILE, warnings=warnings)


def drawn(run: Path, width: int, height: int | None = None, encoding: str = "utf-8") -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="\n")
    console = Console(file=out, width=width, height=height or 100, highlight=False)
    rollouts = load_rollouts(run, 12)
    console.print(Screen(take_snapshot(run), rollouts, full=height is None))
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    return out.buffer.getvalue().decode(encoding)


def test_the_screen_fits_and_shows_what_matters(run: Path) -> None:
    for width, height in product((20, 40, 80, 99, 100, 140, 300), (8, 24, 60)):
        lines = drawn(run, width, height).splitlines()
        text = " ".join(line.strip() for line in lines)
        assert max(map(cell_len, lines)) <= width, (width, height)
        assert "SIMULATED" in text and "WEAKER ISOLATION" in text, (width, height)
        if height >= 24 and width >= 40:
            assert len(lines) <= height, (width, height)
            assert "reward" in text, (width, height)


def test_the_full_screen_shows_all_that_a_watcher_asks_for(run: Path) -> None:
    text = drawn(run, 80)
    for label in (
        *("a-run", "finished", "step 12/12", "reward", "gold", "math", "held out", "valid"),
        *("unscored", "agreement", "drift", "false +", "KL", "entropy", "policy's", "ours", "type"),
        *("sample", "rollout", "update", "whole step", "GPU memory", "Sample workflow", "await "),
    ):
        assert label in text, label


def test_a_hostile_text_commands_nothing(run: Path) -> None:
    for width in (40, 140):
        text = drawn(run, width)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "␛" in drawn(run, 300)
    assert "[bold]x[/bold]" in drawn(run, 300)


def test_a_terminal_without_unicode_gets_plain_characters(tmp_path: Path) -> None:
    text = drawn(make_run(tmp_path / "run", steps=12), 100, encoding="ascii")
    assert "SIMULATED" in text
    assert "====" in text


def test_drift_and_faults_of_ours_stand_out(tmp_path: Path) -> None:
    text = drawn(make_run(tmp_path / "run", steps=15, drifting=True), 120)
    assert re.search(r"JUDGE DRIFTS from gold by \+\d+\.\d points", text)
    assert re.search(r"drift +\+\d+\.\d points !", text)
    assert "JUDGE DRIFTS" not in drawn(make_run(tmp_path / "calm", steps=15), 120)


def test_a_dead_run_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", steps=3, status="running", stage="update")
    text = " ".join(drawn(path, 60).split())
    assert "DIED in stage update" in text
    assert f"train.py --config {path}/config.json --resume" in drawn(path, 300)
    paused = make_run(tmp_path / "p", steps=3, status="paused", message="41 % were unscored")
    text = " ".join(drawn(paused, 60).split())
    assert "41 % were unscored" in text
    assert "--resume" in text


def test_a_silent_trainer_on_another_host_is_remarked_on() -> None:
    state = {"status": "running", "host": "gpu-7", "step": 1, "steps": 9}
    quiet = Snapshot(Path("run"), state, (), quiet_seconds=4000.0)
    lines = Screen(quiet).lines(80, None, UNICODE)
    assert any("no news from gpu-7 for 1 h 7 min" in line.plain for line in lines)


def test_a_run_without_a_step_is_a_screen_too() -> None:
    lines = Screen(Snapshot(Path("run"))).lines(40, 10, UNICODE)
    assert [line.plain for line in lines if line.plain] == [
        "run  starting",
        "no state yet",
        "Learning",
        "no step finished yet",
    ]


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 2, 10, 12], 2) == "▁█"
    assert sparkline([5.0, 5.0, 5.0 + 1e-15], 9) == "▁▁▁"
    assert sparkline([0, 1], 9, ASCII) == "_#"
    assert sparkline([], 9) == ""


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.04, "0.0 s"),
        (9.96, "10 s"),
        (89, "89 s"),
        (89.6, "1 min"),
        (3599, "1 h 0 min"),
        (12000, "3 h 20 min"),
        (187200, "2 d 4 h"),
    ],
)
def test_durations(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_the_newest_run_is_found_by_directory_and_by_name(tmp_path: Path) -> None:
    older = make_run(tmp_path / "older", steps=1)
    newer = make_run(tmp_path / "newer", steps=1)
    os.utime(older / "state.json", (1, 1))
    assert find_run(None, tmp_path) == newer
    assert find_run("older", tmp_path) == older
    assert find_run(str(older), tmp_path / "elsewhere") == older
    with pytest.raises(RunError, match="oldest: no run of this name"):
        find_run("oldest", tmp_path)


def test_printing_once_without_a_run_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert monitor(["--once", "--output-dir", str(tmp_path)]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert f"{tmp_path}: no run here yet; start one with " in out.err and "train.py" in out.err


def test_a_damaged_metrics_file_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = make_run(tmp_path / "run", steps=2)
    (broken / "metrics.jsonl").write_text('{"step": 0}\nnot json\n{}\n')
    assert monitor([str(broken), "--once"]) == 2
    assert (
        "metrics.jsonl:2: no JSON object with a step; take the line out" in capsys.readouterr().err
    )


def test_the_shell_command_prints_plain_text_into_a_pipe(run: Path) -> None:
    command = ["bash", str(ROOT / "monitor.sh"), str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    assert done.stdout.startswith("a-run  finished\nstep 12/12\n")
    cut_short = subprocess.run(
        ["bash", "-c", f"{' '.join(command)} | head -n 1"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert cut_short.stderr == ""


def test_a_program_reads_what_a_watcher_sees(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert monitor([str(run), "--once", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["step"], told["steps"]) == ("finished", 12, 12)
    assert told["simulated"] is True and told["run"] == str(run)
    assert any("SIMULATED" in notice for notice in told["notices"])
    assert told["metrics"]["step"] == 12 and "reward/mean" in told["metrics"]
    assert told["failures"]["crashed"] > 0


def test_failures_are_in_sight_in_a_small_terminal(run: Path) -> None:
    lines = drawn(run, 80, 24).splitlines()
    assert len(lines) <= 24
    assert any(line.startswith("failed") and "crashed" in line for line in lines)
    assert "(ours)" in drawn(make_run(run.parent / "plain", steps=12), 80, 24)


def test_a_view_moves_within_what_there_is() -> None:
    lines = [str(number) for number in range(10)]

    def shown(*pressed: str) -> list[str]:
        view = View()
        for key in pressed:
            view = view.after(key, 4, len(lines))
        return lines[view.top or 0 :][:4]

    assert shown("j") == ["1", "2", "3", "4"]
    assert shown("G") == shown(" ", " ", " ", " ") == ["6", "7", "8", "9"]
    assert shown("G", "k") == shown("G", "j", "k") == ["5", "6", "7", "8"]
    assert shown("G", "g") == shown("k") == ["0", "1", "2", "3"]
    assert View(3).after("f", 4, 10) == View() and View().after("x", 4, 10) == View()
    assert View().after("?", 4, 10).help and View().after("q", 4, 10).over


def test_keys_are_read_by_what_they_do() -> None:
    assert read_keys(b"\x1b[Bj\x1b[5~\xff\x1bOAq") == ["j", "j", "b", "k", "q"]


class Terminal:
    """``monitor_training_live.py`` in a real terminal of 80 by 24."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
        script = str(ROOT / "monitor_training_live.py")
        self.process = subprocess.Popen(
            [sys.executable, script, "--interval", "0.05", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str, seconds: float = 600) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} not in {self.seen[-2000:]!r}"
            self.read(0.1)

    def read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return False
        try:
            self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
        except OSError:  # the other side has closed
            return False
        return True

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        deadline = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"signal {number} did not end it"
            self.read(0.05)
        while self.read(0):
            pass
        return self.process.returncode


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        if terminal.process.poll() is None:
            terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_waits_for_a_run_follows_it_and_ends_cleanly(
    tmp_path: Path, terminals: list[Terminal], number: int
) -> None:
    terminal = Terminal("--output-dir", str(tmp_path))
    terminals.append(terminal)
    terminal.wait_for("Start one with")  # an earlier line may be cut in two by the path in it
    make_run(tmp_path / "first", steps=2)
    terminal.wait_for("first")
    make_run(tmp_path / "second", steps=3)
    terminal.wait_for("second")
    assert terminal.end(number) == 0
    before, left, after = terminal.seen.rpartition("\x1b[?1049l")  # the alternate screen
    assert left
    assert "\x1b[?1049h" in before
    assert "second" in after  # the last screen stays in the scrollback
    assert "Traceback" not in terminal.seen


def test_keys_scroll_switch_and_end(tmp_path: Path, terminals: list[Terminal]) -> None:
    make_run(tmp_path / "first", steps=12)
    make_run(tmp_path / "second", steps=12)
    os.utime(tmp_path / "first/state.json", (1, 1))
    terminal = Terminal("--output-dir", str(tmp_path))
    terminals.append(terminal)
    terminal.wait_for("second")
    terminal.press("G")
    terminal.wait_for("f: what fits")
    terminal.wait_for("Sample workflow")
    terminal.press("?")
    terminal.wait_for("the run goes on")
    terminal.press("?n")
    terminal.wait_for("first")
    terminal.press("q")
    deadline = time.monotonic() + 60
    while terminal.process.poll() is None:
        assert time.monotonic() < deadline
        terminal.read(0.05)
    while terminal.read(0):
        pass
    assert terminal.process.returncode == 0
    assert "first" in terminal.seen.rpartition("\x1b[?1049l")[2]


# --- the load of servers --------------------------------------------------------------------------


METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="qwen"} 12.0
vllm:num_requests_running{engine="1",model_name="qwen"} 3.0
vllm:num_requests_waiting{engine="0",model_name="qwen"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="qwen"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="qwen"} 7.5e-01
"""


class MetricsPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 404)
        self.end_headers()
        self.wfile.write(METRICS.encode())

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), MetricsPage)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


def test_engines_are_summed_and_the_fullest_cache_counts() -> None:
    assert read_metrics_page(METRICS) == Health(15, 4, 0.75)
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
    loads = [load_of(*each) for each in health.items()]
    screen = Screen(Snapshot(Path("run"), {"step": 1, "steps": 2}, ({"step": 1},)), loads=loads)
    lines = [line.plain for line in screen.lines(200, None, UNICODE)]
    assert any("15 running, 4 waiting, KV cache 75.0 %" in line for line in lines)
    assert any("127.0.0.1:1" in line and "refused" in line for line in lines)
