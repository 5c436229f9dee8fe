"""Playing episodes: the policy writes, the environment answers, the policy writes again; and what
the environment makes of whole episodes.

Turns are decoded together in fixed sets, never in those that happen to be ready, so that who was
faster changes no number: a set is all episodes where the environment answers at once, else
``grpo.turns.groups_at_once`` groups; with a sampler that takes requests one by one it is a single
episode. A slow answer holds its set, and answers are made while other sets decode.
"""

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from flowright.core.batch_calls import all_of
from flowright.core.errors import (
    Blame,
    ConfigError,
    DataError,
    Failure,
    FailureError,
    Reason,
    boundary,
)
from flowright.core.off_loop import off_loop
from flowright.data.task import Task
from flowright.environments.base import Environment
from flowright.environments.episode import Episode, Observation, StopReason, Turn
from flowright.environments.rollout import UNSCORED, Rollout, check_reward
from flowright.grpo.problems import (
    FORM_STRIDE,
    SCAFFOLD_STRIDE,
    TURN_STRIDE,
    BatchTask,
    draw_samples,
)
from flowright.judging.verdict import Verdict
from flowright.judging.wrappers import shown_query
from flowright.llm.chat import Message, Usage
from flowright.policy.sampling import Draw, Sample, Sampler, Sampling
from flowright.policy.turns import Contexts


@dataclass(slots=True)
class _Attempt:
    """An attempt while it is played. ``place``: of its first turn, among the draws."""

    task: Task
    key: str
    place: int
    prompt: tuple[Message, ...]
    context_ids: tuple[int, ...]
    turns: tuple[Turn, ...] = ()
    stop: StopReason | None = None
    failure: Failure | None = None

    @property
    def episode(self) -> Episode:
        return Episode(self.task, self.key, self.turns, self.stop or "done", self.failure)


@dataclass(frozen=True, slots=True)
class Player:
    """Plays the episodes of an environment with a sampler. ``contexts`` makes the contexts of later
    turns."""

    environment: Environment
    sampler: Sampler
    contexts: Contexts | None = None

    async def play(
        self,
        problems_P: Sequence[BatchTask],
        shares_P: Sequence[int],
        sampling: Sampling,
        keys_P: Sequence[str],
    ) -> list[list[Episode]]:
        """Play ``shares_P`` episodes of each form of each problem, form by form, with the keys
        ``key/0``, ``key/1``... An episode depends on the problem's place, its form and its own
        number, and on what is decoded with it by no more than rounding."""
        if self.environment.max_turns == 1:
            drawn = await draw_samples(self.sampler.sample, problems_P, shares_P, sampling)
            each = zip(problems_P, drawn, keys_P, strict=True)
            return [problem.episodes(samples, key) for problem, samples, key in each]
        attempts_P = [
            list(self._attempts(problem, share, key))
            for problem, share, key in zip(problems_P, shares_P, keys_P, strict=True)
        ]
        count, most = len(problems_P), self.environment.config.grpo.turns.groups_at_once
        size = most if most and not self.environment.answers_at_once else count
        sets = [range(first, min(first + size, count)) for first in range(0, count, size or 1)]

        async def play_set(numbers: Sequence[int]) -> None:
            some, shares = [problems_P[p] for p in numbers], [shares_P[p] for p in numbers]
            draw = self.sampler.for_episodes(len(sets))
            drawn = await draw_samples(draw, some, shares, sampling)
            first = [sample for samples in drawn for sample in samples]
            await self._play([a for p in numbers for a in attempts_P[p]], sampling, draw, first)

        if self.sampler.batches:
            await all_of(play_set(numbers) for numbers in sets)
        else:
            each = [attempt for some in attempts_P for attempt in some]
            draws = [self.sampler.for_episodes(len(each)) for _ in each]
            await all_of(
                self._play([a], sampling, draw) for a, draw in zip(each, draws, strict=True)
            )
        return [[attempt.episode for attempt in attempts] for attempts in attempts_P]

    def _attempts(self, problem: BatchTask, share: int, key: str) -> Iterator[_Attempt]:
        for f, form in enumerate(problem.forms):
            if form.shown:
                raise ConfigError(
                    f"environment {self.environment.config.environment}: scaffolds with several "
                    "turns are not built; take one of them"
                )
            prompt = tuple(self.environment.messages(form.task))
            if form.prompt.truncated:
                prompt = (*prompt[:-1], Message(prompt[-1].role, form.prompt.shown))
            for attempt in range(share):
                yield _Attempt(
                    form.task,
                    f"{key}/{f * share + attempt}",
                    problem.place + f * FORM_STRIDE + attempt * SCAFFOLD_STRIDE,
                    prompt,
                    form.prompt.token_ids,
                )

    async def _play(
        self,
        live: Sequence[_Attempt],
        sampling: Sampling,
        draw: Draw,
        drawn: Sequence[Sample] | None = None,
    ) -> None:
        """Play attempts turn by turn to their ends; ``drawn`` are their first completions."""
        turn = 0
        while live:
            if drawn is None:
                contexts = [attempt.context_ids for attempt in live]
                places = [attempt.place + turn * TURN_STRIDE for attempt in live]
                groups = await draw(contexts, 1, sampling, places)
                drawn = [sample for (sample,) in groups]
            for attempt, sample in zip(live, drawn, strict=True):
                attempt.turns = (*attempt.turns, Turn(attempt.context_ids, sample))
            await all_of(self._answer(attempt) for attempt in live)
            live = [attempt for attempt in live if attempt.stop is None]
            drawn, turn = None, turn + 1

    async def _answer(self, attempt: _Attempt) -> None:
        """Have the environment answer an attempt's newest turn, which may end its episode."""
        with boundary("environment") as caught:
            observation = await self._observation(attempt.episode)
            if observation is None:
                attempt.stop = "done"
            else:
                attempt.stop = self._observed(attempt, observation)
        failure = caught.failure
        if failure is not None and failure.blame is Blame.POLICY:
            attempt.stop = "done"  # no text turns "wrong" into "unscored": it is scored as it is
        elif failure is not None:
            attempt.stop, attempt.failure = "failed", failure

    async def _observation(self, episode: Episode) -> Observation | None:
        """Return the environment's answer, cut to its limit. Raises FailureError where there is
        none that the policy could be shown."""
        observation = await self.environment.answer_in_time(episode)
        if observation is None:
            return None
        if not isinstance(observation, Observation):
            kind = type(observation).__name__
            raise FailureError(Reason.INTERNAL, f"respond: give an Observation, not a {kind}")
        most = self.environment.config.policy.max_observation_tokens
        text = observation.text
        if not isinstance(text, str) or not text.strip():
            raise FailureError(
                Reason.INTERNAL, f"respond: no text for the policy, but {text!r:.80}"
            )
        check_reward(observation.reward)
        memory = json.loads(json.dumps(observation.memory))  # as a resumed run reads it
        assert self.contexts is not None
        return replace(observation, text=self.contexts.shortened(text, most), memory=memory)

    def _observed(self, attempt: _Attempt, observation: Observation) -> StopReason | None:
        """Add an answer to the newest turn, and take up the next context if there is another."""
        environment, policy = self.environment, self.environment.config.policy
        *before, turn = attempt.turns
        turn = replace(turn, observation=observation)
        attempt.turns = (*before, turn)
        if len(attempt.turns) >= environment.max_turns:
            return "max_turns"
        assert self.contexts is not None
        conversation = [*attempt.prompt, *attempt.episode.messages()]
        try:
            context = self.contexts.after(
                conversation, turn.context_ids, turn.sample, observation.message
            )
        except DataError as error:
            raise FailureError(Reason.INTERNAL, f"respond: {error}") from None
        behind = len(context.token_ids) - len(attempt.turns[0].context_ids)
        if behind + policy.max_new_tokens > environment.max_episode_tokens:
            return "overflow"
        attempt.turns = (*before, replace(turn, answer_ids=context.answer_ids or ()))
        attempt.context_ids = context.token_ids
        return None


async def rolled_out(
    environment: Environment, groups: Sequence[Sequence[Episode]]
) -> list[list[Rollout]]:
    """Return the rollouts of whole episodes. One whose answer could not be made is unscored, and
    the environment does not see it; those of several turns have their turns."""
    whole = [[episode for episode in group if episode.failure is None] for group in groups]
    played = [group for group in whole if group]
    done = iter(await environment.rollout(played) if played else ())
    found: list[list[Rollout]] = []
    for group, kept in zip(groups, whole, strict=True):
        rollouts = iter(next(done) if kept else ())
        found.append(
            [
                next(rollouts)
                if episode.failure is None
                else Rollout(episode.task, episode.sample, UNSCORED, episode.failure)
                for episode in group
            ]
        )
    await _charge_first(environment, found)
    if environment.max_turns == 1:
        return found
    return [
        [replace(r, turns=e.turns, stop=e.stop) for r, e in zip(rollouts, group, strict=True)]
        for rollouts, group in zip(found, groups, strict=True)
    ]


async def _charge_first(environment: Environment, rollouts_P_G: Sequence[list[Rollout]]) -> None:
    """Move the cost of a verdict that several attempts share to the first of them. The one that
    asked the judge was only the fastest, another in each process and after each resume."""
    every = [r.verdict for group in rollouts_P_G for r in group if r.verdict is not None]
    if all(verdict.attempts for verdict in every):
        return  # none is shared
    shared = defaultdict[Hashable, list[tuple[list[Rollout], int, Verdict]]](list)
    for group in rollouts_P_G:
        for index, rollout in enumerate(group):
            verdict, query = rollout.verdict, environment.query(rollout, "")
            if verdict is None or verdict.standing is not None or query is None:
                continue
            question = await off_loop(partial(shown_query, query), query.answer)
            outcome = verdict.status, verdict.score, verdict.reason
            shared[question, outcome].append((group, index, verdict))
    for places in shared.values():
        first, *others = sorted((v for *_, v in places), key=lambda verdict: -verdict.attempts)
        if not others or others[-1].attempts:
            continue  # each asked for itself
        usage = sum((verdict.usage for *_, verdict in places), Usage())
        attempts = sum(verdict.attempts for *_, verdict in places)
        verdicts = [replace(first, attempts=attempts, usage=usage)]
        verdicts += [replace(verdict, attempts=0, usage=Usage()) for verdict in others]
        for (group, index, _), verdict in zip(places, verdicts, strict=True):
            group[index] = replace(group[index], verdict=verdict)
