"""One sitting of the exam: data read or made, the judge opened, verdicts and record written.

``scripts/examine_judge.py`` is its command line.
"""

import datetime
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowright.config.judge import JudgeSection
from flowright.config.root import JudgeServerConfig
from flowright.core.errors import UserError
from flowright.core.plugins import suggest
from flowright.data.preferences import Pair
from flowright.data.task import read_tasks
from flowright.judging.build import OpenJudge, open_judge
from flowright.judging.measuring.exam.asking import AskedAnswer, JudgeDown
from flowright.judging.measuring.exam.construct import labelled_set
from flowright.judging.measuring.exam.exam import (
    Plan,
    biased_probes,
    hold_exam,
    pairs_of,
    probes_of,
    sample_items,
)
from flowright.judging.measuring.exam.labelled import (
    LabelledItem,
    is_task_file,
    read_labelled,
    write_labelled,
)
from flowright.judging.measuring.exam.perturbations import PERTURBATIONS
from flowright.judging.verdict import Judge
from flowright.judging.wording import wording_hash
from flowright.runs import check_writable, write_json
from flowright.sandbox import Sandbox
from flowright.simulation.opening import open_models

Progress = Callable[[str, int], Callable[[], None]]
"""Given what is done and how many, something to call as each is done."""
Say = Callable[[str], None]

EXAMS = Path("outputs/exams")


@dataclass(frozen=True, slots=True)
class Sitting:
    """What the command line asks for. ``out`` None is a folder of its own below ``outputs``;
    ``biased`` are the pairs of EvalBiasBench."""

    config: JudgeServerConfig
    data: Path
    plan: Plan
    limit: int | None = None
    pairs: bool = True
    out: Path | None = None
    biased: Sequence[Pair] = ()


def chosen_perturbations(names: str | None) -> tuple[str, ...]:
    """The perturbations of a comma-separated list, all for None. Raises UserError."""
    if names is None:
        return PERTURBATIONS
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in PERTURBATIONS]
    if unknown:
        raise UserError(
            *(
                f"--perturbations {name}: there is no such one; there are "
                f"{', '.join(PERTURBATIONS)}{suggest(name, PERTURBATIONS)}"
                for name in unknown
            )
        )
    return tuple(dict.fromkeys(wanted))


async def build_file(
    mixture: Path, out: Path, limit: int | None, seed: int, progress: Progress, say: Say
) -> None:
    """Make a labelled set of a mixture file and write it. Raises UserError."""
    check_writable(out.parent)
    if out.is_dir():
        raise UserError(f"--out {out}: a folder; name the file to write")
    items = await _from_mixture(mixture, limit, seed, progress, say)
    say(f"wrote {write_labelled(out, items)} labelled answers to {out}")


async def sit(sitting: Sitting, progress: Progress, say: Say) -> Path:
    """Hold the exam; returns its folder with ``exam.json`` and ``verdicts.jsonl``, of which the
    second holds what was said so far where it is cut off. Raises UserError, JudgeDown."""
    examined_section(sitting.config.judge)  # complain before data are made
    check_writable(sitting.out or EXAMS)
    items = await _items(sitting, progress, say)
    began = time.monotonic()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    plan = sitting.plan
    async with open_examinee(sitting.config, sitting.pairs) as examinee:
        out = sitting.out or _folder(examinee.judge.name, sitting)
        out.mkdir(parents=True, exist_ok=True)
        for stale in ("exam.json", "exam.html"):  # of an earlier exam, whose verdicts go now
            (out / stale).unlink(missing_ok=True)
        asked = len(probes_of(items, plan))
        if examinee.pair_judge is not None:
            asked += len(pairs_of(items, plan)) + len(biased_probes(sitting.biased, plan))
        done = progress("asking", asked)
        with (out / "verdicts.jsonl").open("w", encoding="utf-8") as lines:

            def tell(answer: AskedAnswer) -> None:
                lines.write(json.dumps(answer.row(), ensure_ascii=False) + "\n")
                done()

            record = await hold_exam(
                items, examinee.judge, examinee.pair_judge, plan, tell, sitting.biased
            )
        about = _about(sitting, examinee.judge.name, examinee.simulated, items)
        about["notes"] = list(examinee.notes)
    about |= {"started": started, "took_seconds": time.monotonic() - began}
    write_json(out / "exam.json", {"about": about, **record})
    return out


def _about(
    sitting: Sitting, name: str, simulated: bool, items: Sequence[LabelledItem]
) -> dict[str, Any]:
    judge = sitting.config.judge
    imitated = sitting.config.simulated
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
        "data": str(sitting.data),
        "answer_types": sorted({item.answer_type for item in items}),
    }


async def _items(sitting: Sitting, progress: Progress, say: Say) -> list[LabelledItem]:
    if is_task_file(sitting.data):
        say(f"{sitting.data} is a mixture: making right and wrong answers to its tasks")
        return await _from_mixture(sitting.data, sitting.limit, sitting.plan.seed, progress, say)
    return sample_items(read_labelled(sitting.data), sitting.limit, sitting.plan.seed)


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
        raise UserError(f"{mixture}: no labelled answer can be made of it")
    return list(made.items)


def _folder(judge: str, sitting: Sitting) -> Path:
    name = re.sub(r"[^\w.-]+", "-", f"{judge}-{sitting.data.stem}").strip("-.") or "exam"
    return EXAMS / name


@dataclass(frozen=True, slots=True)
class Examinee:
    """``pair_judge`` is None where nobody compares two answers: rules do not. ``notes``: what the
    judge says has to be known of its verdicts."""

    judge: Judge
    pair_judge: Judge | None
    simulated: bool
    notes: tuple[str, ...] = ()


@asynccontextmanager
async def open_examinee(config: JudgeServerConfig, pairs: bool) -> AsyncIterator[Examinee]:
    """The judge of a service's configuration, asked anew for every query: without its cache, which
    would make repetitions look stable, without its breaker, which would answer for it, and without
    a second reading, which would hide its failures.

    Raises ConfigError for a way of asking that cannot be examined, JudgeDown where a server does
    not answer.
    """
    asked = examined_section(config.judge)
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(
            open_models(config.models, config.llm, config.simulated, None, ())
        )

        async def opened(section: JudgeSection) -> OpenJudge:
            return await stack.enter_async_context(
                open_judge(section, section.model, models.clients)
            )

        judge = await opened(asked)
        if problems := [*await models.check(), *await judge.check()]:
            raise JudgeDown(*problems, "nothing was measured")
        twin = await opened(_comparing(asked)) if pairs and asked.mode != "rules" else None
        pair_judge = twin.judge if twin else None
        yield Examinee(judge.judge, pair_judge, judge.simulated, judge.notes)


def examined_section(section: JudgeSection) -> JudgeSection:
    """The section as it is examined. Raises UserError."""
    if section.ask in ("pairwise", "rubric"):
        why = {
            "pairwise": "it does not call one answer right or wrong, and pairs are asked anyway",
            "rubric": "it needs criteria, and a labelled answer has a reference",
        }[section.ask]
        raise UserError(
            f"judge.ask: {section.ask} cannot be examined: {why}; "
            "add judge.ask=true_false (or score, pointwise, multi_aspect) to the command line"
        )
    asked = {"cache_size": 0, "breaker_threshold": 0, "second_reading": False}
    return section.model_copy(update=asked)


def _comparing(section: JudgeSection) -> JudgeSection:
    """The same model as a judge of two answers in both orders: its verdict's two members are the
    orders, so nothing else may have members."""
    alone: dict[str, Any] = {"panel": (), "weights": (), "quorum": 1, "samples": 1}
    return section.model_copy(
        update={
            "ask": "pairwise",
            "both_orders": True,
            "mode": "judge",
            "min_confidence": 0.0,
            **alone,
        }
    )
