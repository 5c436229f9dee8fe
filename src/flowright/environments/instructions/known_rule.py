"""Synthetic prompts whose reward follows a known rule, for runs without a file: an answer is to
name some words and to leave one out. The same prompts for every kind of reward.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from flowright.criteria.constraints.checkers import Prompt
from flowright.criteria.rubrics.rows import Constraint, Item, RubricRow, VerifRow
from flowright.data.preferences import Turn
from flowright.environments.instructions.config import CHECKED, NamedWordsSection, RewardKind
from flowright.environments.instructions.tasks import InstructionTask, Row, task_of

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
        """What decides about answers, whatever the order in which it is asked for."""
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
    asked = (Turn("user", wanted.prompt),)
    if reward in CHECKED:
        arguments = ({"keywords": [*wanted.named]}, {"forbidden_words": [wanted.left_out]})
        ids = ("keywords:existence", "keywords:forbidden_words")
        return Prompt(place, wanted.prompt, ids, arguments)
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
    """How many different prompts there are that ask for so many words."""
    count = 1
    for taken in range(words + 1):
        count *= len(WORDS) - taken
    return count


def sentences_of(text: str) -> Sequence[str]:
    """The lines and sentences of a prompt, for answers that are put together of them."""
    parts = text.replace("\n", ". ").split(". ")
    return [part.strip() for part in parts if part.strip()] or [text]
