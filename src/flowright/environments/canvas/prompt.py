"""Texts of the canvas: the prompt, the feedback to a turn, and the scripted expert's hint."""

from collections.abc import Sequence

from flowright.config.workflow import WorkflowSection
from flowright.data.task import Problem
from flowright.environments.canvas.actions import LEAST_PROMPT, MOST_REPEATS, OPERATORS
from flowright.environments.canvas.config import CanvasSection
from flowright.environments.canvas.graph import CHECKERS, MERGERS, MOST_OPERATORS, SOLVERS, Canvas
from flowright.llm.chat import Message
from flowright.llm.control_tokens import fill

MOST_RESULT, LONG_ANSWER = 500, 60
"""Characters of a result in the feedback; those from which the finish rule wants a Format."""


def canvas_messages(task: Problem, form: str, section: CanvasSection) -> list[Message]:
    """Return the prompt for a task; the problem is in the last message."""
    if form == "compact":
        return [Message("user", f"{_COMPACT}\n\n{task.problem}")]
    limits: WorkflowSection = section
    rules = _RULE * (section.finish_rule == "flowsteer") + _FEW * (section.reward == "judge")
    fields = {
        "rounds": section.max_rounds,
        "calls": limits.max_llm_calls,
        "tokens": limits.max_tokens,
        "operators": MOST_OPERATORS,
        "shortest": LEAST_PROMPT,
        "repeats": MOST_REPEATS,
    }
    system = fill(_FULL, rules=rules, **{name: str(value) for name, value in fields.items()})
    return [Message("system", system), Message("user", f"Problem:\n\n{task.problem}\n\n{_ASK}")]


def accepted(canvas: Canvas, message: str) -> list[str]:
    """Return the feedback's lines about a turn that the canvas took."""
    return [f"Status: {'awaiting a prompt' if canvas.awaited else 'accepted'}", message]


def feedback(
    canvas: Canvas, section: CanvasSection, turn: int, lines: Sequence[str], hint: str = ""
) -> str:
    """Return the answer to a turn. ``lines`` are about the turn and, where it was run, the
    canvas's result."""
    names = canvas.names
    nodes = [
        f"{node.id} ({', '.join(one.id.removeprefix(node.id) for one in node.inner)})"
        if node.inner
        else node.id
        for node in canvas.nodes
    ]
    found = [*lines, f"Canvas: {canvas or '(empty)'}", f"Nodes: {', '.join(nodes) or '(none)'}"]
    count = f"{len(names)} operators, {len(set(names))} kinds"
    found.append(", ".join([f"Count: {count}", *canvas.structures]))
    if canvas.awaited:
        one = canvas.awaited[0]
        found.append(f"Write the prompt of {' '.join(filter(None, [one.operator, one.node]))}.")
    found += [hint] if hint else []
    return "\n".join([*found, f"Round: {turn} of {section.max_rounds}"])


def finish_problem(canvas: Canvas, task: Problem) -> str:
    """Return the first of FlowSteer's finish constraints that a canvas does not meet; empty if it
    meets all."""
    names = set(canvas.names)
    if len(canvas.names) < 5:
        return "fewer than 5 operators"
    if not canvas.structures:
        return "no parallel, conditional or loop"
    if not names & (SOLVERS | {"Aggregate", "Revise"}):
        return "no operator that solves: Custom, Programmer, AnswerGenerate, Aggregate, Revise"
    if not names & CHECKERS:
        return "no check: Verify, Test, Review"
    if task.public_tests and "Test" not in names:
        return "no Test, and the problem has tests"
    if task.kind == "code" and "Programmer" not in names:
        return "no Programmer, and the problem is about code"
    is_long = task.kind != "code" and len(canvas.result or "") > LONG_ANSWER
    return "no Format, and the answer is long" if is_long and "Format" not in names else ""


def hint_for(canvas: Canvas, task: Problem) -> str:
    """Return the scripted expert's next action, as FlowSteer's feedback names it."""
    names, merged = set(canvas.names), MERGERS & set(canvas.names)
    solver = "AnswerGenerate" if task.kind == "qa" else "Programmer"
    checker = {"math": "Verify", "code": "Test", "qa": "Review"}[task.kind]
    steps = (
        (not names & SOLVERS, f"ADD:{solver}", "nothing solves the problem"),
        ("parallel" in canvas.structures and not merged, "ADD:ScEnsemble", "results to merge"),
        (not names & CHECKERS, f"ADD:{checker}", "nothing checks the result"),
        ("Format" not in names and task.kind != "code", "ADD:Format", "the answer has no form"),
        (True, "FINISH", "it is complete"),
    )
    action, reason = next((action, reason) for holds, action, reason in steps if holds)
    return f"[NEXT]={action} ({reason})"


_COMPACT = f"Build a workflow with {', '.join(OPERATORS)}: one action."
_ASK = "Write the first action."

_RULE = """
- A finish needs 5 operators, a structure, an operator that solves and one that checks."""
_FEW = """
- Few operators that suit the problem are better than many."""

_FULL = """\
You build a workflow for one problem on a canvas, one edit a turn. A large language model runs the \
operators; you do not solve the problem. After each turn you see the canvas.

## Operators

- Custom: do what its prompt asks, without reasoning first
- AnswerGenerate: solve step by step
- Programmer: solve by a program that is written and run; for code, write the code
- Plan, Decompose: notes for the operators behind them
- Review, Verify: check the result; the feedback goes to Revise and Programmer
- Test: run the public tests and repair the code up to three times; without tests, a check
- Revise: improve the result by the feedback
- ScEnsemble: vote on the results so far, Aggregate: combine them into one
- Format: bring the result into the form that the problem asks for

The answer is the result of the last operator that makes one.

## Actions

Write one action a turn and nothing else.

<action>add</action><operator>Plan</operator>
<action>add</action><operator>Plan</operator><position>0</position>
<action>add</action><structure>parallel</structure><operators>Programmer, Custom</operators>
<action>add</action><structure>conditional</structure><condition>Verify</condition>\
<true>done</true><false>Revise</false>
<action>add</action><structure>loop</structure><operators>Review, Revise</operators>\
<count>2</count>
<action>modify</action><target>node_2</target><operator>Custom</operator>
<action>set_prompt</action><target>node_2_p0</target><prompt>Use only integers.</prompt>
<action>delete</action><target>node_1</target>
<action>finish</action>

- A new operator needs a prompt: write it as the text of the next turn, for each operator of a \
structure in its turn, or put <prompt>...</prompt> into the action. It has {shortest} characters \
or more and is what the model is instructed with.
- A conditional takes its true branch if its check approves the result; `done` does nothing.
- A loop really repeats, up to {repeats} times.
- At most {rounds} turns, {operators} operators, {calls} calls of the model and {tokens} tokens.\
{rules}"""
