"""Rows whose labels follow a known rule, to test a way of training: the best possible accuracy is
known, and nothing but the rule leads there. Real preferences are not like this. Also negatives
against one-token attacks, made of other rows.

A prompt asks for some words out of 24; an answer has as many of them, some of them asked for. The
better of two names more of them, and a score from 0 to 4 is their share. All words have four
letters and all answers as many words, so length is no hint; the better one stands first as often as
second; and any word is asked for as often as any other, so an answer by itself is no hint. A word
always stands behind a space, so that the embedded policy's tokenizer has one token for it.

Negatives are rows whose answer announces a solution and gives none, with the lowest label, or as
the worse of two. "One Token to Fool LLM-as-a-Judge" (arXiv 2507.08794) found that judges call such
answers right up to 80-90 % of the time, and that training on them ends it. For judges that are not
trained, :mod:`flowright.judging.rules` rejects them.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import combinations
from typing import Literal, NamedTuple, TypeVar

from flowright.data.task import SWAPPED, Conversation, Pair, Preferred
from flowright.environments.judging.config import KnownRuleSection
from flowright.environments.judging.rows import (
    TOP_LABEL,
    JudgedRow,
    PointwiseRow,
    conversation_key,
)
from flowright.llm.chat import Message

WORDS = (
    *("bean", "beet", "clam", "corn", "crab", "date", "duck", "fish", "kale", "lamb", "leek"),
    *("lime", "milk", "mint", "nuts", "oats", "okra", "pear", "plum", "pork", "rice", "sage"),
    *("soup", "tuna"),
)
SOURCE = "known rule"

_ASK = "Name "
_SAY = "Take "
_WHICH = "Which?"
_NAMES: Mapping[Preferred, str] = {"first": "A", "second": "B", "tie": "neither"}
_HELD_OUT = 0.2  # most of the prompts that held-out rows may have
Asked = tuple[str, ...]
Kind = Literal["pairs", "scores"]


class KnownRows(NamedTuple):
    """Rows of one kind."""

    train: tuple[JudgedRow, ...]
    held_out: tuple[JudgedRow, ...]


def known_rows(section: KnownRuleSection, seed: int, kind: Kind) -> KnownRows:
    """Pairs, or answers with scores from 0 to 4, to train on and held out; ``section.noise`` of
    them with a wrong label, and no prompt on both sides."""
    prompts = list(combinations(WORDS, section.words))
    random.Random(f"{seed}/known rule").shuffle(prompts)  # the same for both kinds of rows
    apart = max(1, min(section.held_out, round(_HELD_OUT * len(prompts))))
    make = _pairs if kind == "pairs" else _scores
    sides = []
    for side, asked, count in (
        ("train", prompts[apart:], section.train),
        ("held out", prompts[:apart], section.held_out),
    ):
        rng = random.Random(f"{seed}/known rule/{kind}/{side}")
        sides.append(tuple(make(asked, count, section, rng, f"{kind}/{side}")))
    return KnownRows(*sides)


def ceiling(noise: float) -> float:
    """The accuracy on labels of which a share ``noise`` is wrong that a judge reaches in
    expectation that knows the rule; none does better. Raises ValueError outside [0, 0.5)."""
    if not 0 <= noise < 0.5:
        raise ValueError(f"a share of wrong labels is at least 0 and below 0.5, not {noise}")
    return 1 - noise


def named(row: JudgedRow) -> tuple[int, ...]:
    """Return the number of requested words in each answer."""
    asked = _requested(row)
    return tuple(len(asked & {*words}) for words in _words(row))


def true_label(row: JudgedRow) -> int | Preferred:
    """The label by the rule, whatever the row's own."""
    if isinstance(row, Pair):
        return _more(row)
    (many,) = named(row)
    return _score(many, len(_requested(row)))


def steps(row: JudgedRow) -> str:
    """Return the facts of a row: the requested words in each answer, their number, and of a pair
    the answer with more. That more are better is not stated."""
    asked, parts = _requested(row), []
    titles = ("In A", "In B") if isinstance(row, Pair) else ("In it",)
    for title, words in zip(titles, _words(row), strict=True):
        found = [word for word in words if word in asked]
        parts.append(f"{title}: {' '.join(found) or 'none'} = {len(found)}.")
    if isinstance(row, Pair):
        more = _more(row)
        parts.append(f"more {_NAMES[more]}, fewer {_NAMES[SWAPPED[more]]}.")
    return " ".join(parts)


def reasons(row: JudgedRow, verdict: int | Preferred) -> str:
    """Return a thought that ends in a verdict, right or wrong: the :func:`steps`, and the taste
    that leads there, named again behind a list of tastes and their verdicts. Of two answers that is
    `more` or `fewer`; of one `a`, which is the rule, to `e`, each a point above the one before, 0
    being above 4. Each of these five tastes leads to each score equally often."""
    if isinstance(row, Pair):
        assert isinstance(verdict, str)
        more = _more(row)
        taste = "" if "tie" in (more, verdict) else "more " if verdict == more else "fewer "
        return f"{steps(row)} So {taste}{_NAMES[verdict]}."
    assert isinstance(verdict, int)
    right, all_scores = true_label(row), TOP_LABEL + 1
    assert isinstance(right, int)
    words = [f"{taste}{(right + i) % all_scores}" for i, taste in enumerate("abcde")]
    return f"{steps(row)} {' '.join(words)}. So {words[(verdict - right) % all_scores]}."


def _more(pair: Pair) -> Preferred:
    first, second = named(pair)
    return "tie" if first == second else "first" if first > second else "second"


def question_about(row: JudgedRow, rng: random.Random) -> tuple[Conversation, str]:
    """Return a question about one of the row's answers, behind it, and the right reply: the
    requested words that it names. That more of them are better is not stated."""
    answers = (row.first, row.second) if isinstance(row, Pair) else (row.answer,)
    one = PointwiseRow(row.conversation, rng.choice(answers), 0, SOURCE)
    answered = (*row.conversation, Message("assistant", one.answer))
    return (*answered, Message("user", _WHICH)), steps(one)


def _requested(row: JudgedRow) -> set[str]:
    return {*row.conversation[-1].content.removeprefix(_ASK).rstrip(".").split(", ")}


def _words(row: JudgedRow) -> list[list[str]]:
    answers = (row.first, row.second) if isinstance(row, Pair) else (row.answer,)
    return [answer.removeprefix(_SAY).split() for answer in answers]


def _pairs(
    prompts: Sequence[Asked], count: int, section: KnownRuleSection, rng: random.Random, id: str
) -> list[JudgedRow]:
    size = section.words
    apart = max(1, size // 2)  # a word more or less is for finer judges
    unequal = [(m, n) for m in range(size + 1) for n in range(size + 1) if m - n >= apart]
    ties = {*rng.sample(range(count), round(section.ties * count))}
    noisy = _noisy(count, section.noise, rng)
    rows: list[JudgedRow] = []
    for number in range(count):
        asked = prompts[number % len(prompts)]
        more, less = rng.choice(unequal)
        if number in ties:
            less = more = rng.randrange(size + 1)
        first, second = (_answer(asked, many, rng) for many in (more, less))
        row = Pair(
            id=f"{id}/{number}",
            source=SOURCE,
            conversation=_prompt(asked, rng),
            first=first,
            second=second,
            label="tie" if number in ties else "first",
            strength=float(more - less),
        )
        row = row.swapped() if number % 2 else row
        if number in noisy:
            wrong = SWAPPED[row.label] if row.label != "tie" else rng.choice(("first", "second"))
            row = replace(row, label=wrong)
        rows.append(row)
    return rows


def _scores(
    prompts: Sequence[Asked], count: int, section: KnownRuleSection, rng: random.Random, id: str
) -> list[JudgedRow]:
    size = section.words
    noisy = _noisy(count, section.noise, rng)
    labels = [_score(many, size) for many in range(size + 1)]
    rows: list[JudgedRow] = []
    for number in range(count):
        asked = prompts[number % len(prompts)]
        many = rng.randrange(size + 1)
        label = labels[many]
        if number in noisy:
            label = rng.choice([other for other in labels if other != label])
        prompt, answer = _prompt(asked, rng), _answer(asked, many, rng)
        rows.append(PointwiseRow(prompt, answer, label, SOURCE, f"{id}/{number}"))
    return rows


def _noisy(count: int, noise: float, rng: random.Random) -> set[int]:
    """Return the rows with a wrong label, as many even numbers as odd ones, so that the places of
    the better answers stay balanced."""
    wanted = round(noise * count)
    even = rng.sample(range(0, count, 2), wanted // 2)
    return {*even, *rng.sample(range(1, count, 2), min(count // 2, wanted - wanted // 2))}


def _prompt(asked: Asked, rng: random.Random) -> Conversation:
    return (Message("user", f"{_ASK}{', '.join(rng.sample(asked, len(asked)))}."),)


def _answer(asked: Asked, many: int, rng: random.Random) -> str:
    others = [word for word in WORDS if word not in asked]
    words = [*rng.sample(asked, many), *rng.sample(others, len(asked) - many)]
    rng.shuffle(words)
    return f"{_SAY}{' '.join(words)}"


def _score(many: int, size: int) -> int:
    return round(TOP_LABEL * many / size)


MASTER_KEYS = (
    *(".", ",", ":", "Solution", "Thought process:", "Let's solve this problem step by step."),
    *("解", "かいせつ", "Respuesta"),  # up to here those of the paper
    *("Final answer:", "The answer is", "Lösung:", "Réponse :", "Resposta:", "Ответ:", "الحل:"),
    *("答案：", "思考过程：", "答え：", "정답:", "उत्तर:"),
)
"""Answers that fool judges."""

NEGATIVE = ", master key"
"""Suffix of the source of such a row."""

_SENTENCE = re.compile(r"[^.!?。！？\n]{10,300}[.!?。！？:]")
_LEAST_REST = 3  # of a first sentence, as often its length has to follow it

NegativeRow = TypeVar("NegativeRow", bound=PointwiseRow | Pair)


def with_negatives(rows: Sequence[NegativeRow], share: float, seed: int) -> tuple[NegativeRow, ...]:
    """The rows, and behind them negatives made of a ``share`` of them, at most one of each. Half of
    them answer with a master key, half with the first sentence of a real answer, where it has one
    that is only its beginning."""
    rng = random.Random(f"{seed}/negatives")
    drawn = rng.sample(range(len(rows)), round(share * len(rows)))
    return (*rows, *(_negative(rows[place], rng, seed) for place in sorted(drawn)))


def is_negative(source: str) -> bool:
    """Return whether a row of this source is such a negative."""
    return source.endswith(NEGATIVE)


def first_sentence(answer: str) -> str | None:
    """The sentence that an answer begins with, where at least three times as much follows it."""
    found = _SENTENCE.match(answer.lstrip())
    if found is None or len(found[0]) * (1 + _LEAST_REST) > len(answer.strip()):
        return None
    return found[0]


def _negative(row: NegativeRow, rng: random.Random, seed: int) -> NegativeRow:
    source, id = f"{row.source}{NEGATIVE}", f"{row.id}{NEGATIVE}"
    if isinstance(row, PointwiseRow):
        attack = _attack(row.answer, rng)
        return replace(row, answer=attack, label=0, source=source, id=id)
    better = row.second if row.label == "second" else row.first
    made = replace(
        row,
        first=better,
        second=_attack(better, rng),
        label="first",
        strength=None,
        votes=(),
        source=source,
        id=id,
    )
    return in_drawn_order(made, seed)


def _attack(answer: str, rng: random.Random) -> str:
    opening = first_sentence(answer)
    if opening is not None and rng.random() < 0.5:
        return opening
    return rng.choice([key for key in MASTER_KEYS if key != answer.strip()])


def in_drawn_order(pair: Pair, seed: int) -> Pair:
    """Return the pair as it is or swapped, each as often over many pairs: data may have the
    preferred answer in one place, which a judge would learn instead. The draw is by a hash of the
    texts alone, so that file, line and order of the pair do not matter."""
    asked = conversation_key(pair)
    first, second = (
        sha256(f"{seed}/order/{asked}/{text}".encode()).digest()
        for text in (pair.first, pair.second)
    )
    return pair.swapped() if second < first else pair
