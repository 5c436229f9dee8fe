"""A file of answers judged by the command: columns, formats, resuming, failures, exit statuses."""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_lines import command
from judge_serving import served_beside

from flowright.config.judge import JudgeServerSection
from flowright.judging.service.app import create_app
from flowright.judging.verdict import JudgeQuery, Status, Verdict

SCRIPT = Path(__file__).parents[2] / "scripts/judge_file.py"


status_of = command("judge score")


@dataclass
class Double:
    """Right is what repeats the reference; an answer that is a status has that failure; with
    ``most`` it hangs after so many verdicts."""

    name: str = "double"
    most: int | None = None
    healed: bool = False
    asked: list[JudgeQuery] = field(default_factory=list)

    async def judge(self, query: JudgeQuery) -> Verdict:
        if self.most is not None and len(self.asked) >= self.most:
            await asyncio.sleep(3600)
        self.asked.append(query)
        failures: dict[str, Status] = {"slow": "timeout", "down": "unavailable"}
        status = failures.get(query.answer, "ok")
        if status != "ok" and not self.healed:
            return Verdict(None, None, "llm", status, "none", judge=self.name)
        correct = query.reference in query.answer
        return Verdict(float(correct), correct, "llm", "ok", "said so", judge=self.name)


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def url_of(double: Double) -> Any:
    return served_beside(create_app(double, JudgeServerSection()))


def answers(*completions: str) -> list[dict[str, Any]]:
    return [{"id": n, "question": "6*7?", "response": c, "solution": "42"}
            for n, c in enumerate(completions)]  # fmt: skip


def test_every_column_is_kept_and_what_has_no_verdict_has_no_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*answers("It is 42.", "41", "slow", "42 \ud800é"), {"question": "?", "x": [1, None]}]
    source, out = write(tmp_path / "a.jsonl", rows), tmp_path / "b.jsonl"
    with url_of(Double()) as url:
        status = status_of(["--in", str(source), "--out", str(out), "--url", url])
    judged = read(out)
    assert [{k: v for k, v in row.items() if k in rows[0] or k == "x"} for row in judged] == rows
    assert [row["score"] for row in judged] == [1.0, 0.0, None, 1.0, None]
    assert [row["correct"] for row in judged] == [True, False, None, True, None]
    assert [row["status"] for row in judged] == ["ok", "ok", "timeout", "ok", "invalid"]
    assert judged[4]["source"] is None and "no response" in judged[4]["explanation"]
    told = capsys.readouterr().out
    assert "5 rows: right 2 (40.0%), wrong 1 (20.0%), unscored 2 (40.0%)" in told
    assert "invalid 1, timeout 1" in told
    assert status == 1


def test_given_again_it_judges_what_is_new_and_with_retry_what_failed(tmp_path: Path) -> None:
    rows = answers("42", "slow", "41")
    source, out = write(tmp_path / "a.jsonl", rows), tmp_path / "b.jsonl"
    with url_of(double := Double()) as url:
        call = ["--in", str(source), "--out", str(out), "--url", url]
        assert status_of(call) == 1
        assert status_of(call) == 1 and len(double.asked) == 3, "nothing is judged twice"
        rows[2]["response"] = "It is 42."
        write(source, [*rows, rows[0]])
        assert status_of(call) == 1 and len(double.asked) == 5, "one changed, one new"
        double.healed = True
        assert status_of([*call, "--retry-failed"]) == 0 and len(double.asked) == 6
        assert [row["score"] for row in read(out)] == [1.0, 0.0, 1.0, 1.0]
        assert status_of([*call, "--completion", "question"]) == 2, "another question"


def test_a_killed_command_goes_on_even_from_the_middle_of_a_line(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", answers(*["42"] * 10))
    out, progress = tmp_path / "b.jsonl", tmp_path / "b.jsonl.progress"
    with url_of(double := Double(most=4)) as url:
        call = ["--in", str(source), "--out", str(out), "--url", url, "--concurrency", "1"]
        child = subprocess.Popen([sys.executable, str(SCRIPT), *call], stderr=subprocess.DEVNULL)
        try:
            while not progress.exists() or progress.read_bytes().count(b"\n") < 5:
                assert child.poll() is None
                time.sleep(0.01)
        finally:
            child.kill()
            child.wait()
        assert not out.exists(), "half an output never passes for a whole one"
        with progress.open("ab") as lines:
            lines.write(b'not json\n{"row": 7, "hash": "0')
        double.most = None
        assert status_of(call) == 0
        assert len(double.asked) == 10, "four before, six after, none twice"
    assert [row["id"] for row in read(out)] == list(range(10))
    numbers = Counter(row["row"] for row in read_lines(progress) if "row" in row)
    assert numbers == Counter(range(1, 11))


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def test_two_processes_do_not_judge_into_one_file(tmp_path: Path) -> None:
    source, out = write(tmp_path / "a.jsonl", answers("42")), tmp_path / "b.jsonl"
    hold = (
        "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); "
        "print(flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, f"{out}.progress"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder, url_of(Double()) as url:
        assert holder.stdout is not None and holder.stdout.readline()
        assert status_of(["--in", str(source), "--out", str(out), "--url", url]) == 2
        holder.kill()


def test_a_judge_that_goes_down_ends_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "a.jsonl", answers("42", *["down"] * 200))
    out = tmp_path / "b.jsonl"
    with url_of(double := Double()) as url:
        call = ["--in", str(source), "--out", str(out), "--url", url, "--concurrency", "4"]
        assert status_of(call) == 3
        assert "--retry-failed" in capsys.readouterr().err and len(double.asked) < 60
        assert not out.exists()
        double.healed = True
        assert status_of([*call, "--retry-failed"]) == 0
    assert Counter(row["score"] for row in read(out)) == {1.0: 1, 0.0: 200}
    gone = ["--in", str(source), "--out", str(tmp_path / "c.jsonl"), "--url", url]
    assert status_of(gone) == 2 and "cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'question,response,answer\n6 * 7?,"It is 42.",42\n6 * 7?,41,42\n'),
        ("a.tsv", "question\tresponse\tanswer\n6 * 7?\tIt is 42.\t42\n6 * 7?\t41\t42\n"),
        (
            "a.json",
            '[{"question": "6 * 7?", "response": "It is 42.", "answer": "42"},'
            ' {"question": "6 * 7?", "response": "41", "answer": "42"}]',
        ),
    ],
)
def test_a_table_of_any_format_is_judged(name: str, text: str, tmp_path: Path) -> None:
    source, out = tmp_path / name, tmp_path / "b.jsonl"
    source.write_text(text, encoding="utf-8")
    config = ["--config", "config/judge_server.yaml", "judge.mode=rules"]
    assert status_of(["--in", str(source), "--out", str(out), *config]) == 0
    judged = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["score"] for row in judged] == [1.0, 0.0]


def test_parquet_keeps_its_types_and_a_column_of_the_name_is_not_lost(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "6*7?"}]
    table = pa.table(
        {
            "prompt": [prompt, prompt, prompt],
            "completion": [[{"role": "assistant", "content": c}] for c in ("42", "41", "slow")],
            "answer": pa.array([42, 42, 42], pa.int16()),
            "score": pa.array([0.5, None, 1], pa.float32()),
        }
    ).replace_schema_metadata({"made": "here"})
    pq.write_table(table, tmp_path / "a.parquet")
    config = tmp_path / "rules.yaml"
    config.write_text("judge: {mode: rules, gate: false}")
    with url_of(Double()) as url:
        call = ["--in", str(tmp_path / "a.parquet"), "--url", url]
        assert status_of([*call, "--out", str(tmp_path / "b.parquet")]) == 1
        assert status_of([*call, "--out", str(tmp_path / "b.jsonl")]) == 1
    judged = pq.read_table(tmp_path / "b.parquet")
    assert judged.select(table.column_names).equals(table)
    assert judged.schema.metadata == {b"made": b"here"}
    assert judged["judge_score"].to_pylist() == [1.0, 0.0, None]
    assert judged.schema.field("judge_score").type == pa.float64()
    assert judged.schema.field("judge_correct").type == pa.bool_()
    assert read(tmp_path / "b.jsonl") == judged.to_pylist()
    rules = ["--in", str(tmp_path / "b.jsonl"), "--out", str(tmp_path / "c.parquet")]
    assert status_of([*rules, "--config", str(config), "judge.gate=true"]) in (0, 1)
    assert "judge_judge_score" not in pq.read_table(tmp_path / "c.parquet").column_names


@pytest.mark.parametrize(
    ("rows", "flags", "told"),
    [
        ([{"question": "?", "text": "x", "answer": "y"}], [], "choose one with --completion"),
        ([{"question": "?", "output": "x", "gold": "y"}], ["--answer", "golt"], "mean gold?"),
        ([5], [], "a.jsonl:1: a row is a JSON object"),
        ([], [], "no row in it"),
    ],
)
def test_a_mistake_is_told_before_anything_is_judged(
    tmp_path: Path, rows: Any, flags: list[str], told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    source, out = write(tmp_path / "a.jsonl", rows), tmp_path / "b.jsonl"
    call = ["--in", str(source), "--out", str(out), "--url", "http://127.0.0.1:9", *flags]
    assert status_of(call) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.glob("b.*"))


def test_names_and_addresses_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "a.jsonl", answers("42"))
    for out, more, told in (
        (source, ["--url", "http://x"], "is --in"),
        (tmp_path / "b.csv", ["--url", "http://x"], "must end in"),
        (tmp_path / "b.jsonl", ["--url", "localhost:8888"], "an address such as"),
        (tmp_path / "b.jsonl", ["--url", "http://x", "judge.gate=false"], "go with --config"),
        (tmp_path / "b.jsonl", ["--config", str(tmp_path / "no.yaml")], "no.yaml"),
    ):
        assert status_of(["--in", str(source), "--out", str(out), *more]) == 2
        assert told in capsys.readouterr().err
