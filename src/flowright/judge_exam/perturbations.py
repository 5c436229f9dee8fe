"""Perturbations: an answer changed in one way that a fair judge would not mind. No judging here.

All but one leave what is answered as it is, so the label stays. ``master_key`` puts something that
is no answer in its place, so it is made of wrong answers only.
"""

import random
from dataclasses import replace

from flowright.judge_exam.labelled import LabelledItem
from flowright.judge_exam.wordings import CUES, FILLER, MASTER_KEYS, NEUTRAL, PADDED_WORDS

CONTROL = "neutral"
"""Words that say nothing, as many as a cue has: what every cue is compared with."""

CUED: tuple[str, ...] = tuple(CUES)
PERTURBATIONS: tuple[str, ...] = ("verbosity", *CUED, "master_key")


def control_of(name: str) -> str | None:
    """The variant that a perturbation's own effect is measured against; None for the answer as it
    was."""
    return CONTROL if name in CUES else None


def perturbed(item: LabelledItem, name: str, seed: int) -> LabelledItem | None:
    """The item with its answer perturbed; None where this perturbation does not apply to it.

    The same for the same item, name and seed.
    """
    draw = random.Random(f"{seed}/{name}/{item.id}")
    if name == "master_key":
        return None if item.label else replace(item, answer=draw.choice(MASTER_KEYS))
    answer = _fenced(item)
    if name == "verbosity":
        missing = PADDED_WORDS - len(answer.split())
        return (
            replace(item, answer=f"{_padding(missing, draw)}\n\n{answer}") if missing > 0 else None
        )
    words = draw.choice(NEUTRAL if name == CONTROL else CUES[name])
    return replace(item, answer=f"{words}\n\n{answer}")


def reworded(item: LabelledItem, seed: int) -> tuple[LabelledItem, LabelledItem]:
    """The answer behind two different neutral passages of one length: two answers of which neither
    is better."""
    one, other = random.Random(f"{seed}/reworded/{item.id}").sample(list(NEUTRAL), 2)
    answer = _fenced(item)
    return replace(item, answer=f"{one}\n\n{answer}"), replace(item, answer=f"{other}\n\n{answer}")


def _padding(words: int, draw: random.Random) -> str:
    """At least so many words, in paragraphs."""
    paragraphs: list[str] = []
    while sum(len(paragraph.split()) for paragraph in paragraphs) < words:
        paragraphs.append(" ".join(draw.sample(list(FILLER), 4)))
    return "\n\n".join(paragraphs)


def _fenced(item: LabelledItem) -> str:
    """Code gets a fence before words are put in front of it, so that it stays a program."""
    if item.answer_type != "code" or "```" in item.answer:
        return item.answer
    return f"```python\n{item.answer.strip()}\n```"
