import gzip
import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from flowright.core.errors import DataError, RunError, UserError
from flowright.core.tables import (
    Place,
    json_line,
    parquet_batches,
    raise_problems,
    read_errors,
    read_object,
    read_rows,
    write_rows,
)

ROWS = [{"question": "a\u2028é", "n": 1}, {"question": "b", "n": 2}]
TEXT = '{"question": "a\u2028é", "n": 1}\n\n{"question": "b", "n": 2}\n'


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(path: Path) -> list[tuple[str, dict]]:
    return [(str(place), row) for place, row in read_rows(path)]


def rows(path: Path) -> list[dict]:
    return [row for _, row in read_rows(path)]


@pytest.mark.parametrize("name", ["x.jsonl", "x.ndjson", "x.JSONL", "x.jsonl.gz", "x.jsonl.zst"])
def test_json_lines_have_the_line_for_their_place(tmp_path: Path, name: str):
    data = TEXT.encode()
    if name.endswith("gz"):
        data = gzip.compress(data, mtime=0)
    if name.endswith("zst"):
        compress = zstandard.ZstdCompressor().compress
        data = compress(data[:20]) + compress(data[20:])
    path = write(tmp_path / name, data)
    assert read(path) == [(f"{path}:1", ROWS[0]), (f"{path}:3", ROWS[1])]


@pytest.mark.parametrize(
    "text",
    [json.dumps(ROWS), json.dumps({"version": 1, "data": ROWS}), "\ufeff" + json.dumps(ROWS)],
)
def test_a_json_list_counts_its_rows_from_one(tmp_path: Path, text: str):
    path = write(tmp_path / "x.json", text)
    assert read(path) == [(f"{path}:1", ROWS[0]), (f"{path}:2", ROWS[1])]


def test_json_lines_under_the_name_of_json(tmp_path: Path):
    assert rows(write(tmp_path / "x.json", TEXT)) == ROWS


@pytest.mark.parametrize("text", ["{}", '{"a": [], "b": []}', "3"])
def test_json_without_one_list_of_rows_is_named(tmp_path: Path, text: str):
    with pytest.raises(DataError, match="neither a list of rows"):
        rows(write(tmp_path / "x.json", text))


def test_a_broken_json_list_is_named_by_row_and_line(tmp_path: Path):
    path = write(tmp_path / "x.json", '[{"a": 1},\n {"a": }]')
    with pytest.raises(DataError, match=rf"{path}:2: not JSON: .* \(line 2\)"):
        rows(path)


@pytest.mark.parametrize("cut", [",", ";", "\t"])
def test_csv_cells_may_be_json_and_empty_ones_are_none(tmp_path: Path, cut: str):
    lines = ["q,kwargs,x", '"a\nb","[""y""]",', "2,[x,1", '[7],"[{""a"": 1}]",']
    path = write(tmp_path / "x.csv", "\ufeff" + "\n".join(lines).replace(",", cut) + "\n")
    assert read(path) == [
        (f"{path}:3", {"q": "a\nb", "kwargs": ["y"]}),
        (f"{path}:4", {"q": "2", "kwargs": "[x", "x": "1"}),
        (f"{path}:5", {"q": "[7]", "kwargs": [{"a": 1}]}),
    ]


def test_lists_of_numbers_in_csv_stay_text_and_deep_rows_are_one_line(tmp_path: Path):
    path = write(tmp_path / "x.csv", 'answer\n"[7, 40]"\n')
    assert read(path) == [(f"{path}:2", {"answer": "[7, 40]"})]
    for depth in (101, 900, 100_000):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            text = f'{{"a": {opening * depth}1{closing * depth}}}\n'
            for name in ("x.jsonl", "x.json"):
                with pytest.raises(DataError, match=r"x\.json.?:1: .*too deep"):
                    read(write(tmp_path / name, text if name == "x.jsonl" else f"[{text}]"))


def test_a_csv_row_with_too_many_cells_is_named(tmp_path: Path):
    path = write(tmp_path / "x.csv", "a,b\n1,2\n1,2,3\n")
    with pytest.raises(DataError, match=rf"{path}:3: more cells than columns"):
        rows(path)


def test_long_csv_cells(tmp_path: Path):
    assert rows(write(tmp_path / "x.csv", "a\n" + "y" * 200_000 + "\n")) == [{"a": "y" * 200_000}]


def test_parquet_rows_and_batches(tmp_path: Path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    assert read(path) == [(f"{path}:1", ROWS[0]), (f"{path}:2", ROWS[1])]
    assert [batch.num_rows for batch in parquet_batches(path)] == [2]
    with pytest.raises(DataError, match="not a parquet file"):
        rows(write(tmp_path / "y.parquet", "PAR1 no"))


def test_bad_rows_are_named_and_the_others_stand(tmp_path: Path):
    bad: list[str] = []
    lines = [b'{"a": 1}', b"{", b'{"a": "\xff"}', b"[1]", b"[" * 100_000, b"1" * 5000, b'{"a": 2}']
    path = write(tmp_path / "x.jsonl", b"\n".join(lines))
    found = read_rows(path, lambda place, why: bad.append(f"{place}: {why}"))
    assert [str(place).rpartition(":")[2] for place, _ in found] == ["1", "7"]
    assert [line.removeprefix(f"{path}:")[:30] for line in bad] == [
        "2: not JSON: Expecting propert",
        "3: not UTF-8 at byte 7",
        "4: a row is a JSON object, not",
        "5: a number is too long, or li",
        "6: a number is too long, or li",
    ]
    with pytest.raises(DataError, match=rf"{path}:2: not JSON: .* \(column \d\)"):
        rows(path)


def test_one_value_that_python_lacks_costs_one_parquet_row(tmp_path: Path):
    path = tmp_path / "x.parquet"
    offsets = pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0")
    broken = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"a\xffb")])
    pq.write_table(pa.table({"a": broken}), path)
    bad: list[str] = []
    found = [row for _, row in read_rows(path, lambda place, why: bad.append(f"{place}: {why}"))]
    assert found == [{"a": "a"}, {"a": "b"}]
    assert bad == [f"{path}:2: not UTF-8 at byte 0"]


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("none.jsonl", None, "no such file"),
        ("x.txt", b"", "not one of .jsonl, .json"),
        ("x.parquet.gz", b"", "not one of .jsonl, .json"),
        ("x.json", b'["\xff"]', "not UTF-8 at byte 2; fetch it again"),
        ("x.csv", b"a\n\xff\n", "not UTF-8"),
        ("x.jsonl.gz", b"no", "cannot be read: .*; fetch it again"),
        ("x.jsonl.gz", gzip.compress(TEXT.encode(), mtime=0)[:-9], "cannot be read"),
        ("x.jsonl.zst", b"no", "cannot be read"),
        ("x.jsonl.zst", zstandard.ZstdCompressor().compress(b"a" * 99)[:-3], "ends early"),
    ],
)
def test_files_that_cannot_be_read_are_named(
    tmp_path: Path, name: str, data: bytes | None, why: str
):
    if data is not None:
        write(tmp_path / name, data)
    with pytest.raises(DataError, match=why) as caught:
        rows(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))


def test_a_whole_file_as_one_object(tmp_path: Path):
    assert read_object(write(tmp_path / "x.json", '{"a": [1]}')) == {"a": [1]}
    with pytest.raises(DataError, match=r"x.json: a row is a JSON object, not list"):
        read_object(write(tmp_path / "x.json", "[1]"))
    with pytest.raises(DataError, match="no such file"), read_errors(tmp_path):
        raise FileNotFoundError


def test_problems_are_shown_up_to_a_number():
    raise_problems([])
    with pytest.raises(DataError) as caught:
        raise_problems([f"x:{n}: no" for n in range(2000)], 2)
    assert caught.value.problems == ("x:0: no", "x:1: no", "and 1,998 more")
    assert str(Place("x", 3).error("no")) == "x:3: no"


@pytest.mark.parametrize("name", ["out/x.jsonl", "out/x.parquet"])
def test_rows_are_written_whole_and_read_back(tmp_path: Path, name: str):
    path = tmp_path / name
    write_rows(path, iter(ROWS))
    assert rows(path) == ROWS
    assert [file.name for file in path.parent.iterdir()] == [path.name]

    def failing():
        yield ROWS[0]
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        write_rows(path, failing())
    assert rows(path) == ROWS, "the old file stays"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_parquet_columns_have_the_types_of_the_schema(tmp_path: Path):
    schema = pa.schema([("n", pa.float64()), ("none", pa.string())])
    write_rows(tmp_path / "x.parquet", [{"n": 1, "none": None}], schema)
    assert pq.read_schema(tmp_path / "x.parquet") == schema
    with pytest.raises(UserError, match=r"not writable as parquet \(.*\); use .jsonl"):
        write_rows(tmp_path / "y.parquet", [{"n": 1}, {"n": [1]}])
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write here"):
        write_rows(tmp_path / "file/x.jsonl", ROWS)


def test_a_line_holds_what_utf8_and_json_lack():
    assert json_line({"a": "é", "d": date(2026, 1, 2)}) == '{"a": "é", "d": "2026-01-02"}\n'
    assert json_line({"a": "é\ud800"}) == '{"a": "\\u00e9\\ud800"}\n'
