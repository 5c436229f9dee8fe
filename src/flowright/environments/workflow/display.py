"""The presentation of workflow writing: the program, its execution, and its failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowright.core.errors import Reason
from flowright.core.formatting import duration
from flowright.core.report import Block, Call, Fact, Program, Text, Timeline
from flowright.data.task import KINDS
from flowright.environments.display import Display, Mix

MEANINGS: Mapping[str, str] = {
    Reason.TRUNCATED: "the completion hit its token limit before the program ended",
    Reason.NO_PROGRAM: "no program in the completion",
    Reason.SYNTAX: "not Python",
    Reason.UNSUPPORTED: "Python, but outside the workflow language",
    Reason.TYPE: "an operator that does not exist, or wrong arguments",
    Reason.BAD_ARGUMENT: "a value that an operator cannot take",
    Reason.NO_ANSWER: "returned nothing that can be an answer",
    Reason.WORKER_LOST: "the workflow runtime lost a worker",
}


@dataclass(frozen=True)
class WorkflowDisplay(Display):
    """Shows records that hold ``workflow`` and ``execution`` (:mod:`flowright.workflows`)."""

    def blocks(self, record: Mapping[str, Any]) -> Sequence[Block]:
        workflow: Mapping[str, Any] = record.get("workflow") or {}
        execution: Mapping[str, Any] = record.get("execution") or {}
        results = _results(workflow, execution)
        if canvas := record.get("canvas"):
            results = [Fact("Canvas", str(canvas["text"])), *results]
        return [*results, _program(record, workflow), *_trace(execution)]


DISPLAY = WorkflowDisplay(
    completion="workflow",
    language="python",
    compared="Workflow",
    kinds=KINDS,
    mixes=(Mix("Operator mix", "operators", "Mean calls per workflow."),),
    shares=(("repaired first", "rollout/repaired"),),
    models=("policy", "executor", "judge"),
    labels=("isolation",),
    meanings=MEANINGS,
)


def _results(workflow: Mapping[str, Any], execution: Mapping[str, Any]) -> list[Block]:
    found: list[Block] = []
    if execution.get("answer") is not None:
        found.append(Text("Answer", str(execution["answer"]), short=True))
    if execution.get("printed"):
        found.append(Fact("Printed", str(execution["printed"])))
    if workflow.get("repairs"):
        found.append(Fact("Repaired", ", ".join(map(str, workflow["repairs"]))))
    if execution:
        found.append(Fact("Spent", _spent(execution)))
    return found


def _program(record: Mapping[str, Any], workflow: Mapping[str, Any]) -> Program:
    source = str(workflow.get("source") or record.get("completion") or "")
    failure: Mapping[str, Any] = record.get("failure") or {}
    return Program(
        "Workflow" if workflow else "Completion (no valid workflow)",
        source,
        # A failure names a line of the program; in a completion it would point at another one.
        failure.get("line") if workflow or "```" not in source else None,
        tuple(map(str, workflow.get("calls") or ())),
    )


def _spent(execution: Mapping[str, Any]) -> str:
    usage = execution.get("usage") or {}
    line = f"{usage.get('calls', 0)} LLM calls, {_tokens(usage):,} tokens"
    if usage.get("money"):
        line += f", money {usage['money']:.3g}"
    if execution.get("seconds"):
        line += f", {duration(execution['seconds'])}"
    own = execution.get("own_seconds")
    return f"{line} ({1000 * own:.0f} ms its own)" if own else line


def _trace(execution: Mapping[str, Any]) -> list[Block]:
    calls = [_call(call) for call in execution.get("trace") or ()]
    if not calls:
        return []
    total = max(execution.get("seconds") or 0.0, *(c.started + c.seconds for c in calls), 1e-6)
    return [Timeline(f"Trace: {len(calls)} operator calls", total, calls)]


def _call(call: Mapping[str, Any]) -> Call:
    """One operator call and what it caused."""
    seconds = call.get("seconds") or 0.0
    tokens = _tokens(call.get("usage") or {})
    blocks: list[Block] = [
        Fact(str(name), str(value)) for name, value in (call.get("arguments") or {}).items()
    ]
    for exchange in call.get("exchanges") or ():
        blocks += _exchange(exchange)
    for title in ("Error", "Result"):
        text = call.get(title.lower())
        if text not in (None, ""):
            blocks.append(Text(title, str(text), short=True))
    return Call(
        name=str(call.get("operator", "?")),
        started=call.get("started") or 0.0,
        seconds=seconds,
        note=", ".join(
            [
                *filter(None, [call.get("model")]),
                duration(seconds),
                *[f"{tokens:,} tokens"] * (tokens > 0),
            ]
        ),
        failed=bool(call.get("error")),
        blocks=blocks,
        children=[_call(child) for child in call.get("children") or ()],
    )


def _exchange(exchange: Mapping[str, Any]) -> list[Block]:
    usage = exchange.get("usage") or {}
    counts = (("prompt_tokens", "tokens in"), ("completion_tokens", "tokens out"))
    facts = [f"{n:,} {name}" for key, name in counts if (n := usage.get(key))]
    if exchange.get("seconds"):
        facts.append(duration(exchange["seconds"]))
    if (exchange.get("attempts") or 1) > 1:
        facts.append(f"{exchange['attempts']} attempts")
    if exchange.get("finish_reason") not in (None, "stop"):
        facts.append(f"finish reason {exchange['finish_reason']}")
    prompt, reply = str(exchange.get("prompt", "")), str(exchange.get("reply", ""))
    return [Text("Prompt", prompt), Text(" · ".join(["Reply", *facts]), reply)]


def _tokens(usage: Mapping[str, Any]) -> int:
    return (usage.get("prompt_tokens") or 0) + (usage.get("completion_tokens") or 0)
