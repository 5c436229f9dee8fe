"""scripts/generate_responses.py with a model in this process: what is written, asked again, and
refused."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_lines import command
from pyarrow import parquet
from tiny_policy import checkpoint, tiny_policy

from flowright.evaluation.responses.local_model import can_share
from flowright.llm.chat import Message
from flowright.policy.local import LocalSampler
from flowright.policy.sampling import Sampling, template_ids

ROOT = Path(__file__).parents[2]
Main = Callable[[Sequence[str]], int]
PROMPTS: list[Any] = [
    "one",
    [{"role": "system", "content": "s"}, {"role": "user", "content": "two, longer"}],
    "z" * 240,  # with its answer beyond the model's 256 tokens
    "three",
]


@pytest.fixture(scope="module")
def main() -> Main:
    return command("instructions generate")


def parquet_of(path: Path, prompts: Sequence[Any]) -> Path:
    import pyarrow as pa

    chats = [[{"role": "user", "content": p}] if isinstance(p, str) else p for p in prompts]
    table = pa.Table.from_pylist(
        [{"prompt": chat, "data_source": "s", "n": n} for n, chat in enumerate(chats)]
    )
    parquet.write_table(table, path)
    return path


def arguments(data: Path, out: Path, *more: str) -> list[str]:
    asked = ["--data-path", str(data), "--output-path", str(out), "--model", str(checkpoint())]
    return [*asked, "--max-tokens", "12", "--n-samples", "2", "--temperature", "1", *more]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return parquet.read_table(path).to_pylist()


def test_every_row_keeps_its_columns_and_gets_its_responses(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = parquet_of(tmp_path / "in.parquet", PROMPTS), tmp_path / "to" / "out.parquet"
    assert main(arguments(data, out, "--top-p", "1", "--top-k", "-1")) == 0
    told = capsys.readouterr().out
    assert "6 of 8 responses to 4 prompts" in told
    assert "2 are missing (null): 2 prompt too long" in told
    rows = rows_of(out)
    assert [{k: v for k, v in row.items() if k != "responses"} for row in rows] == rows_of(data)
    assert rows[2]["responses"] == [None, None]
    policy = tiny_policy(trained=False)
    for place in (0, 1, 3):  # as the sampler draws them, each by its place in the file
        turns = [Message(turn["role"], turn["content"]) for turn in rows[place]["prompt"]]
        ids = template_ids(turns, policy.tokenizer, to_answer=True)
        drawn = LocalSampler(policy, 8).draw([ids], 2, Sampling(1.0, 1.0, 12, 0), [place])
        assert rows[place]["responses"] == [sample.text for sample in drawn[0]]


def test_a_second_call_asks_for_what_is_missing_alone(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = parquet_of(tmp_path / "in.parquet", PROMPTS)
    first, whole = tmp_path / "first.parquet", tmp_path / "whole.parquet"
    assert main(arguments(data, first, "--limit", "2")) == 0
    assert len(rows_of(first)) == 2
    ledger = tmp_path / "first.answers.jsonl"
    *kept, _ = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(kept) + '{"row": "1/')  # killed while it wrote
    capsys.readouterr()
    assert main(arguments(data, first, "--n-samples", "3")) == 0
    assert "6 are new" in capsys.readouterr().out  # of nine, three were there
    assert main(arguments(data, whole, "--n-samples", "3", "--batch-size", "1")) == 0
    assert rows_of(first) == rows_of(whole)
    assert main(arguments(data, first, "--n-samples", "3", "--seed", "1")) == 2
    assert "drawing.seed" in capsys.readouterr().err
    assert main(arguments(data, first, "--n-samples", "3", "--seed", "1", "--overwrite")) == 0
    assert rows_of(first) != rows_of(whole)


def test_the_rows_of_json_lines_become_columns(main: Main, tmp_path: Path) -> None:
    data, out = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    lines = [{"question": "a", "tags": {}}, {"question": "b", "more": 1}, {"question": "c"}]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    some = ["--prompt-key", "question", "--start", "1", "--response-key", "said"]
    assert main(arguments(data, out, *some)) == 0
    rows = rows_of(out)
    assert [(row["question"], row["tags"], row["more"]) for row in rows] == [
        ("b", None, 1),
        ("c", None, None),
    ]
    assert all(len(row["said"]) == 2 and None not in row["said"] for row in rows)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--tp-size", "2"], "--tp-size 2: a model in this process"),
        (["--trust-remote-code"], "--trust-remote-code"),
        (["--dtype", "float16"], "--dtype float16"),
        (["--server", "x"], "give one of them"),
        (["--top-p", "0"], "--top-p 0.0"),
        (["--temperature", "-1"], "--temperature -1"),
        (["--output-path", "out.csv"], "a .parquet file"),
        (["--response-key", "n"], "has this column"),
        (["--prompt-key", "q"], "no column 'q'; --prompt-key is one of"),
        (["--prompt-key", "n"], "row 0"),
        (["--start", "9"], "none from --start 9 on"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    main: Main,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    said: str,
) -> None:
    data = parquet_of(tmp_path / "in.parquet", PROMPTS[:1])
    assert main([*arguments(data, tmp_path / "out.parquet"), *more]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.parquet").exists()


def test_nobody_to_ask_says_who_could_be(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_BASE_URL", raising=False)
    data = parquet_of(tmp_path / "in.parquet", PROMPTS[:1])
    assert main(["--data-path", str(data), "--output-path", str(tmp_path / "o.parquet")]) == 2
    assert "--model FOLDER loads a model here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("architecture", "shares"), [("qwen2", True), ("llama", True), ("sliding", False)]
)
def test_prefixes_are_shared_where_that_is_right(architecture: str, shares: bool) -> None:
    assert can_share(tiny_policy(architecture)) is shares
