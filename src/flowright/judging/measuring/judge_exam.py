"""Examine a judge on labelled answers: open it, ask it, and count its verdicts into the record of
``exam.json``.
"""

import datetime
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict as as_dict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from pydantic_core import to_jsonable_python

from flowright.config.judge import JudgeSection
from flowright.config.root import JudgeServerConfig
from flowright.core.batch_calls import ServerDown
from flowright.core.errors import UserError
from flowright.core.files import check_writable, write_json
from flowright.core.journal import Journal
from flowright.core.plugins import suggest
from flowright.core.statistics import Resampler, holm
from flowright.data.task import Pair, read_tasks
from flowright.judging.build import OpenJudge, open_judge
from flowright.judging.measuring.exam_probes import (
    BIASED,
    EQUAL,
    PERTURBATIONS,
    PLAIN,
    UNEQUAL,
    ExamPlan,
    ProbeResult,
    ask_probes,
    biased_probes,
    pairs_of,
    probes_of,
    sample_items,
)
from flowright.judging.measuring.exam_statistics import (
    counted,
    direction,
    effects,
    is_graded,
    measures,
    orders,
    reliability,
    stability,
)
from flowright.judging.measuring.labelled_answers import (
    LabelledItem,
    is_task_file,
    labelled_set,
    read_labelled,
    write_labelled,
)
from flowright.judging.prompts import wording_hash
from flowright.judging.verdict import Judge, Status, Verdict
from flowright.sandbox import Sandbox
from flowright.simulation.large_models import open_models

Progress = Callable[[str, int], Callable[[], None]]
"""Called with a name and a total; returns a function to call after each item."""
Say = Callable[[str], None]

EXAMS = Path("outputs/exams")
_LATENCY_BINS = 24


@dataclass(frozen=True, slots=True)
class ExamRequest:
    """Settings of the command line. ``out`` None names a folder below ``outputs``; ``biased`` are
    the pairs of EvalBiasBench."""

    config: JudgeServerConfig
    data: Path
    plan: ExamPlan
    limit: int | None = None
    pairs: bool = True
    out: Path | None = None
    biased: Sequence[Pair] = ()


def chosen_perturbations(names: str | None) -> tuple[str, ...]:
    """Return the perturbations of a comma-separated list, all for None. Raises UserError."""
    if names is None:
        return PERTURBATIONS
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in PERTURBATIONS]
    if unknown:
        known = ", ".join(PERTURBATIONS)
        raise UserError(
            *(
                f"--perturbations {n}: not one of {known}{suggest(n, PERTURBATIONS)}"
                for n in unknown
            )
        )
    return tuple(dict.fromkeys(wanted))


async def build_file(
    mixture: Path, out: Path, limit: int | None, seed: int, progress: Progress, say: Say
) -> None:
    """Build labelled answers from a mixture file and write them. Raises UserError."""
    check_writable(out.parent)
    if out.is_dir():
        raise UserError(f"--out {out}: a folder; name the file to write")
    items = await _from_mixture(mixture, limit, seed, progress, say)
    say(f"wrote {write_labelled(out, items)} labelled answers to {out}")


async def run_exam(request: ExamRequest, progress: Progress, say: Say) -> Path:
    """Run the exam; return its folder with ``exam.json`` and ``verdicts.jsonl``. The latter is
    written as verdicts come. Raises UserError, ServerDown."""
    check_examinable(request.config.judge)  # before data are built
    check_writable(request.out or EXAMS)
    items = await _items(request, progress, say)
    began = time.monotonic()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    plan = request.plan
    async with open_exam_judges(request.config, request.pairs) as judges:
        out = request.out or _folder(judges.judge.name, request)
        out.mkdir(parents=True, exist_ok=True)
        for stale in ("exam.json", "exam.html"):  # of an earlier exam, whose verdicts are replaced
            (out / stale).unlink(missing_ok=True)
        total = len(probes_of(items, plan))
        if judges.pair_judge is not None:
            total += len(pairs_of(items, plan)) + len(biased_probes(request.biased, plan))
        done = progress("asking", total)
        with Journal(out / "verdicts.jsonl", overwrite=True, sync=False) as journal:

            def keep(result: ProbeResult) -> None:
                journal.append(result.row())
                done()

            record = await hold_exam(
                items, judges.judge, judges.pair_judge, plan, keep, request.biased
            )
        about = _about(request, judges.judge.name, judges.simulated, items)
        about["notes"] = list(judges.notes)
    about |= {"started": started, "took_seconds": time.monotonic() - began}
    write_json(out / "exam.json", {"about": about, **record})
    return out


def _about(
    request: ExamRequest, name: str, simulated: bool, items: Sequence[LabelledItem]
) -> dict[str, Any]:
    judge = request.config.judge
    imitated = request.config.simulated
    planted = {bias: weight for bias, weight in imitated.judge_biases.items() if weight}
    return {
        "judge": name,
        "ask": judge.ask,
        "wording": wording_hash(judge),
        "mode": judge.mode,
        "gate": judge.gate,
        "panel": list(judge.panel),
        "samples": judge.samples,
        "simulated": simulated,
        "planted": planted if simulated else {},
        "data": str(request.data),
        "answer_types": sorted({item.answer_type for item in items}),
    }


async def _items(request: ExamRequest, progress: Progress, say: Say) -> list[LabelledItem]:
    if is_task_file(request.data):
        say(f"{request.data} is a mixture: building right and wrong answers to its tasks")
        return await _from_mixture(request.data, request.limit, request.plan.seed, progress, say)
    return sample_items(read_labelled(request.data), request.limit, request.plan.seed)


async def _from_mixture(
    mixture: Path, limit: int | None, seed: int, progress: Progress, say: Say
) -> list[LabelledItem]:
    tasks = read_tasks(mixture)
    done = progress("grading", min(len(tasks), limit or len(tasks)))
    async with Sandbox() as sandbox:
        made = await labelled_set(tasks, sandbox, seed, limit, done)
    for reason, count in made.left_out.items():
        say(f"left out, {count} tasks: {reason}")
    if not made.items:
        raise UserError(f"{mixture}: no labelled answer can be built from it")
    return list(made.items)


def _folder(judge: str, request: ExamRequest) -> Path:
    name = re.sub(r"[^\w.-]+", "-", f"{judge}-{request.data.stem}").strip("-.") or "exam"
    return EXAMS / name


@dataclass(frozen=True, slots=True)
class ExamJudges:
    """Opened judges: ``pair_judge`` compares two answers, None where rules judge. ``notes`` are
    remarks on the judge's verdicts."""

    judge: Judge
    pair_judge: Judge | None
    simulated: bool
    notes: tuple[str, ...] = ()


@asynccontextmanager
async def open_exam_judges(config: JudgeServerConfig, pairs: bool) -> AsyncIterator[ExamJudges]:
    """Open the judge of a service's configuration. Its queries are fresh: a cache would make
    repetitions look stable, the breaker and a second reading would hide failures.

    Raises ConfigError for a way of asking that cannot be examined, ServerDown.
    """
    section = config.judge
    if config.reward.has_terms:
        raise UserError("reward: an exam is of the judge alone; leave judge_weight and terms out")
    check_examinable(section)
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(
            open_models(config.models, config.llm, config.simulated, None, ())
        )

        async def open_one(section: JudgeSection) -> OpenJudge:
            return await stack.enter_async_context(
                open_judge(section, section.model, models.clients)
            )

        judge = await open_one(section)
        if problems := [*await models.check(), *await judge.check()]:
            raise ServerDown(*problems, "nothing was measured")
        twin = await open_one(_comparing(section)) if pairs and section.mode != "rules" else None
        pair_judge = twin.judge if twin else None
        yield ExamJudges(judge.judge, pair_judge, judge.simulated, judge.notes)


def check_examinable(section: JudgeSection) -> None:
    """Raise UserError for a way of asking that cannot be examined."""
    if section.ask in ("pairwise", "rubric"):
        why = {
            "pairwise": "it does not call one answer right or wrong, and pairs are asked anyway",
            "rubric": "it needs criteria, and a labelled answer has a reference",
        }[section.ask]
        raise UserError(
            f"judge.ask: {section.ask} cannot be examined: {why}; "
            "add judge.ask=true_false (or score, pointwise, multi_aspect) to the command line"
        )


def _comparing(section: JudgeSection) -> JudgeSection:
    """Return a section that compares two answers in both orders. The two members of its verdicts
    are the orders, so nothing else may have members."""
    update: dict[str, Any] = {"panel": (), "weights": (), "quorum": 1, "samples": 1}
    update |= {"ask": "pairwise", "both_orders": True, "mode": "judge", "min_confidence": 0.0}
    return section.model_copy(update=update)


async def hold_exam(
    items: Sequence[LabelledItem],
    judge: Judge,
    pair_judge: Judge | None,
    plan: ExamPlan,
    keep: Callable[[ProbeResult], None] = lambda result: None,
    biased: Sequence[Pair] = (),
) -> dict[str, Any]:
    """Ask all probes and return the record. ``pair_judge`` compares two answers in both orders;
    None leaves position and the ``biased`` pairs out. Raises ServerDown."""
    single = await ask_probes(judge, probes_of(items, plan), plan.concurrency, keep)
    pairs: list[ProbeResult] = []
    if pair_judge is not None:
        probes = [*pairs_of(items, plan), *biased_probes(biased, plan)]
        pairs = await ask_probes(pair_judge, probes, plan.concurrency, keep)
    return to_jsonable_python(exam_record(items, single, pairs, plan))


def exam_record(
    items: Sequence[LabelledItem],
    single: Sequence[ProbeResult],
    pairs: Sequence[ProbeResult],
    plan: ExamPlan,
) -> dict[str, Any]:
    """Compute the record of an exam. Intervals group answers by question."""
    questions = [*(item.question for item in items), *(a.probe.item.question for a in pairs)]
    resampler = Resampler(questions, plan.resamples, plan.seed)
    plain = [o for o in single if o.probe.variant == PLAIN and o.probe.repeat == 0]
    variants: dict[str, list[ProbeResult]] = {PLAIN: plain}
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
    variants: Mapping[str, Sequence[ProbeResult]],
    pairs: Sequence[ProbeResult],
    resampler: Resampler,
) -> dict[str, Any]:
    """Effects of perturbations and of order, and which are significant after adjustment for all."""
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


def _by_type(plain: Sequence[ProbeResult], resampler: Resampler) -> dict[str, Any]:
    types = dict.fromkeys(answer.probe.item.answer_type for answer in plain)
    groups: dict[str, Sequence[ProbeResult]] = {"all": plain}
    if len(types) > 1:
        groups |= {t: [o for o in plain if o.probe.item.answer_type == t] for t in types}
    return {name: measures(group, resampler) for name, group in groups.items()}


def _confusion(plain: Sequence[ProbeResult]) -> dict[str, int]:
    """Counts of the first verdicts, failed ones apart."""
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


def service(answers: Sequence[ProbeResult], plan: ExamPlan) -> dict[str, Any]:
    """Summarise all verdicts of the exam: status, attempts, tokens, cost, seconds. Shares are of
    all verdicts; tokens and seconds of those that asked a model; attempts are per question to
    it."""
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
    """Attempts of each question behind a verdict: the orders of a pair, the members of a panel."""
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
