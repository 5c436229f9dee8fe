"""A policy at work in words: programs, calls and failures as they come, and the whole as JSON."""

from typing import Any

from flowright.app.serving.author import Attempt, Author, Draft, Event, Outcome
from flowright.core.errors import Blame, Failure
from flowright.core.untrusted import one_line
from flowright.llm.chat import Usage
from flowright.llm.fences import fenced
from flowright.workflows.executor import OperatorCall
from flowright.workflows.trace import Exchange

TEXT_CHARS = 160
"""Of a text in a line of the trace."""


def words_of(event: Event) -> str:
    """What is told of an event while the answer is being made: lines of Markdown."""
    if isinstance(event, Draft):
        repairs = ", ".join(event.workflow.repairs)
        head = f"workflow {event.number + 1}" + (f" (repaired: {repairs})" if repairs else "")
        return f"{head}\n\n{fenced(event.workflow.source.rstrip(), 'python')}\n\n"
    if isinstance(event, Attempt):
        assert event.failure is not None
        return f"- {fault_of(event.failure)}\n\n"
    return f"- {call_line(event)}\n"


def call_line(call: OperatorCall) -> str:
    """An operator call in a line: what was handed over first, what came back, what it took."""
    given = next(iter(call.arguments.values()), "")
    came = call.result if call.error is None else call.error
    spent = f"{call.usage.calls} calls, {call.usage.tokens} tokens, {call.seconds:.2f} s"
    shown = f"{call.operator}({one_line(given, TEXT_CHARS)}) -> {one_line(came or '', TEXT_CHARS)}"
    return f"{shown}  [{spent}]"


def fault_of(failure: Failure) -> str:
    """A failure with whose fault it is."""
    if failure.blame is Blame.POLICY:
        return f"the policy's fault, {failure}"
    return f"not the policy's fault (servers, sandbox or this program), {failure}"


def whole(author: Author, question: str, kind: str, outcome: Outcome) -> dict[str, Any]:
    """All that is known of an answer, as plain JSON."""
    last = outcome.last
    execution = last.execution if last else None
    return {
        "question": question,
        "kind": kind,
        "answer": outcome.answer,
        "failure": _failed(outcome.failure),
        "program": last.workflow.source if last and last.workflow else None,
        "trace": [_call(call) for call in execution.trace] if execution else [],
        "attempts": [
            {"completion": one.completion, "failure": _failed(one.failure)}
            for one in outcome.attempts
        ],
        "samples": outcome.drawn,
        "usage": {"policy": spent(outcome.policy), "executor": spent(outcome.executor)},
        "seconds": round(outcome.seconds, 3),
        "policy": str(author.opening.checkpoint),
        "executor": author.config.aflow_executor_model,
        "simulated": author.simulated,
        "question_cut_for_policy": outcome.truncated,
    }


def _failed(failure: Failure | None) -> dict[str, Any] | None:
    return None if failure is None else failure.record()


def spent(usage: Usage) -> dict[str, int]:
    """Requests and tokens, as JSON."""
    return {
        "calls": usage.calls,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
    }


def _call(call: OperatorCall) -> dict[str, Any]:
    return {
        "operator": call.operator,
        "arguments": call.arguments,
        "result": call.result,
        "error": call.error,
        "started": round(call.started, 3),
        "seconds": round(call.seconds, 3),
        "usage": spent(call.usage),
        "exchanges": [_exchange(one) for one in call.exchanges],
    }


def _exchange(exchange: Exchange) -> dict[str, Any]:
    return {"prompt": exchange.prompt, "reply": exchange.reply, "seconds": exchange.seconds}
