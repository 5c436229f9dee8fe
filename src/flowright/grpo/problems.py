"""Tasks as they are put to a policy: the forms of each, who of a group's attempts gets which, and
drawing them. What becomes of the samples is the pipeline's and the evaluator's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flowright.data.task import Task
from flowright.environments.environment import Environment
from flowright.environments.rollout import Completion
from flowright.errors import ConfigError
from flowright.policy.prompt import Prompt
from flowright.policy.sampler import Sample, Sampler, Sampling

FORM_STRIDE = 1 << 20
"""Between the places of a task's forms among the draws of a batch: more than it has tasks."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which a task is put to the policy
    (:meth:`flowright.environments.environment.Environment.forms`)."""

    task: Task
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Problem:
    """A task in its forms; ``place`` is its number in the batch of all ranks."""

    place: int
    task: Task
    forms: Sequence[Form]

    def each(self, attempts: int) -> int:
        """How many of a group's attempts a form gets. Raises ConfigError for what is not even."""
        each, left = divmod(attempts, len(self.forms))
        if left or not each:
            raise ConfigError(
                f"grpo.group_size: {attempts} attempts cannot be shared evenly among the "
                f"{len(self.forms)} forms of {self.task.id}; give a multiple of {len(self.forms)}"
            )
        return each

    def completions(self, samples: Sequence[Sample], key: str) -> list[Completion]:
        """Its samples, those of a form one after the other, to be rolled out; each gets its number
        behind the ``key``."""
        each = len(samples) // len(self.forms)
        return [
            Completion(self.forms[i // each].task, sample, f"{key}/{i}")
            for i, sample in enumerate(samples)
        ]

    def prompts(self, attempts: int) -> list[Prompt]:
        """The prompt of each of so many attempts."""
        return [form.prompt for form in self.forms for _ in range(self.each(attempts))]


def problems_of(
    environment: Environment, encode: Callable[[Task], Prompt], places: Sequence[tuple[int, Task]]
) -> list[Problem]:
    """Tasks with their places, in their forms."""
    return [
        Problem(place, task, [Form(form, encode(form)) for form in environment.forms(task)])
        for place, task in places
    ]


async def draw_samples(
    sampler: Sampler, problems_P: Sequence[Problem], each_P: Sequence[int], sampling: Sampling
) -> list[list[Sample]]:
    """So many samples of each form of each problem, those of a form one after the other. They
    depend on the problem's place, the form's number and their own, never on what else is drawn."""
    drawn: dict[tuple[int, int], list[Sample]] = {}
    for each in sorted(set(each_P)):  # one, but where tasks differ in the number of their forms
        asked = [
            (problem.place, number, form)
            for problem, wanted in zip(problems_P, each_P, strict=True)
            if wanted == each
            for number, form in enumerate(problem.forms)
        ]
        prompts = [form.prompt.token_ids for _, _, form in asked]
        places = [place + number * FORM_STRIDE for place, number, _ in asked]
        found = await sampler.sample(prompts, each, sampling, places)
        drawn |= {key[:2]: samples for key, samples in zip(asked, found, strict=True)}
    return [
        [s for number in range(len(problem.forms)) for s in drawn[problem.place, number]]
        for problem in problems_P
    ]
