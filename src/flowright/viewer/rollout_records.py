"""Rollout records in a run's files, what the index keeps of each, and the facts that every screen
shows of it.

Reading is forgiving where a file may be half written or half copied: whole lines are read, the
others counted. Records of any environment will do: a missing value is None, or "-" among names.
"""

import hashlib
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import zstandard

from flowright.core.errors import Blame, UserError
from flowright.core.formatting import (
    Record,
    duration,
    is_number,
    known_number,
    object_of,
    objects_in,
)
from flowright.core.report import Fact, Text
from flowright.core.untrusted import one_line
from flowright.runs.run_files import parse_record, rollout_steps, rollouts_path, unpacked

STEP_BITS, MOST_STEPS = 28, 1 << 34
"""Bits of an attempt's id below its step, and steps that it has room for."""


@dataclass(frozen=True, slots=True)
class StepFile:
    """The rollouts of a step. ``size`` and ``mtime_ns`` tell whether it was replaced."""

    step: int
    path: Path
    size: int
    mtime_ns: int


def step_files(run: Path) -> list[StepFile]:
    """The files of all steps whose rollouts were kept, ascending."""
    found: list[StepFile] = []
    for step in rollout_steps(run):
        path = rollouts_path(run, step)
        try:
            status = path.stat()
        except OSError:  # removed by a resume since it was listed
            continue
        if stat.S_ISREG(status.st_mode) and step < MOST_STEPS:
            found.append(StepFile(step, path, status.st_size, status.st_mtime_ns))
    return found


def record_at(run: Path, step: int, start: int, size: int) -> dict[str, Any]:
    """One record by its place. Raises UserError where it is not there any more."""
    path = rollouts_path(run, step)
    try:
        data = _part(path, start, size)
    except (OSError, zstandard.ZstdError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    record = parse_record(data)
    if record is None:
        raise UserError(f"{path}: no record there any more; the index will be brought up to date")
    return record


def _part(path: Path, start: int, size: int) -> bytes:
    at, parts = 0, []
    for chunk in unpacked(path):
        if at + len(chunk) > start:
            parts.append(chunk[max(0, start - at) : start + size - at])
        at += len(chunk)
        if at >= start + size:
            break
    return b"".join(parts)


NONE = "-"
TOKENS = "token_logprobs"
"""A record's field with its tokens, where a run keeps them."""
TITLE, NOTE = 160, 120


ALIKE = (
    *("kind", "source", "outcome", "failure", "blame", "judge", "status", "verdict", "gold"),
    *("repairs", "baseline", "stop"),
)
"""Properties of an attempt that have few values."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt as it is indexed: under its ``id``, ascending as steps do, with ``start`` and
    ``size`` of its record in the step's file. ``outcome`` is right, wrong, scored (a matter of
    degree), failed (the policy's fault) or unscored (ours); ``judge`` and ``gold`` are right, wrong
    or "-"; ``repairs`` and ``operators`` are names with commas; ``baseline``: the name of the one
    that wrote it; ``turns`` and ``stop``: of attempts that may have several. ``program`` is a hash
    of what the policy wrote; ``note`` is the outcome in a line."""

    id: int
    start: int
    size: int
    group: int
    index: int
    task: str
    title: str
    note: str
    kind: str
    source: str
    outcome: str
    failure: str
    blame: str
    judge: str
    status: str
    verdict: str
    gold: str
    repairs: str
    baseline: str
    stop: str
    operators: str
    reward: float | None
    advantage: float | None
    turns: int | None
    tokens: int | None
    llm_tokens: int | None
    calls: int | None
    seconds: float | None
    program: int

    @property
    def step(self) -> int:
        return self.id >> STEP_BITS

    @property
    def place(self) -> str:
        """``step/group/index``: its name within the run."""
        return f"{self.step}/{self.group}/{self.index}"


def attempt_of(record: Record, id: int = 0, start: int = 0, size: int = 0) -> Attempt:
    """Collect what the index keeps of a record of any environment."""
    task, execution, failure, verdict, gold, workflow = (
        object_of(record, key)
        for key in ("task", "execution", "failure", "verdict", "gold", "workflow")
    )
    usage, repairs = object_of(execution, "usage"), workflow.get("repairs")
    spent = [usage.get(key) for key in ("prompt_tokens", "completion_tokens")]
    if whole := object_of(record, "spent"):  # of all programs of an attempt of several turns
        usage, spent = whole, [whole.get("tokens")]
    operators = {
        _name(c.get("operator")).replace(",", ";") for c in objects_in(execution.get("trace"))
    }
    judge, reward = _opinion(verdict.get("correct")), reward_of(record)
    if failure.get("blame") == Blame.INFRASTRUCTURE.value or (not failure and reward is None):
        outcome = "unscored"
    else:
        outcome = "failed" if failure else "scored" if judge == NONE else judge
    return Attempt(
        id,
        start,
        size,
        group=_whole(record.get("group")) or 0,
        index=_whole(record.get("index")) or 0,
        task=task_name(task),
        title=one_line(escape_surrogates(task.get("problem") or ""), TITLE),
        note=_note(record, execution),
        kind=_name(task.get("kind")),
        source=_name(task.get("source")),
        outcome=outcome,
        failure=_name(failure.get("reason")),
        blame=_name(failure.get("blame")),
        judge=judge,
        status=_name(verdict.get("status")),
        verdict=_name(verdict.get("source")),
        gold=_opinion(gold.get("correct")),
        repairs=_name(",".join(map(str, repairs)) if isinstance(repairs, list) else None),
        baseline=_name(record.get("baseline")),
        stop=_name(record.get("stop")),
        operators=",".join(sorted(operators)) or NONE,
        reward=reward,
        advantage=known_number(record.get("advantage")),
        turns=len(objects_in(record.get("turns"))) or None,
        tokens=_whole(record.get("tokens")),
        llm_tokens=sum(_whole(n) or 0 for n in spent) if usage else None,
        calls=_whole(usage.get("calls")),
        seconds=known_number(whole.get("seconds", execution.get("seconds"))),
        program=_hash(escape_surrogates(source_of(record))),
    )


def task_name(task: Record) -> str:
    """The name under which a problem is indexed."""
    return escape_surrogates(task.get("id") or NONE)[:500]


def source_of(record: Record) -> str:
    """The program of a record; of one without, its completion."""
    return str(object_of(record, "workflow").get("source") or record.get("completion") or "")


def escape_surrogates(text: object) -> str:
    """Spell out halves of surrogate pairs, which a database refuses."""
    whole = str(text)
    return whole if whole.isascii() else whole.encode("utf-8", "backslashreplace").decode()


_KNOWN = frozenset(
    (
        *("schema", "step", "group", "index", "key", "task", "cut_prompt", "completion", "tokens"),
        *(TOKENS, "finish_reason", "policy_version", "workflow", "execution", "verdict", "gold"),
        *("reward", "advantage", "failure", "baseline", "turns", "stop"),
    )
)
"""Fields of a record that are indexed elsewhere; the texts of all others are searched."""


def searched_texts(record: Record) -> list[str]:
    """Collect the searched texts: the problem with its name, what the policy wrote, prompts,
    replies and answers to turns, reasons. The problem is left out of prompts: it has a column of
    its own."""
    prompts: list[str] = []
    replies: list[str] = []
    execution, verdict, task = (object_of(record, key) for key in ("execution", "verdict", "task"))
    problem = escape_surrogates(task.get("problem") or "")
    for call in all_calls(execution.get("trace")):
        for exchange in objects_in(call.get("exchanges")):
            prompts.append(str(exchange.get("prompt") or ""))
            replies.append(str(exchange.get("reply") or ""))
        prompts += map(str, object_of(call, "arguments").values())
        replies += [str(call[key]) for key in ("result", "error") if call.get(key)]
    reasons = [str(verdict.get("reason") or ""), *_judge_texts(verdict)]
    for name, key in (("failure", "message"), ("gold", "detail")):
        reasons.append(str(object_of(record, name).get(key) or ""))
    replies += [str(execution[key]) for key in ("answer", "printed") if execution.get(key)]
    turns = objects_in(record.get("turns"))
    replies += [str(object_of(turn, "observation").get("text") or "") for turn in turns]
    written = [*(turn.get("completion") for turn in turns[:-1]), record.get("completion")]
    reasons += _strings({key: value for key, value in record.items() if key not in _KNOWN})
    prompt = "\n".join(prompts)
    return [
        f"{task_name(task)}\n{problem}",
        "\n".join(str(text or "") for text in written),
        prompt.replace(problem, " ") if problem else prompt,
        "\n".join(replies),
        "\n".join(reasons),
    ]


def _judge_texts(verdict: Record) -> Iterator[str]:
    """Replies of judges, those of a panel included; not the prompt, which is the same for all."""
    for reply in objects_in(verdict.get("replies")):
        yield from (str(reply[key]) for key in ("text", "reasoning", "read") if reply.get(key))
    for member in objects_in(verdict.get("members")):
        yield str(member.get("reason") or "")
        yield from _judge_texts(member)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(inner)


def all_calls(trace: object) -> Iterator[Record]:
    """Yield all calls of a trace, each before its children."""
    for call in objects_in(trace):
        yield call
        yield from all_calls(call.get("children"))


def _note(record: Record, execution: Record) -> str:
    """The first line of the failure's message, or else of the answer, or else of the completion."""
    failure = object_of(record, "failure")
    for text in (failure.get("message"), execution.get("answer"), record.get("completion")):
        if text:
            return one_line(escape_surrogates(str(text)[: 8 * NOTE]), NOTE)
    return ""


def _opinion(value: object) -> str:
    return "right" if value is True else "wrong" if value is False else NONE


def _name(value: object) -> str:
    return _short(str(value)[:400]) if value else NONE


@lru_cache(maxsize=4096)
def _short(text: str) -> str:
    return one_line(escape_surrogates(text), 80)


def _whole(value: object) -> int | None:
    return int(value) if is_number(value) and abs(value) < 1 << 62 else None


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


# --- the facts of a record ------------------------------------------------------------------------


def reward_of(rollout: Record) -> float | None:
    """The reward, None where the attempt was not scored (law 1)."""
    return known_number(object_of(rollout, "reward").get("value"))


def problem_blocks(record: Record) -> list[Text]:
    """The problem, whole or as much of it as the record keeps; and where the prompt was cut to fit,
    what the policy saw of it."""
    task, seen = object_of(record, "task"), record.get("cut_prompt")
    text, whole = str(task.get("problem") or ""), task.get("problem_characters")
    title = f"Problem, {len(text):,} of {whole:,} characters" if is_number(whole) else "Problem"
    found = [Text(title, text)] if text else []
    if isinstance(seen, str):
        found.append(Text("CUT: what the policy saw of it, to fit policy.max_prompt_tokens", seen))
    return found


def record_facts(record: Record) -> list[Fact]:
    """Reward, failure, the judge's verdict and gold's, and their difference."""
    found = [Fact("Reward", reward_arithmetic(record))]
    terms = object_of(object_of(record, "reward"), "terms").items()
    if values := [f"{name} {value:.2f}" for name, value in terms if is_number(value)]:
        found.append(Fact("Terms", f"{', '.join(values)} (before weights)"))
    failure, verdict, gold = (object_of(record, key) for key in ("failure", "verdict", "gold"))
    if failure:
        whose = "ours" if failure.get("blame") == "infrastructure" else "the policy's"
        line = f", line {failure['line']}" if failure.get("line") else ""
        message = failure.get("message") or ""
        found.append(Fact("Failed", f"{failure.get('reason')} ({whose}{line}): {message}"))
    if verdict:
        found.append(verdict_fact("Judge", verdict))
    if gold:
        both = (gold.get("correct"), verdict.get("correct"))
        differs = None not in both and both[0] != both[1]
        text = f"{_finding(gold, 'no check')} by {gold.get('method')}"
        alarm = "differs from the judge" if differs else ""
        found.append(Fact("Gold", text, str(gold.get("detail") or ""), alarm))
        if gold.get("evidence") not in (None, "", gold.get("detail")):
            found.append(Fact("Evidence", str(gold["evidence"])))
    return found


def verdict_fact(name: str, verdict: Record) -> Fact:
    """A verdict with its judge and cost; the reason as its detail."""
    text = _finding(verdict, str(verdict.get("status")))
    if is_number(verdict.get("score")):
        text += f", score {verdict['score']:g}"
    if standing := object_of(verdict, "standing"):
        counts = ", ".join(f"{standing.get(key)} {key}" for key in ("wins", "losses", "ties"))
        text += f", rank {standing.get('rank')} of {standing.get('of')}: {counts}"
    attempts, usage = verdict.get("attempts"), object_of(verdict, "usage")
    how = [str(verdict[key]) for key in ("judge", "source") if verdict.get(key)]
    how.append("1 attempt" if attempts == 1 else f"{attempts} attempts")
    if is_number(verdict.get("seconds")) and verdict["seconds"]:
        how.append(duration(verdict["seconds"]))
    tokens = [n for key in ("prompt_tokens", "completion_tokens") if is_number(n := usage.get(key))]
    if len(tokens) == 2 and any(tokens):
        how.append(f"{tokens[0]:,} tokens in, {tokens[1]:,} out")
    parts = object_of(verdict, "parts").items()
    how += [f"{part} {value:.2f}" for part, value in parts if is_number(value)]
    return Fact(name, f"{text} ({', '.join(how)})", str(verdict.get("reason") or ""))


def _finding(opinion: Record, otherwise: str) -> str:
    correct = opinion.get("correct")
    return otherwise if correct is None else "right" if correct else "wrong"


def reward_arithmetic(record: Record) -> str:
    """``right 1.00 - cost 0.04 = 0.96``, with the advantage; a sentence where there is no
    reward."""
    value = reward_of(record)
    if value is None and not record.get("failure"):
        return "no reward: its group has no other answer to compare it with"
    if value is None:
        return "no reward: our failure, the attempt left its group's statistics"
    known = object_of(object_of(record, "reward"), "parts")
    parts = [(name, part) for name, part in known.items() if is_number(part)]
    parts = [(name, part) for name, part in parts if part] or parts[:1]  # zeros add nothing
    text = f"{value:.2f}"
    if parts:
        first, *rest = parts
        terms = [f"{first[0]} {first[1]:.2f}"]
        terms += [f"{'-' if part < 0 else '+'} {name} {abs(part):.2f}" for name, part in rest]
        adds_up = abs(sum(part for _, part in parts) - value) < 5e-3
        text = f"{' '.join(terms)} = {text}" if adds_up else f"{text} (of {' '.join(terms)})"
    if is_number(extra := object_of(record, "reward").get("unpenalised")):
        text += f" ({extra:.2f} without the penalties of the training)"
    advantage = record.get("advantage")
    return text if not is_number(advantage) else f"{text}; advantage {advantage:+.2f}"
