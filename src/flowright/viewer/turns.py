"""The turns of an attempt: what the policy saw, wrote and got, and where the credit went."""

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

from flowright.core.formatting import (
    NOTHING,
    Record,
    is_number,
    known_number,
    object_of,
    objects_in,
)
from flowright.core.report import Block, Fact, Text
from flowright.viewer.rendering.markup import Html, el
from flowright.viewer.rendering.record_blocks import TextLimits, blocks_html
from flowright.viewer.rollout_records import reward_of

STOPS = {
    "done": "the environment had no further answer",
    "max_turns": "no more turns are allowed",
    "overflow": "another turn did not fit into policy.max_episode_tokens",
    "failed": "the environment's answer could not be made, which is our failure",
}
"""Meanings of the reasons that end an attempt."""

T = TypeVar("T")


def turn_facts(record: Record) -> list[Fact]:
    """The number of turns and the end of the attempt; nothing for an attempt without turns."""
    count, stop = len(objects_in(record.get("turns"))), str(record.get("stop"))
    return [Fact("Turns", f"{count:,}, stop reason {stop}", STOPS.get(stop, ""))] if count else []


def turns_html(record: Record, limits: TextLimits) -> list[Html]:
    """Each turn with its texts, open on the attempt's own page."""
    turns = objects_in(record.get("turns"))
    versions = {str(turn.get("policy_version")) for turn in turns}
    found: list[Html] = []
    both = zip(turns[: limits.calls], _rewards(record, turns), strict=False)
    for number, (turn, reward) in enumerate(both, start=1):
        seen, advantage = object_of(turn, "observation"), turn.get("advantage")
        saw, wrote = (
            f"{n:,}" if is_number(n := turn.get(key)) else NOTHING
            for key in ("context_tokens", "tokens")
        )
        anew = " (rendered anew)" if number > 1 and turn.get("continued") is False else ""
        notes = [
            f"saw {saw} tokens{anew}",
            f"wrote {wrote} ({turn.get('finish_reason')})",
            *([f"policy of step {turn.get('policy_version')}"] if len(versions) > 1 else []),
            *([] if reward is None else [f"reward {reward:+.3f}"]),
            *([f"advantage {advantage:+.3f}"] if is_number(advantage) else []),
            *(["not trained on"] if advantage is None and "advantage" in turn else []),
        ]
        failed = el("span", "not parsed", class_="chip alarm") if seen.get("failed") else None
        note = el("span", failed, " ", ", ".join(notes), class_="soft")
        blocks: list[Block] = [Text("Wrote", str(turn.get("completion") or ""))]
        if seen:
            unseen = ", unseen by the policy" if number == len(turns) else ""
            got = f"Got ({seen.get('role')}{unseen})"
            blocks.append(Text(got, str(seen.get("text") or ""), short=True))
        if seen.get("state") is not None:
            blocks.append(Fact("State", str(seen["state"])))
        title = el("summary", el("code", f"Turn {number}"), note)
        shown = blocks_html(blocks, limits)
        found.append(el("details", title, shown, class_="call", open=limits.linked))
    more = len(turns) - len(found)
    return [*found, el("p", f"and {more:,} more turns", class_="soft")] if more else found


def _rewards(record: Record, turns: Sequence[Record]) -> list[float | None]:
    """The part of the attempt's reward that each turn has earned: those of the observations, and
    the rest for the last turn. None where no turn has a part of its own, or nothing was scored."""
    earned = [known_number(object_of(turn, "observation").get("reward")) for turn in turns[:-1]]
    whole = known_number(object_of(record, "reward").get("unpenalised", reward_of(record)))
    if whole is None or not any(earned):
        return [None] * len(turns)
    return [*earned, whole - sum(value or 0.0 for value in earned)]


def by_turn(lengths: object, values: Sequence[T]) -> list[Sequence[T]]:
    """Split a value of each token by the numbers of tokens of the turns; all in one part where
    those do not add up."""
    known = (
        [n for n in lengths if isinstance(n, int) and n >= 0] if isinstance(lengths, list) else []
    )
    if len(known) < 2 or sum(known) != len(values):
        return [values]
    ends = list(accumulate(known))
    return [values[end - length : end] for end, length in zip(ends, known, strict=True)]
