"""Labelled answers: read from a file, or built from tasks. No judging.

A row is ``{"question": ..., "answer": ..., "reference": ..., "label": true}``, optionally with
``id``, ``answer_type``, ``alternatives`` and ``evidence``.

Answers built from tasks are each reference as a right answer, and a mistake as a wrong one. The
gold check decides both labels: references that it refuses and mistakes that pass are left out.
Programs are run in the sandbox, and the outcome of their tests is their evidence.
"""

import asyncio
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import count
from pathlib import Path
from typing import TypeVar, get_args

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.core.tables import Place, Row, read_rows, write_rows
from flowright.data.task import Problem
from flowright.grading import gold_check
from flowright.judging.verdict import AnswerType, JudgeQuery, answer_type_of, task_query
from flowright.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class LabelledItem:
    """An answer whose ``label`` is True if it is right."""

    id: str
    question: str
    answer: str
    reference: str
    label: bool
    answer_type: AnswerType = "free_text"
    alternatives: tuple[str, ...] = ()
    evidence: str | None = None

    def query(self, key: str, rival: str | None = None) -> JudgeQuery:
        """Return what a judge is shown, everything but the label, as a fresh query."""
        return JudgeQuery(
            question=self.question,
            answer=self.answer,
            reference=self.reference,
            answer_type=self.answer_type,
            alternatives=self.alternatives,
            evidence=self.evidence,
            rival=rival,
            key=key,
            fresh=True,
        )


T = TypeVar("T")


def sampled_groups(
    rows: Sequence[T], group: Callable[[T], str], limit: int | None, seed: str
) -> tuple[T, ...]:
    """Return all rows of ``limit`` randomly drawn groups, in their order."""
    groups = list(dict.fromkeys(map(group, rows)))
    if limit is None or limit >= len(groups):
        return tuple(rows)
    kept = set(random.Random(seed).sample(groups, limit))
    return tuple(row for row in rows if group(row) in kept)


_FIELDS = tuple(f.name for f in fields(LabelledItem))
_STRINGS = ("id", "question", "answer", "reference", "evidence")
_REQUIRED = ("question", "answer", "reference", "label")


def is_task_file(path: Path) -> bool:
    """Return True for a mixture: a file whose first row is a task, with a kind and no label."""
    first = next((row for _, row in _rows(path)), {})
    return "kind" in first and "label" not in first


def read_labelled(path: Path) -> list[LabelledItem]:
    """Read all answers of a file. Raises DataError (``file:row: ...``) at the first unusable
    row."""
    items: list[LabelledItem] = []
    seen: dict[str, int] = {}
    for place, row in _rows(path):
        item = _item(row, place)
        if item.id in seen:
            raise place.error(f"id {item.id!r} was used in line {seen[item.id]}")
        seen[item.id] = place.row
        items.append(item)
    if not items:
        raise DataError(f"{path}: no labelled answer in it")
    return items


def _rows(path: Path) -> Iterator[tuple[Place, Row]]:
    if not path.exists():
        raise DataError(
            f"{path}: no such file; --build MIXTURE --out FILE makes one from a mixture"
        )
    return read_rows(path)


def write_labelled(path: Path, items: Sequence[LabelledItem]) -> int:
    """Write answers without empty fields, replacing the file at once; return their number."""
    rows = (asdict(item).items() for item in items)
    write_rows(path, ({k: v for k, v in row if v not in (None, ())} for row in rows))
    return len(items)


def _item(row: Row, place: Place) -> LabelledItem:
    missing = [name for name in _REQUIRED if name not in row]
    if missing:
        raise place.error(f"the row lacks {', '.join(missing)}")
    unknown = [name for name in row if name not in _FIELDS]
    if unknown:
        raise place.error(f"unknown field {unknown[0]}{suggest(unknown[0], _FIELDS)}")
    if not isinstance(row["label"], bool):
        raise place.error(f"label is {row['label']!r}; write true (right) or false (wrong)")
    for name in _STRINGS:
        if name in row and not isinstance(row[name], str):
            raise place.error(f"{name} is {type(row[name]).__name__}, not a string")
    if not row["question"].strip():
        raise place.error("the question is empty")
    if row.get("answer_type", "free_text") not in get_args(AnswerType):
        known = ", ".join(get_args(AnswerType))
        raise place.error(f"answer_type is {row['answer_type']!r}, not one of {known}")
    alternatives = row.get("alternatives", [])
    if not isinstance(alternatives, list) or not all(isinstance(a, str) for a in alternatives):
        raise place.error("alternatives is not a list of strings")
    default = {"id": f"line-{place.row}"}
    return LabelledItem(**{**default, **row, "alternatives": tuple(alternatives)})


_TRIES = 6  # mistakes graded for a task at most
_IN_FLIGHT = 8
_WORDINGS = (
    "{}",
    "The answer is {}.",
    "Answer: {}",
    "Therefore, the final answer is {}.",
    "Going by what is given, the answer is {}.",
)


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """``left_out`` counts tasks without a pair by reason."""

    items: Sequence[LabelledItem]
    left_out: Mapping[str, int] = field(default_factory=dict)


async def labelled_set(
    tasks: Sequence[Problem],
    sandbox: Sandbox,
    seed: int,
    limit: int | None = None,
    progress: Callable[[], None] = lambda: None,
) -> LabelledSet:
    """Build a right and a wrong answer to each task, two rows of the same question.

    ``limit`` takes that many tasks, the kinds in turn; ``progress`` is called after each. The same
    tasks, seed and limit give the same set.
    """
    chosen = _chosen(tasks, seed, limit)
    pools: dict[tuple[str, str], list[str]] = {}
    for task in tasks:
        if task.kind != "code" and task.reference not in dict(task.choices):
            pools.setdefault(pool_of(task), []).append(task.reference)
    slots = asyncio.Semaphore(_IN_FLIGHT)

    async def one(task: Problem) -> tuple[LabelledItem, LabelledItem] | str:
        async with slots:
            found = await _pair(task, pools, sandbox, seed)
        progress()
        return found

    found = await asyncio.gather(*map(one, chosen))
    pairs = [pair for pair in found if not isinstance(pair, str)]
    left_out = Counter(reason for reason in found if isinstance(reason, str))
    return LabelledSet([item for pair in pairs for item in pair], left_out)


def _chosen(tasks: Sequence[Problem], seed: int, limit: int | None) -> list[Problem]:
    """Tasks of all kinds in turn, in a random order."""
    drawn = random.Random(f"{seed}/chosen").sample(list(tasks), len(tasks))
    rounds: defaultdict[str, count[int]] = defaultdict(count)
    ranked = sorted((next(rounds[task.kind]), order) for order, task in enumerate(drawn))
    return [drawn[order] for _, order in ranked][:limit]


async def _pair(
    task: Problem, pools: Mapping[tuple[str, str], Sequence[str]], sandbox: Sandbox, seed: int
) -> tuple[LabelledItem, LabelledItem] | str:
    """Both answers, or the reason for none."""
    draw = random.Random(f"{seed}/worded/{task.id}")
    right = await _graded(task, task.reference, True, draw, sandbox)
    if right is None:
        return "the gold check does not accept the reference"
    for value in mistakes(task, pools, seed)[:_TRIES]:
        wrong = await _graded(task, value, False, draw, sandbox)
        if wrong is not None:
            return right, wrong
    return "no mistake was found that the gold check refuses"


async def _graded(
    task: Problem, value: str, label: bool, draw: random.Random, sandbox: Sandbox
) -> LabelledItem | None:
    """The value as an answer, if the gold check agrees with the label; in plain form if its wording
    changes the check."""
    for answer in dict.fromkeys((_worded(task, value, draw), _bare(task, value))):
        gold = await gold_check(task, answer, sandbox)
        if gold.correct is label:
            name = f"{task.id}/{'right' if label else 'wrong'}"
            query = task_query(task, answer, key=name, evidence=gold.evidence)
            return LabelledItem(
                id=name,
                question=query.question,
                answer=answer,
                reference=query.reference,
                label=label,
                answer_type=query.answer_type,
                alternatives=query.alternatives,
                evidence=query.evidence,
            )
    return None


def _worded(task: Problem, value: str, draw: random.Random) -> str:
    if task.kind == "code" or "\n" in value:
        return _bare(task, value)
    return draw.choice(_WORDINGS).format(value)


def _bare(task: Problem, value: str) -> str:
    return f"```python\n{value.strip()}\n```" if task.kind == "code" else value


# Plausible mistakes of a solver, each graded before use.

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SWAPS = (
    ("yes", "no"), ("true", "false"), ("left", "right"), ("north", "south"), ("east", "west"),
    ("before", "after"), ("odd", "even"), ("increase", "decrease"), ("valid", "invalid"),
)  # fmt: skip
# Small slips in a program; the first that its tests notice is used.
_SLIPS = (
    (" + ", " - "), (" - ", " + "), (" <= ", " < "), (" < ", " <= "), (" >= ", " > "),
    (" > ", " >= "), (" == ", " != "), (" and ", " or "), ("min(", "max("), ("max(", "min("),
    (" * ", " + "), (" % ", " // "), ("True", "False"), ("[0]", "[1]"), ("[1:]", "[2:]"),
    (" + 1", ""), (" - 1", ""), ("*", "+"), ("+", "-"),
)  # fmt: skip
_LAST_RESORT = ("return ", "return not ")


def mistakes(task: Problem, pools: Mapping[tuple[str, str], Sequence[str]], seed: int) -> list[str]:
    """Return wrong answers to try, the most plausible first; fixed by the seed and the task."""
    draw = random.Random(f"{seed}/mistakes/{task.id}")
    if task.kind == "code":
        return list(_slips(task.reference, draw))
    if task.reference in dict(task.choices):
        others = [label for label, _ in task.choices if label != task.reference]
        return draw.sample(others, len(others))
    found = [*_opposite(task.reference), *_other_numbers(task.reference, task.question, draw)]
    if answer_type_of(task) not in ("number", "math_expression"):
        pool = [other for other in pools.get(pool_of(task), ()) if other != task.reference]
        pool.sort(key=lambda other: abs(len(other.split()) - len(task.reference.split())))
        near = pool[:40]
        found += draw.sample(near, min(8, len(near)))
        found += _shuffled(task.reference, draw)
    return list(dict.fromkeys(found))


def pool_of(task: Problem) -> tuple[str, str]:
    """Return a key of tasks whose answers are alike: of one source and one form."""
    reference = task.reference
    form = "digits" if reference[:1].isdigit() else "name" if reference[:1].isupper() else "words"
    return task.source, form


def _slips(code: str, draw: random.Random) -> Iterator[str]:
    for old, new in (*draw.sample(_SLIPS, len(_SLIPS)), _LAST_RESORT):
        places = [match.start() for match in re.finditer(re.escape(old), code)]
        if places:
            place = draw.choice(places)
            yield code[:place] + new + code[place + len(old) :]


def _opposite(reference: str) -> list[str]:
    for pair in _SWAPS:
        for old, new in (pair, pair[::-1]):
            match = re.search(rf"\b{old}\b", reference, re.I)
            if match:
                word = new.capitalize() if match[0][0].isupper() else new
                return [reference[: match.start()] + word + reference[match.end() :]]
    return []


def _other_numbers(reference: str, question: str, draw: random.Random) -> list[str]:
    """The reference with one of its numbers changed as people get numbers wrong: off by one or by
    a step, doubled, halved, two digits exchanged, a number of the question too much or missing."""
    found = list(_NUMBER.finditer(reference))
    if not found:
        return []
    spot = draw.choice(found)
    _, dot, decimals = spot[0].partition(".")
    scale = 10 ** len(decimals)
    value = int(spot[0].replace(".", ""))
    given = [int(n.replace(",", "")) * scale for n in re.findall(r"\d[\d,]*", question)[:6]]
    changed = [value + scale, value - scale, value + 10 * scale, 2 * value, value // 2]
    changed += [value + n for n in given] + [value - n for n in given] + [_exchanged(value)]
    others = [n for n in dict.fromkeys(changed) if n >= 0 and n != value]
    draw.shuffle(others)
    written = [f"{n // scale}.{n % scale:0{len(decimals)}d}" if dot else str(n) for n in others]
    return [reference[: spot.start()] + new + reference[spot.end() :] for new in written]


def _exchanged(value: int) -> int:
    digits = str(value)
    return int(digits[:-2] + digits[-1] + digits[-2]) if len(digits) > 1 else value + 2


def _shuffled(reference: str, draw: random.Random) -> list[str]:
    """The words, or the letters of a single word, with two neighbours exchanged."""
    words = reference.split()
    parts, glue = (words, " ") if len(words) > 1 else (list(reference), "")
    if len(parts) < 2:
        return []
    place = draw.randrange(len(parts) - 1)
    parts[place], parts[place + 1] = parts[place + 1], parts[place]
    return [glue.join(parts)]
