"""The probe: a policy that reads the problem is told apart from one that draws at random."""

import random
from collections.abc import Mapping, Sequence

import pytest

from flowright.data.task import Problem, Task
from flowright.environments.registry import make_config
from flowright.environments.workflow.environment import WorkflowEnvironment
from flowright.evaluation.evaluator import Evaluator
from flowright.evaluation.probe import probe
from flowright.llm.counters import Counters
from flowright.policy.sampling import Prompt, Sample, Sampling
from flowright.workflows.grammar import fixed_workflows

PROGRAMS = fixed_workflows("math")
TASKS = [Problem(f"t{n}", "math", "s", f"What is {n} * 3?", str(3 * n)) for n in range(1, 9)]


class Scripted:
    """A sampler whose completions are a function of the prompt's digits, or drawn."""

    version = 0
    counters: Sequence[Counters] = ()
    metrics: Mapping[str, float] = {}

    def __init__(self, reads: bool) -> None:
        self._reads = reads

    async def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        places: Sequence[int] | None = None,
    ) -> list[list[Sample]]:
        assert places is not None
        return [
            [self._one(ids, f"{sampling.seed} {place} {number}") for number in range(n)]
            for ids, place in zip(prompts, places, strict=True)
        ]

    def _one(self, ids: Sequence[int], key: str) -> Sample:
        is_large = sum(chr(i).isdigit() for i in ids) >= 5
        rng = random.Random(key)
        is_program = is_large if self._reads else rng.random() < 0.5
        head = f"# {rng.random()}\n"  # a remark is no difference
        text = head + PROGRAMS["programmer" if is_program else "direct"]
        return Sample((), (), text, "stop", 0)

    async def refresh(self, version: int) -> None:
        raise AssertionError("a probe trains nothing")


def encode(task: Task) -> Prompt:
    return Prompt(tuple(task.problem.encode()), False)


def evaluator(world: str) -> Evaluator:
    config = make_config({"simulated": {"world": world}})
    return Evaluator(WorkflowEnvironment(config), encode, config)


async def test_a_policy_that_reads_the_size_changes_its_program():
    (found,) = await probe(evaluator("classes"), Scripted(reads=True), TASKS, draw=1)
    assert (found.label, found.tasks) == ("small sums → large sums", len(TASKS))
    assert (found.changed.value, found.resampled.value, found.difference.value) == (1, 0, 1)
    assert found.difference.low is not None and found.difference.low > 0.5
    example = found.example
    assert (example.signature, example.counterfactual_signature) == ("generate", "programmer")
    assert example.counterfactual == example.task.replace("1 *", "1111 *").replace("3?", "3333?")


async def test_a_policy_that_draws_at_random_changes_no_more_than_by_chance():
    some = [Problem(f"t{n}", "math", "s", f"What is {n} * 3?", "") for n in range(10, 99)]
    (found,) = await probe(evaluator("classes"), Scripted(reads=False), some, draw=1)
    assert found.changed.value == pytest.approx(0.5, abs=0.1)
    assert found.resampled.value == pytest.approx(0.5, abs=0.1)
    low, high = found.difference.low, found.difference.high
    assert low is not None and high is not None and low <= 0.02 and high >= -0.02


async def test_a_world_without_classes_has_nothing_to_probe():
    assert await probe(evaluator("kinds"), Scripted(reads=True), TASKS, draw=1) == []
