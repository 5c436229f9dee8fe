"""The canvas: nodes, the edits that actions make, its text, and the program that runs it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from flowright.environments.canvas.actions import (
    DONE,
    Action,
    ActionError,
    Structure,
    read_action,
    read_prompt,
)

MOST_OPERATORS = 15
SOLVERS = frozenset({"Custom", "AnswerGenerate", "Programmer"})
CHECKERS = frozenset({"Review", "Verify", "Test"})
MERGERS = frozenset({"ScEnsemble", "Aggregate"})
_PLANNERS = frozenset({"Plan", "Decompose"})


@dataclass
class Node:
    """An operator, or a structure and the operators in it. ``id`` of these ends in ``_p0``,
    ``_l0``, ``_cond``, ``_true`` or ``_false``."""

    id: str
    structure: Structure = "operator"
    operator: str = ""
    prompt: str = ""
    count: int = 1
    inner: list["Node"] = field(default_factory=list)

    def operators(self) -> Iterator["Node"]:
        """Yield the operators, in their order."""
        yield from self.inner or (self,)

    def branch(self, name: str) -> "Node | None":
        """Return a branch of a conditional, ``true`` or ``false``; None if it does nothing."""
        return next((node for node in self.inner if node.id.endswith(f"_{name}")), None)

    def __str__(self) -> str:
        if self.structure == "operator":
            return self.operator
        inner = [node.operator for node in self.inner]
        if self.structure == "parallel":
            return f"[{', '.join(inner)}]"
        if self.structure == "loop":
            return f"({' -> '.join(inner)}) * {self.count}"
        branches = [self.branch(name) for name in ("true", "false")]
        return f"{inner[0]} ? {' : '.join(node.operator if node else DONE for node in branches)}"


@dataclass
class Awaited:
    """An operator whose prompt the next turn is. ``edit``: its addition or change, which is made
    with the prompt; None for one that is on the canvas."""

    operator: str
    node: str
    edit: Action | None = None


@dataclass
class Canvas:
    """A canvas after some turns. ``made`` counts the nodes ever made, so that no id comes twice.
    ``answer`` is that of a finish that has one. ``result``, ``calls``, ``tokens`` and ``seconds``
    are of runs between turns."""

    nodes: list[Node] = field(default_factory=list)
    made: int = 0
    awaited: list[Awaited] = field(default_factory=list)
    is_finished: bool = False
    answer: str = ""
    result: str | None = None
    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @classmethod
    def restore(cls, state: Any) -> "Canvas":
        """Return the canvas of a :meth:`state`; an empty one for None."""
        return _CANVAS.validate_python(state) if state else cls()

    def state(self) -> dict[str, Any]:
        """Return the canvas as plain JSON."""
        return asdict(self)

    @property
    def operators(self) -> list[Node]:
        """All operators, those of structures included."""
        return [inner for node in self.nodes for inner in node.operators()]

    @property
    def names(self) -> list[str]:
        return [node.operator for node in self.operators]

    @property
    def structures(self) -> list[str]:
        """The structures that it has, each once."""
        found = dict.fromkeys(node.structure for node in self.nodes)
        return [name for name in found if name != "operator"]

    def __str__(self) -> str:
        return " -> ".join(map(str, self.nodes))

    def act(self, text: str) -> tuple[str, bool]:
        """Take a turn: return a message about it, and whether it changed what the canvas runs.
        Raises ActionError, and then nothing has changed."""
        if self.awaited:
            return self._prompted(read_prompt(text))
        action = read_action(text)
        if action.kind == "finish":
            if not self.nodes:
                raise ActionError("an empty canvas cannot finish; add an operator first")
            self.is_finished, self.answer = True, action.answer
            return "Finished.", False
        if action.kind == "delete":
            if action.target not in [node.id for node in self.nodes]:
                self._find(action.target)
                raise ActionError(f"{action.target} is part of a structure; delete that")
            self.nodes = [node for node in self.nodes if node.id != action.target]
            return f"Deleted {action.target}.", True
        if action.kind == "set_prompt":
            node = self._find(action.target)
            node.prompt = action.prompt
            return f"{node.operator} ({node.id}) has a new prompt.", True
        if action.kind == "add":
            added = [name for name in action.operators if name != DONE]
            if len(self.names) + len(added) > MOST_OPERATORS:
                raise ActionError(f"a canvas has at most {MOST_OPERATORS} operators")
        else:
            self._find(action.target)
        if action.prompt:
            return self._edit(action), True
        if action.structure == "operator":
            self.awaited = [Awaited(action.operators[0], action.target, action)]
            return f"{action.operators[0]} needs a prompt.", False
        message = self._edit(action)
        made = next(node for node in self.nodes if node.id == f"node_{self.made}")
        self.awaited = [Awaited(node.operator, node.id) for node in made.inner]
        return f"{message} Each operator in it needs a prompt.", False

    def _prompted(self, prompt: str) -> tuple[str, bool]:
        awaited = self.awaited.pop(0)
        if awaited.edit is not None:
            fields = {**asdict(awaited.edit), "prompt": prompt}
            return self._edit(Action(**fields)), True
        self._find(awaited.node).prompt = prompt
        return f"{awaited.operator} ({awaited.node}) has its prompt.", not self.awaited

    def _edit(self, action: Action) -> str:
        """Make an addition or a change of operator."""
        if action.kind == "modify":
            node = self._find(action.target)
            before, node.operator, node.prompt = node.operator, action.operators[0], action.prompt
            return f"Modified {node.id}: {before} is {node.operator} now."
        self.made += 1
        name, prompt = f"node_{self.made}", action.prompt
        if action.structure == "operator":
            node = Node(name, operator=action.operators[0], prompt=prompt)
        else:
            ends = {
                "parallel": [f"p{place}" for place in range(len(action.operators))],
                "loop": [f"l{place}" for place in range(len(action.operators))],
                "conditional": ["cond", "true", "false"],
            }[action.structure]
            inner = [
                Node(f"{name}_{end}", operator=operator, prompt=prompt)
                for end, operator in zip(ends, action.operators, strict=True)
                if operator != DONE
            ]
            count = action.count if action.structure == "loop" else 1
            node = Node(name, action.structure, count=count, inner=inner)
        place = len(self.nodes) if action.position is None else action.position
        self.nodes.insert(place, node)
        return f"Added {node} as {name}."

    def _find(self, target: str) -> Node:
        """Return an operator by its id. Raises ActionError."""
        for node in self.operators:
            if node.id == target:
                return node
        if any(node.id == target for node in self.nodes):
            raise ActionError(f"{target} is a structure; name an operator in it")
        raise ActionError(f"no node {target[:40]!r}; see Nodes")


_CANVAS = TypeAdapter(Canvas)

_HELPERS: Mapping[str, str] = {
    "part": """\
def part(title: str, text: str) -> str:
    return "\\n\\n" + title + ":\\n" + text if text else ""
""",
    "approves": """\
def approves(text: str) -> bool:
    found = re.search(r"(?i)\\b(incorrect|not correct|not right|wrong|correct|right)\\b", text)
    return found is None or found.group(1).lower() in ("correct", "right")
""",
    "majority": """\
def majority(results: list[str]) -> str:
    number = r"\\s*[-+$]?\\d[\\d.,/]*\\s*%?\\s*"
    found = Counter([text.strip() for text in results if re.fullmatch(number, text)])
    best = found.most_common(1)
    return best[0][0] if len(results) > 1 and best and 2 * best[0][1] > len(results) else ""
""",
}
_HEAD = """\
async def workflow(problem):
    notes, result, feedback, passed = "", "", "", True
    results = []
"""

_DEFAULTS: Mapping[str, str] = {
    "Custom": "Solve the problem.",
    "Plan": "Plan how to solve the problem: name the steps, and do not carry them out.",
    "Decompose": "Split the problem into smaller problems that can be solved one after the other.",
    "Verify": "Solve the problem again on your own, then compare the results.",
    "Test": "Test the solution on the problem's own figures or on a small case.",
    "Aggregate": "Combine the candidate results into one answer to the problem.",
}
"""Instructions of operators whose prompt is not set."""
_REPAIRS = 3
_UNSAFE = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<[`\u25c1\uff5c\u2581"}
"""Characters that begin marks of thinking, blocks of code and tags, which a reader of completions
would see in a literal."""


def program_of(canvas: Canvas, is_code: bool) -> str:
    """Return the program of a canvas in the workflow language, for problems about code or others.

    A solver sees the problem, notes of planners and the result before it. A check leaves feedback
    to Revise and Programmer; a conditional takes its true branch if the check approves, or if
    another operator returns something. Of a parallel the last result stands until ScEnsemble or
    Aggregate merges all results since the last merge. Test repairs code that fails public tests up
    to three times; for other problems it is a review.
    """
    if canvas.answer:
        return f"async def workflow(problem):\n    return {_literal(canvas.answer)}"
    lines = [line for node in canvas.nodes for line in _lines(node, is_code)]
    body = _HEAD + "\n".join(_indented([*lines, "return result"]))
    helpers = [text for name, text in _HELPERS.items() if f"{name}(" in body]
    return "\n".join([*helpers, body])


def _lines(node: Node, is_code: bool) -> list[str]:
    if node.structure == "operator":
        return _step(node, is_code)
    if node.structure == "parallel":
        tests = [one for one in node.inner if is_code and one.operator == "Test"]
        calls = [one for one in node.inner if one not in tests]
        joined = ", ".join(_call(one, is_code) for one in calls)
        lines = [f"outputs = await asyncio.gather({joined})"] if calls else []
        for place, one in enumerate(calls):
            lines += [f"found = outputs[{place}]", *_kept(one)]
        return lines + [line for one in tests for line in _step(one, is_code)]
    if node.structure == "loop":
        body = [line for one in node.inner for line in _step(one, is_code)]
        return [f"for _ in range({node.count}):", *_indented(body)]
    check = node.inner[0]
    lines = _step(check, is_code)
    lines += [] if check.operator in CHECKERS else ["passed = bool(found.strip())"]
    for head, name in (("if passed:", "true"), ("else:", "false")):
        branch = node.branch(name)
        lines += [head, *_indented(_step(branch, is_code) if branch else ["pass"])]
    return lines


def _step(node: Node, is_code: bool) -> list[str]:
    """Return the lines of an operator by itself."""
    if node.operator == "Test" and is_code:
        about = _with_instruction("problem", node.prompt)
        return [
            "outcome = await test(result)",
            f"for _ in range({_REPAIRS}):",
            "    if outcome['passed']:",
            "        break",
            f"    result = await revise({about}, result, outcome['feedback'])",
            "    outcome = await test(result)",
            "results = [*results[:-1], result]",
            "passed, feedback = outcome['passed'], outcome['feedback']",
        ]
    if node.operator == "Aggregate":
        return [f"found = majority(results) or await {_call(node, is_code)}", *_kept(node)]
    return [f"found = await {_call(node, is_code)}", *_kept(node)]


def _kept(node: Node) -> list[str]:
    """Return the lines that keep what an operator has ``found``."""
    if node.operator in CHECKERS:
        return [f"feedback += part({node.operator!r}, found)", "passed = approves(found)"]
    if node.operator in _PLANNERS:
        return [f"notes += part({node.operator!r}, found)"]
    before = {"Revise": "*results[:-1], ", "Format": "*results[:-1], "}.get(node.operator, "")
    before = "*results, " if node.operator in SOLVERS else before
    return ["if found:", '    result, feedback = found, ""', f"    results = [{before}found]"]


def _call(node: Node, is_code: bool) -> str:
    """Return the call of an operator of this house that a node is."""
    name, prompt = node.operator, node.prompt or _DEFAULTS.get(node.operator, "")
    wish, about = _literal(prompt), _with_instruction("problem", prompt)
    so_far = "problem + notes + part('Earlier result', result)"
    if name == "Custom":
        return f"generate({wish}, {so_far})"
    if name in SOLVERS:
        wanted = _with_instruction(so_far, prompt)
        if name == "Programmer" and is_code:
            return f"write_code({wanted}, feedback)"
        return f"{'programmer' if name == 'Programmer' else 'answer'}({wanted})"
    if name in _PLANNERS:
        return f"generate({wish}, problem + notes)"
    if name == "ScEnsemble":
        return f"ensemble({about}, (results or [result])[-32:])"
    if name == "Aggregate":
        shown = "part('Candidate results', '\\n\\n'.join(results or [result]))"
        return f"generate({wish}, problem + notes + {shown})"
    if name in CHECKERS:
        return f"review({about}, result)"
    if name == "Revise":
        return f"revise({about}, result, feedback or 'Check every step.')"
    assert name == "Format"
    return f"format({about}, result)"


def _with_instruction(about: str, prompt: str) -> str:
    return f"{about} + part('Instruction', {_literal(prompt)})" if prompt else about


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _literal(text: str) -> str:
    return repr(re.sub(r"[\ud800-\udfff]", "\ufffd", text)).translate(_UNSAFE)
