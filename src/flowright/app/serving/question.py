"""``scripts/run_workflow.py``: a trained policy answers one question, and shows how."""

import json
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console

from flowright.app.serving.author import Ask, Author, Outcome, open_author
from flowright.app.serving.opening import Opening, question_of
from flowright.app.serving.words import call_line, fault_of, whole
from flowright.app.terminal import say
from flowright.core.errors import Blame
from flowright.core.untrusted import visible
from flowright.data.task import Kind

POLICY_FAILED, WE_FAILED = 1, 2
"""Exit statuses where there is no answer."""

CALLS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Request:
    """The command line. ``temperature``: None for that of the run's evaluations."""

    source: Path
    question: str
    kind: Kind
    samples: int
    seed: int
    temperature: float | None
    as_json: bool


def run_workflow(opening: Opening, request: Request, console: Console) -> int:
    """Answer and print; returns the exit status. Raises UserError for what keeps it from that."""
    return uvloop.run(_answered(opening, request, console))


async def _answered(opening: Opening, request: Request, console: Console) -> int:
    temperature = request.temperature
    if temperature is None:
        temperature = opening.config.evaluation.temperature
    ask = Ask(request.seed, request.samples, temperature, opening.config.policy.top_p)
    problem = question_of(request.question, request.kind)
    async with open_author(opening, console) as author:
        outcome = await author.answer(problem, ask)
    if request.as_json:
        print(json.dumps(whole(author, request.question, request.kind, outcome), indent=2))
    else:
        _show(author, outcome)
    if outcome.failure is None:
        return 0
    if not request.as_json:
        say(console, f"no answer: {visible(fault_of(outcome.failure))}")
    return POLICY_FAILED if outcome.failure.blame is Blame.POLICY else WE_FAILED


def _show(author: Author, outcome: Outcome) -> None:
    for line in _lines(author, outcome):
        print(visible(line))


def _lines(author: Author, outcome: Outcome) -> list[str]:
    lines = [
        f"policy    {author.opening.words}",
        f"executor  {author.config.aflow_executor_model}",
    ]
    if author.simulated:
        lines.append("SIMULATED: the embedded server answers; it knows the run's problems alone")
    if outcome.truncated:
        lines.append("cut       the policy was shown a part of the question; the workflow gets all")
    for number, attempt in enumerate(outcome.attempts[:-1]):
        assert attempt.failure is not None
        lines.append(f"passed over, workflow {number + 1}: {fault_of(attempt.failure)}")
    last = outcome.last
    if last is not None:
        lines.append(f"workflow  {len(outcome.attempts)} of {outcome.drawn}")
        text = last.workflow.source if last.workflow else last.completion
        lines += [f"    {line}" for line in text.rstrip().splitlines()]
    if last is not None and last.execution is not None:
        trace = last.execution.trace
        lines.append("calls")
        lines += [f"    {call_line(call)}" for call in trace[:CALLS_SHOWN]]
        lines += [f"    and {len(trace) - CALLS_SHOWN} more"] * (len(trace) > CALLS_SHOWN)
    if outcome.answer is not None:
        lines += ["answer", *(f"    {line}" for line in outcome.answer.splitlines())]
    asked, wrote = outcome.executor, outcome.policy
    lines.append(
        f"spent     {asked.calls} calls and {asked.tokens} tokens of {_name(author)}; "
        f"{wrote.completion_tokens} tokens written by the policy; {outcome.seconds:.1f} s"
    )
    return lines


def _name(author: Author) -> str:
    return author.config.aflow_executor_model
