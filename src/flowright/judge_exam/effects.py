"""What a perturbation does to P(called right), and what the order of two answers does to which one
wins. Paired by item; a pair of which one side has no verdict is left out and counted (law 1).

Intervals are at 95 %, each by itself. Whether an effect is found is another question, asked of all
of them together: by a randomization test adjusted for their number, so that at most one exam in
twenty finds anything in a judge without biases.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from flowright.judge_exam.asking import Outcome
from flowright.judge_exam.perturbations import CONTROL, control_of
from flowright.statistics import DIFFERENCE, SHARE, Estimate, Resampler, mean

PLAIN = "plain"
FOUND_AT = 0.05


@dataclass(frozen=True, slots=True)
class Effect:
    """A perturbation's effect on the answers of one label.

    ``before`` and ``after`` are shares called right. ``own`` is the difference to the same answer
    behind as many neutral words, where the perturbation adds a cue; else to the answer as it was.
    ``total`` is the difference to the answer as it was. ``p_value`` is of ``own``.
    """

    bias: str
    label: bool
    asked: int
    compared: int
    before: Estimate
    after: Estimate
    own: Estimate
    total: Estimate
    p_value: float | None


def effects(outcomes: Mapping[str, Sequence[Outcome]], resampler: Resampler) -> list[Effect]:
    """One effect for every variant but the plain one and every label that it was asked of.
    ``outcomes`` are the first verdicts by variant."""
    found: list[Effect] = []
    plain = _by_item(outcomes[PLAIN])
    control = _by_item(outcomes.get(CONTROL, ()))
    for name, asked in outcomes.items():
        if name == PLAIN:
            continue
        against = plain if control_of(name) is None else control
        for label in (False, True):
            mine = [outcome for outcome in asked if outcome.probe.item.label == label]
            if mine:
                found.append(_effect(name, mine, plain, against, resampler))
    return found


def _effect(
    name: str,
    asked: Sequence[Outcome],
    plain: Mapping[str, Outcome],
    control: Mapping[str, Outcome],
    resampler: Resampler,
) -> Effect:
    to_plain, to_control = _pairs(asked, plain), _pairs(asked, control)
    questions = [outcome.probe.item.question for outcome, _ in to_plain]
    own_questions = [outcome.probe.item.question for outcome, _ in to_control]
    own = _differences(to_control)

    def average(values: Sequence[float], within: tuple[float, float]) -> Estimate:
        return resampler.estimate(questions, [(value, 1.0) for value in values], mean, within)

    return Effect(
        bias=name,
        label=asked[0].probe.item.label,
        asked=len(asked),
        compared=len(own),
        before=average([_said(outcome) for _, outcome in to_plain], SHARE),
        after=average([_said(outcome) for outcome, _ in to_plain], SHARE),
        own=resampler.estimate(own_questions, [(value, 1.0) for value in own], mean, DIFFERENCE),
        total=average(_differences(to_plain), DIFFERENCE),
        p_value=resampler.p_value(own_questions, own),
    )


def direction(value: float | None, adjusted: float | None) -> Literal["raises", "lowers"] | None:
    """What an effect does, where it is found; ``adjusted`` is its p-value among all."""
    if value is None or adjusted is None or adjusted > FOUND_AT:
        return None
    return "raises" if value > 0 else "lowers"


def _by_item(outcomes: Sequence[Outcome]) -> dict[str, Outcome]:
    return {outcome.probe.item.id: outcome for outcome in outcomes}


def _pairs(
    asked: Sequence[Outcome], control: Mapping[str, Outcome]
) -> list[tuple[Outcome, Outcome]]:
    """Perturbed and unperturbed, where both have a verdict."""
    found = [(outcome, control.get(outcome.probe.item.id)) for outcome in asked]
    return [
        (outcome, other)
        for outcome, other in found
        if other is not None and None not in (outcome.called_right, other.called_right)
    ]


def _said(outcome: Outcome) -> float:
    return float(bool(outcome.called_right))


def _differences(pairs: Sequence[tuple[Outcome, Outcome]]) -> list[float]:
    return [_said(outcome) - _said(other) for outcome, other in pairs]


@dataclass(frozen=True, slots=True)
class Orders:
    """Some pairs of answers, each judged in both orders.

    With ``s1`` the answer's score where it is shown first and ``s2`` where it is shown second, in
    1 (it wins), 0.5 (tie), 0: the first shown wins ``s1`` of the one order and ``1 - s2`` of the
    other, so ``position``, P(first wins) - P(second wins) over both orders, is the mean of
    ``s1 - s2``. How much better one answer is cancels out. ``consistency`` is the share of pairs
    with ``s1 == s2``; ``prefers`` the mean of ``(s1 + s2) / 2``, where one answer is the better.
    """

    pairs: int
    compared: int
    position: Estimate
    consistency: Estimate
    prefers: Estimate
    p_value: float | None


def orders(outcomes: Sequence[Outcome], resampler: Resampler) -> Orders:
    """What the verdicts of a judge that asks in both orders (two ``members``: the answer first, the
    answer second) say about order."""
    both = [(outcome, scores) for outcome in outcomes if (scores := _scores(outcome)) is not None]
    questions = [outcome.probe.item.question for outcome, _ in both]
    shifts = [one - two for _, (one, two) in both]

    def average(values: Sequence[float], within: tuple[float, float]) -> Estimate:
        return resampler.estimate(questions, [(value, 1.0) for value in values], mean, within)

    return Orders(
        pairs=len(outcomes),
        compared=len(both),
        position=average(shifts, DIFFERENCE),
        consistency=average([float(one == two) for _, (one, two) in both], SHARE),
        prefers=average([(one + two) / 2 for _, (one, two) in both], SHARE),
        p_value=resampler.p_value(questions, shifts),
    )


def _scores(outcome: Outcome) -> tuple[float, float] | None:
    members = outcome.verdict.members
    if len(members) != 2 or members[0].score is None or members[1].score is None:
        return None
    return members[0].score, members[1].score


def stability(outcomes: Sequence[Outcome], repeats: int, resampler: Resampler) -> Estimate:
    """Share of items whose ``repeats`` verdicts are all the same, among those that have so many."""
    said: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.called_right is not None:
            said.setdefault(outcome.probe.item.id, []).append(outcome)
    whole = [several for several in said.values() if len(several) == repeats]
    questions = [several[0].probe.item.question for several in whole]
    same = [(float(len({outcome.called_right for outcome in s}) == 1), 1.0) for s in whole]
    return resampler.estimate(questions, same, mean, SHARE)
