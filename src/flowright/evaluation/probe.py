"""Probe of a policy: the share of tasks for which it writes something else once a few words of the
task are replaced (:meth:`flowright.environments.base.Environment.counterfactual`). Nothing is
rolled out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from flowright.core.statistics import RESAMPLES, Estimate, Resampler, mean
from flowright.data.task import Task
from flowright.evaluation.evaluator import Evaluator
from flowright.grpo.problems import draw_samples, problems_of
from flowright.policy.sampling import Sampler

ATTEMPTS = 4
"""Attempts at each task and at its counterfactual."""


@dataclass(frozen=True, slots=True)
class ProbeExample:
    """A task and its counterfactual, with the signature of an attempt at each."""

    task: str
    signature: str
    counterfactual: str
    counterfactual_signature: str


@dataclass(frozen=True, slots=True)
class ProbedClass:
    """Results for the tasks of one class whose counterfactuals are of another.

    ``changed``: share of pairs of attempts, one at a task and one at its counterfactual, with
    different signatures (:meth:`Environment.signature`); ``resampled``: the same share of two
    attempts at one task, by chance alone; ``difference``: their paired difference. Intervals are at
    95 %, over tasks.
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
    """Probe the policy that ``sampler`` serves with those of ``tasks`` that have a counterfactual.
    ``draw`` numbers the draws, as in :meth:`Evaluator.row`."""
    environment = evaluator.environment
    pairs = [(task, o) for task in tasks if (o := environment.counterfactual(task)) is not None]
    if not pairs:
        return []
    signatures: list[list[list[str]]] = []
    for some in ([task for task, _ in pairs], [other for _, other in pairs]):
        problems = problems_of(environment, evaluator.encode, list(enumerate(some)))
        attempts = [ATTEMPTS] * len(some)
        drawn = await draw_samples(sampler.sample, problems, attempts, evaluator.sampling(draw))
        signatures.append([[environment.signature(s.text) for s in group] for group in drawn])
    groups: dict[str, list[_Probed]] = {}
    for (task, other), own, others in zip(pairs, signatures[0], signatures[1], strict=True):
        label = f"{environment.problem_class(task)} → {environment.problem_class(other)}"
        groups.setdefault(label, []).append((task, other, own, others))
    return [_summarise(label, probed) for label, probed in sorted(groups.items())]


_Probed = tuple[Task, Task, Sequence[str], Sequence[str]]
"""A task, its counterfactual, and the signatures of the attempts at each."""


def _summarise(label: str, probed: Sequence[_Probed]) -> ProbedClass:
    # Attempts of one number are drawn with the same random numbers: never compared.
    orders = list(permutations(range(ATTEMPTS), 2))

    def share_different(own: Sequence[str], others: Sequence[str]) -> float:
        return sum(own[i] != others[j] for i, j in orders) / len(orders)

    changed = [share_different(own, others) for _, _, own, others in probed]
    resampled = [share_different(own, own) for _, _, own, _ in probed]
    differences = [after - before for after, before in zip(changed, resampled, strict=True)]
    names = [task.id for task, *_ in probed]
    sampler = Resampler(names, RESAMPLES, seed=0)

    def estimate(of: Sequence[float], low: float) -> Estimate:
        return sampler.estimate(names, [(value, 1.0) for value in of], mean, (low, 1.0))

    task, other, own, others = probed[max(range(len(probed)), key=differences.__getitem__)]
    return ProbedClass(
        label,
        len(probed),
        estimate(changed, 0.0),
        estimate(resampled, 0.0),
        estimate(differences, -1.0),
        ProbeExample(task.problem, own[0], other.problem, others[0]),
    )
