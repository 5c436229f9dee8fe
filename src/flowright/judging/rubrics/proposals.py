"""Criteria that a model proposes for a task, for labelled pairs, or for one problem.

Labelled pairs are shown with the label, several at once, to find what the better answers have in
common (contrastive generation: OpenRubrics, arXiv 2510.07743); single problems without any answer,
with points by importance (Rubrics as Rewards, arXiv 2507.17746). A criterion that quotes an answer,
names one by its label or repeats another one is left out.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Literal, get_args

from flowright.core.untrusted import cut
from flowright.criteria.rubrics.rows import Item
from flowright.data.task import Conversation, Pair
from flowright.judging.measuring.benchmark_judges import shown
from flowright.judging.parsing import Form
from flowright.judging.prompts import Block, Question
from flowright.judging.schemas import AnswerSchema, Field, ReadReply
from flowright.llm.replies import strip_thinking

Basis = Literal["task", "pairs", "problem"]
"""Source of the criteria: a description of the task, labelled pairs, or each problem alone."""
BASES: tuple[Basis, ...] = get_args(Basis)

PER_REPLY = 6
"""Criteria in one reply, at most."""
TOP_POINTS = 5
LONGEST = 240
"""Characters of a criterion."""
_SHOWN_CHARS = 3_000  # of a text in a request
_QUOTED_WORDS = 6
_ALIKE = 0.8  # share of common words from which two criteria are one

_SYSTEM = "You write the rubric by which answers to requests earn points."
_RULES = (
    f"Write at most {PER_REPLY} criteria. Each is one sentence about a single answer that can be "
    "checked by reading the request and that answer alone. State what a good answer does, one "
    "thing a sentence. Do not compare answers, do not name one, and quote none. The points, 1 to "
    f"{TOP_POINTS}, are how much the criterion matters."
)
_QUESTIONS: Mapping[Basis, str] = {
    "task": "Which criteria does a good answer to any request of this task meet?",
    "pairs": (
        "For each request people preferred the BETTER ANSWER to the WORSE ANSWER. Which criteria "
        "do the better ones meet and the worse ones miss, and would also decide between answers "
        "to other requests?"
    ),
    "problem": "Which criteria does a good answer to this request meet?",
}
WORDING_SHA256 = sha256(
    json.dumps([_SYSTEM, _RULES, _QUESTIONS], sort_keys=True).encode()
).hexdigest()


def _read_list(value: object) -> str | None:
    """Return a list of criteria as JSON, None for anything else."""
    if not isinstance(value, list) or not 1 <= len(value) <= 2 * PER_REPLY:
        return None
    for each in value:
        text, points = (
            (each.get("criterion"), each.get("points")) if isinstance(each, dict) else ("", 0)
        )
        if not isinstance(text, str) or not text.strip() or len(text) > 2 * LONGEST:
            return None
        if isinstance(points, bool) or points not in range(1, TOP_POINTS + 1):
            return None
    return json.dumps(value, ensure_ascii=False)


_LIST = AnswerSchema(
    _read_list,
    'a list such as [{"criterion": "...", "points": 3}]',
    {
        "type": "array",
        "minItems": 1,
        "maxItems": PER_REPLY,
        "items": {
            "type": "object",
            "properties": {
                "criterion": {"type": "string", "maxLength": LONGEST},
                "points": {"type": "integer", "enum": [*range(1, TOP_POINTS + 1)]},
            },
            "required": ["criterion", "points"],
            "additionalProperties": False,
        },
    },
)
CRITERIA = Field("criteria", _LIST)
_HEAD = re.compile(r"criteria\W{0,4}:\s*(?=\[)", re.IGNORECASE)


def read_criteria(text: str, form: Form, fields: Sequence[Field]) -> ReadReply:
    """Read the last list behind ``criteria:`` in a reply of any form; strict JSON."""
    spoken = strip_thinking(text) or ""
    heads = [*_HEAD.finditer(spoken)]
    if not heads:
        return ReadReply({}, "no list of criteria", "no_verdict" if spoken.strip() else "empty")
    try:
        value, _ = json.JSONDecoder().raw_decode(spoken, heads[-1].end())
    except (ValueError, RecursionError) as error:
        return ReadReply({}, f"the list is not JSON: {error}", "invalid")
    found = _read_list(value)
    if found is None:
        return ReadReply({}, "not a list of criteria with points", "invalid")
    return ReadReply({CRITERIA.key: found}, "")


def question_about(basis: Basis, *blocks: Block) -> Question:
    instruction = f"{_QUESTIONS[basis]} {_RULES}"
    return Question(blocks, (CRITERIA,), basis, _SYSTEM, instruction)


def about_task(task: str) -> Question:
    return question_about("task", Block("TASK", cut(task, _SHOWN_CHARS)))


def about_problem(conversation: Conversation) -> Question:
    return question_about("problem", Block("REQUEST", cut(shown(conversation), _SHOWN_CHARS)))


def about_pairs(pairs: Sequence[Pair]) -> Question:
    """Return the question for what the better answers of several pairs have in common."""
    blocks: list[Block] = []
    for number, pair in enumerate(pairs, start=1):
        better, worse = better_and_worse(pair)
        texts = {"REQUEST": shown(pair.conversation), "BETTER ANSWER": better}
        texts["WORSE ANSWER"] = worse
        blocks += [Block(f"{name} {number}", cut(t, _SHOWN_CHARS)) for name, t in texts.items()]
    return question_about("pairs", *blocks)


def better_and_worse(pair: Pair) -> tuple[str, str]:
    """Return the better answer and the worse one. Raises ValueError for a tie."""
    if pair.label == "tie":
        raise ValueError(f"{pair.id} is a tie")
    return (pair.first, pair.second) if pair.label == "first" else (pair.second, pair.first)


def to_items(found: str) -> list[Item]:
    """Return the criteria of a list that :func:`read_criteria` has read."""
    return [
        Item(" ".join(each["criterion"].split()), float(each["points"]))
        for each in json.loads(found)
    ]


# What a criterion may not be.

_LABEL = re.compile(
    r"(?i:\b(?:better|worse|chosen|rejected|preferred|other|first|second) "
    r"(?:answer|response|reply|output|completion)s?\b|\b(?:chosen|rejected|worse) one\b)"
    r"|\b(?i:answer|response|reply|output|completion) (?:[A-H]|#?\d+)\b"
)
_WORD = re.compile(r"\w+")


def merge_criteria(
    proposed: Iterable[tuple[Sequence[Item], Collection[str]]], most: int
) -> tuple[list[Item], Counter[str]]:
    """Return at most ``most`` different criteria, those that were proposed most often first, and
    the number of the others by reason. Each proposal comes with the answers that it was shown."""
    kept: list[Item] = []
    times: list[int] = []
    left_out = Counter[str]()
    for items, answers in proposed:
        for item in items:
            if reason := _fault(item.criterion, answers):
                left_out[reason] += 1
                continue
            twin = next((n for n, each in enumerate(kept) if _alike(each, item)), None)
            if twin is None:
                kept.append(item)
                times.append(1)
            else:
                times[twin] += 1
                left_out["repeats another"] += 1
    ranked = sorted(range(len(kept)), key=lambda n: (-times[n], -kept[n].points, n))
    if len(ranked) > most:
        left_out[f"beyond {most}"] += len(ranked) - most
    return [kept[n] for n in ranked[:most]], left_out


def _fault(criterion: str, answers: Collection[str]) -> str:
    """Return the reason against a criterion; empty if there is none."""
    if len(criterion) > LONGEST:
        return f"longer than {LONGEST} characters"
    if _LABEL.search(criterion):
        return "names an answer by its label"
    quoted = _runs(criterion)
    return "quotes an answer" if any(quoted & _runs(answer) for answer in answers) else ""


def _runs(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(text.casefold())
    return set(zip(*(words[n:] for n in range(_QUOTED_WORDS)), strict=False))


def _alike(one: Item, other: Item) -> bool:
    first, second = ({*_WORD.findall(item.criterion.casefold())} for item in (one, other))
    return len(first & second) >= _ALIKE * len(first | second)
