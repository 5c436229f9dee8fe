"""What is measured of answers to prompts, beside what every environment's rollouts have."""

from collections.abc import Sequence

from flowright.environments.instructions.grades import InstructionGrade
from flowright.environments.metrics import mean_of
from flowright.environments.rollout import Rollout


def grade_of(rollout: Rollout) -> InstructionGrade | None:
    """None where the grading itself failed."""
    return rollout.details if isinstance(rollout.details, InstructionGrade) else None


def instruction_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Metrics of some attempts; those without a value are left out.

    - ``reward/by_source/<source>``: mean reward of the scored answers to prompts of a dataset;
    - ``instructions/met``, ``instructions/met_by_rule``, ``instructions/met_by_judge``: share of
      what was graded that holds; of criteria with points above 0 where a rubric has points;
    - ``instructions/penalties_met``: the same of criteria with points below 0;
    - ``instructions/ungraded``: share of what should have been graded that nobody graded;
    - ``instructions/rule_faults``: rules that failed by themselves, as a mean per answer;
    - ``instructions/floored``: share of the answers that are empty or keep the judge from judging;
    - ``instructions/words``: mean length of an answer, ``instructions/cut``: share that hit
      ``policy.max_new_tokens``.
    """
    known = [grade for rollout in rollouts if (grade := grade_of(rollout))]
    parts = [part for grade in known for part in grade.parts if part.met is not None]
    wanted = [part for part in parts if part.points is None or part.points > 0]
    penalties = [float(bool(part.met)) for part in parts if part.points and part.points < 0]
    by = {
        who: [float(bool(part.met)) for part in wanted if part.by == who]
        for who in ("rule", "judge")
    }
    return {
        **_by_source(rollouts),
        **mean_of("instructions/met", [value for values in by.values() for value in values]),
        **mean_of("instructions/met_by_rule", by["rule"]),
        **mean_of("instructions/met_by_judge", by["judge"]),
        **mean_of("instructions/penalties_met", penalties),
        **mean_of("instructions/ungraded", [grade.ungraded for grade in known]),
        **mean_of("instructions/rule_faults", [float(len(grade.faults)) for grade in known]),
        **mean_of("instructions/floored", [float(grade.floored) for grade in known]),
        **mean_of("instructions/words", [float(grade.words) for grade in known]),
        **mean_of(
            "instructions/cut",
            [float(rollout.sample.finish_reason == "length") for rollout in rollouts],
        ),
    }


def _by_source(rollouts: Sequence[Rollout]) -> dict[str, float]:
    found: dict[str, float] = {}
    for source in dict.fromkeys(rollout.task.source for rollout in rollouts):
        some = [
            value
            for rollout in rollouts
            if rollout.task.source == source and (value := rollout.reward.value) is not None
        ]
        found |= mean_of(f"reward/by_source/{source}", some)
    return found
