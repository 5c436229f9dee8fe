"""A run directory full of TEST DATA for the monitoring tests: invented numbers, no run made them.

The curves imitate a run that learns, so that the screens can be looked at as well as asserted on:
``python tests/doubles/monitoring_run.py outputs/test-data`` writes one.
"""

import math
import random
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowright.config.root import Config
from flowright.core.errors import Failure, Reason
from flowright.core.files import write_json
from flowright.data.task import KINDS, Problem
from flowright.environments.registry import load_config
from flowright.environments.rollout import UNSCORED, Reward, Rollout, Spent, to_record
from flowright.environments.workflow.reward import WorkflowDetails, workflow_record
from flowright.grading import Gold
from flowright.judging.verdict import Verdict
from flowright.llm.chat import Usage
from flowright.policy.sampling import Sample
from flowright.runs.directory import RunDirectory
from flowright.workflows.source import Workflow
from flowright.workflows.trace import Exchange, Execution, OperatorCall

GROUPS, ATTEMPTS = 6, 6

PROGRAMS = {
    "math": """class Workflow:
    async def __call__(self, problem):
        # Two ways of solving; the vote decides.
        steps, program = await asyncio.gather(
            answer(problem),
            programmer(problem, analysis="Compute the number exactly."),
        )
        candidates = [steps, program, await answer(problem)]
        return await ensemble(problem, candidates)
""",
    "code": """class Workflow:
    async def __call__(self, problem):
        solution = await write_code(problem)
        for attempt in range(3):
            report = await test(problem, solution)
            if report.passed:
                break
            solution = await revise(problem, solution, report.message)
        return solution
""",
    "qa": """async def workflow(problem):
    draft = await generate(problem, instruction="Answer from the passages only.")
    checked = await review(problem, draft)
    return await format(problem, draft if checked.approved else checked.comment)
""",
}
PROBLEMS = {
    "math": (
        "A baker sells 48 rolls in the morning and half as many in the afternoon. "
        "Each roll costs 35 cents. How many dollars does she take that day?",
        "25.2",
    ),
    "code": (
        "def rolling_max(numbers):\n    '''From a list of integers, the list of the running "
        "maximum.\n    >>> rolling_max([1, 2, 3, 2])\n    [1, 2, 3, 3]\n    '''",
        "def rolling_max(numbers): ...",
    ),
    "qa": ("Which of the two rivers named in the passages is the longer one?", "the Vistula"),
}
ANSWERS = {
    "math": ("25.2", "16.80"),
    "code": ("def rolling_max(n): ...", "pass"),
    "qa": ("the Vistula", "Oder"),
}
MIX = {
    "math": {
        "answer": (1.2, 2.1),
        "programmer": (0.4, 1.0),
        "ensemble": (0.3, 0.95),
        "review": (0.5, 0.1),
    },
    "code": {
        "write_code": (0.9, 1.1),
        "test": (0.3, 1.6),
        "revise": (0.2, 0.8),
        "answer": (0.6, 0.02),
    },
    "qa": {
        "generate": (0.8, 1.0),
        "review": (0.4, 0.7),
        "format": (0.3, 0.9),
        "ensemble": (0.5, 0.2),
    },
}


def make_run(
    path: Path,
    steps: int = 30,
    status: str = "finished",
    evaluated: bool = True,
    gpu: bool = False,
    drifting: bool = False,
    hostile: str = "",
    **state: Any,
) -> Path:
    """Write a run of invented numbers. ``hostile`` is put wherever a policy, a model, a judge or a
    data set could have put it. The directory's lock is free afterwards."""
    config = _config(path)
    directory = RunDirectory(path, config)
    rng = random.Random(7)
    directory.record(0, _validation(0.0))
    for step in range(1, steps + 1):
        progress = 1 - math.exp(-3 * step / steps)
        metrics = _metrics(progress, rng, drifting)
        if gpu:
            metrics["gpu/memory_gb"] = 61.4 + rng.random()
        if step % 10 == 0:
            metrics |= _validation(progress)
        rollouts = [
            _drawn(step, group, index, progress, rng, hostile)
            for group in range(GROUPS)
            for index in range(ATTEMPTS)
        ]
        directory.keep_rollouts(step, rollouts)
        directory.record(step, metrics)
    directory.state(
        **{
            "status": status,
            "step": steps,
            "steps": steps if status == "finished" else steps * 2,
            "stage": "save" if status == "finished" else "update",
            "simulated": True,
            "executor": "simulated",
            "judge": "simulated",
            "policy": "tiny (1.1M parameters)",
            "isolation": "Monty for workflows; processes, seccomp and Landlock for code",
            **state,
        }
    )
    directory.close()
    if evaluated:
        write_json(path / "evaluation.json", evaluation())
    return path


def _config(path: Path) -> Config:
    file = path.parent / "test_data.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("run: {tensorboard: false}\n", encoding="utf-8")
    config = load_config(file, [f"run.name={path.name}", f"run.output_dir={path.parent}"])
    file.unlink()
    return config


def _metrics(progress: float, rng: random.Random, drifting: bool) -> dict[str, float]:
    def near(value: float, spread: float = 0.03) -> float:
        return max(0.0, value + rng.gauss(0, spread))

    gold = {
        kind: min(0.97, near(start + (end - start) * progress, 0.06))
        for kind, start, end in (("math", 0.35, 0.72), ("code", 0.28, 0.66), ("qa", 0.45, 0.61))
    }
    accuracy = sum(gold.values()) / 3
    generous = 0.12 * progress**2 if drifting else 0.004
    right = min(1.0, accuracy + generous)
    metrics = {
        "reward/mean": right - 0.03 * (1 - progress),
        "reward/std": near(0.44, 0.02),
        "reward/zero_variance_frac": near(0.15 + 0.3 * progress),
        "reward/right_frac": right,
        "rollout/valid_frac": min(1.0, 0.86 + 0.13 * progress + rng.gauss(0, 0.01)),
        "rollout/unscored": rng.choice([0.0, 0.0, 0.0, 1 / 36]),
        "rollout/failed/type": near(0.06 * (1 - progress), 0.01),
        "rollout/failed/syntax": near(0.05 * (1 - progress), 0.008),
        "rollout/failed/crashed": near(0.02, 0.008),
        "rollout/failed/call_budget": near(0.002, 0.004),
        "judge/drift": generous + rng.gauss(0, 0.005),
        "judge/agreement_with_gold": min(1.0, near(0.97 - generous, 0.015)),
        "judge/false_positive_rate": near(0.03 + generous, 0.01),
        "judge/false_negative_rate": near(0.03, 0.01),
        "gold/accuracy": accuracy,
        "judge/source/llm": 1.0,
        "judge/source/rule_fallback": 0.0,
        "judge/status/parse_error": 0.0,
        "rollout/repaired": near(0.12 * (1 - progress) + 0.02, 0.01),
        "policy/kl": near(0.02 * progress, 0.001),
        "policy/entropy": near(0.9 - 0.45 * progress, 0.02),
        "policy/clip_frac": near(0.02, 0.006),
        "policy/clip_low": near(0.015, 0.004),
        "policy/clip_high": near(0.005, 0.002),
        "policy/ratio_std": near(0.05, 0.01),
        "policy/grad_norm": near(0.8, 0.15),
        "policy/lr": 3e-4,
        "tokens/completion_mean": near(120 - 20 * progress, 4),
        "tokens/llm_mean": near(900 + 500 * progress, 40),
        "llm/calls_mean": near(2.1 + 1.2 * progress, 0.1),
        "prompt/truncated": 0.0,
        "time/sample": near(1.9, 0.1),
        "time/rollout": near(1.1, 0.1),
        "time/execute": near(0.8, 0.1),
        "time/judge": near(0.3, 0.05),
        "time/update": near(1.6, 0.1),
        "time/step": near(4.7, 0.2),
    }
    if metrics["rollout/unscored"]:
        metrics["rollout/failed/judge_failed"] = metrics["rollout/unscored"]
    for kind in KINDS:
        metrics[f"gold/accuracy/{kind}"] = gold[kind]
        metrics[f"reward/by_kind/{kind}"] = gold[kind] + generous
        for operator, (before, after) in MIX[kind].items():
            metrics[f"operators/{kind}/{operator}"] = near(before + (after - before) * progress)
    return metrics


def _validation(progress: float) -> dict[str, float]:
    values = {
        "math": 0.36 + 0.34 * progress,
        "code": 0.3 + 0.33 * progress,
        "qa": 0.46 + 0.13 * progress,
    }
    gold = sum(values.values()) / 3
    return {
        "val/gold": gold,
        "val/judge": gold + 0.01,
        "val/valid_frac": 0.9 + 0.09 * progress,
        "time/evaluate": 3.2,
        **{f"val/gold/{kind}": value for kind, value in values.items()},
    }


def _call(operator: str, started: float, seconds: float, **more: Any) -> OperatorCall:
    prompt = "Solve the problem step by step.\n\nA baker sells 48 rolls ..."
    reply = "In the afternoon she sells 24 rolls.\n72 * 0.35 = 25.2\n\nAnswer: 25.2"
    usage = Usage(1, 212, 148)
    call = OperatorCall(
        operator=operator,
        arguments={"problem": "(the problem)"},
        result="25.2",
        error=None,
        started=started,
        seconds=seconds,
        usage=usage,
        exchanges=(Exchange(prompt, reply, "stop", usage, seconds),),
    )
    return replace(call, **more)


def make_rollout(
    step: int,
    group: int,
    solved: bool,
    judged: bool | None,
    failure: Failure | None = None,
    cost: float = 0.0,
    note: str = "",
) -> Rollout:
    """One invented attempt, in the trainer's own types. ``judged`` is None for a judge that said
    nothing; a ``failure`` of the policy comes before anything has run."""
    kind = KINDS[group % 3]
    question, reference = PROBLEMS[kind]
    task = Problem(
        id=f"{kind}-{step}-{group}",
        kind=kind,
        source={"math": "GSM8K", "code": "HumanEval", "qa": "HotpotQA"}[kind],
        question=question + note,
        reference=reference + note,
        hidden_tests=("assert True",) if kind == "code" else (),
    )
    program = PROGRAMS[kind] + (f"\n# {note}" if note else "")
    sample = Sample((1,) * 121, (-0.1,) * 121, f"```python\n{program}```", "stop", step)
    if failure is not None:
        return Rollout(task, sample, Reward(-0.2, {"validity": -0.2, "correctness": 0.0}), failure)
    answer = f"{ANSWERS[kind][0 if solved else 1]} {note}".strip()
    names = list(MIX[kind])
    trace = (
        _call(
            names[0],
            0.0,
            0.41,
            arguments={"problem": task.question, "instruction": note},
            exchanges=(
                Exchange(task.question, f"Answer: {answer}", "stop", Usage(1, 90, 60), 0.4),
            ),
            children=(_call("run", 0.05, 0.3, exchanges=(), usage=Usage(), result=note or "42"),),
        ),
        _call(names[1], 0.43, 0.52, result=note or "ok"),
        _call(names[2], 0.44, 0.9, error=None if solved else f"IndexError {note}"),
    )
    calls = tuple(names)
    workflow = Workflow(program, program, "class" if "class" in program else "function", (), calls)
    execution = Execution(answer, None, trace, Usage(4, 726, 504), 1.36, 0.004, note)
    return Rollout(
        task=task,
        sample=sample,
        reward=UNSCORED if judged is None else _reward(judged, cost),
        failure=Failure(Reason.JUDGE_FAILED, "4 tries") if judged is None else None,
        details=WorkflowDetails(workflow, execution),
        spent=Spent(4, 1230, 1.36),
        verdict=_verdict(judged, f"The answer {answer} is compared with {task.reference}."),
        gold=Gold(solved, "math_verify", f"{answer} against {task.reference}"),
    )


def _reward(judged: bool, cost: float) -> Reward:
    cost = -cost if judged else 0.0
    parts = {"validity": 0.0, "correctness": float(judged), "cost": cost}
    return Reward(float(judged) + cost, parts)


def _verdict(judged: bool | None, reason: str) -> Verdict:
    if judged is None:
        return Verdict(None, None, "llm", "unavailable", "HTTP 500", 4, "simulated")
    usage = Usage(1, 180, 24)
    return Verdict(float(judged), judged, "llm", "ok", reason, 1, "simulated", usage, 0.2)


def record_of(rollout: Rollout, step: int, group: int, index: int) -> dict[str, Any]:
    """The record as the trainer keeps it."""
    value = rollout.reward.value
    return to_record(
        rollout,
        workflow_record(rollout),
        step,
        group,
        index,
        None if value is None else value - 0.5,
    )


def _drawn(
    step: int, group: int, index: int, progress: float, rng: random.Random, note: str
) -> dict[str, Any]:
    draw, solved = rng.random(), rng.random() < 0.35 + 0.35 * progress + 0.2 * (index % 2)
    failure = None
    if draw < 0.06:
        failure = Failure(Reason.TYPE, f"no operator `solve` {note}".strip(), 4)
    judged = None if draw > 0.985 else solved if rng.random() > 0.04 else not solved
    rollout = make_rollout(step, group, solved, judged, failure, 0.04, note)
    return record_of(rollout, step, group, index)


def evaluation() -> dict[str, Any]:
    """A before/after table of invented numbers."""
    rows = [
        ("untrained policy", "policy", (0.36, 0.31, 0.46), 2.2, 910, 0.89),
        ("trained policy", "policy", (0.71, 0.64, 0.59), 3.2, 1390, 0.99),
        ("fixed: direct answer", "baseline", (0.41, 0.33, 0.47), 1.0, 310, 1.0),
        ("fixed: step by step", "baseline", (0.48, 0.38, 0.5), 1.0, 420, 1.0),
        ("fixed: self-consistency 5", "baseline", (0.6, 0.42, 0.55), 5.0, 2100, 1.0),
        ("fixed: programmer", "baseline", (0.66, 0.2, 0.3), 1.6, 760, 1.0),
        ("best fixed workflow per kind", "baseline", (0.74, 0.68, 0.6), 3.4, 1520, 1.0),
    ]
    return {
        "simulated": True,
        "problems": 180,
        "rows": [_evaluation_row(*row) for row in rows],
        "summary": {"seeds": 1, "gap_closed": 0.88},
    }


def _evaluation_row(
    name: str, group: str, gold: tuple[float, ...], calls: float, tokens: float, valid: float
) -> dict[str, Any]:
    def cell(value: float, problems: int) -> Mapping[str, float]:
        half = 1.96 * math.sqrt(value * (1 - value) / problems)
        return {
            "problems": problems,
            "gold": value,
            "gold_low": value - half,
            "gold_high": value + half,
            "judge": value + 0.012,
            "judge_low": value + 0.012 - half,
            "judge_high": value + 0.012 + half,
            "valid": valid,
            "unscored": 0.0,
            "llm_calls": calls,
            "tokens": tokens,
            "seconds": calls * 0.4,
        }

    kinds = {kind: cell(value, 60) for kind, value in zip(KINDS, gold, strict=True)}
    position = 0 if name.startswith("untrained") else 1
    operators = {k: {o: pair[position] for o, pair in MIX[k].items()} for k in KINDS}
    return {
        "name": name,
        "group": group,
        "kinds": {"all": cell(sum(gold) / 3, 180), **kinds},
        "sources": {"GSM8K": kinds["math"], "HumanEval": kinds["code"], "HotpotQA": kinds["qa"]},
        "mix": operators,
    }


if __name__ == "__main__":
    print(make_run(Path(sys.argv[1]), steps=100))
