"""One attempt at a task, from completion to reward, and how it is recorded. What else there is to
know of it is its environment's.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from operator import add
from typing import TYPE_CHECKING, Any, Literal

from flowright.config.reward import LARGEST_REWARD
from flowright.config.workflow import RewardSection
from flowright.core.errors import Blame, Failure, Reason, UserError
from flowright.core.untrusted import cut
from flowright.data.mixture import tasks_by_kind
from flowright.data.task import Task
from flowright.environments.episode import Episode, StopReason, Turn
from flowright.grading import Gold
from flowright.judging.audit import audit
from flowright.judging.terms import RewardTerms, TermSample, TermScores
from flowright.judging.verdict import Verdict
from flowright.policy.sampling import Sample

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


INVALID = frozenset(
    {
        Reason.TRUNCATED,
        Reason.NO_PROGRAM,
        Reason.SYNTAX,
        Reason.UNSUPPORTED,
        Reason.TYPE,
    }
)
"""The policy's failures before its program ran. Its other failures count as crashes."""


def check_reward(value: float) -> None:
    """Raise UserError for a reward or a penalty that is not finite, or too large."""
    if not abs(value) <= LARGEST_REWARD:  # nan, too
        raise UserError(
            f"reward {value:g}: give a number between -{LARGEST_REWARD:g} and {LARGEST_REWARD:g}; "
            "an unscored sample is None, never NaN or infinite"
        )


@dataclass(frozen=True, slots=True)
class Reward:
    """``value`` is the sum of ``parts``, or None for a sample that could not be scored, which has
    no parts. The parts of a scored sample are always ``validity`` (0 unless the program failed),
    ``correctness`` (0 if it failed) and, where costs count, ``cost`` (0 or below); penalties of the
    training (:func:`with_penalty`) are ``kl`` and ``overlong``, and ``task`` is the value without
    them, None where there are none. ``terms`` are the values of ``reward.terms`` before weights;
    ``parts`` has them weighted."""

    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    task: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)

    @property
    def unpenalised(self) -> float | None:
        """The task's own reward, without penalties."""
        return self.value if self.task is None else self.task

    def __post_init__(self) -> None:
        if self.value is None:
            if self.parts:
                raise ValueError(f"an unscored sample has no parts, not {dict(self.parts)}")
            return
        for value in (self.value, *self.parts.values()):
            check_reward(value)
        if not math.isclose(self.value, sum(self.parts.values()), abs_tol=1e-9):
            raise ValueError(f"parts {dict(self.parts)} do not sum to {self.value}")


UNSCORED = Reward(None)


def reward_of(failure: Failure | None, verdict: Verdict | None, section: RewardSection) -> Reward:
    """The reward of one sample, before costs and terms.

    ``failure`` is that of the completion or of its execution; ``verdict`` is None when the sample
    failed before it could be judged, and where no judge is asked (``judge_weight: 0``). Raises
    ValueError when neither is given and one is asked.
    """
    if failure is not None:
        if failure.blame is Blame.INFRASTRUCTURE:
            return UNSCORED
        validity = section.invalid if failure.reason in INVALID else section.crashed
        return _scored(validity, 0.0)
    if not section.judge_weight:
        return _scored(0.0, 0.0)
    if verdict is None:
        raise ValueError("a sample without a failure needs a verdict")
    if verdict.status != "ok":
        return UNSCORED
    share = float(bool(verdict.correct))
    if verdict.standing is not None and verdict.score is not None:
        share = verdict.score
    return _scored(0.0, section.wrong + share * (section.right - section.wrong))


def with_cost(
    rewards: Sequence[Reward],
    spent: Sequence[float],
    section: RewardSection,
    budget: float | None = None,
) -> list[Reward]:
    """The rewards of one group with the cost part, which ranks only the answers judged right.

    For right answers ``cost = -w (right - wrong) (t - t_min) / t_max``, where t is what the
    sample's workflow spent (money, or tokens), ``t_min`` and ``t_max`` are taken over the group's
    right answers and w is ``section.cost_weight`` <= 0.5: the cheapest right answer pays nothing,
    and the dearest stays above a wrong one by at least half the distance. All others pay nothing.
    ``spent`` of samples that are not right is not read. With w = 0 the rewards come back unchanged.
    A ``budget`` above ``t_min`` takes its place, and what is below it pays nothing.
    """
    if len(rewards) != len(spent):
        raise ValueError(f"{len(rewards)} rewards with {len(spent)} costs")
    if section.cost_weight == 0:
        return list(rewards)
    right = [reward.value == section.right for reward in rewards]
    paid = [cost for cost, counts in zip(spent, right, strict=True) if counts]
    least, most = max(min(paid, default=0), budget or 0), max(paid, default=0)
    scale = section.cost_weight * (section.right - section.wrong)

    def costed(reward: Reward, own: float, is_right: bool) -> Reward:
        if reward.value is None:
            return reward
        cost = scale * min(0, least - own) / most if is_right and most > 0 else 0.0
        return Reward(reward.value + cost, {**reward.parts, "cost": cost})

    return [costed(*each) for each in zip(rewards, spent, right, strict=True)]


def with_penalty(reward: Reward, part: Literal["kl", "overlong"], penalty: float) -> Reward:
    """The reward with a part of minus the penalty: what the policy's distance from the base model
    costs it (``grpo.kl_in: reward``), or its length (``grpo.overlong: soft``). An unscored sample
    stays unscored."""
    if reward.value is None:
        return reward
    parts = {**reward.parts, part: -penalty}
    return Reward(reward.value - penalty, parts, reward.unpenalised, reward.terms)


def _scored(validity: float, correctness: float) -> Reward:
    return Reward(validity + correctness, {"validity": validity, "correctness": correctness})


async def with_terms(
    terms: RewardTerms | None,
    groups: "Sequence[Sequence[Episode]]",
    rollouts: "Sequence[Sequence[Rollout]]",
    sample: "Callable[[Episode, Rollout], TermSample | None]",
) -> "list[list[Rollout]]":
    """Return the rollouts with their rewards as the weighted sum of ``terms`` and what the judge
    gave. ``sample`` returns what the terms score; None for an attempt without an answer. Unscored
    attempts and the policy's failures keep their rewards. A function gets a group in one call."""
    if terms is None:
        return [list(group) for group in rollouts]

    async def one(group: Sequence[Episode], attempts: Sequence[Rollout]) -> list[Rollout]:
        samples = [
            None if r.failure is not None else sample(c, r)
            for c, r in zip(group, attempts, strict=True)
        ]
        found = iter(await terms.score([each for each in samples if each is not None]))
        return [
            rollout if each is None else _apply_terms(rollout, terms, next(found))
            for rollout, each in zip(attempts, samples, strict=True)
        ]

    return await asyncio.gather(*map(one, groups, rollouts))


def _apply_terms(rollout: "Rollout", terms: RewardTerms, scores: TermScores) -> "Rollout":
    verdict = rollout.verdict
    if verdict is not None:
        rollout = replace(rollout, verdict=replace(verdict, usage=verdict.usage + scores.usage))
    if scores.status != "ok":
        failure = Failure(Reason.REWARD_FAILED, scores.reason)
        return replace(rollout, reward=UNSCORED, failure=failure)
    weight = terms.section.judge_weight
    parts = {name: weight * part for name, part in rollout.reward.parts.items()}
    parts |= terms.weighted(scores)
    return rollout.rewarded(Reward(sum(parts.values()), parts, terms=scores.values))


MOST_PROBLEM = 4000
"""Characters of a problem that a record keeps."""
MOST_TURN, MOST_TURNS = 16_000, 400_000
"""Characters that a record keeps of one text of a turn, and of all turns' texts."""
MOST_STATE = 400
"""Characters that a record keeps of the name of a state."""

SCHEMA = 2
"""Version of a rollout's record (docs/viewing.md); records without the field are older. 2 added
turns."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Calls and tokens of large models, seconds, and money where they have prices, of an attempt
    without its judging."""

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    money: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*map(add, astuple(self), astuple(other)))

    def cost(self, in_money: bool) -> float:
        return self.money if in_money else self.tokens


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt at one task.

    ``reward.value`` is None when the failure is ours (law 1). ``verdict`` and ``gold`` are None
    where an environment has none, or where a failure cut them off. ``details`` is what only its
    environment knows of it, in a type of its own. ``cut_prompt``: the task's text as the policy saw
    it, None where the prompt was not cut. ``turns`` and ``stop``: of its episode, where attempts
    may have several turns.
    """

    task: Task
    sample: Sample
    reward: Reward
    failure: Failure | None = None
    verdict: Verdict | None = None
    gold: Gold | None = None
    spent: Spent | None = None
    details: object = None
    cut_prompt: str | None = None
    turns: tuple[Turn, ...] = ()
    stop: StopReason = "done"

    @property
    def length(self) -> int:
        """Tokens that the policy wrote, in all turns."""
        samples = [turn.sample for turn in self.turns] or [self.sample]
        return sum(len(sample.token_ids) for sample in samples)

    @property
    def lost(self) -> bool:
        """True if a failure of ours ended it, which is no fact about the policy."""
        return self.failure is not None and self.failure.blame is Blame.INFRASTRUCTURE

    @property
    def gold_score(self) -> float | None:
        """1 or 0 by the gold check, 0 for the policy's failures; None where gold has no opinion. An
        answer that the judge failed on keeps the gold that it has."""
        if self._failed:
            return 0.0
        if self.gold is None or self.gold.correct is None:
            return None
        return float(self.gold.correct)

    def word_score(self, name: Literal["f1", "exact"]) -> float | None:
        """Return a score of an answer in words (:class:`Gold`); 0 and None as for
        :attr:`gold_score`."""
        if self._failed:
            return 0.0
        return None if self.gold is None else getattr(self.gold, name)

    @property
    def _failed(self) -> bool:
        return self.failure is not None and self.failure.blame is Blame.POLICY

    def rewarded(self, reward: Reward) -> "Rollout":
        """The same rollout with another reward."""
        return replace(self, reward=reward)


def to_record(
    rollout: Rollout,
    own: Mapping[str, Any],
    step: int,
    group: int,
    index: int,
    advantage: float | None,
    credit: Sequence[float | None] = (),
) -> dict[str, Any]:
    """A rollout as it is kept in ``rollouts/``: what the viewer and the report read. ``own`` are
    the environment's fields, ``credit`` the advantages of turns that have their own, None for turns
    that are not trained on. Values are plain JSON; long texts were cut where they were made, and of
    a task of :data:`WITHHELD` there are none."""
    task, sample = rollout.task, rollout.sample
    problem: dict[str, Any] = {"problem": task.problem[:MOST_PROBLEM]}
    if len(task.problem) > MOST_PROBLEM:
        problem["problem_characters"] = len(task.problem)
    shown = {} if rollout.cut_prompt is None else {"cut_prompt": rollout.cut_prompt}
    record = {
        "schema": SCHEMA,
        "step": step,
        "group": group,
        "index": index,
        "task": {
            "id": task.id,
            "kind": task.kind,
            "source": task.source,
            **problem,
            "reference": task.reference[:2000],
        },
        **shown,
        "completion": sample.text,
        "tokens": rollout.length,
        "finish_reason": sample.finish_reason,
        "policy_version": sample.version,
        **_versions(sample),
        **own,
        **({"turns": _turns(rollout.turns, credit), "stop": rollout.stop} if rollout.turns else {}),
        "verdict": plain(rollout.verdict),
        "gold": plain(rollout.gold),
        "reward": _reward(rollout.reward),
        "advantage": advantage,
        "failure": rollout.failure.record() if rollout.failure else None,
    }
    return _without_texts(record) if task.source in WITHHELD else record


WITHHELD = frozenset({"gpqa"})
"""Sources whose authors ask that no question be published."""

_NAMES = frozenset(
    {"id", "key", "kind", "source", "reference"}
    | {"finish_reason", "status", "blame", "method", "stop"}
)


def _without_texts(value: Any, key: str = "") -> Any:
    """Return plain JSON with its texts emptied, except names from closed lists and labels."""
    match value:
        case Mapping():
            return {name: _without_texts(inner, name) for name, inner in value.items()}
        case list() | tuple():
            return [_without_texts(inner, key) for inner in value]
        case str():
            is_name = key in _NAMES or (key == "reason" and value in set(Reason))
            return value if is_name else ""
    return value


def _versions(sample: Sample) -> dict[str, Any]:
    """Return the versions in turn, each with its tokens, where several drew a completion."""
    return {"policy_versions": [list(v) for v in sample.versions]} if sample.versions else {}


def most_turn_text(turns: int) -> int:
    """Return the characters that a record of so many turns keeps of one text."""
    return min(MOST_TURN, MOST_TURNS // (2 * turns))


def _turns(turns: Sequence[Turn], credit: Sequence[float | None]) -> list[dict[str, Any]]:
    """The turns of an episode, with all their texts within ``MOST_TURNS``."""
    most = most_turn_text(len(turns))
    found: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        sample, seen = turn.sample, turn.observation
        found.append(
            {
                "completion": cut(sample.text, most),
                "tokens": len(sample.token_ids),
                "finish_reason": sample.finish_reason,
                "policy_version": sample.version,
                **_versions(sample),
                "context_tokens": len(turn.context_ids),
                "continued": number > 0 and bool(turns[number - 1].answer_ids),
                "observation": seen
                and {
                    "text": cut(seen.text, most),
                    "role": seen.role,
                    "reward": seen.reward,
                    "state": seen.state and seen.state[:MOST_STATE],
                    "failed": seen.failed,
                },
                **({"advantage": credit[number]} if credit else {}),
            }
        )
    return found


def plain(value: "DataclassInstance | None") -> dict[str, Any] | None:
    """A dataclass as a mapping."""
    return None if value is None else asdict(value)


def _reward(reward: Reward) -> dict[str, Any]:
    kept: dict[str, Any] = {"value": reward.value, "parts": dict(reward.parts)}
    kept |= {"terms": dict(reward.terms)} if reward.terms else {}
    return kept if reward.task is None else kept | {"unpenalised": reward.task}


def outcome_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the metrics that every environment's rollouts have: rewards, gold, failures, the
    judge, calls and tokens."""
    spent = [r.spent for r in rollouts if r.spent]
    verdicts = [r.verdict for r in rollouts if r.verdict]
    return {
        **_scores(rollouts),
        **_failures([r.failure for r in rollouts]),
        **audit([r.verdict for r in rollouts], [r.gold for r in rollouts]),
        **means(
            {
                "llm/calls_mean": [s.calls for s in spent],
                "tokens/llm_mean": [s.tokens for s in spent],
                "tokens/judge_mean": [v.usage.tokens for v in verdicts],
                "time/execute": [s.seconds for s in spent],
                "time/judge": [v.seconds for v in verdicts],
            }
        ),
    }


def means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean of each metric's values; a metric without values is left out."""
    return {name: sum(some) / len(some) for name, some in values.items() if some}


def _scores(rollouts: Sequence[Rollout]) -> dict[str, float]:
    values = {
        "reward/mean": _rewards(rollouts),
        "reward/right_frac": [
            bool(r.verdict.correct)
            for r in rollouts
            if r.verdict and r.verdict.status == "ok" and r.verdict.standing is None
        ],
        "gold/accuracy": _golds(rollouts),
    }
    for name in dict.fromkeys(name for r in rollouts for name in r.reward.terms):
        known = [r.reward.terms[name] for r in rollouts if name in r.reward.terms]
        values[f"reward/terms/{name}"] = known
    for kind in tasks_by_kind([r.task for r in rollouts]):
        some = [r for r in rollouts if r.task.kind == kind]
        values[f"reward/by_kind/{kind}"] = _rewards(some)
        values[f"gold/accuracy/{kind}"] = _golds(some)
    return means(values)


def _rewards(rollouts: Sequence[Rollout]) -> list[float]:
    return [r.reward.value for r in rollouts if r.reward.value is not None]


def _golds(rollouts: Sequence[Rollout]) -> list[float]:
    return [score for r in rollouts if (score := r.gold_score) is not None]


def _failures(failures: Sequence[Failure | None]) -> dict[str, float]:
    """Shares of all rollouts: valid, unscored, and each reason of the taxonomy, 0 where it did not
    occur: a curve without its zeros shows the bad steps alone."""
    count = len(failures)
    reasons = Counter(failure.reason for failure in failures if failure)
    ours = sum(n for reason, n in reasons.items() if reason.blame is Blame.INFRASTRUCTURE)
    policy = sum(reasons.values()) - ours
    # A sample that we lost is no fact about the policy, so it is not in the valid share.
    shares = {"rollout/unscored": ours / count}
    if count > ours:
        shares["rollout/valid_frac"] = 1 - policy / (count - ours)
    return shares | {f"rollout/failed/{reason.value}": reasons[reason] / count for reason in Reason}
