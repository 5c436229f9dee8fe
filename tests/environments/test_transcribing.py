"""The command that makes judgements to learn from: the embedded judge, and a server that thinks."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_lines import command

from flowright.core.batch_calls import ServerDown
from flowright.core.errors import FailureError, Reason
from flowright.data.contamination import TrainedOn
from flowright.data.task import Pair
from flowright.environments.judging.frames import Reading, read, reply_text, wording_of
from flowright.environments.judging.rows import JudgedRow, SftRow, read_rows
from flowright.environments.judging.transcripts import RowAttempts, transcribe
from flowright.llm.chat import Message

ROOT = Path(__file__).parents[2]
WORDS = wording_of("short")
Main = Callable[[Sequence[str]], int]


@pytest.fixture(scope="module")
def main() -> Main:
    return command("data transcripts")


def pairs_file(path: Path, count: int = 8) -> Path:
    def row(n: int) -> dict[str, Any]:
        asked = [{"role": "user", "content": f"{n} + {n}?"}]
        answers = [{"role": "assistant", "content": str(2 * n + m)} for m in (0, 1)]
        outputs = [{"answer": a | {"label": {"preference": "A"}}} for a in answers]
        return {"input": asked, "output": outputs, "source": "sums"}

    path.write_text("".join(json.dumps(row(n)) + "\n" for n in range(count)))
    return path


def test_transcripts_of_the_embedded_judge(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    rows = str(pairs_file(tmp_path / "rows.jsonl"))
    command = [rows, "--judge", "simulated", "--by", "judge", "--out", str(out), "--as", "jsonl"]
    command += ["--val-share", "0.25", "--wording", "short", "--tries", "6"]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "SIMULATED" in told and "6 rows to train on, 2 held out" in told
    assert f"{out}/sft_train.jsonl: " in told and "transcripts kept" in told
    made = read_rows([out / f"sft_{side}.jsonl" for side in ("train", "val")], ["sft"]).rows
    assert made, "of six tosses of a coin one is right"
    for row in made:
        assert isinstance(row, SftRow) and len(row.messages) == 2
        reading = read(row.messages[-1].content, "pairwise")
        assert isinstance(reading, Reading) and reading.verdict in ("first", "second")
        assert reading.thought
    said = TrainedOn.read(out)
    assert said is not None and said.subsets == {"sums"} and len(said.conversations) == 8
    ledger = out / "transcripts.outcomes.jsonl"
    before = ledger.read_text()
    assert len(before.splitlines()) == 9
    files = [(out / f"sft_{side}.jsonl").read_bytes() for side in ("train", "val")]
    ledger.write_text("".join(line + "\n" for line in before.splitlines()[:4]))  # cut off
    assert main(command) == 0
    assert [(out / f"sft_{side}.jsonl").read_bytes() for side in ("train", "val")] == files
    capsys.readouterr()
    assert main([*command, "--seed", "1"]) == 2
    assert "has other settings" in capsys.readouterr().err


def test_verdicts_without_a_thought(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = [str(pairs_file(tmp_path / "rows.jsonl")), "--out", str(out), "--as", "jsonl"]
    command += ["--val-share", "0.25", "--wording", "short"]
    assert main([*command, "--by", "label"]) == 0
    assert "6 transcripts kept, 0 rows without one" in capsys.readouterr().out
    made = read_rows([out / f"sft_{side}.jsonl" for side in ("train", "val")], ["sft"]).rows
    said = [read(row.messages[-1].content, "pairwise") for row in made if isinstance(row, SftRow)]
    assert said == [Reading("first", "")] * 8
    assert TrainedOn.read(out) is not None
    assert main(command) == 2
    assert "--judge: name who is asked" in capsys.readouterr().err


def test_mistakes_are_one_line(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, out = str(pairs_file(tmp_path / "rows.jsonl")), ["--out", str(tmp_path / "out")]
    for arguments, message in (
        ([rows, "--judge", "simulated"], "use --by judge"),
        ([rows, "--judge", "none-such"], "no 'none-such'"),
        ([str(tmp_path / "none.jsonl"), "--judge", "simulated", "--by", "judge"], "no such file"),
        ([rows, "--judge", "simulated", "--val-share", "2"], "less than 1"),
    ):
        assert main([*arguments, *out]) == 2
        assert message in capsys.readouterr().err


ROWS = [
    Pair(str(n), "s", (Message("user", f"{n}?"),), "a", "b", "first" if n % 2 else "second")
    for n in range(6)
]


async def test_what_was_tried_is_not_tried_again_and_what_failed_is() -> None:
    asked: list[str] = []
    kept: dict[str, RowAttempts] = {}
    down = {"3"}

    async def think(row: JudgedRow, seed: int) -> str:
        asked.append(row.id)
        if row.id in down:
            raise FailureError(Reason.LLM_UNAVAILABLE, "HTTP 500")
        assert isinstance(row, Pair)
        return reply_text("So.", "first" if row.id == "4" else row.label)

    made = await transcribe(ROWS, think, WORDS, 2, done=kept, keep=kept.__setitem__)
    assert [row.id for row in made.rows] == ["0", "1", "2", "5"]
    assert (made.refused, made.failed, made.lost) == (2, 2, 2)
    assert kept.keys() == {"0", "1", "2", "4", "5"}, "a failed row is not kept"
    asked.clear()
    down.clear()
    again = await transcribe(ROWS, think, WORDS, 2, done=dict(kept), keep=kept.__setitem__)
    assert asked == ["3"] and [row.id for row in again.rows] == ["0", "1", "2", "3", "5"]
    whole = await transcribe(ROWS, think, WORDS, 2)
    assert whole == again


async def test_a_server_that_is_down_ends_it() -> None:
    asked: list[str] = []

    async def think(row: JudgedRow, seed: int) -> str:
        asked.append(row.id)
        raise FailureError(Reason.LLM_UNAVAILABLE, "connection refused")

    many = [Pair(str(n), "s", ROWS[0].conversation, "a", "b", "first") for n in range(500)]
    with pytest.raises(ServerDown, match=r"2\d calls in a row failed \(connection refused\)"):
        await transcribe(many, think, WORDS, tries=2, at_once=4)
    assert len(asked) < 100
