"""A selection of attempts as files for other programs: JSON Lines (the records themselves),
parquet (a table, the record beside it) and a log of Inspect.
"""

import json
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import groupby
from typing import Any

from flowright.core.errors import UserError
from flowright.core.formatting import Record, object_of
from flowright.runs import rollouts_path
from flowright.viewer.facts import NONE, Combination
from flowright.viewer.filters import Filter
from flowright.viewer.finding import Attempt, Found
from flowright.viewer.opened import OpenedRun
from flowright.viewer.records import lines, parsed

MOST_HELD = 20_000
"""Attempts of one parquet file or log, which are made in memory; JSON Lines have no limit."""


def selected(run: OpenedRun, found: Found, chosen: Filter) -> Iterator[tuple[Attempt, Record]]:
    """The attempts of a selection with their records, the first step first: each file of the run
    is read once, whatever the selection is sorted by."""
    ascending = Filter(chosen.values, descending=False)
    for step, attempts in groupby(found.each(ascending), key=lambda attempt: attempt.step):
        wanted = {attempt.start: attempt for attempt in attempts}
        for line in lines(rollouts_path(run.folder, step)):
            attempt = wanted.get(line.start)
            record = parsed(line.data) if attempt else None
            if attempt and record is not None:
                yield attempt, record


def jsonl(run: OpenedRun, found: Found, chosen: Filter) -> Iterator[bytes]:
    """The records of a selection, one a line."""
    for _, record in selected(run, found, chosen):
        yield json.dumps(record).encode() + b"\n"


def parquet(run: OpenedRun, found: Found, chosen: Filter) -> bytes:
    """A row an attempt: what it can be filtered by, its texts, and the whole record as JSON.
    Raises UserError for a selection that is too large to be held."""
    import pyarrow
    import pyarrow.parquet

    rows = [_flat(found, attempt, record) for attempt, record in held(run, found, chosen)]
    table = pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(_fields(pyarrow)))
    out = BytesIO()
    pyarrow.parquet.write_table(table, out, compression="zstd")
    return out.getvalue()


def held(run: OpenedRun, found: Found, chosen: Filter) -> list[tuple[Attempt, Record]]:
    """All of a selection at once. Raises UserError for more than ``MOST_HELD``."""
    kept: list[tuple[Attempt, Record]] = []
    for each in selected(run, found, chosen):
        if len(kept) == MOST_HELD:
            raise UserError(
                f"more than {MOST_HELD:,} attempts: narrow the selection, or export JSON Lines"
            )
        kept.append(each)
    return kept


_TEXTS = (
    *("kind", "source", "task", "problem", "reference", "completion", "workflow", "answer"),
    *("outcome", "failure", "blame", "judge", "gold", "repairs", "operators", "judge_reason"),
    "record",
)
_WHOLE = ("step", "group", "index", "tokens", "llm_tokens", "calls")
_REAL = ("reward", "advantage", "seconds")


def _fields(pyarrow: Any) -> Sequence[tuple[str, Any]]:
    kinds = ((_WHOLE, pyarrow.int64()), (_REAL, pyarrow.float64()), (_TEXTS, pyarrow.string()))
    return [(name, kind) for names, kind in kinds for name in names]


def _flat(found: Found, attempt: Attempt, record: Record) -> dict[str, Any]:
    task = object_of(record, "task")
    about = found.combinations.get(attempt.combination, Combination())
    given = {
        "task": task.get("id"),
        **{name: task.get(name) for name in ("problem", "reference")},
        "completion": record.get("completion"),
        "workflow": object_of(record, "workflow").get("source"),
        "answer": object_of(record, "execution").get("answer"),
        "judge_reason": object_of(record, "verdict").get("reason"),
        "operators": found.operators.get(attempt.operators),
        **{name: getattr(about, name) for name in Combination.__slots__ if name in _TEXTS},
        "record": json.dumps(record),
    }
    told = {name: None if v in (None, NONE) else _whole_text(v) for name, v in given.items()}
    return {**told, **{name: getattr(attempt, name) for name in (*_WHOLE, *_REAL)}}


def _whole_text(value: object) -> str:
    """Text that a table takes: halves of surrogate pairs are spelt out."""
    return str(value).encode("utf-8", "backslashreplace").decode()
