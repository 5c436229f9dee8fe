"""A selection of attempts as JSON Lines, parquet, a log of Inspect, or a folder of pages."""

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import parse_qsl

from flowright import __version__
from flowright.core.errors import RunError, UserError
from flowright.core.files import check_writable, write_text
from flowright.core.formatting import Record, is_number, object_of
from flowright.runs.run_files import rollouts_path
from flowright.viewer.attempt_page import attempt_body
from flowright.viewer.attempts_page import attempts_table
from flowright.viewer.group_page import group_body
from flowright.viewer.layout import Links, notes_of, page_file, viewer_page
from flowright.viewer.monitoring.snapshot import Snapshot
from flowright.viewer.rendering.markup import el
from flowright.viewer.rollout_records import NONE, Combination, lines, parsed, safe
from flowright.viewer.run_list import OpenedRun, Shelf, group_of
from flowright.viewer.run_page import run_body
from flowright.viewer.runs_page import runs_body
from flowright.viewer.search import Attempt, Found
from flowright.viewer.selection import Filter, joined

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
    about = found.about(attempt)
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


VERSION = 2
_YEAR_3000 = 32_503_680_000  # seconds since 1970
STOPS = frozenset({"stop", "max_tokens", "content_filter", "model_length", "tool_calls"})


def inspect_log(run: OpenedRun, found: Found, chosen: Filter) -> bytes:
    """The log as JSON. Raises UserError for a selection that is too large to be held."""
    snapshot = run.snapshot()
    samples = [_sample(attempt, record, snapshot) for attempt, record in held(run, found, chosen)]
    ended = snapshot.state.get("updated")
    begun, ended = _time(snapshot.state.get("started") or ended), _time(ended)
    log = {
        "version": VERSION,
        "status": "success",
        "eval": {
            "created": begun,
            "eval_id": run.name,
            "run_id": run.name,
            "task": f"flowright/{run.name}",
            "task_id": run.name,
            "task_args": dict(chosen.values),
            "dataset": {
                "name": run.name,
                "samples": len(samples),
                "sample_ids": [sample["id"] for sample in samples],
            },
            "model": _policy(snapshot),
            "config": {},
            "packages": {"flowright": __version__},
            "metadata": {"simulated": snapshot.simulated, "selection": chosen.query()},
        },
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [_means(name, samples) for name in _names(samples)],
        },
        "stats": {"started_at": begun, "completed_at": ended},
        "samples": samples,
    }
    return json.dumps(_readable(log)).encode()


def _sample(attempt: Attempt, record: Record, snapshot: Snapshot) -> dict[str, Any]:
    task = object_of(record, "task")
    written = str(record.get("completion") or "")
    stop = str(record.get("finish_reason"))
    choice = {
        "message": {"role": "assistant", "content": written, "model": _policy(snapshot)},
        "stop_reason": "max_tokens" if stop == "length" else stop if stop in STOPS else "unknown",
    }
    tokens = attempt.tokens or 0
    usage = {"input_tokens": 0, "output_tokens": tokens, "total_tokens": tokens}
    return {
        "id": attempt.place,
        "epoch": 1,
        "input": str(task.get("problem") or ""),
        "target": str(task.get("reference") or ""),
        "messages": list(_messages(record, written, snapshot)),
        "output": {"model": _policy(snapshot), "choices": [choice], "usage": usage},
        "scores": _scores(record),
        "metadata": {
            **{key: task.get(key) for key in ("id", "kind", "source")},
            **{key: record.get(key) for key in ("step", "group", "index", "policy_version")},
            "advantage": attempt.advantage,
            "failure": record.get("failure"),
            "workflow": object_of(record, "workflow").get("source"),
            "reward_parts": object_of(record, "reward").get("parts"),
        },
        "total_time": attempt.seconds,
    }


def _messages(record: Record, written: str, snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    yield {"role": "user", "content": str(object_of(record, "task").get("problem") or "")}
    yield {"role": "assistant", "content": written, "model": _policy(snapshot)}
    model = str(snapshot.state.get("executor") or "executor")
    for name, exchange in _exchanges(object_of(record, "execution").get("trace")):
        prompt = f"[{name}]\n{exchange.get('prompt') or ''}"
        yield {"role": "user", "content": prompt}
        yield {"role": "assistant", "content": str(exchange.get("reply") or ""), "model": model}


def _exchanges(trace: object) -> Iterator[tuple[str, Record]]:
    for call in _objects(trace):
        for exchange in _objects(call.get("exchanges")):
            yield str(call.get("operator")), exchange
        yield from _exchanges(call.get("children"))


def _objects(listed: object) -> list[Record]:
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _scores(record: Record) -> dict[str, dict[str, Any]]:
    verdict, gold, reward = (object_of(record, key) for key in ("verdict", "gold", "reward"))
    answer = object_of(record, "execution").get("answer")
    found: dict[str, dict[str, Any]] = {}
    if is_number(reward.get("value")):
        found["reward"] = {"value": reward["value"]}
    if is_number(verdict.get("score")):
        found["judge"] = {"value": verdict["score"], "explanation": verdict.get("reason") or ""}
    if isinstance(gold.get("correct"), bool):
        found["gold"] = {"value": float(gold["correct"]), "explanation": gold.get("detail") or ""}
    if answer is not None:
        found = {name: {**score, "answer": str(answer)} for name, score in found.items()}
    return found


def _readable(value: Any) -> Any:
    """With halves of surrogate pairs spelt out: Inspect refuses a log that has one."""
    if isinstance(value, str):
        return safe(value)
    if isinstance(value, Mapping):
        return {safe(key): _readable(inner) for key, inner in value.items()}
    return [_readable(inner) for inner in value] if isinstance(value, list) else value


def _names(samples: Sequence[Record]) -> list[str]:
    return [n for n in ("reward", "judge", "gold") if any(n in s["scores"] for s in samples)]


def _means(name: str, samples: Sequence[Record]) -> dict[str, Any]:
    values = [sample["scores"][name]["value"] for sample in samples if name in sample["scores"]]
    return {
        "name": name,
        "scorer": name,
        "scored_samples": len(values),
        "unscored_samples": len(samples) - len(values),
        "metrics": {"mean": {"name": "mean", "value": fmean(values)}},
    }


def _policy(snapshot: Snapshot) -> str:
    return str(snapshot.state.get("policy") or snapshot.config.get("strategy_model") or "policy")


def _time(value: object) -> str:
    moment = float(value) if is_number(value) and 0 <= value < _YEAR_3000 else 0.0
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).isoformat()


def export_pages(root: Path, folder: Path, select: str, most: int) -> int:
    """Write the pages of the runs below ``root``, with at most so many attempts of each, chosen by
    the query of an address; returns how many pages there are. Raises RunError where the folder
    holds something already, where there is no run, and for a query that cannot be read."""
    shelf, chosen = Shelf(root), Filter.read(joined(parse_qsl(select, keep_blank_values=True)))
    if chosen.problems:
        raise RunError(*chosen.problems)
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: not empty; name another folder")
    runs = shelf.runs()
    if not runs:
        raise RunError(f"{shelf.root}: no run here")
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"index.html": ""}
    held = frozenset(page_file(run.name, "") for run in runs)
    for run in runs:
        parts = shelf.parts(run)
        for one in parts:
            one.update()
        shown = frozenset(page_file(one.name, "attempts") for one in parts)
        links = Links(exported=True, held=shown | {page_file(run.name, "")}, parts=shelf.links(run))
        for one in parts:
            made = _run_pages(one, chosen, most, links)
            if both := sorted(pages.keys() & made.keys()):
                raise RunError(f"{both[0]}: two runs have a page of this name; rename {one.path}")
            pages |= made
    body = runs_body(runs, Links(exported=True, held=held))
    pages["index.html"] = viewer_page("Runs", body, Links(exported=True, held=held), "runs")
    for name, page in pages.items():
        write_text(folder / name, safe(page))
    return len(pages)


def _run_pages(run: OpenedRun, chosen: Filter, most: int, shared: Links) -> dict[str, str]:
    """Those of a run, or of a part of it, which has no first page of its own."""
    with run.found() as found:
        attempts = list(found.each(chosen, most))
        groups = {(a.step, a.group): group_of(found, a.step, a.group) for a in attempts}
        every = {a.id: a for members in groups.values() for a in members}
        names = [f"group/{step}/{group}" for step, group in groups]
        names += [f"attempt/{attempt.place}" for attempt in every.values()]
        held = shared.held | {page_file(run.name, name) for name in names}
        links = replace(shared, run=run.name, held=held)
        notes = notes_of(run)
        snapshot = run.snapshot()

        def page(name: str, title: str, body: object, here: str) -> None:
            assert isinstance(body, str)
            shown = viewer_page(f"{title} - {run.name}", body, links, here, notes)
            pages[page_file(run.name, name)] = shown

        pages: dict[str, str] = {}
        if not run.part:
            page("", "Run", run_body(found, snapshot, links), "run")
        count, more = found.count(chosen)
        told = f"{len(attempts):,} of {count:,}{' or more' if more else ''} attempts"
        table = attempts_table(found, attempts, links, chosen, told)
        page("attempts", "Attempts", el("div", el("h1", "Attempts"), table), "attempts")
        records = {a.id: run.record(a) for a in every.values()}
        for attempt in every.values():
            beside = _beside(attempts, attempt)
            body = attempt_body(records[attempt.id], attempt, run, links, chosen, beside)
            page(f"attempt/{attempt.place}", f"Attempt {attempt.place}", body, "attempt")
        for (step, group), members in groups.items():
            body = group_body(found, members, [records[a.id] for a in members], links)
            page(f"group/{step}/{group}", f"Group {step}/{group}", body, "group")
        return pages


def _beside(order: list[Attempt], attempt: Attempt) -> tuple[Attempt | None, Attempt | None]:
    places = [n for n, other in enumerate(order) if other.id == attempt.id]
    if not places:
        return None, None
    at = places[0]
    return (order[at - 1] if at else None), (order[at + 1] if at + 1 < len(order) else None)
