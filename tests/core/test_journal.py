import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from flowright.core.errors import RunError
from flowright.core.journal import Journal, changes_of, read_journal

ABOUT = {"judge": "a", "config": {"seed": 1}}


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_on_the_disk_at_once_and_read_back(tmp_path: Path):
    path = tmp_path / "out/kept.jsonl"
    with Journal(path, ABOUT) as journal:
        journal.append({"row": "1", "said": {"x": 1}})
        assert lines(path) == [{"about": ABOUT}, {"row": "1", "said": {"x": 1}}]
        journal.append({"row": "2", "said": {}})
        journal.append({"row": "1", "said": {"x": 2}})
    with Journal(path, ABOUT) as again:
        assert again.latest("row")["1"]["said"] == {"x": 2}
        assert list(again.latest("row")) == ["1", "2"]
        assert len(again.records) == 3


def test_records_by_several_fields_leave_out_those_without_them(tmp_path: Path):
    with Journal(tmp_path / "j") as journal:
        for record in ({"row": 1, "hash": "a", "v": 1}, {"event": 1}, {"row": 1, "hash": "b"}):
            journal.append(record)
        assert journal.latest("row", "hash").keys() == {(1, "a"), (1, "b")}
        assert journal.latest("event") == {1: {"event": 1}}


def test_a_torn_last_line_is_cut_off_and_writing_continues_behind_it(tmp_path: Path):
    path = tmp_path / "kept.jsonl"
    with Journal(path, ABOUT) as journal:
        journal.append({"row": "1"})
    with path.open("a") as out:
        out.write('{"row": "2", "sa')
    assert len(read_journal(path).records) == 2, "a reader leaves it out, and in the file"
    assert path.read_text().endswith('"sa')
    with Journal(path, ABOUT) as again:
        again.append({"row": "3"})
    assert lines(path) == [{"about": ABOUT}, {"row": "1"}, {"row": "3"}]


def test_a_torn_header_starts_again(tmp_path: Path):
    path = tmp_path / "kept.jsonl"
    path.write_text('{"about": {"ju')
    with Journal(path, ABOUT) as journal:
        journal.append({"row": "1"})
    assert lines(path) == [{"about": ABOUT}, {"row": "1"}]


def test_other_settings_are_refused_with_what_differs_and_nothing_changes(tmp_path: Path):
    path = tmp_path / "kept.jsonl"
    with Journal(path, ABOUT) as journal:
        journal.append({"row": "1"})
    before = path.read_bytes()
    other = {"judge": "b", "config": {"seed": 2}}
    with pytest.raises(RunError) as caught:
        Journal(path, other, remedy="give another --out")
    assert caught.value.problems == (
        f"{path}: has other settings: judge: a -> b",
        f"{path}: has other settings: config.seed: 1 -> 2; give another --out",
    )
    with pytest.raises(RunError, match="no settings under 'asked'"):
        Journal(path, ABOUT, header="asked")
    with Journal(path, other, overwrite=True) as journal:
        assert journal.records == [] and path.read_bytes() == before, "kept until a record comes"
        journal.append({"row": "9"})
    assert lines(path) == [{"about": other}, {"row": "9"}]


def test_a_file_of_another_kind_is_refused(tmp_path: Path):
    path = tmp_path / "kept.jsonl"
    for text in ('{"prompt": "x"}\n', "not json\n", "[1]\n"):
        path.write_text(text)
        for skip in (False, True):
            with pytest.raises(RunError, match=r"kept\.jsonl:1: cannot be read"):
                Journal(path, ABOUT, skip_damaged=skip)
        assert path.read_text() == text


def test_a_damaged_line_is_named_or_skipped(tmp_path: Path):
    path = tmp_path / "kept.jsonl"
    path.write_bytes(b'{"query": "1"}\n\x00\xff\x00\n\n{"query": "2"}\n')
    with pytest.raises(RunError, match=r"kept\.jsonl:2: cannot be read; take the line out"):
        Journal(path)
    with Journal(path, skip_damaged=True) as journal:
        assert journal.damaged == (2,)
        assert journal.latest("query").keys() == {"1", "2"}
    assert read_journal(path).records == ((1, {"query": "1"}), (4, {"query": "2"}))


def test_line_separators_of_unicode_end_no_line(tmp_path: Path):
    path = tmp_path / "kept.jsonl"
    path.write_text('{"row": 1, "reason": "a\u2028b"}\n', encoding="utf-8")
    with Journal(path) as journal:
        assert journal.records == [{"row": 1, "reason": "a\u2028b"}]


def test_one_process_at_a_time_and_a_file_without_records_is_removed(tmp_path: Path):
    path = tmp_path / "kept.jsonl"
    first = Journal(path, ABOUT)
    with pytest.raises(RunError, match=r"writes into this file( \(process \d+\))?; wait for it"):
        Journal(path, ABOUT, overwrite=True)
    first.close()
    first.close()
    assert not path.exists()
    with Journal(path, ABOUT) as journal:
        journal.append({"row": "1"})


def test_the_lock_goes_with_the_process(tmp_path: Path):
    path = tmp_path / "kept.jsonl"
    program = (
        "import os, sys; from pathlib import Path; from flowright.core.journal import Journal;"
        "Journal(Path(sys.argv[1]), {'a': 1}).append({'row': 1}); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == 9
    with Journal(path, {"a": 1}) as journal:
        assert journal.records == [{"row": 1}]


def test_a_record_that_is_no_json_leaves_the_file_as_it_was(tmp_path: Path):
    path = tmp_path / "kept.jsonl"
    with Journal(path, ABOUT) as journal:
        journal.append({"row": "1"})
        before = path.read_bytes()
        with pytest.raises(ValueError, match="not JSON compliant"):
            journal.append({"score": float("nan")})
        assert path.read_bytes() == before


def test_a_record_that_the_disk_refuses_leaves_no_half_line(tmp_path: Path):
    path = tmp_path / "kept.jsonl"
    with Journal(path, ABOUT) as journal:
        journal.append({"row": "1"})
        before = path.read_bytes()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, hard))
        try:
            with pytest.raises(OSError, match="too large"):
                journal.append({"row": "2", "text": "x" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == before
        journal.append({"row": "3"})
        assert journal.records == lines(path)[1:] == [{"row": "1"}, {"row": "3"}]


def test_a_folder_that_cannot_be_written_and_a_file_that_cannot_be_read(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write here"):
        Journal(tmp_path / "file/kept.jsonl")
    with pytest.raises(RunError, match="directory"):
        read_journal(tmp_path)
    assert read_journal(tmp_path / "none").records == ()


def test_changes_are_nested_and_a_missing_key_equals_none():
    before = {"a": {"b": 1, "c": None}, "d": [1]}
    assert changes_of(before, {"a": {"b": 2}, "d": [1], "e": 3}) == ["a.b: 1 -> 2", "e: None -> 3"]
    assert changes_of({"a": {"b": 1}}, {"a": 1}) == ["a: {'b': 1} -> 1"]
