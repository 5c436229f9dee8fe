"""Prompts to train on: requests with instructions drawn by a seed, as rows of IFEval's form.

Instructions that contradict each other are not drawn together, and no prompt is of a test set.
IFBench's are drawn one at a time: each rules the whole answer.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

from flowright.core.errors import DataError
from flowright.core.plugins import suggest
from flowright.criteria.constraints.checkers import make
from flowright.criteria.constraints.drawable import IFBENCH, IFEVAL, Drawable
from flowright.criteria.constraints.table import KINDS
from flowright.data.contamination import NOTHING, SealedConversations

_TEXTS = (
    "Write a short letter to a friend about {}.",
    "Write an email to a neighbour about {}.",
    "Write a diary entry about {}.",
    "Write a short story about {}.",
    "Write a poem about {}.",
    "Write a song about {}.",
    "Write a blog post about {}.",
    "Write a brief news report about {}.",
    "Write a speech for a small audience about {}.",
    "Write a dialogue between two sisters about {}.",
    "Write a page of advice about {}.",
    "Write an invitation that has to do with {}.",
    "Write a scene for a radio play about {}.",
    "Write a note for the kitchen door about {}.",
    "Write the opening of a novel about {}.",
    "Explain to a child what there is to know about {}.",
    "Describe what can go wrong with {}.",
    "Give some tips about {}.",
    "Make a plan for the week that leaves room for {}.",
    "Tell a funny anecdote about {}.",
    "Compare two ways to think about {}.",
    "Say why somebody might care about {}.",
    "Draft a small advertisement that mentions {}.",
    "Summarise what a beginner should know about {}.",
)
_SUBJECTS = (
    "a lost umbrella",
    "the first day at a new job",
    "growing tomatoes on a balcony",
    "a night train through the mountains",
    "an old bicycle",
    "learning to swim as a grown-up",
    "a broken kettle",
    "a walk along the harbour",
    "baking bread at home",
    "a birthday in the rain",
    "the sound of an empty school",
    "keeping bees in a town",
    "moving to a smaller flat",
    "a chess game between strangers",
    "repairing a wooden chair",
    "a library that opens at midnight",
    "saving money for a journey",
    "a dog that is afraid of stairs",
    "the last bus of the evening",
    "planting a tree with children",
    "a market on a winter morning",
    "writing with a fountain pen",
    "a bridge that is being built",
    "cooking soup for twelve people",
    "a map with a mistake in it",
    "cleaning out the attic",
    "watching birds from a window",
    "a power cut in summer",
    "a choir that cannot find a singer",
    "sharing a garden with others",
)
_QUESTIONS = (
    "Is it a good idea to {}?",
    "Should somebody with little time {}?",
    "Would you advise a student to {}?",
    "Can it make a person happier to {}?",
)
_DEEDS = (
    "keep a diary",
    "drink coffee in the evening",
    "learn two languages at once",
    "buy a used car",
    "walk to work every day",
    "get up before sunrise",
    "share a kitchen with friends",
    "read the end of a book first",
    "sell an old piano",
    "work through the lunch break",
    "take the stairs to the ninth floor",
    "adopt a second cat",
    "travel without a phone",
    "paint a room black",
    "move to an island",
)


def requests() -> list[str]:
    return [text.format(subject) for text in _TEXTS for subject in _SUBJECTS]


def questions() -> list[str]:
    """Questions answered by yes, no or maybe."""
    return [question.format(deed) for question in _QUESTIONS for deed in _DEEDS]


Part = Literal["train", "val"]
DRAWABLE: Mapping[str, Drawable] = {**IFEVAL, **IFBENCH}
GROUPS: Mapping[str, tuple[str, ...]] = {"ifeval": tuple(IFEVAL), "ifbench": tuple(IFBENCH)}

_TRIES = 200  # for a prompt that was not drawn before

_CONSTRAINED = "detectable_format:constrained_response"
_REPEAT = "combination:repeat_prompt"
_JSON = "detectable_format:json_format"
_TWO = "combination:two_responses"
_LANGUAGE = "language:response_language"
_UPPER, _LOWER = "change_case:english_capital", "change_case:english_lowercase"
_CAPITALS = "change_case:capital_word_frequency"
_LETTERS = "keywords:letter_frequency"
_WORDS = "length_constraints:number_words"
_SENTENCES = "length_constraints:number_sentences"
_PARAGRAPHS = "length_constraints:number_paragraphs"
_FIRST_WORD = "length_constraints:nth_paragraph_first_word"
_ADDED = frozenset({"detectable_content:number_placeholders", "detectable_content:postscript",
                    "detectable_format:title", "startend:end_checker"})  # fmt: skip
"""Instructions that fit beside any text."""
_IN_JSON = frozenset({"keywords:existence", "keywords:forbidden_words", "keywords:frequency"})
_SAYS_WORDS = frozenset({"keywords:existence", "keywords:frequency", "startend:end_checker",
                         _FIRST_WORD, "detectable_format:multiple_sections"})  # fmt: skip

_ALONE: Mapping[str, frozenset[str]] = {
    _CONSTRAINED: frozenset(),
    _JSON: _IN_JSON,
    _REPEAT: _ADDED,
    **dict.fromkeys(IFBENCH, frozenset()),
}
"""By id, all that it can stand beside."""
_CONFLICTS: Mapping[str, frozenset[str]] = {
    _UPPER: frozenset({_LOWER, _CAPITALS, _LANGUAGE, "detectable_format:multiple_sections"}),
    _LOWER: frozenset({_CAPITALS, _LANGUAGE, "detectable_format:multiple_sections"}),
    _LANGUAGE: _SAYS_WORDS | {_LETTERS, _CAPITALS, _TWO},
    _LETTERS: _SAYS_WORDS | {_WORDS, _SENTENCES},
    _CAPITALS: frozenset({"detectable_format:multiple_sections"}),  # SECTION 1
    _WORDS: frozenset({_SENTENCES, _FIRST_WORD}),
    _TWO: frozenset({_PARAGRAPHS, _FIRST_WORD, _SENTENCES}),
    _PARAGRAPHS: frozenset({_FIRST_WORD}),
}
"""By id, some that contradict it; each pair once."""


def contradict(one: str, other: str) -> bool:
    """Return whether two instructions cannot both be followed, or not with all arguments."""
    if one == other:
        return True
    for a, b in ((one, other), (other, one)):
        if (a in _ALONE and b not in _ALONE[a]) or b in _CONFLICTS.get(a, ()):
            return True
    return False


def chosen_types(names: str) -> tuple[str, ...]:
    """Ids, or ``ifeval`` and ``ifbench`` for all of one, with commas between. Raises DataError."""
    chosen: dict[str, None] = {}
    for name in map(str.strip, names.split(",")):
        if name not in GROUPS and name not in DRAWABLE:
            known = suggest(name, [*GROUPS, *DRAWABLE])
            raise DataError(f"--types {name}: no instruction that can be drawn{known}")
        chosen |= dict.fromkeys(GROUPS.get(name, (name,)))
    return tuple(chosen)


@dataclass(frozen=True, slots=True)
class Drawing:
    """``easy``: how many times as often an easy instruction is drawn as another one, 0 for never;
    ``most``: instructions of a prompt, from ``fewest`` on."""

    types: Sequence[str] = GROUPS["ifeval"]
    easy: float = 2.0
    fewest: int = 1
    most: int = 2
    seed: int = 0


@dataclass(frozen=True, slots=True)
class DrawnPrompts:
    """Rows ``key``, ``prompt``, ``instruction_id_list``, ``kwargs`` by part. ``sealed``: requests
    that were left out, as a test set has them."""

    rows: Mapping[Part, list[dict[str, Any]]]
    sealed: tuple[str, ...]

    def counts(self) -> dict[Part, dict[str, int]]:
        """Count how often each instruction was drawn."""
        return {
            part: dict(sorted(Counter(i for r in rows for i in r["instruction_id_list"]).items()))
            for part, rows in self.rows.items()
        }


def draw(
    drawing: Drawing,
    sizes: Mapping[Part, int],
    given: Sequence[str] = (),
    sealed: SealedConversations = NOTHING,
) -> DrawnPrompts:
    """Rows of the parts, no request in two of them. ``given`` are requests to use rather than our
    own; ``sealed`` are prompts of test sets. Raises DataError where there is too little to draw."""
    plain = list(dict.fromkeys(given or requests()))
    yes_or_no = questions()  # what a user's requests ask is not known
    left_out = tuple(text for text in [*plain, *yes_or_no] if text in sealed)
    draws = random.Random(f"{drawing.seed}/requests")
    pools = [
        _split([text for text in pool if text not in left_out], sizes, draws)
        for pool in (plain, yes_or_no)
    ]
    rows: dict[Part, list[dict[str, Any]]] = {}
    first = 0
    for part, size in sizes.items():
        draws = random.Random(f"{drawing.seed}/{part}")
        rows[part] = list(_rows(drawing, size, pools[0][part], pools[1][part], draws, sealed))
        for number, row in enumerate(rows[part], start=first):
            row["key"] = number
        first += size
    return DrawnPrompts(rows, left_out)


def _split(
    pool: list[str], sizes: Mapping[Part, int], draws: random.Random
) -> dict[Part, list[str]]:
    """Shares of a pool as the sizes are, one request at least where anything is drawn."""
    draws.shuffle(pool)
    val = 0
    if sizes.get("val") and len(pool) > 1:
        share = sizes["val"] / sum(sizes.values())
        val = min(max(1, round(share * len(pool))), len(pool) - bool(sizes.get("train")))
    return {"val": pool[:val], "train": pool[val:]}


def _rows(
    drawing: Drawing,
    size: int,
    plain: list[str],
    yes_or_no: list[str],
    draws: random.Random,
    sealed: SealedConversations,
) -> Iterator[dict[str, Any]]:
    types = [name for name in drawing.types if name != _CONSTRAINED or yes_or_no]
    if size and not (types and plain and _weights(types, drawing.easy)):
        raise DataError("nothing to draw: give more requests, more --types, or another --easy")
    following = {False: cycle(plain), True: cycle(yes_or_no or plain)}
    seen: set[str] = set()
    for _ in range(size):
        for _ in range(_TRIES):
            ids = _ids(types, drawing, draws)
            row = _row(next(following[_CONSTRAINED in ids]), ids, draws)
            if row["prompt"] not in seen and row["prompt"] not in sealed:
                break
        else:
            raise DataError(f"{len(seen)} different prompts, and no more: give more requests")
        seen.add(row["prompt"])
        yield row


def _weights(types: Sequence[str], easy: float) -> list[float]:
    """None where none can be drawn."""
    weights = [easy if DRAWABLE[name].is_easy else 1.0 for name in types]
    return weights if any(weights) else []


def _ids(types: Sequence[str], drawing: Drawing, draws: random.Random) -> list[str]:
    ids: list[str] = []
    left = list(types)
    for _ in range(draws.randint(drawing.fewest, drawing.most)):
        weights = _weights(left, drawing.easy)
        if not weights:
            break
        ids += draws.choices(left, weights)
        left = [name for name in left if not any(contradict(name, other) for other in ids)]
    return ids


def _row(request: str, ids: list[str], draws: random.Random) -> dict[str, Any]:
    arguments = [DRAWABLE[name].arguments(draws, request) for name in ids]
    sentences = [
        DRAWABLE[name].sentence(values, draws) for name, values in zip(ids, arguments, strict=True)
    ]
    for name, values in zip(ids, arguments, strict=True):
        for kind in KINDS:
            make(name, values, kind)
    if _REPEAT in ids:  # its "above" must stand right behind the request
        sentences.insert(0, sentences.pop(ids.index(_REPEAT)))
    text = " ".join([request, *sentences])
    return {"key": 0, "prompt": text, "instruction_id_list": ids, "kwargs": arguments}
