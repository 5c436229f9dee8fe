"""Tasks as they are put to a policy: the forms of each, who of a group's attempts gets which, and
drawing them. What becomes of the samples is the pipeline's and the evaluator's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from flowright.core.errors import ConfigError
from flowright.data.task import Task
from flowright.environments.environment import Environment
from flowright.environments.rollout import Completion
from flowright.grpo.scaffolds import Shown
from flowright.policy.prompt import Prompt
from flowright.policy.sampler import Sample, Sampler, Sampling
from flowright.policy.vllm.servers import all_of

FORM_STRIDE = 1 << 20
"""Between the places of a task's forms among the draws of a batch: more than it has tasks."""

SCAFFOLD_STRIDE = 1 << 40
"""Between the places of a form's prompts: more than all its forms take up."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which a task is put to the policy
    (:meth:`flowright.environments.environment.Environment.forms`). ``shown``: what each of its
    attempts is sampled from; empty where that is the prompt for all of them."""

    task: Task
    prompt: Prompt
    shown: Sequence[Shown] = ()

    def asked(self, attempts: int) -> list[tuple[tuple[int, ...], list[int]]]:
        """The prompts that so many attempts are sampled from, each with the attempts' numbers."""
        if not self.shown:
            return [(self.prompt.token_ids, [*range(attempts)])]
        numbers: dict[tuple[int, ...], list[int]] = {}
        for number, shown in zip(range(attempts), self.shown, strict=True):
            numbers.setdefault(shown.token_ids, []).append(number)
        return [*numbers.items()]


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
        """The prompt that each of so many attempts is learned on."""
        return [form.prompt for form in self.forms for _ in range(self.each(attempts))]

    def scaffolded(
        self, show: Callable[[Task, Prompt, int], Sequence[Shown]], attempts: int
    ) -> "Problem":
        """With what so many attempts are shown: ``show`` is given each form's task, its prompt and
        the number of its attempts."""
        each = self.each(attempts)
        forms = [replace(f, shown=show(f.task, f.prompt, each)) for f in self.forms]
        return replace(self, forms=forms)

    def shown(self, attempts: int) -> list[Shown | None]:
        """What each of so many attempts is sampled from; None where there are no scaffolds."""
        each = self.each(attempts)
        return [shown for form in self.forms for shown in form.shown or [None] * each]


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
    depend on the problem's place, the form's number, the prompt that they are sampled from and
    their own number, never on what else is drawn. Those of one prompt are drawn together."""
    asked = list(_asked(problems_P, each_P))
    drawn: dict[tuple[int, int, int], Sample] = {}

    async def draw(count: int) -> None:
        some = [one for one in asked if len(one.attempts) == count]
        prompts, places = [one.token_ids for one in some], [one.place for one in some]
        found = await sampler.sample(prompts, count, sampling, places)
        for one, samples in zip(some, found, strict=True):
            keys = [(one.problem, one.form, attempt) for attempt in one.attempts]
            drawn.update(zip(keys, samples, strict=True))

    # One, but where tasks differ in the number of their forms, or attempts in what they are shown:
    # then all are asked for at once, and a sampler of this process takes them in turn.
    counts = sorted({len(one.attempts) for one in asked})
    if len(counts) == 1:
        await draw(counts[0])
    else:
        await all_of(draw(count) for count in counts)
    return [
        [drawn[p, f, attempt] for f in range(len(problem.forms)) for attempt in range(each)]
        for p, (problem, each) in enumerate(zip(problems_P, each_P, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A prompt and the attempts that are sampled from it, at a place of its own among the draws;
    ``problem`` and ``form`` by number."""

    problem: int
    form: int
    attempts: Sequence[int]
    token_ids: Sequence[int]
    place: int


def _asked(problems_P: Sequence[Problem], each_P: Sequence[int]) -> Iterator[_Asked]:
    for p, (problem, each) in enumerate(zip(problems_P, each_P, strict=True)):
        for f, form in enumerate(problem.forms):
            place = problem.place + f * FORM_STRIDE
            for token_ids, attempts in form.asked(each):
                # By its first attempt: no other prompt has it.
                yield _Asked(p, f, attempts, token_ids, place + attempts[0] * SCAFFOLD_STRIDE)
