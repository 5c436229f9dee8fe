"""Train and held-out rows that share no conversation, and the places of two answers. No files.

Two rows are of one conversation if the texts of their turns are the same after
:func:`flowright.data.splits.normalise`. Every draw is a hash of a seed and of what is drawn for, so
that it depends on no order.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Generic

from flowright.core.errors import DataError
from flowright.data.preferences import Pair
from flowright.data.row_files import Fault, LeftOut
from flowright.data.splits import normalise
from flowright.environments.judging.rows import AnyRow, Row, prompt_of


@dataclass(frozen=True, slots=True)
class Split(Generic[AnyRow]):
    """Rows to train on and rows that are held out. ``left_out`` are rows of train that gave way to
    held-out ones. ``digest`` is the SHA-256 of which conversation is on which side."""

    train: tuple[AnyRow, ...]
    held_out: tuple[AnyRow, ...]
    digest: str
    left_out: tuple[LeftOut, ...] = ()


def conversation_key(row: Row) -> str:
    """A hash of the normalised text of what is answered: equal for rows of one conversation."""
    turns = (f"{turn.role}\n{normalise(turn.content)}" for turn in prompt_of(row))
    return hashlib.sha256("\n\n".join(turns).encode()).hexdigest()


def split_by_prompt(rows: Sequence[AnyRow], share: float, seed: int) -> Split[AnyRow]:
    """Hold out the rows of ``share`` of the conversations, of one at least. Raises DataError where
    there are fewer than two conversations."""
    keys = [conversation_key(row) for row in rows]
    drawn = sorted({*keys}, key=lambda key: _draw(seed, "split", key))
    if len(drawn) < 2:
        raise DataError(f"{len(rows)} rows of {len(drawn)} conversation: nothing can be held out")
    count = min(len(drawn) - 1, max(1, round(share * len(drawn))))
    held_out = frozenset(drawn[:count])
    sides = [key in held_out for key in keys]
    train = tuple(row for row, out in zip(rows, sides, strict=True) if not out)
    kept = tuple(row for row, out in zip(rows, sides, strict=True) if out)
    return Split(train, kept, _digest(drawn[count:], held_out))


def kept_apart(train: Sequence[AnyRow], held_out: Sequence[AnyRow]) -> Split[AnyRow]:
    """Rows that were split before, less the rows of train whose conversation is held out. Raises
    DataError where none is left."""
    apart = {conversation_key(row) for row in held_out}
    keys = [(row, conversation_key(row)) for row in train]
    why = "its conversation is held out, too"
    left_out = tuple(LeftOut(row.id, Fault.HELD_OUT, why) for row, key in keys if key in apart)
    kept = tuple(row for row, key in keys if key not in apart)
    if not kept:
        raise DataError(f"all conversations of the {len(train)} rows to train on are held out, too")
    return Split(
        kept, tuple(held_out), _digest({conversation_key(r) for r in kept}, apart), left_out
    )


def in_drawn_order(pair: Pair, seed: int) -> Pair:
    """The pair as it is or the other way round, one as often as the other over many pairs: data may
    have the preferred answer in one place, which a judge would learn instead. The draw is of the
    texts alone, so that a pair's file, its line and the way round it came do not matter."""
    asked = conversation_key(pair)
    first, second = (_draw(seed, "order", f"{asked}/{text}") for text in (pair.first, pair.second))
    return pair.swapped() if second < first else pair


def in_both_orders(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Every pair, followed by itself the other way round (swap augmentation)."""
    return tuple(each for pair in pairs for each in (pair, pair.swapped()))


def _digest(train: Collection[str], held_out: Collection[str]) -> str:
    lines = [*(f"train {key}" for key in train), *(f"held_out {key}" for key in held_out)]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _draw(seed: int, what: str, about: str) -> bytes:
    return hashlib.sha256(f"{seed}/{what}/{about}".encode()).digest()
