"""A selection of attempts as JSON Lines, parquet, or a log of Inspect."""

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from itertools import groupby, islice
from statistics import fmean
from typing import Any

from flowright import __version__
from flowright.core.errors import UserError
from flowright.core.formatting import Record, is_number, object_of, objects_in
from flowright.runs.run_files import parse_record, read_lines, rollouts_path
from flowright.viewer.rollout_records import (
    ALIKE,
    NONE,
    Attempt,
    all_calls,
    escape_surrogates,
)
from flowright.viewer.run_list import ViewedRun
from flowright.viewer.selection import Filter
from flowright.viewer.snapshot import Snapshot

MOST_HELD = 20_000
"""Attempts of one parquet file or log, which are made in memory; JSON Lines have no limit."""


def selected_records(run: ViewedRun, chosen: Filter) -> Iterator[tuple[Attempt, Record]]:
    """The attempts of a selection with their records, the first step first: each file of the run
    is read once, whatever the selection is sorted by."""
    ascending = Filter(chosen.values, descending=False)
    with run.found() as found:
        for step, attempts in groupby(found.each(ascending), key=lambda attempt: attempt.step):
            wanted = {attempt.start: attempt for attempt in attempts}
            for line in read_lines(rollouts_path(run.folder, step)):
                attempt = wanted.get(line.start)
                record = parse_record(line.data) if attempt else None
                if attempt and record is not None:
                    yield attempt, record


def jsonl(run: ViewedRun, chosen: Filter) -> Iterator[bytes]:
    """The records of a selection, one a line."""
    for _, record in selected_records(run, chosen):
        yield json.dumps(record).encode() + b"\n"


def parquet(run: ViewedRun, chosen: Filter) -> bytes:
    """A row an attempt: its filterable properties, its texts, and the whole record as JSON.
    Raises UserError for a selection that is too large to be held."""
    import pyarrow
    import pyarrow.parquet

    kinds = ((_WHOLE, pyarrow.int64()), (_REAL, pyarrow.float64()), (_TEXTS, pyarrow.string()))
    schema = pyarrow.schema([(name, kind) for names, kind in kinds for name in names])
    rows = [_flat(attempt, record) for attempt, record in load_selection(run, chosen)]
    out = BytesIO()
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(rows, schema=schema), out, compression="zstd"
    )
    return out.getvalue()


def load_selection(run: ViewedRun, chosen: Filter) -> list[tuple[Attempt, Record]]:
    """All of a selection at once. Raises UserError for more than ``MOST_HELD``."""
    kept = list(islice(selected_records(run, chosen), MOST_HELD + 1))
    if len(kept) > MOST_HELD:
        message = f"more than {MOST_HELD:,} attempts: narrow the selection, or export JSON Lines"
        raise UserError(message)
    return kept


_TEXTS = (
    *("kind", "source", "task", "problem", "reference", "completion", "workflow", "answer"),
    *("outcome", "failure", "blame", "judge", "gold", "repairs", "stop", "operators"),
    *("judge_reason", "record"),
)
_WHOLE = ("step", "group", "index", "turns", "tokens", "llm_tokens", "calls")
_REAL = ("reward", "advantage", "seconds")


def _flat(attempt: Attempt, record: Record) -> dict[str, Any]:
    task = object_of(record, "task")
    texts = {
        **{name: getattr(attempt, name) for name in (*ALIKE, "operators") if name in _TEXTS},
        "task": task.get("id"),
        **{name: task.get(name) for name in ("problem", "reference")},
        "completion": record.get("completion"),
        "workflow": object_of(record, "workflow").get("source"),
        "answer": object_of(record, "execution").get("answer"),
        "judge_reason": object_of(record, "verdict").get("reason"),
        "record": json.dumps(record),
    }
    shown = {k: None if v in (None, NONE) else escape_surrogates(v) for k, v in texts.items()}
    return {**shown, **{name: getattr(attempt, name) for name in (*_WHOLE, *_REAL)}}


# --- a log of Inspect (inspect_ai), for `inspect view` and other readers; needs no Inspect ----

VERSION = 2
_YEAR_3000 = 32_503_680_000  # seconds since 1970
STOPS = frozenset({"stop", "max_tokens", "content_filter", "model_length", "tool_calls"})


def inspect_log(run: ViewedRun, chosen: Filter) -> bytes:
    """A log of version 2 of its JSON form. An attempt is a sample: its messages are the problem,
    what the policy wrote with the answers to its turns, and every question to the large model with
    its reply; its scores are the reward, the judge's verdict and gold. An unscored attempt has no
    score there, rather than a 0 (law 1). Raises UserError for a selection that is too large to be
    held."""
    snapshot = run.snapshot()
    samples = [
        _sample(attempt, record, snapshot) for attempt, record in load_selection(run, chosen)
    ]
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
            "scores": list(_means(samples)),
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
    for turn in objects_in(record.get("turns"))[:-1]:
        text, answer = str(turn.get("completion") or ""), object_of(turn, "observation")
        role = answer["role"] if answer.get("role") in ("system", "tool") else "user"
        yield {"role": "assistant", "content": text, "model": _policy(snapshot)}
        yield {"role": role, "content": str(answer.get("text") or "")}
    yield {"role": "assistant", "content": written, "model": _policy(snapshot)}
    model = str(snapshot.state.get("executor") or "executor")
    for call in all_calls(object_of(record, "execution").get("trace")):
        for exchange in objects_in(call.get("exchanges")):
            prompt = f"[{call.get('operator')}]\n{exchange.get('prompt') or ''}"
            yield {"role": "user", "content": prompt}
            yield {"role": "assistant", "content": str(exchange.get("reply") or ""), "model": model}


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
        return escape_surrogates(value)
    if isinstance(value, Mapping):
        return {escape_surrogates(key): _readable(inner) for key, inner in value.items()}
    return [_readable(inner) for inner in value] if isinstance(value, list) else value


def _means(samples: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """The mean of each score that any sample has."""
    for name in ("reward", "judge", "gold"):
        values = [s["scores"][name]["value"] for s in samples if name in s["scores"]]
        if values:
            yield {
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
