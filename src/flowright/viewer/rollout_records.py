"""Rollout records in a run's files, and what the index keeps of each.

Reading is forgiving where a file may be half written or half copied: whole lines are read, the others
counted. Records of any environment will do: a missing value is None, or "-" among names.
"""

import hashlib
import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import zstandard
from pydantic_core import from_json

from flowright.core.errors import Blame, UserError
from flowright.core.formatting import Record, is_number, object_of
from flowright.core.untrusted import one_line
from flowright.runs.run_files import rollout_steps, rollouts_path

_CHUNK = 1 << 20
MOST_STEPS = 1 << 34
"""Steps that an attempt's id has room for."""


@dataclass(frozen=True, slots=True)
class Line:
    """A whole line of a step's file: its first byte and its bytes, as they are decompressed."""

    start: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StepFile:
    """The rollouts of a step. ``size`` and ``mtime_ns`` tell whether it was replaced."""

    step: int
    path: Path
    size: int
    mtime_ns: int


def step_files(run: Path) -> list[StepFile]:
    """Of all steps whose rollouts were kept, ascending."""
    found: list[StepFile] = []
    for step in rollout_steps(run):
        path = rollouts_path(run, step)
        try:
            told = path.stat()
        except OSError:  # removed by a resume since it was listed
            continue
        if stat.S_ISREG(told.st_mode) and step < MOST_STEPS:
            found.append(StepFile(step, path, told.st_size, told.st_mtime_ns))
    return found


def lines(path: Path) -> Iterator[Line]:
    """All lines of a file, in order; a last one without its end is among them, for the reader to
    try. Stops where the compressed data break off."""
    start, held = 0, bytearray()
    for chunk in _chunks(path):
        held += chunk
        *whole, rest = bytes(held).split(b"\n") if b"\n" in chunk else (bytes(held),)
        for data in whole:
            yield Line(start, data)
            start += len(data) + 1
        held = bytearray(rest)
    if held:
        yield Line(start, bytes(held))


def parsed(data: bytes) -> dict[str, Any] | None:
    """The record of a line, None where it is none: cut off, or no object."""
    try:
        record = from_json(data, cache_strings="keys")
    except ValueError:
        try:  # half of a surrogate pair, say, which the quick reader refuses
            record = json.loads(data)
        except (ValueError, RecursionError):
            return None
    return record if isinstance(record, dict) else None


def record_at(run: Path, step: int, start: int, size: int) -> dict[str, Any]:
    """One record by its place. Raises UserError where it is not there any more."""
    path = rollouts_path(run, step)
    try:
        data = _part(path, start, size)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    record = parsed(data)
    if record is None:
        raise UserError(f"{path}: no record there any more; the index will be brought up to date")
    return record


def _part(path: Path, start: int, size: int) -> bytes:
    at, parts = 0, []
    for chunk in _chunks(path):
        if at + len(chunk) > start:
            parts.append(chunk[max(0, start - at) : start + size - at])
        at += len(chunk)
        if at >= start + size:
            break
    return b"".join(parts)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        while True:
            try:
                chunk = reader.read(_CHUNK)
            except zstandard.ZstdError:  # what follows is damaged
                return
            if not chunk:
                return
            yield chunk


NONE = "-"
TOKENS = "token_logprobs"
"""A record's field with its tokens, where a run keeps them."""
LONGEST = 1 << 16  # characters of one column of one attempt that are searched
TITLE, NOTE = 160, 120


@dataclass(frozen=True, slots=True)
class Combination:
    """Everything about an attempt that is one of few values. ``outcome`` is right, wrong, scored
    (a matter of degree), failed (the policy's fault) or unscored (ours); ``judge`` and ``gold`` are
    right, wrong or "-"; ``repairs`` are names with commas."""

    kind: str = NONE
    source: str = NONE
    outcome: str = NONE
    failure: str = NONE
    blame: str = NONE
    judge: str = NONE
    status: str = NONE
    verdict: str = NONE
    gold: str = NONE
    repairs: str = NONE


@dataclass(frozen=True, slots=True)
class Texts:
    """What is searched; the problem apart, as many attempts share it."""

    workflow: str
    prompts: str
    replies: str
    reasons: str


@dataclass(frozen=True, slots=True)
class Facts:
    """An attempt in a row. ``program`` is a hash of what the policy wrote; ``note`` is what became
    of it, in a line; ``cut`` tells that a text was longer than what is searched of it."""

    group: int
    index: int
    task: str
    title: str
    problem: str
    combination: Combination
    operators: str
    reward: float | None
    advantage: float | None
    tokens: int | None
    llm_tokens: int | None
    calls: int | None
    seconds: float | None
    program: int
    note: str
    texts: Texts
    cut: bool


def facts_of(record: Record) -> Facts:
    """The facts of one record."""
    task, execution = object_of(record, "task"), object_of(record, "execution")
    usage = object_of(execution, "usage")
    spent = [usage.get(key) for key in ("prompt_tokens", "completion_tokens")]
    problem = safe(task.get("problem") or "")
    texts, cut = _texts(record, problem)
    return Facts(
        group=_whole(record.get("group")) or 0,
        index=_whole(record.get("index")) or 0,
        task=safe(task.get("id") or NONE)[:500],
        title=one_line(problem, TITLE),
        problem=problem[:LONGEST],
        combination=combination_of(record),
        operators=",".join(sorted(set(_operators(execution.get("trace"))))) or NONE,
        reward=_number(object_of(record, "reward").get("value")),
        advantage=_number(record.get("advantage")),
        tokens=_whole(record.get("tokens")),
        llm_tokens=sum(_whole(n) or 0 for n in spent) if usage else None,
        calls=_whole(usage.get("calls")),
        seconds=_number(execution.get("seconds")),
        program=_hash(safe(source_of(record))),
        note=_note(record, execution),
        texts=texts,
        cut=cut,
    )


def combination_of(record: Record) -> Combination:
    """What the attempt is counted under."""
    task, failure, verdict, gold = (
        object_of(record, key) for key in ("task", "failure", "verdict", "gold")
    )
    repairs = object_of(record, "workflow").get("repairs")
    return Combination(
        kind=_name(task.get("kind")),
        source=_name(task.get("source")),
        outcome=_outcome(record, failure, verdict),
        failure=_name(failure.get("reason")),
        blame=_name(failure.get("blame")),
        judge=_opinion(verdict.get("correct")),
        status=_name(verdict.get("status")),
        verdict=_name(verdict.get("source")),
        gold=_opinion(gold.get("correct")),
        repairs=_name(",".join(map(str, repairs)) if isinstance(repairs, list) else None),
    )


def source_of(record: Record) -> str:
    """The program of a record; of one without, its completion."""
    return str(object_of(record, "workflow").get("source") or record.get("completion") or "")


def safe(text: object) -> str:
    """Text that a database takes: halves of surrogate pairs are spelt out."""
    whole = str(text)
    return whole if whole.isascii() else whole.encode("utf-8", "backslashreplace").decode()


def _outcome(record: Record, failure: Record, verdict: Record) -> str:
    if failure.get("blame") == Blame.INFRASTRUCTURE.value:
        return "unscored"
    if failure:
        return "failed"
    if _number(object_of(record, "reward").get("value")) is None:
        return "unscored"
    said = _opinion(verdict.get("correct"))
    return "scored" if said == NONE else said


def _texts(record: Record, problem: str) -> tuple[Texts, bool]:
    """The columns that are searched. The problem is left out of prompts: it has its own."""
    prompts: list[str] = []
    replies: list[str] = []
    execution, verdict = object_of(record, "execution"), object_of(record, "verdict")
    for call in _calls(execution.get("trace")):
        for exchange in _objects(call.get("exchanges")):
            prompts.append(str(exchange.get("prompt") or ""))
            replies.append(str(exchange.get("reply") or ""))
        prompts += map(str, object_of(call, "arguments").values())
        replies += [str(call[key]) for key in ("result", "error") if call.get(key)]
    reasons = [str(verdict.get("reason") or ""), *_said(verdict)]
    for name, key in (("failure", "message"), ("gold", "detail")):
        reasons.append(str(object_of(record, name).get(key) or ""))
    replies += [str(execution[key]) for key in ("answer", "printed") if execution.get(key)]
    own = {key: value for key, value in record.items() if key not in _KNOWN}
    reasons += _strings(own)
    columns = [str(record.get("completion") or ""), *map("\n".join, (prompts, replies, reasons))]
    if problem:
        columns[1] = columns[1].replace(problem, " ")
    cut = any(len(text) > LONGEST for text in columns)
    return Texts(*(safe(text[:LONGEST]) for text in columns)), cut


_KNOWN = frozenset(
    [
        "schema",
        "step",
        "group",
        "index",
        "key",
        "task",
        "completion",
        "tokens",
        "finish_reason",
        "policy_version",
        TOKENS,
        "workflow",
        "execution",
        "verdict",
        "gold",
        "reward",
        "advantage",
        "failure",
    ]
)


def _said(verdict: Record) -> Iterator[str]:
    """What judges wrote, those of a panel included."""
    for reply in _objects(verdict.get("replies")):
        keys = ("text", "reasoning", "read")  # not the prompt: it says the same of all
        yield from (str(reply[key]) for key in keys if reply.get(key))
    for member in _objects(verdict.get("members")):
        yield str(member.get("reason") or "")
        yield from _said(member)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _calls(trace: object) -> Iterator[Record]:
    """All calls of a trace and what they caused."""
    for call in _objects(trace):
        yield call
        yield from _calls(call.get("children"))


def _operators(trace: object) -> Iterator[str]:
    for call in _objects(trace):
        yield _name(call.get("operator")).replace(",", ";")


def _note(record: Record, execution: Record) -> str:
    """The failure's message, or else the answer, or else the completion; its first line."""
    failure = object_of(record, "failure")
    for text in (failure.get("message"), execution.get("answer"), record.get("completion")):
        if text:
            return one_line(safe(str(text)[: 8 * NOTE]), NOTE)
    return ""


def _objects(value: object) -> Iterator[Record]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _opinion(value: object) -> str:
    return "right" if value is True else "wrong" if value is False else NONE


def _name(value: object) -> str:
    return _short(value[:400] if isinstance(value, str) else str(value)[:400]) if value else NONE


@lru_cache(maxsize=4096)
def _short(text: str) -> str:
    return one_line(safe(text), 80)


def _number(value: object) -> float | None:
    return float(value) if is_number(value) else None


def _whole(value: object) -> int | None:
    if not is_number(value) or abs(value) >= 1 << 62:
        return None
    return int(value)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
