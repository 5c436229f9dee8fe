"""Negatives against one-token attacks: rows whose answer announces a solution and gives none, with
the lowest label, or as the worse of two. "One Token to Fool LLM-as-a-Judge" (arXiv 2507.08794)
found that judges call such answers right up to 80-90 % of the time, and that training on them ends
it. What keeps them from a judge that is not trained is :mod:`flowright.judging.rules`.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from flowright.data.preferences import Pair
from flowright.environments.judging.rows import PairRow, PointwiseRow
from flowright.environments.judging.splits import in_drawn_order

MASTER_KEYS = (
    *(".", ",", ":", "Solution", "Thought process:", "Let's solve this problem step by step."),
    *("解", "かいせつ", "Respuesta"),  # up to here those of the paper
    *("Final answer:", "The answer is", "Lösung:", "Réponse :", "Resposta:", "Ответ:", "الحل:"),
    *("答案：", "思考过程：", "答え：", "정답:", "उत्तर:"),
)
"""Answers that fool judges."""

SOURCE = ", master key"
"""What the source of such a row ends with."""

_SENTENCE = re.compile(r"[^.!?。！？\n]{10,300}[.!?。！？:]")
_LEAST_REST = 3  # of a first sentence, as often its length has to follow it

NegativeRow = TypeVar("NegativeRow", bound=PairRow | PointwiseRow | Pair)


def with_negatives(rows: Sequence[NegativeRow], share: float, seed: int) -> tuple[NegativeRow, ...]:
    """The rows, and behind them negatives made of a ``share`` of them, at most one of each. Half of
    them answer with a master key, half with the first sentence of a real answer, where it has one
    that is only its beginning."""
    rng = random.Random(f"{seed}/negatives")
    drawn = rng.sample(range(len(rows)), round(share * len(rows)))
    return (*rows, *(_negative(rows[place], rng, seed) for place in sorted(drawn)))


def is_negative(source: str) -> bool:
    """Whether a row of this source was made here."""
    return source.endswith(SOURCE)


def first_sentence(answer: str) -> str | None:
    """The sentence that an answer begins with, where at least three times as much follows it."""
    found = _SENTENCE.match(answer.lstrip())
    if found is None or len(found[0]) * (1 + _LEAST_REST) > len(answer.strip()):
        return None
    return found[0]


def _negative(row: NegativeRow, rng: random.Random, seed: int) -> NegativeRow:
    source, id = f"{row.source}{SOURCE}", f"{row.id}{SOURCE}"
    if isinstance(row, PointwiseRow):
        attack = _attack(row.answer, rng)
        return replace(row, answer=attack, label=0, source=source, id=id)
    if isinstance(row, PairRow):
        attack = _attack(row.chosen, rng)
        return replace(row, rejected=attack, tie=False, margin=None, source=source, id=id)
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
