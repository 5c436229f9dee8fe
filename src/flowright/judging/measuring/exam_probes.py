"""The queries of a judge's exam, and asking them. No statistics here."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flowright.core.batch_calls import Outcome, call_all
from flowright.data.preferences import Pair
from flowright.judging.measuring.labelled_answers import LabelledItem
from flowright.judging.measuring.perturbations import (
    CONTROL,
    PERTURBATIONS,
    control_of,
    perturbed,
    reworded,
)
from flowright.judging.verdict import Judge, JudgeQuery, Verdict

PLAIN = "plain"
EQUAL, UNEQUAL, BIASED = "equal_pair", "unequal_pair", "evalbiasbench"


@dataclass(frozen=True, slots=True)
class Probe:
    """One query of the exam: an item in a variant, for the ``repeat``-th time."""

    item: LabelledItem
    variant: str
    query: JudgeQuery
    repeat: int = 0


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A probe and the judge's verdict on it. A failed verdict stays as it is (law 1)."""

    probe: Probe
    verdict: Verdict

    def row(self) -> dict[str, Any]:
        """Return its line of verdicts.jsonl."""
        query = self.probe.query
        row = {
            "id": self.probe.item.id,
            "variant": self.probe.variant,
            "repeat": self.probe.repeat,
            "label": self.probe.item.label,
            "answer_type": query.answer_type,
            "answer": query.answer,
            "rival": query.rival,
            **_verdict_row(self.verdict),
            "members": [_verdict_row(member) for member in self.verdict.members],
        }
        return {name: value for name, value in row.items() if value not in (None, [])}


def _verdict_row(verdict: Verdict) -> dict[str, Any]:
    return {
        "status": verdict.status,
        "score": verdict.score,
        "correct": verdict.correct,
        "source": verdict.source,
        "reason": verdict.reason,
        "attempts": verdict.attempts,
        "judge": verdict.judge,
        "seconds": round(verdict.seconds, 4),
        "prompt_tokens": verdict.usage.prompt_tokens,
        "completion_tokens": verdict.usage.completion_tokens,
    }


async def ask_probes(
    judge: Judge,
    probes: Sequence[Probe],
    concurrency: int,
    keep: Callable[[ProbeResult], None] = lambda result: None,
) -> list[ProbeResult]:
    """Return the judge's verdicts in the order of the probes; ``keep`` gets each as it comes. Raises
    ServerDown."""

    async def ask(probe: Probe) -> ProbeResult:
        return ProbeResult(probe, await judge.judge(probe.query))

    def outcome(result: ProbeResult) -> Outcome:
        if result.verdict.status in ("timeout", "unavailable"):
            return "down"
        return "reached" if result.verdict.attempts > 0 else "neutral"

    results = await call_all(
        enumerate(probes),
        ask,
        concurrency=concurrency,
        outcome=outcome,
        why=lambda result: f"{result.verdict.status}: {result.verdict.reason}",
        keep=lambda place, result: keep(result),
        name=f"judge {judge.name!r}",
        remedy="start its server, or check its address in the LLM file; no record was written",
    )
    return list(results.values())


@dataclass(frozen=True, slots=True)
class ExamPlan:
    """Settings of an exam. Prices are per million tokens, None if unknown."""

    perturbations: Sequence[str] = PERTURBATIONS
    repeats: int = 3
    seed: int = 0
    concurrency: int = 32
    resamples: int = 4000
    price_in: float | None = None
    price_out: float | None = None


def probes_of(items: Sequence[LabelledItem], plan: ExamPlan) -> list[Probe]:
    """Return the queries about single answers: each unchanged, ``repeats`` times, and perturbed."""
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


def pairs_of(items: Sequence[LabelledItem], plan: ExamPlan) -> list[Probe]:
    """Return the queries about two answers: one worded in two ways, and a right and a wrong one to
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


def biased_probes(pairs: Sequence[Pair], plan: ExamPlan) -> list[Probe]:
    """Return queries about pairs whose worse answer is made to look good (EvalBiasBench, Park et al. 2024, arXiv
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
    """Return all answers to ``limit`` randomly drawn questions, in the order of the file."""
    questions = list(dict.fromkeys(item.question for item in items))
    if limit is None or limit >= len(questions):
        return list(items)
    kept = set(random.Random(f"{seed}/questions").sample(questions, limit))
    return [item for item in items if item.question in kept]
