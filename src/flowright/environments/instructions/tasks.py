"""A prompt and what its answers are rewarded by, as a task. No file is read here."""

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flowright.core.errors import ConfigError, DataError
from flowright.criteria.constraints.checkers import InstructedPrompt, read_prompts
from flowright.criteria.rubrics.rows import (
    Constraint,
    Item,
    RubricRow,
    VerifRow,
    read_rubrics,
    read_verif,
)
from flowright.criteria.rubrics.scaffolding import require_criteria
from flowright.data.contamination import TrainedOn, conversation_key, read_sealed_files, test_files
from flowright.data.row_files import (
    Fault,
    LeftOut,
    RowFile,
    RowReport,
    column,
    plain,
    read_row_files,
    text_of,
    turns_of,
)
from flowright.data.sources.registry import no_prompts
from flowright.data.task import Conversation, Task
from flowright.environments.instructions.config import (
    CHECKED,
    InstructionsSection,
    NamedWordsSection,
    RewardKind,
)
from flowright.environments.row_tasks import (
    RowSets,
    row_sets,
    split_digest,
    split_files,
    without_sealed,
)
from flowright.judging.reward.calls import ANSWERS
from flowright.llm.chat import Message


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt whose answers ``reward.terms`` score. ``columns`` are the row's fields, the prompt
    included, as the file has it."""

    conversation: Conversation
    columns: Mapping[str, Any] = field(hash=False)
    id: str = ""

    @property
    def reference(self) -> str:
        """The first column with a usual name of a reference; empty without one."""
        known = (self.columns.get(name) for name in ANSWERS)
        return next((str(each) for each in known if isinstance(each, str | int | float)), "")


Row = RubricRow | VerifRow | InstructedPrompt | PromptRow
"""A row by what rewards it: a rubric, VerIF's constraints, instructions with a checker each, or
terms that need no more than a prompt."""


@dataclass(frozen=True, slots=True)
class InstructionTask(Task):
    """A prompt to be answered. ``shown`` are the criteria that a scaffold may show of it; none
    where nothing is scaffolded."""

    row: Row
    shown: tuple[Item, ...] = field(default=(), compare=False)

    @property
    def conversation(self) -> Conversation:
        """The conversation that is answered, system message included."""
        return conversation_of(self.row)


def conversation_of(row: Row) -> Conversation:
    """The turns that a row's answer follows."""
    return (Message("user", row.text),) if isinstance(row, InstructedPrompt) else row.conversation


def task_of(row: Row, source: str, place: str, shown: tuple[Item, ...] = ()) -> InstructionTask:
    """The task of a row. ``place`` is its file and row, by which it is known."""
    asked = conversation_of(row)[-1].content
    return InstructionTask(place, "instructions", source, asked, _best(row), row, shown)


def _best(row: Row) -> str:
    """Return the criteria of a good answer, or its reference, for screens."""
    if isinstance(row, RubricRow):
        lines = [f"{item.points:+g} {item.criterion}" for item in row.items]
    elif isinstance(row, VerifRow):
        lines = [f"{constraint.kind}: {constraint.text}" for constraint in row.constraints]
    elif isinstance(row, PromptRow):
        lines = [row.reference]
    else:
        lines = [*row.ids]
    return "\n".join(lines)


def messages_of(conversation: Conversation) -> list[Message]:
    """The turns as the chat template takes them."""
    return [*conversation]


SOURCE = "known_rule"

# None is part of another one, nor of the words around them.
WORDS = (
    *("anchor", "basket", "candle", "drum", "engine", "feather", "garden", "hammer", "island"),
    *("jacket", "kettle", "lemon", "mirror", "needle", "onion", "pencil", "quilt", "ribbon"),
    *("saddle", "tunnel", "umbrella", "violin", "window", "yarn"),
)

_LETTERS = re.compile(r"[a-z]+")

_RULE = """\
def check_following(instruction, response):
    return {word!r} not in response.lower()
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The words that an answer is to name, and the one to leave out."""

    named: tuple[str, ...]
    left_out: str

    @property
    def content(self) -> tuple[frozenset[str], str]:
        """The words without the order in which they are asked for."""
        return frozenset(self.named), self.left_out

    @property
    def prompt(self) -> str:
        return f"Name {', '.join(self.named)}. Leave out {self.left_out}."


def known_tasks(
    section: NamedWordsSection, reward: RewardKind, seed: int
) -> tuple[list[InstructionTask], list[InstructionTask]]:
    """Tasks to train on and held out, no prompt twice; what is held out is not trained on in
    another order of its words either."""
    rng = random.Random(f"{seed}/{SOURCE}")
    found: dict[Wanted, None] = {}
    apart: set[tuple[frozenset[str], str]] = set()
    while len(found) < section.train + section.held_out:
        *named, left_out = rng.sample(WORDS, section.words + 1)
        wanted = Wanted(tuple(named), left_out)
        if len(found) < section.held_out:
            apart.add(wanted.content)
        elif wanted.content in apart:
            continue
        found[wanted] = None
    tasks = [
        task_of(_row(wanted, reward, f"{SOURCE}:{number}"), SOURCE, f"{SOURCE}:{number}")
        for number, wanted in enumerate(found, start=1)
    ]
    return tasks[section.held_out :], tasks[: section.held_out]


def _row(wanted: Wanted, reward: RewardKind, place: str) -> Row:
    asked = (Message("user", wanted.prompt),)
    if reward == "own":
        columns = {"prompt": wanted.prompt, "named": [*wanted.named], "left_out": wanted.left_out}
        return PromptRow(asked, columns, place)
    if reward in CHECKED:
        arguments = ({"keywords": [*wanted.named]}, {"forbidden_words": [wanted.left_out]})
        ids = ("keywords:existence", "keywords:forbidden_words")
        return InstructedPrompt(place, wanted.prompt, ids, arguments)
    if reward == "rubric":
        items = [Item(f'The answer names "{word}".', 1.0) for word in wanted.named]
        penalty = Item(f'The answer names "{wanted.left_out}" as well.', -1.0)
        return RubricRow(asked, (*items, penalty), SOURCE, "", place)
    soft = [Constraint(f'Name "{word}".', "soft") for word in wanted.named]
    rule = Constraint(f'Leave out "{wanted.left_out}".', "rule", _RULE.format(word=wanted.left_out))
    return VerifRow(asked, (*soft, rule), SOURCE, "", place)


def drawn_answer(prompt: str, rng: random.Random) -> str:
    """Some of the prompt's words in their order, any choice of them as likely as any other: how
    words are copied, and nothing of which ones pay. A word always stands behind a space, so that
    the embedded policy's tokenizer has one token for it."""
    words = [word for word in _LETTERS.findall(prompt) if word in WORDS]
    choice = rng.randrange(1, 2 ** len(words))
    return f"Take {', '.join(word for n, word in enumerate(words) if choice >> n & 1)}."


def most_rows(words: int) -> int:
    """Return the number of different prompts that ask for that many words."""
    count = 1
    for taken in range(words + 1):
        count *= len(WORDS) - taken
    return count


def sentences_of(text: str) -> Sequence[str]:
    """The lines and sentences of a prompt, for answers that are put together of them."""
    parts = text.replace("\n", ". ").split(". ")
    return [part.strip() for part in parts if part.strip()] or [text]


_NAMED = 3  # rows without criteria that a refusal names


def load_sets(section: InstructionsSection, seed: int) -> RowSets[InstructionTask]:
    """Load the tasks of the configuration. Raises DataError, and ConfigError if scaffolding has
    nothing to show."""
    made = section.data == "known_rule"
    train, held_out, lines = _known(section, seed) if made else _read(section, seed)
    if section.scaffolding.enabled:
        train = _with_criteria(train, section)
    digest = split_digest(map(_key, train), map(_key, held_out))
    return row_sets(train, held_out, digest, lines, "prompts")


Sides = tuple[Sequence[InstructionTask], Sequence[InstructionTask], list[str]]


def _key(task: InstructionTask) -> str:
    return conversation_key(task.conversation)


def _known(section: InstructionsSection, seed: int) -> Sides:
    rule = section.known_rule
    orders = math.factorial(rule.words)  # each of which a held-out prompt keeps from training
    if rule.train + orders * rule.held_out > most_rows(rule.words) // 2:
        raise ConfigError(
            f"instructions.known_rule: there are {most_rows(rule.words):,} prompts that ask for "
            f"{rule.words} words; ask for at most half as many rows, a held-out one counting "
            f"{orders} times"
        )
    note = "SYNTHETIC: answers earn by the words that they name, which no real prompt asks for"
    return *known_tasks(rule, section.reward, seed), [note]


def _read(section: InstructionsSection, seed: int) -> Sides:
    shown = section.scaffolding.files if section.scaffolding.enabled else ()
    _check_files(
        {
            "train_files": section.train_files,
            "val_files": section.val_files,
            "scaffolding.files": shown,
            "sealed": section.sealed or (),
        }
    )
    split, report = split_files(
        _gradable(section, section.train_files),
        _gradable(section, section.val_files) if section.val_files else None,
        _key,
        lambda conversations: min(section.held_out, conversations // 2),
        f"{seed}",
    )
    train, left_out, note = _unsealed(split.train, section)
    report = report.less(left_out)
    return train, split.held_out, [*report.lines(), note]


def _unsealed(
    tasks: Sequence[InstructionTask], section: InstructionsSection
) -> tuple[Sequence[InstructionTask], tuple[LeftOut, ...], str]:
    """Return the tasks that are in no test set, the others, and a line on what was compared. Raises
    DataError if none is left."""
    if section.sealed is None:
        files, nothing = test_files(section.benchmark_dir), f"none is in {section.benchmark_dir}"
    else:
        files, nothing = found_files(section.sealed), "instructions.sealed: []"
    if not files:
        return tasks, (), f"rows to train on compared with no test set ({nothing})"
    sealed, names = read_sealed_files(files), ", ".join(map(str, files))

    def why_sealed(task: InstructionTask) -> str:
        holder = sealed.holder(task.conversation)
        return f"its conversation is one of {holder}, a test set" if holder else ""

    kept, left_out = without_sealed(tasks, why_sealed)
    if not kept:
        raise DataError(
            f"all {len(tasks)} rows to train on are prompts of test sets ({names}); train on "
            "others, or name what may not be trained on in instructions.sealed"
        )
    return kept, left_out, f"rows to train on compared with {names}"


def _gradable(section: InstructionsSection, patterns: Sequence[str]) -> RowFile[InstructionTask]:
    """Read the tasks of files; those of rules alone are left out if rules are ignored."""
    found = read_tasks(found_files(patterns), section.reward)
    if section.rules != "ignore":
        return found
    empty = [
        task.id
        for task in found.rows
        if isinstance(task.row, VerifRow) and all(c.kind == "rule" for c in task.row.constraints)
    ]
    why = "it has rules alone, and rules are ignored (instructions.rules)"
    left_out = tuple(LeftOut(id, Fault.CHECKERS, why) for id in empty)
    if len(left_out) == len(found.rows):
        raise DataError(f"{', '.join(patterns)}: every row {why.removeprefix('it ')}")
    gone = frozenset(empty)
    kept = tuple(task for task in found.rows if task.id not in gone)
    return RowFile(kept, found.report.less(left_out))


def _check_files(named: Mapping[str, Sequence[str]]) -> None:
    """Raises DataError for all files that are missing, each with its key."""
    problems: list[str] = []
    for key, patterns in named.items():
        try:
            found_files(patterns)
        except DataError as error:
            problems += [f"instructions.{key}: {problem}" for problem in error.problems]
    if problems:
        raise DataError(*problems)


def found_files(patterns: Sequence[str]) -> list[Path]:
    """The files of paths and globs, none twice. Raises DataError for one that finds nothing."""
    files: dict[Path, None] = {}
    problems: list[str] = []
    for pattern in patterns:
        path = Path(pattern)
        root = Path(path.anchor)
        is_glob = any(mark in pattern for mark in "*?[") and not path.exists()
        found = sorted(root.glob(str(path.relative_to(root)))) if is_glob else [path]
        if not found or not found[0].is_file():
            problems.append(f"{pattern}: {no_prompts(pattern)}")
        files |= dict.fromkeys(found)
    if problems:
        raise DataError(*problems)
    return [*files]


def read_tasks(paths: Sequence[Path], reward: RewardKind) -> RowFile[InstructionTask]:
    """Read files of the reward's form. Raises DataError; of IFEval's form also for a row with an
    unknown instruction, because every row of a benchmark counts."""
    if reward in CHECKED:
        tasks = tuple(
            task_of(prompt, path.stem, f"{path}:{number}")
            for path in paths
            for number, prompt in enumerate(read_prompts(path), start=1)
        )
        return RowFile(tasks, RowReport(len(tasks)))
    if reward == "own":
        prompts = read_row_files(paths, _prompt_row, "row with a prompt")
        rows = tuple(task_of(row, Path(row.id).stem, row.id) for row in prompts.rows)
        return RowFile(rows, prompts.report)
    found = read_rubrics(paths) if reward == "rubric" else read_verif(paths)
    return RowFile(tuple(task_of(row, row.source, row.id) for row in found.rows), found.report)


def _prompt_row(values: Mapping[str, Any], where: str, path: Path) -> PromptRow:
    """Return the row of a text, or of messages that end with the user's. Raises UnusableRow."""
    prompt = column(values, "prompt")
    if isinstance(prompt, str):
        asked: Conversation = (Message("user", text_of(prompt, "prompt")),)
    else:
        asked = turns_of(prompt, "prompt", "user")
    return PromptRow(asked, {str(key): plain(value) for key, value in values.items()}, where)


def _with_criteria(
    tasks: Sequence[InstructionTask], section: InstructionsSection
) -> list[InstructionTask]:
    """The tasks with the criteria that a scaffold may show: their own, or those of
    ``scaffolding.files``. Raises ConfigError for tasks without any."""
    key, files = "instructions.scaffolding", section.scaffolding.files
    rows = [task.row for task in tasks]
    if not files:
        require_criteria([row for row in rows if isinstance(row, RubricRow | VerifRow)], key)
        own = [row.items if isinstance(row, RubricRow) else () for row in rows]
        return [replace(task, shown=items) for task, items in zip(tasks, own, strict=True)]
    rubrics = {
        conversation_key(row.conversation): row.items
        for row in read_rubrics(found_files(files)).rows
    }
    shown = [
        replace(task, shown=rubrics.get(conversation_key(task.conversation), ())) for task in tasks
    ]
    if without := [task.id for task in shown if not task.shown]:
        names = ", ".join(without[:_NAMED]) + ", ..." * (len(without) > _NAMED)
        raise ConfigError(
            f"{key}.files: of {len(tasks)} rows {len(without)} have no rubric there ({names}); "
            "they would be trained without a scaffold, unnoticed"
        )
    return shown


def trained_on(sets: RowSets[InstructionTask]) -> TrainedOn:
    """Return names and hashes of the tasks on both sides."""
    both = [*sets.train, *sets.held_out]
    names = frozenset(task.source for task in both if task.source)
    return TrainedOn.of_conversations(task.conversation for task in both) | TrainedOn(names)
