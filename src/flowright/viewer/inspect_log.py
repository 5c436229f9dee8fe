"""A selection of attempts as a log of Inspect (inspect_ai), version 2 of its JSON form, so that
`inspect view` and what reads such logs can be used. Inspect itself is not needed for it.

An attempt is a sample: its messages are the problem, what the policy wrote, and every question to
the large model with its reply; its scores are the reward, the judge's verdict and gold. What was
not scored has no score there, rather than a 0 (law 1).
"""

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from flowright import __version__
from flowright.core.formatting import Record, is_number, object_of
from flowright.viewer.exports import held
from flowright.viewer.facts import safe
from flowright.viewer.filters import Filter
from flowright.viewer.finding import Attempt, Found
from flowright.viewer.monitoring.snapshot import Snapshot
from flowright.viewer.opened import OpenedRun

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
