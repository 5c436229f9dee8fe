"""The exam: which queries are asked of a judge, and what their verdicts come to as one record.

The record is plain data for ``exam.json``, which the page and the screen draw. No servers are
opened here: the judges are handed in.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict as as_dict, dataclass
from typing import Any, get_args

import numpy as np
from pydantic_core import to_jsonable_python

from flowright.core.statistics import Resampler, holm
from flowright.data.preferences import Pair
from flowright.judging.measuring.exam.asking import AskedAnswer, Probe, ask_all
from flowright.judging.measuring.exam.effects import PLAIN, direction, effects, orders, stability
from flowright.judging.measuring.exam.labelled import LabelledItem
from flowright.judging.measuring.exam.measures import counted, is_graded, measures, reliability
from flowright.judging.measuring.exam.perturbations import (
    CONTROL,
    PERTURBATIONS,
    control_of,
    perturbed,
    reworded,
)
from flowright.judging.verdict import Judge, Status, Verdict

EQUAL, UNEQUAL, BIASED = "equal_pair", "unequal_pair", "evalbiasbench"
_LATENCY_BINS = 24


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked, and how it is counted. Prices are per million tokens, None where unknown."""

    perturbations: Sequence[str] = PERTURBATIONS
    repeats: int = 3
    seed: int = 0
    concurrency: int = 32
    resamples: int = 4000
    price_in: float | None = None
    price_out: float | None = None


def probes_of(items: Sequence[LabelledItem], plan: Plan) -> list[Probe]:
    """Every query about one answer: as it is, ``repeats`` times, and perturbed."""
    found = [
        Probe(item, PLAIN, item.query(f"{plan.seed}/{item.id}/{repeat}"), repeat)
        for repeat in range(plan.repeats)
        for item in items
    ]
    cued = any(control_of(name) for name in plan.perturbations)
    for name in (*((CONTROL,) if cued else ()), *plan.perturbations):
        for item in items:
            changed = perturbed(item, name, plan.seed)
            if changed is not None:
                query = changed.query(f"{plan.seed}/{item.id}/{name}")
                found.append(Probe(changed, name, query))
    return found


def pairs_of(items: Sequence[LabelledItem], plan: Plan) -> list[Probe]:
    """Every query about two answers: one worded in two ways, and a right one with a wrong one to
    the same question. Programs are left out: a query has evidence of one answer only."""
    items = [item for item in items if item.answer_type != "code"]
    found: list[Probe] = []
    for item in items:
        one, other = reworded(item, plan.seed)
        key = f"{plan.seed}/{item.id}/{EQUAL}"
        found.append(Probe(one, EQUAL, one.query(key, rival=other.answer)))
    wrong = {item.question: item for item in items if not item.label}
    for item in items:
        rival = wrong.get(item.question)
        if item.label and rival is not None:
            key = f"{plan.seed}/{item.id}/{UNEQUAL}"
            found.append(Probe(item, UNEQUAL, item.query(key, rival=rival.answer)))
    return found


def biased_probes(pairs: Sequence[Pair], plan: Plan) -> list[Probe]:
    """Pairs whose worse answer is made to look good (EvalBiasBench, Park et al. 2024, arXiv
    2407.06551), without references. Ties are left out, and conversations of several turns."""
    found: list[Probe] = []
    for pair in pairs:
        if pair.label == "tie" or len(pair.conversation) > 1:
            continue
        better = pair if pair.label == "first" else pair.swapped()
        item = LabelledItem(f"{BIASED}/{pair.id}", pair.question, better.first, "", True)
        key = f"{plan.seed}/{item.id}"
        found.append(Probe(item, BIASED, item.query(key, rival=better.second)))
    return found


def sample_items(items: Sequence[LabelledItem], limit: int | None, seed: int) -> list[LabelledItem]:
    """All answers to ``limit`` questions, drawn; in the order of the file."""
    questions = list(dict.fromkeys(item.question for item in items))
    if limit is None or limit >= len(questions):
        return list(items)
    kept = set(random.Random(f"{seed}/questions").sample(questions, limit))
    return [item for item in items if item.question in kept]


async def hold_exam(
    items: Sequence[LabelledItem],
    judge: Judge,
    pair_judge: Judge | None,
    plan: Plan,
    tell: Callable[[AskedAnswer], None] = lambda answer: None,
    biased: Sequence[Pair] = (),
) -> dict[str, Any]:
    """Ask everything and return the record. ``pair_judge`` compares two answers in both orders;
    None leaves position and the ``biased`` pairs out. Raises JudgeDown."""
    single = await ask_all(judge, probes_of(items, plan), plan.concurrency, tell)
    pairs: list[AskedAnswer] = []
    if pair_judge is not None:
        asked = [*pairs_of(items, plan), *biased_probes(biased, plan)]
        pairs = await ask_all(pair_judge, asked, plan.concurrency, tell)
    return to_jsonable_python(examined(items, single, pairs, plan))


def examined(
    items: Sequence[LabelledItem],
    single: Sequence[AskedAnswer],
    pairs: Sequence[AskedAnswer],
    plan: Plan,
) -> dict[str, Any]:
    """What the verdicts come to. Answers are grouped by question for every interval."""
    questions = [*(item.question for item in items), *(a.probe.item.question for a in pairs)]
    resampler = Resampler(questions, plan.resamples, plan.seed)
    plain = [o for o in single if o.probe.variant == PLAIN and o.probe.repeat == 0]
    variants: dict[str, list[AskedAnswer]] = {PLAIN: plain}
    for answer in single:
        if answer.probe.variant != PLAIN:
            variants.setdefault(answer.probe.variant, []).append(answer)
    scored = [answer for answer in plain if answer.verdict.correct is not None]
    repeated = [answer for answer in single if answer.probe.variant == PLAIN]
    return {
        "questions": len({item.question for item in items}),
        "answers": len(items),
        "plan": plan,
        "measures": _by_type(plain, resampler),
        "confusion": _confusion(plain),
        "graded": is_graded(scored),
        "reliability": reliability(scored) if scored else [],
        "stability": stability(repeated, plan.repeats, resampler) if plan.repeats > 1 else None,
        "service": service([*single, *pairs], plan),
        **_robustness(variants, pairs, resampler),
    }


def _robustness(
    variants: Mapping[str, Sequence[AskedAnswer]],
    pairs: Sequence[AskedAnswer],
    resampler: Resampler,
) -> dict[str, Any]:
    """Effects of perturbations and of order, and which of them are found among all."""
    alone = effects(variants, resampler)
    ordered = {
        name: orders(some, resampler)
        for name in (EQUAL, UNEQUAL, BIASED)
        if (some := [answer for answer in pairs if answer.probe.variant == name])
    }
    adjusted = holm([found.p_value for found in (*alone, *ordered.values())])
    values = [*(e.own.value for e in alone), *(o.position.value for o in ordered.values())]
    verdicts = iter(
        [{"adjusted": p, "found": direction(v, p)} for v, p in zip(values, adjusted, strict=True)]
    )
    return {
        "effects": [as_dict(effect) | next(verdicts) for effect in alone],
        "pairs": {name: as_dict(order) | next(verdicts) for name, order in ordered.items()},
    }


def _by_type(plain: Sequence[AskedAnswer], resampler: Resampler) -> dict[str, Any]:
    types = dict.fromkeys(answer.probe.item.answer_type for answer in plain)
    groups: dict[str, Sequence[AskedAnswer]] = {"all": plain}
    if len(types) > 1:
        groups |= {t: [o for o in plain if o.probe.item.answer_type == t] for t in types}
    return {name: measures(group, resampler) for name, group in groups.items()}


def _confusion(plain: Sequence[AskedAnswer]) -> dict[str, int]:
    """Counts of the first verdicts; those that failed stand by themselves."""
    rows = np.asarray(counted([a for a in plain if a.verdict.correct is not None])).reshape(-1, 4)
    tp, fp, tn, fn = (int(count) for count in rows.sum(axis=0))
    lost = Counter(o.probe.item.label for o in plain if o.verdict.correct is None)
    return {
        "right_called_right": tp,
        "wrong_called_right": fp,
        "wrong_called_wrong": tn,
        "right_called_wrong": fn,
        "right_unscored": lost[True],
        "wrong_unscored": lost[False],
    }


def service(answers: Sequence[AskedAnswer], plan: Plan) -> dict[str, Any]:
    """How verdicts came about, over all of the exam: states, tries, tokens, cost, seconds. Shares
    are of all verdicts; tokens and seconds of those for which a model was asked, tries of the
    questions that it was asked."""
    verdicts = [answer.verdict for answer in answers]
    asked = [verdict for verdict in verdicts if verdict.attempts > 0]
    statuses = Counter(verdict.status for verdict in verdicts)
    sources = Counter(verdict.source for verdict in verdicts)
    tokens_in = sum(verdict.usage.prompt_tokens for verdict in verdicts)
    tokens_out = sum(verdict.usage.completion_tokens for verdict in verdicts)
    total = len(verdicts)
    tries = [n for verdict in asked for n in _tries(verdict)]
    cost = None
    if plan.price_in is not None and plan.price_out is not None and asked:
        cost = (tokens_in * plan.price_in + tokens_out * plan.price_out) / 1e6
    return {
        "verdicts": total,
        "asked": len(asked),
        "status": {name: statuses[name] / total for name in get_args(Status)} if total else {},
        "source": {name: count / total for name, count in sorted(sources.items())},
        "tries_mean": sum(tries) / len(tries) if asked else None,
        "retried": sum(n > 1 for n in tries) / len(tries) if asked else None,
        "prompt_tokens_mean": tokens_in / len(asked) if asked else None,
        "completion_tokens_mean": tokens_out / len(asked) if asked else None,
        "cost": cost,
        "cost_per_1000": None if cost is None else 1000 * cost / len(asked),
        "seconds": _latency([verdict.seconds for verdict in asked]) if asked else None,
    }


def _tries(verdict: Verdict) -> list[int]:
    """Tries at each question that a verdict took: the two orders of a pair, a panel's members."""
    if verdict.members:
        return [n for member in verdict.members for n in _tries(member)]
    return [verdict.attempts] if verdict.attempts > 0 else []


def _latency(seconds: Sequence[float]) -> dict[str, Any]:
    p50, p95, p99 = np.quantile(seconds, [0.5, 0.95, 0.99])
    counts, edges = np.histogram(seconds, bins=_LATENCY_BINS, range=(0.0, float(p99) or 1.0))
    return {
        "p50": float(p50),
        "p95": float(p95),
        "longest": float(max(seconds)),
        "bins": [int(count) for count in counts],
        "edges": [float(edge) for edge in edges],
        "beyond": len(seconds) - int(counts.sum()),
    }
