"""Tasks as they are put to the policy: their forms and scaffolds, and the samples drawn from them.

A scaffold is a richer prompt that an attempt is sampled from while it trains on the task's own
(:meth:`flowright.environments.base.Environment.scaffolds`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flowright.core.batch_calls import all_of
from flowright.core.errors import ConfigError
from flowright.data.task import Task
from flowright.environments.base import Environment
from flowright.environments.episode import Episode
from flowright.environments.rollout import Rollout
from flowright.llm.chat import Message
from flowright.policy.sampling import Draw, Prompt, Sample, Sampling

FORM_STRIDE = 1 << 20
"""Distance between a task's forms among the draws of a batch: more than a batch has tasks."""

SCAFFOLD_STRIDE = 1 << 40
"""Distance between a form's prompts among the draws: more than all forms of a batch take up."""

TURN_STRIDE = 1 << 80
"""Distance between the turns of an episode among the draws: more than all prompts take up."""

Fitting = Callable[[Sequence[Message]], tuple[int, ...] | None]
"""Token ids of messages as a prompt; None where they are too long for one."""


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """The prompt that an attempt was sampled from.

    ``scaffold``: its messages that the task's own prompt lacks, None for the task's own prompt.
    ``left_out``: the scaffold was too long, so the task's own prompt was used. ``share``: the part
    of the full scaffold that was shown, None where the environment gives none.
    """

    token_ids: tuple[int, ...]
    scaffold: str | None = None
    left_out: bool = False
    share: float | None = None


def is_scaffolded(shown: ShownPrompt | None) -> bool:
    """Return whether an attempt was sampled from another prompt than its task's own."""
    return shown is not None and shown.scaffold is not None


def shown_prompts(
    environment: Environment,
    fitting: Fitting,
    task: Task,
    prompt: Prompt,
    attempts: int,
    step: int,
    steps: int,
) -> list[ShownPrompt]:
    """Return the prompt of each attempt at a task at a step from 1 to ``steps``; empty without
    scaffolds. ``prompt`` is the task's own.

    A scaffold is never cut, since the cut part could be the task. Raises ConfigError where the
    environment gives another number of prompts than of attempts, DataError where the chat template
    refuses one.
    """
    scaffolds = environment.scaffolds(task, step, steps, attempts)
    if scaffolds is None:
        return []
    if len(scaffolds) != attempts:
        raise ConfigError(
            f"{type(environment).__name__}.scaffolds: {len(scaffolds)} prompts for {attempts} "
            f"attempts at {task.id}; give one for each"
        )
    own = tuple(environment.messages(task))
    bare = ShownPrompt(prompt.token_ids)
    found = {own: bare}
    shown: list[ShownPrompt] = []
    for scaffold in scaffolds:
        messages = tuple(scaffold.messages)
        if messages not in found:
            found[messages] = _shown_prompt(messages, own, bare, fitting)
        one = found[messages]
        if scaffold.share is not None:
            one = replace(one, share=scaffold.share if one.scaffold is not None else 0.0)
        shown.append(one)
    return shown


def _shown_prompt(
    messages: Sequence[Message], own: Sequence[Message], bare: ShownPrompt, fitting: Fitting
) -> ShownPrompt:
    token_ids = fitting(messages)
    if token_ids is None:
        return ShownPrompt(bare.token_ids, left_out=True)
    if token_ids == bare.token_ids:
        return bare
    added = [message.content for message in messages if message not in own]
    return ShownPrompt(token_ids, "\n\n".join(added))


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a task (:meth:`flowright.environments.base.Environment.forms`), as a task
    with a prompt of its own. ``shown``: the prompt of each of its attempts; empty where all are
    sampled from ``prompt``."""

    task: Task
    prompt: Prompt
    shown: Sequence[ShownPrompt] = ()

    def attempts_by_prompt(self, attempts: int) -> dict[tuple[int, ...], list[int]]:
        """Return the numbers of the attempts that are sampled from each prompt."""
        if not self.shown:
            return {self.prompt.token_ids: [*range(attempts)]}
        numbers: dict[tuple[int, ...], list[int]] = {}
        for number, shown in zip(range(attempts), self.shown, strict=True):
            numbers.setdefault(shown.token_ids, []).append(number)
        return numbers


@dataclass(frozen=True, slots=True)
class BatchTask:
    """A task in its forms; ``place`` is its number in the batch of all ranks."""

    place: int
    task: Task
    forms: Sequence[Form]

    def attempts_per_form(self, attempts: int) -> int:
        """Share a group's attempts among the forms. Raises ConfigError where that is not even."""
        share, left = divmod(attempts, len(self.forms))
        if left or not share:
            raise ConfigError(
                f"grpo.group_size: {attempts} attempts cannot be shared evenly among the "
                f"{len(self.forms)} forms of {self.task.id}; give a multiple of {len(self.forms)}"
            )
        return share

    def episodes(self, samples: Sequence[Sample], key: str) -> list[Episode]:
        """Return its samples, form by form, as episodes of one turn, with keys ``key/0``,
        ``key/1``..."""
        share = len(samples) // len(self.forms)
        contexts = [
            form.shown[i].token_ids if form.shown else form.prompt.token_ids
            for form in self.forms
            for i in range(share)
        ]
        return [
            Episode.single(self.forms[i // share].task, sample, f"{key}/{i}", contexts[i])
            for i, sample in enumerate(samples)
        ]

    def restored(self, states: Sequence[Mapping[str, Any]], key: str) -> list[Episode]:
        """Return the episodes of their :meth:`Episode.state`, with keys as :meth:`episodes`."""
        share = len(states) // len(self.forms)
        return [
            Episode.restore(self.forms[i // share].task, f"{key}/{i}", state)
            for i, state in enumerate(states)
        ]

    def prompts(self, attempts: int) -> list[Prompt]:
        """Return the prompt that each attempt trains on."""
        share = self.attempts_per_form(attempts)
        return [form.prompt for form in self.forms for _ in range(share)]

    def scaffolded(
        self, show: Callable[[Task, Prompt, int], Sequence[ShownPrompt]], attempts: int
    ) -> "BatchTask":
        """Add what ``show(task, prompt, attempts)`` gives for each form."""
        share = self.attempts_per_form(attempts)
        forms = [replace(f, shown=show(f.task, f.prompt, share)) for f in self.forms]
        return replace(self, forms=forms)

    def with_cut_prompts(
        self, environment: Environment, rollouts: Sequence[Rollout]
    ) -> list[Rollout]:
        """Mark the rollouts whose prompt was cut, by the sampler's limit or with the task itself;
        a scaffold is never cut."""
        attempts = len(rollouts)

        def marked(rollout: Rollout, prompt: Prompt, shown: ShownPrompt | None) -> Rollout:
            is_cut = prompt.truncated or environment.was_cut(rollout.task)
            if not is_cut or is_scaffolded(shown):
                return rollout
            return replace(rollout, cut_prompt=prompt.shown or rollout.task.problem)

        both = zip(rollouts, self.prompts(attempts), self.shown(attempts), strict=True)
        return [marked(*each) for each in both]

    def shown(self, attempts: int) -> list[ShownPrompt | None]:
        """Return the prompt that each attempt is sampled from; None without scaffolds."""
        share = self.attempts_per_form(attempts)
        return [shown for form in self.forms for shown in form.shown or [None] * share]


def problems_of(
    environment: Environment, encode: Callable[[Task], Prompt], places: Sequence[tuple[int, Task]]
) -> list[BatchTask]:
    """Put tasks with their places into their forms."""
    return [
        BatchTask(place, task, [Form(form, encode(form)) for form in environment.forms(task)])
        for place, task in places
    ]


@dataclass(frozen=True, slots=True)
class _Draw:
    """A prompt at a place of its own among the draws, and the attempts that are sampled from it:
    their problem, form and own numbers."""

    token_ids: Sequence[int]
    place: int
    attempts: Sequence[tuple[int, int, int]]


async def draw_samples(
    sample: Draw, problems_P: Sequence[BatchTask], shares_P: Sequence[int], sampling: Sampling
) -> list[list[Sample]]:
    """Draw ``shares_P`` samples of each form of each problem, form by form.

    A sample depends on the problem's place, the form's number, its prompt and its own number, never
    on what else is drawn. Samples of one prompt are drawn together.
    """
    draws = [
        # Placed by its first attempt, which no other prompt has.
        _Draw(
            token_ids,
            problem.place + f * FORM_STRIDE + attempts[0] * SCAFFOLD_STRIDE,
            [(p, f, attempt) for attempt in attempts],
        )
        for p, (problem, share) in enumerate(zip(problems_P, shares_P, strict=True))
        for f, form in enumerate(problem.forms)
        for token_ids, attempts in form.attempts_by_prompt(share).items()
    ]
    drawn: dict[tuple[int, int, int], Sample] = {}

    async def draw(count: int) -> None:
        some = [one for one in draws if len(one.attempts) == count]
        prompts, places = [one.token_ids for one in some], [one.place for one in some]
        found = await sample(prompts, count, sampling, places)
        for one, samples in zip(some, found, strict=True):
            drawn.update(zip(one.attempts, samples, strict=True))

    # One count, unless tasks differ in their number of forms or attempts in their prompts: then all
    # are requested at once, and a sampler of this process takes them in turn.
    counts = sorted({len(one.attempts) for one in draws})
    if len(counts) == 1:
        await draw(counts[0])
    else:
        await all_of(draw(count) for count in counts)
    return [
        [drawn[p, f, attempt] for f in range(len(problem.forms)) for attempt in range(share)]
        for p, (problem, share) in enumerate(zip(problems_P, shares_P, strict=True))
    ]
