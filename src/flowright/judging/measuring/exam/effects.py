"""What a perturbation does to P(called right), and what the order of two answers does to which one
wins. Paired by item; a pair of which one side has no verdict is left out and counted (law 1).

Intervals are at 95 %, each by itself. Whether an effect is found is another question, asked of all
of them together: by a randomization test adjusted for their number, so that at most one exam in
twenty finds anything in a judge without biases.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from flowright.core.statistics import DIFFERENCE, SHARE, Estimate, Resampler, mean
from flowright.judging.llm_judge import ORDERS
from flowright.judging.measuring.exam.asking import AskedAnswer
from flowright.judging.measuring.exam.perturbations import CONTROL, control_of

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


def effects(answers: Mapping[str, Sequence[AskedAnswer]], resampler: Resampler) -> list[Effect]:
    """One effect for every variant but the plain one and every label that it was asked of.
    ``answers`` are the first verdicts by variant."""
    found: list[Effect] = []
    plain = _by_item(answers[PLAIN])
    control = _by_item(answers.get(CONTROL, ()))
    for name, asked in answers.items():
        if name == PLAIN:
            continue
        against = plain if control_of(name) is None else control
        for label in (False, True):
            mine = [answer for answer in asked if answer.probe.item.label == label]
            if mine:
                found.append(_effect(name, mine, plain, against, resampler))
    return found


def _effect(
    name: str,
    asked: Sequence[AskedAnswer],
    plain: Mapping[str, AskedAnswer],
    control: Mapping[str, AskedAnswer],
    resampler: Resampler,
) -> Effect:
    to_plain, to_control = _pairs(asked, plain), _pairs(asked, control)
    questions = [answer.probe.item.question for answer, _ in to_plain]
    own_questions = [answer.probe.item.question for answer, _ in to_control]
    own = _differences(to_control)
    average = partial(_average, resampler, questions)
    return Effect(
        bias=name,
        label=asked[0].probe.item.label,
        asked=len(asked),
        compared=len(own),
        before=average([_said(answer) for _, answer in to_plain], SHARE),
        after=average([_said(answer) for answer, _ in to_plain], SHARE),
        own=_average(resampler, own_questions, own, DIFFERENCE),
        total=average(_differences(to_plain), DIFFERENCE),
        p_value=resampler.p_value(own_questions, own),
    )


def direction(value: float | None, adjusted: float | None) -> Literal["raises", "lowers"] | None:
    """What an effect does, where it is found; ``adjusted`` is its p-value among all."""
    if value is None or adjusted is None or adjusted > FOUND_AT:
        return None
    return "raises" if value > 0 else "lowers"


def _by_item(answers: Sequence[AskedAnswer]) -> dict[str, AskedAnswer]:
    return {answer.probe.item.id: answer for answer in answers}


def _pairs(
    asked: Sequence[AskedAnswer], control: Mapping[str, AskedAnswer]
) -> list[tuple[AskedAnswer, AskedAnswer]]:
    """Perturbed and unperturbed, where both have a verdict."""
    found = [(answer, control.get(answer.probe.item.id)) for answer in asked]
    return [
        (answer, other)
        for answer, other in found
        if other is not None and None not in (answer.verdict.correct, other.verdict.correct)
    ]


def _said(answer: AskedAnswer) -> float:
    return float(bool(answer.verdict.correct))


def _differences(pairs: Sequence[tuple[AskedAnswer, AskedAnswer]]) -> list[float]:
    return [_said(answer) - _said(other) for answer, other in pairs]


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


def orders(answers: Sequence[AskedAnswer], resampler: Resampler) -> Orders:
    """What the verdicts of a judge that asks in both orders (two ``members``: the answer first, the
    answer second; or ``parts`` called so) say about order."""
    both = [(answer, scores) for answer in answers if (scores := _scores(answer)) is not None]
    questions = [answer.probe.item.question for answer, _ in both]
    shifts = [one - two for _, (one, two) in both]
    average = partial(_average, resampler, questions)
    return Orders(
        pairs=len(answers),
        compared=len(both),
        position=average(shifts, DIFFERENCE),
        consistency=average([float(one == two) for _, (one, two) in both], SHARE),
        prefers=average([(one + two) / 2 for _, (one, two) in both], SHARE),
        p_value=resampler.p_value(questions, shifts),
    )


def _scores(answer: AskedAnswer) -> tuple[float, float] | None:
    members, parts = answer.verdict.members, answer.verdict.parts
    if parts.keys() >= {*ORDERS}:  # what a judge behind HTTP says of them
        return parts[ORDERS[0]], parts[ORDERS[1]]
    if len(members) != 2 or members[0].score is None or members[1].score is None:
        return None
    return members[0].score, members[1].score


def stability(answers: Sequence[AskedAnswer], repeats: int, resampler: Resampler) -> Estimate:
    """Share of items whose ``repeats`` verdicts are all the same, among those that have so many."""
    said: dict[str, list[AskedAnswer]] = {}
    for answer in answers:
        if answer.verdict.correct is not None:
            said.setdefault(answer.probe.item.id, []).append(answer)
    whole = [several for several in said.values() if len(several) == repeats]
    questions = [several[0].probe.item.question for several in whole]
    same = [float(len({answer.verdict.correct for answer in several}) == 1) for several in whole]
    return _average(resampler, questions, same, SHARE)


def _average(
    resampler: Resampler,
    questions: Sequence[str],
    values: Sequence[float],
    within: tuple[float, float],
) -> Estimate:
    return resampler.estimate(questions, [(value, 1.0) for value in values], mean, within)
