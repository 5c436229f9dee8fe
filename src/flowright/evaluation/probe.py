"""Probe of a policy: the share of tasks for which it writes something else once a few words of the
task are replaced (:meth:`flowright.environments.base.Environment.twin`). Nothing is rolled out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from flowright.core.statistics import RESAMPLES, Estimate, Resampler, mean
from flowright.data.task import Task
from flowright.environments.base import Environment
from flowright.evaluation.evaluator import Evaluator
from flowright.grpo.problems import draw_samples, problems_of
from flowright.policy.sampling import Sample, Sampler

ATTEMPTS = 4
"""Attempts at each task and at its twin."""


@dataclass(frozen=True, slots=True)
class ProbeExample:
    """A task and its twin, with the signature of an attempt at each."""

    task: str
    written: str
    twin: str
    twin_written: str


@dataclass(frozen=True, slots=True)
class ProbedClass:
    """Results for the tasks of one class whose twins are of another.

    ``changed``: share of pairs of attempts, one at a task and one at its twin, that differ
    (:meth:`Environment.signature`); ``resampled``: the same share of two attempts at one task, by
    chance alone; ``difference``: their paired difference. Intervals are at 95 %, over tasks.
    """

    label: str
    tasks: int
    changed: Estimate
    resampled: Estimate
    difference: Estimate
    example: ProbeExample


async def probe(
    evaluator: Evaluator, sampler: Sampler, tasks: Sequence[Task], draw: int
) -> list[ProbedClass]:
    """Probe the policy that ``sampler`` serves with those of ``tasks`` that have a twin. ``draw``
    numbers the draws, as in :meth:`Evaluator.row`."""
    environment = evaluator.environment
    pairs = [(task, twin) for task in tasks if (twin := environment.twin(task)) is not None]
    if not pairs:
        return []
    drawn: list[list[list[Sample]]] = []
    for some in ([task for task, _ in pairs], [twin for _, twin in pairs]):
        problems = problems_of(environment, evaluator.encode, list(enumerate(some)))
        attempts = [ATTEMPTS] * len(some)
        drawn.append(await draw_samples(sampler, problems, attempts, evaluator.sampling(draw)))
    groups: dict[str, list[int]] = {}
    for place, (task, twin) in enumerate(pairs):
        label = f"{environment.problem_class(task)} → {environment.problem_class(twin)}"
        groups.setdefault(label, []).append(place)
    return [
        _summarise(environment, label, places, pairs, drawn)
        for label, places in sorted(groups.items())
    ]


def _summarise(
    environment: Environment,
    label: str,
    places: Sequence[int],
    pairs: Sequence[tuple[Task, Task]],
    drawn: Sequence[Sequence[Sequence[Sample]]],
) -> ProbedClass:
    changed: list[float] = []
    resampled: list[float] = []
    for place in places:
        own, other = ([environment.signature(s.text) for s in d[place]] for d in drawn)
        # Attempts of one number are drawn with the same random numbers: never compared.
        orders = list(permutations(range(ATTEMPTS), 2))
        changed.append(sum(own[i] != other[j] for i, j in orders) / len(orders))
        resampled.append(sum(own[i] != own[j] for i, j in orders) / len(orders))
    differences = [after - before for after, before in zip(changed, resampled, strict=True)]
    names = [pairs[place][0].id for place in places]
    sampler = Resampler(names, RESAMPLES, seed=0)

    def estimate(of: Sequence[float], low: float) -> Estimate:
        return sampler.estimate(names, [(value, 1.0) for value in of], mean, (low, 1.0))

    most = max(range(len(places)), key=differences.__getitem__)
    task, twin = pairs[places[most]]
    first, second = (environment.signature(d[places[most]][0].text) for d in drawn)
    return ProbedClass(
        label,
        len(places),
        estimate(changed, 0.0),
        estimate(resampled, 0.0),
        estimate(differences, -1.0),
        ProbeExample(task.problem, first, twin.problem, second),
    )
