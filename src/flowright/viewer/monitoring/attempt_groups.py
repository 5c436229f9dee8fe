"""Groups of attempts: those that a report shows, found by reading rollouts without keeping them
all, and the facts that any environment's records have.

Records were written by a policy, a model, a judge or a data set; they reach a page through
:func:`~flowright.viewer.rendering.markup.el` alone, cut. The run's rollouts hold the whole texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, pstdev

from flowright.core.blocks import Fact
from flowright.core.formatting import Record, duration, is_number, object_of
from flowright.runs.run_files import rollout_steps
from flowright.viewer.monitoring.snapshot import load_rollouts

SEARCHED_STEPS = 40  # at most: enough to choose from, and a report of a long run stays quick
WIDEST, BEST, WORST, DISPUTED = 3, 2, 2, 4


@dataclass(frozen=True, slots=True)
class AttemptGroup:
    """All attempts at one problem in one step, best reward first, unscored ones last."""

    attempts: tuple[Record, ...]

    @property
    def step(self) -> int:
        return int(self.attempts[0].get("step") or 0)

    @property
    def task(self) -> Record:
        return self.attempts[0].get("task") or {}

    @property
    def rewards(self) -> list[float]:
        values = [reward_of(attempt) for attempt in self.attempts]
        return [value for value in values if value is not None]

    @property
    def mean(self) -> float:
        return fmean(self.rewards)

    @property
    def spread(self) -> float:
        """Standard deviation of the scored rewards."""
        return pstdev(self.rewards)


@dataclass(frozen=True, slots=True)
class Selection:
    """The groups of a report. ``messages`` holds the newest failure message by reason; ``disputed``
    are single attempts that the judge called right and gold calls wrong, newest first."""

    widest: Sequence[AttemptGroup] = ()
    best: Sequence[AttemptGroup] = ()
    worst: Sequence[AttemptGroup] = ()
    disputed: Sequence[Record] = ()
    messages: Mapping[str, str] = field(default_factory=dict)
    searched: int = 0
    kept: int = 0


def select_groups(run: Path) -> Selection:
    """Search up to ``SEARCHED_STEPS`` steps, evenly spread, the first and the last included.

    The widest groups come from the whole run, the best and the worst from its last third, where the
    policy is what it became; each list takes another kind of problem first, and no group is shown
    twice.
    """
    steps = rollout_steps(run)
    chosen = steps
    if len(steps) > SEARCHED_STEPS:
        ends = len(steps) - 1, SEARCHED_STEPS - 1
        chosen = [steps[i * ends[0] // ends[1]] for i in range(SEARCHED_STEPS)]
    widest = _Shortlist(WIDEST)
    best, worst = _Shortlist(BEST), _Shortlist(WORST)
    disputed: list[Record] = []
    messages: dict[str, str] = {}
    late = chosen[-max(1, len(chosen) // 3)] if chosen else 0
    for step in chosen:
        rollouts = load_rollouts(run, step)
        for rollout in rollouts:
            failure = rollout.get("failure") or {}
            if failure.get("reason"):
                messages[str(failure["reason"])] = str(failure.get("message") or "")
        newer = [
            r for r in rollouts if (_correct(r, "verdict"), _correct(r, "gold")) == (True, False)
        ]
        disputed = [*newer, *disputed][:DISPUTED]
        for group in group_rollouts(rollouts):
            if len(group.rewards) < 2:
                continue
            widest.offer((group.spread, step), group)
            if step >= late:
                best.offer((group.mean, step), group)
                worst.offer((-group.mean, step), group)
    shown: set[int] = set()
    return Selection(
        widest=widest.take(shown),
        worst=worst.take(shown),
        best=best.take(shown),
        disputed=disputed,
        messages=messages,
        searched=len(chosen),
        kept=len(steps),
    )


def group_rollouts(rollouts: Sequence[Record]) -> list[AttemptGroup]:
    """Rollouts of one step as groups, in the order of their numbers."""
    groups: dict[int, list[Record]] = {}
    for rollout in rollouts:
        groups.setdefault(int(rollout.get("group") or 0), []).append(rollout)
    return [
        AttemptGroup(tuple(sorted(attempts, key=_rank))) for _, attempts in sorted(groups.items())
    ]


def reward_of(rollout: Record) -> float | None:
    """The reward, None where the attempt was not scored (law 1)."""
    value = object_of(rollout, "reward").get("value")
    return float(value) if is_number(value) else None


class _Shortlist:
    """The best offers of each kind of problem; holds few groups at any time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._by_kind: dict[str, list[tuple[tuple[float, int], AttemptGroup]]] = {}

    def offer(self, score: tuple[float, int], group: AttemptGroup) -> None:
        ranked = self._by_kind.setdefault(str(group.task.get("kind")), [])
        ranked.append((score, group))
        ranked.sort(key=lambda item: item[0], reverse=True)
        del ranked[self.size + WIDEST + WORST :]  # those that another list may take first

    def take(self, shown: set[int]) -> list[AttemptGroup]:
        taken: list[AttemptGroup] = []
        for row in zip_longest(*self._by_kind.values()):
            for _, group in sorted(filter(None, row), key=lambda item: item[0], reverse=True):
                if len(taken) < self.size and id(group) not in shown:
                    taken.append(group)
                    shown.add(id(group))
        return taken


def _correct(rollout: Record, key: str) -> object:
    return object_of(rollout, key).get("correct")


def _rank(rollout: Record) -> tuple[bool, float]:
    reward = reward_of(rollout)
    return (reward is None, -(reward or 0.0))


# --- the facts of a record ------------------------------------------------------------------------


def record_facts(record: Record) -> list[Fact]:
    """Reward, failure, the judge's verdict and gold's, and their difference."""
    found = [Fact("Reward", reward_arithmetic(record))]
    failure, verdict, gold = (object_of(record, key) for key in ("failure", "verdict", "gold"))
    if failure:
        whose = "ours" if failure.get("blame") == "infrastructure" else "the policy's"
        line = f", line {failure['line']}" if failure.get("line") else ""
        message = failure.get("message") or ""
        found.append(Fact("Failed", f"{failure.get('reason')} ({whose}{line}): {message}"))
    if verdict:
        found.append(verdict_fact("Judge", verdict))
    if gold:
        both = (gold.get("correct"), verdict.get("correct"))
        differs = None not in both and both[0] != both[1]
        text = f"{_opinion(gold, 'no check')} by {gold.get('method')}"
        alarm = "differs from the judge" if differs else ""
        found.append(Fact("Gold", text, str(gold.get("detail") or ""), alarm))
        if gold.get("evidence") not in (None, "", gold.get("detail")):
            found.append(Fact("Evidence", str(gold["evidence"])))
    return found


def verdict_fact(name: str, verdict: Record) -> Fact:
    """A verdict with its judge and cost; the reason as its detail."""
    text = _opinion(verdict, str(verdict.get("status")))
    if is_number(verdict.get("score")):
        text += f", score {verdict['score']:g}"
    attempts, usage = verdict.get("attempts"), object_of(verdict, "usage")
    how = [str(verdict[key]) for key in ("judge", "source") if verdict.get(key)]
    how.append("1 attempt" if attempts == 1 else f"{attempts} attempts")
    if is_number(verdict.get("seconds")) and verdict["seconds"]:
        how.append(duration(verdict["seconds"]))
    tokens = [n for key in ("prompt_tokens", "completion_tokens") if is_number(n := usage.get(key))]
    if len(tokens) == 2 and any(tokens):
        how.append(f"{tokens[0]:,} tokens in, {tokens[1]:,} out")
    parts = object_of(verdict, "parts").items()
    how += [f"{part} {value:.2f}" for part, value in parts if is_number(value)]
    return Fact(name, f"{text} ({', '.join(how)})", str(verdict.get("reason") or ""))


def _opinion(opinion: Record, otherwise: str) -> str:
    correct = opinion.get("correct")
    return otherwise if correct is None else "right" if correct else "wrong"


def reward_arithmetic(record: Record) -> str:
    """``right 1.00 - cost 0.04 = 0.96``, with the advantage; a sentence where there is no
    reward."""
    value = reward_of(record)
    if value is None:
        return "no reward: our failure, the attempt left its group's statistics"
    known = object_of(object_of(record, "reward"), "parts")
    parts = [(name, part) for name, part in known.items() if is_number(part)]
    parts = [(name, part) for name, part in parts if part] or parts[:1]  # zeros add nothing
    text = f"{value:.2f}"
    if parts:
        first, *rest = parts
        terms = [f"{first[0]} {first[1]:.2f}"]
        terms += [f"{'-' if part < 0 else '+'} {name} {abs(part):.2f}" for name, part in rest]
        adds_up = abs(sum(part for _, part in parts) - value) < 5e-3
        text = f"{' '.join(terms)} = {text}" if adds_up else f"{text} (of {' '.join(terms)})"
    advantage = record.get("advantage")
    return text if not is_number(advantage) else f"{text}; advantage {advantage:+.2f}"
