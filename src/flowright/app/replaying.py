"""Replay an attempt of a run, as recorded or with another program, and compare it with the record.

The run's own environment replays it with its large models and judge, under the attempt's key, so
that every seed is the same. Nothing is trained.
"""

import difflib
import json
import os
import re
import shlex
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import uvloop

from flowright.app.ask_policy import blame_line
from flowright.app.preflight_checks import load_tasks
from flowright.config.root import Config
from flowright.core.command_line import on_signal
from flowright.core.errors import Failure, Reason, UserError
from flowright.core.formatting import (
    NOTHING,
    Record,
    duration,
    format_value,
    object_of,
    objects_in,
)
from flowright.core.untrusted import one_line, visible
from flowright.data.task import Task
from flowright.environments.base import Environment, make_environment
from flowright.environments.episode import Episode, Turn
from flowright.environments.registry import load_config
from flowright.environments.rollout import most_turn_text, to_record
from flowright.llm.control_tokens import fenced
from flowright.policy.sampling import Sample
from flowright.runs.run_files import (
    HELD_OUT,
    parse_record,
    read_lines,
    rollout_steps,
    rollouts_path,
)
from flowright.viewer.rollout_records import TOKENS, attempt_of, source_of
from flowright.viewer.turns import by_turn

_PLACE = re.compile(rf"(?:({'|'.join(HELD_OUT)})/)?(\d+)/(\d+)/(\d+)", re.ASCII)
_CHARS = 60


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """A replay on the command line. ``place`` is ``step/group/index``, for a held-out problem with
    its folder in front; ``program``: another one than recorded, ``edit``: edit the recorded one."""

    run: Path
    place: str
    program: str | None
    edit: bool
    as_json: bool
    overrides: Sequence[str]


@dataclass(frozen=True, slots=True)
class ReplayedAttempt:
    """An attempt with everything that a replay needs."""

    config: Config
    environment: Environment
    tasks: Sequence[Task]
    task: Task
    record: Record


def find_replay(request: ReplayRequest) -> ReplayedAttempt:
    """Find the attempt of a request. Raises UserError with a line for what prevents it."""
    record = find_attempt(request.run, request.place)
    config = load_config(request.run / "config.json", request.overrides)
    environment = make_environment(config)
    if not environment.rolls_out:
        raise UserError(f"environment: {config.environment}: its attempts are given, not played")
    sets = load_tasks(environment, batches=False)
    tasks = [*sets.train, *sets.val]
    name = object_of(record, "task").get("id")
    task = next((task for task in tasks if task.id == name), None)
    if task is None:
        raise UserError(
            f"{request.run}: the problem {one_line(name, 80)} is not among those that its "
            "configuration reads now; put the data back, or name it (train_dataset=...)"
        )
    return ReplayedAttempt(config, environment, tasks, task, record)


def find_attempt(run: Path, place: str) -> Record:
    """Return the record of an attempt. Raises UserError if there is none."""
    found = _PLACE.fullmatch(place)
    if found is None:
        raise UserError(
            f"{place}: an attempt is STEP/GROUP/INDEX, such as 30/2/5, or validation/30/2/5"
        )
    if not (run / "config.json").is_file():
        raise UserError(f"{run}: no run here (no config.json); give its directory")
    part, (step, group, index) = found[1], map(int, found.groups()[1:])
    held = run / part if part else run
    kept = rollout_steps(held)
    if step not in kept:
        shown = f"{kept[0]} to {kept[-1]}" if kept else "none"
        raise UserError(f"{held}: step {step} kept no attempts; steps with attempts: {shown}")
    whole = (parse_record(line.data) for line in read_lines(rollouts_path(held, step)))
    records = [record for record in whole if record is not None]
    for record in records:
        if (record.get("group"), record.get("index")) == (group, index):
            return record
    groups = len({record.get("group") for record in records})
    raise UserError(
        f"{held}: step {step} has {len(records)} attempts in {groups} groups, not {place}"
    )


def edited(text: str) -> str:
    """Return the text after the user's editor. Raises UserError if that fails."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workflow.py"
        path.write_text(text, encoding="utf-8", errors="replace")
        try:
            subprocess.run([*shlex.split(editor), str(path)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UserError(f"{editor}: {error}; set EDITOR, or give --program FILE") from None
        return path.read_text(encoding="utf-8", errors="replace")


def replay(request: ReplayRequest) -> int:
    """Replay and print; return the exit status. Raises UserError for what prevents it."""
    with on_signal(lambda: "nothing was played"):
        opening = find_replay(request)
        program = request.program
        if request.edit:
            program = edited(source_of(opening.record))
        now = uvloop.run(play(opening, program))
    if request.as_json:
        print(json.dumps({"recorded": opening.record, "now": now}, indent=2, default=str))
    else:
        for line in lines_of(opening, request.place, program, now):
            print(visible(line))
    failure = object_of(now, "failure")
    return 1 if failure.get("blame") == "infrastructure" else 0


async def play(opening: ReplayedAttempt, program: str | None = None) -> dict[str, Any]:
    """Return the record of a replay; without ``program``, of the recorded completions, one a turn.
    In environments without programs, ``program`` is the completion. Raises UserError for a turn
    whose text was cut in the record."""
    record = opening.record
    if program is None:
        written = _whole_samples(record)
    else:
        text = fenced(program.rstrip(), "python") if "workflow" in record else program
        written = [replace(_sample(record), text=text, finish_reason="stop")]
    step, group, index = (int(record.get(key) or 0) for key in ("step", "group", "index"))
    key = str(record.get("key") or f"{opening.config.seed}/{step}/{group}/{index}")
    environment = opening.environment
    async with environment.open(opening.tasks):
        turns = tuple(Turn((), sample) for sample in written)
        ((rollout,),) = await environment.rollout([[Episode(opening.task, key, turns)]])
        rollout = replace(rollout, turns=turns if environment.max_turns > 1 else ())
        return to_record(rollout, environment.record(rollout), step, group, index, None)


def _whole_samples(record: Record) -> list[Sample]:
    """Return the completions of all turns; those cut in the record are joined from its tokens."""
    *before, _ = objects_in(record.get("turns")) or [record]
    samples = [*map(_sample, before), _sample(record)]  # the last text is whole in the record
    tokens, most = object_of(record, TOKENS), most_turn_text(len(samples))
    parts = by_turn(tokens.get("turns"), tokens.get("texts") or ())
    for number, sample in enumerate(samples[:-1]):
        if len(sample.text) > most:
            if len(parts) != len(samples):
                raise UserError(
                    f"turn {number + 1}: its text was cut in the record, which has no tokens "
                    "(run.keep_logprobs keeps them); play another program: --program FILE"
                )
            samples[number] = replace(sample, text="".join(map(str, parts[number])))
    return samples


def _sample(record: Record) -> Sample:
    """Return the completion of a record, or of one of its turns."""
    finish: Literal["stop", "length"] = (
        "length" if record.get("finish_reason") == "length" else "stop"
    )
    version = record.get("policy_version")
    text = str(record.get("completion") or "")
    return Sample((), (), text, finish, version if isinstance(version, int) else -1)


# Rendering.


def lines_of(opening: ReplayedAttempt, place: str, program: str | None, now: Record) -> list[str]:
    """Render the record beside the replay."""
    record, config = opening.record, opening.config
    task = object_of(record, "task")
    lines = [
        f"attempt   {place} of {config.run.name}: {task.get('kind')} {task.get('source')}",
        f"problem   {one_line(task.get('problem') or '', 160)}",
    ]
    if "workflow" in record:
        judges = ", ".join(config.judge_names)
        lines.append(f"executor  {config.executor_name}    judge  {judges}")
    if program is None:
        lines.append("program   as it was recorded")
    else:
        changed = _difference(source_of(record), program)
        lines.append(f"program   another one than recorded ({len(changed)} lines differ)")
        lines += [f"    {line}" for line in changed]
    then, again = (_cells(one) for one in (record, now))
    lines += ["", f"{'':<12}{'recorded':<{_CHARS + 2}}now"]
    for name in (name for name in then if {then[name], again[name]} != {NOTHING}):
        mark = "  *" if name != "time" and then[name] != again[name] else ""
        lines.append(f"{name:<12}{then[name]:<{_CHARS + 2}}{again[name]}{mark}")
    return lines


def _cells(record: Record) -> dict[str, str]:
    attempt, execution = attempt_of(record), object_of(record, "execution")
    answer = execution.get("answer") if "workflow" in record else record.get("completion")
    return {
        "answer": _short(answer),
        "failure": _short(_failure(object_of(record, "failure"))),
        "judge": attempt.judge,
        "why": _short(object_of(record, "verdict").get("reason")),
        "gold": attempt.gold,
        "reward": format_value(attempt.reward, "{:.3f}".format),
        "calls": format_value(attempt.calls, "{:,}".format),
        "models": _short(called_models(execution)),
        "tokens": format_value(attempt.llm_tokens, "{:,}".format),
        "money": format_value(object_of(execution, "usage").get("money") or None, "{:.3g}".format),
        "time": format_value(attempt.seconds, duration),
    }


def called_models(execution: Record) -> str:
    """Return the models that a program asked and how often, where programs choose; else empty."""
    asked = Counter[str]()
    for call in execution.get("trace") or ():
        asked[call.get("model", "")] += object_of(call, "usage").get("calls", 0)
    return ", ".join(f"{name} {count}" for name, count in asked.items() if name and count)


def _short(text: object) -> str:
    return one_line(text, _CHARS) if text else NOTHING


def _failure(failure: Mapping[str, Any]) -> str:
    try:
        reason = Reason(failure.get("reason", ""))
    except ValueError:  # none, or one that another version knew
        return str(failure.get("reason") or "")
    return blame_line(Failure(reason, str(failure.get("message") or ""), failure.get("line")))


def _difference(before: str, after: str) -> list[str]:
    old, new = before.rstrip().splitlines(), after.rstrip().splitlines()
    changes = difflib.unified_diff(old, new, lineterm="", n=0)
    return [line for line in changes if not line.startswith(("---", "+++", "@@"))]
