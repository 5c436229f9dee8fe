"""From the text of a turn to an action: tags of XML or of square brackets, and two fallbacks.

Linear in the text, which a policy may write at any length.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from flowright.llm.replies import strip_thinking

OPERATORS = (
    *("Custom", "AnswerGenerate", "Programmer", "ScEnsemble", "Test", "Review"),
    *("Revise", "Decompose", "Verify", "Plan", "Aggregate", "Format"),
)
FURTHER = {"CustomCodeGenerate": "Programmer", "MdEnsemble": "ScEnsemble"}
"""Operators that are also read, and those that they stand for."""
DONE = "done"
"""The branch of a conditional that does nothing."""

ActionKind = Literal["add", "delete", "modify", "set_prompt", "finish"]
Structure = Literal["operator", "parallel", "conditional", "loop"]
LEAST_PROMPT, MOST_PROMPT = 5, 1000
"""Characters of a node's prompt."""
MOST_REPEATS = 10
"""Largest count of a loop."""


class ActionError(ValueError):
    """A turn that is no action, or one that the canvas cannot take."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action. ``operators`` of a conditional are its check and both branches. ``prompt`` is
    that of all operators that are added, which are then not asked for one by one."""

    kind: ActionKind
    structure: Structure = "operator"
    operators: tuple[str, ...] = ()
    count: int = 3
    position: int | None = None
    target: str = ""
    prompt: str = ""
    answer: str = ""


_FREE = ("prompt", "answer")
"""Tags with any text between them; others hold no brackets."""
_NAMES = "action|operators?|structure|target|condition|true|false|count|position|prompt|answer"
_ANY_CASE = re.IGNORECASE | re.ASCII
_TAG = re.compile(rf"[<\[](/?)({_NAMES})[>\]]", _ANY_CASE)
_WHOLE_TAG = re.compile(rf"[<\[]({_NAMES})[>\]][^<\[]*[<\[]/\1[>\]]", _ANY_CASE)
_FENCED = re.compile(r"^[ \t]*```.*?^[ \t]*```", re.DOTALL | re.MULTILINE)
_KNOWN: Mapping[str, str] = {name.lower(): name for name in OPERATORS} | {
    name.lower(): known for name, known in FURTHER.items()
}
_FINISHES = re.compile(
    r"\b(?:let'?s|let us|i will|i'll|time to|now|ready to) finish\b"
    r"|\bfinish (?:the )?workflow\b|\bworkflow (?:is )?(?:now )?complete\b",
    _ANY_CASE,
)
_MENTIONS = re.compile(rf"\b(?:{'|'.join(_KNOWN)})\b", _ANY_CASE)


def read_action(text: str) -> Action:
    """Return the first action of a turn. Raises ActionError.

    Without a tag ``<action>``, a text that speaks of finishing finishes, and one that names exactly
    one operator adds it.
    """
    spoken = _spoken(text)
    fields = _fields(spoken)
    kind = fields.get("action", "").lower()
    if kind == "finish":
        return Action("finish", answer=fields.get("answer", ""))
    if kind == "add":
        return _added(fields)
    if kind == "delete":
        return Action("delete", target=_needed(fields, "target"))
    if kind == "modify":
        target, operator = _needed(fields, "target"), _operator(_needed(fields, "operator"))
        return Action("modify", operators=(operator,), target=target, prompt=_prompt(fields))
    if kind == "set_prompt":
        prompt = _checked(_needed(fields, "prompt"))
        return Action("set_prompt", target=_needed(fields, "target"), prompt=prompt)
    return _inferred(spoken)


def read_prompt(text: str) -> str:
    """Return the prompt that a turn is where one is awaited: the text of a tag ``<prompt>``, else
    all but tags of actions. Raises ActionError."""
    spoken = _spoken(text)
    found = [value for name, value in _tagged(spoken) if name == "prompt"]
    if found:
        return _checked(found[0])
    return _checked(_TAG.sub("", _WHOLE_TAG.sub("", spoken)))


def _spoken(text: str) -> str:
    """Return a turn without its thinking, as Unicode. Raises ActionError if nothing is left."""
    spoken = strip_thinking(text.encode("utf-8", "replace").decode())
    if spoken is None or not spoken.strip():
        raise ActionError("nothing behind the thinking; write an action, or the awaited prompt")
    return spoken


def _checked(text: str) -> str:
    """Return a node's prompt without the space around it. Raises ActionError for its length."""
    prompt = text.strip()
    if not LEAST_PROMPT <= len(prompt) <= MOST_PROMPT:
        raise ActionError(
            f"a prompt has {LEAST_PROMPT} to {MOST_PROMPT} characters, this one {len(prompt)}"
        )
    return prompt


def _fields(text: str) -> dict[str, str]:
    """Return the first value of each tag, up to a second action."""
    found: dict[str, str] = {}
    for name, value in _tagged(text):
        if name == "action":
            if "action" in found:
                break
            if value.lower() not in get_args(ActionKind):
                continue
        found.setdefault(name, value)
    return found


def _tagged(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of tags outside of blocks of code. Tags within a value are text."""
    blocks = [match.span() for match in _FENCED.finditer(text)][::-1]
    tags = [(m.start(), m.end(), bool(m[1]), m[2].lower()) for m in _TAG.finditer(text)]
    closings = {name: place for place, (_, _, closes, name) in enumerate(tags) if closes}
    place = 0
    while place < len(tags):
        start, begin, closes, name = tags[place]
        place += 1
        while blocks and blocks[-1][1] <= start:
            blocks.pop()
        is_code = bool(blocks) and blocks[-1][0] <= start
        if closes or is_code or closings.get(name, -1) < place:
            continue
        end = place
        while name in _FREE and tags[end][2:] != (True, name):
            end += 1
        value = text[begin : tags[end][0]].strip()
        if tags[end][2:] == (True, name) and (name in _FREE or not re.search(r"[<\[\]]", value)):
            yield name, value
            place = end + 1


def _added(fields: Mapping[str, str]) -> Action:
    structure = fields.get("structure", "operator").lower()
    place = fields.get("position", "")
    position = int(place) if re.fullmatch(r"\d{1,6}", place) else None
    prompt = _prompt(fields)
    if structure == "operator":
        operator = _operator(_needed(fields, "operator"))
        return Action("add", operators=(operator,), position=position, prompt=prompt)
    if structure == "conditional":
        check = _operator(_needed(fields, "condition"))
        branches = [_needed(fields, "true"), fields.get("false", DONE)]
        chosen = [DONE if name.lower() == DONE else _operator(name) for name in branches]
        if chosen == [DONE, DONE]:
            raise ActionError("a conditional needs an operator in <true> or <false>")
        operators = (check, *chosen)
        return Action("add", "conditional", operators, position=position, prompt=prompt)
    if structure not in ("parallel", "loop"):
        raise ActionError("<structure> is parallel, conditional or loop")
    names = re.split(r"[,;\s]+", _needed(fields, "operators"))
    operators = tuple(_operator(name) for name in names if name)
    if len(operators) < 1 + (structure == "parallel"):
        raise ActionError("<operators> of a parallel are at least two, of a loop at least one")
    shown = fields.get("count", "")
    count = int(shown[:6]) if re.fullmatch(r"\d+", shown) else 3
    count = max(1, min(MOST_REPEATS, count))
    return Action("add", structure, operators, count, position, prompt=prompt)


def _prompt(fields: Mapping[str, str]) -> str:
    return _checked(fields["prompt"]) if fields.get("prompt") else ""


def _needed(fields: Mapping[str, str], name: str) -> str:
    if not fields.get(name):
        raise ActionError(f"<{name}> is missing")
    return fields[name]


def _operator(name: str) -> str:
    if name.lower() not in _KNOWN:
        raise ActionError(f"no operator {name[:40]!r}; there are {', '.join(OPERATORS)}")
    return _KNOWN[name.lower()]


def _inferred(text: str) -> Action:
    if _FINISHES.search(text):
        return Action("finish")
    named = {_KNOWN[match[0].lower()] for match in _MENTIONS.finditer(text)}
    if len(named) == 1:
        return Action("add", operators=tuple(named))
    if named:
        raise ActionError("several operators and no action; write <action>add</action> with one")
    raise ActionError("no action; write one, such as <action>add</action><operator>Plan</operator>")
