"""The before/after table: the policy untrained and trained, and the environment's baselines, on one
set of tasks; and how training changed other text and the length of completions.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from flowright.core.statistics import RESAMPLES, Resampler, mean, ratio
from flowright.data.task import Task
from flowright.environments.base import Baseline, Environment
from flowright.environments.rollout import Completion
from flowright.evaluation.evaluator import TableRow, make_row, rollout_all, row_of
from flowright.evaluation.ledger import Ledger, Where
from flowright.evaluation.perplexity import TextScore
from flowright.policy.sampling import Sample

PERPLEXITY, LENGTH = "perplexity", "completion_tokens"


@dataclass(frozen=True, slots=True)
class Change:
    """A value ``before`` and ``after`` training and its change, the quotient of perplexities or the
    difference of lengths, with a paired 95 % interval; no interval where all units are equal."""

    before: float
    after: float
    change: float
    low: float | None
    high: float | None


def drift(before: TableRow, after: TableRow) -> dict[str, Change]:
    """Return the changes between two policies' rows on the same problems and text: ``perplexity``
    and ``completion_tokens``, each where both rows have it."""
    found: dict[str, Change] = {}
    if before.text is not None and after.text is not None:
        found[PERPLEXITY] = _perplexity(before.text, after.text)
    if before.lengths and len(before.lengths) == len(after.lengths):
        found[LENGTH] = _length(before.lengths, after.lengths)
    return found


def _perplexity(before: TextScore, after: TextScore) -> Change:
    """Resample whole documents, or the windows of a single one. The quotient is exp of the
    difference of mean negative log-likelihoods."""
    several = len(set(before.documents)) > 1
    units = before.documents if several else range(len(before.documents))
    rows = [
        (new - old, count)
        for old, new, count in zip(before.nats, after.nats, before.tokens, strict=True)
    ]
    names = [str(unit) for unit in units]
    found = Resampler(names, RESAMPLES, seed=0).estimate(
        names, rows, lambda sums: ratio(sums[..., 0], sums[..., 1])
    )
    low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
    old, new = before.perplexity, after.perplexity
    return Change(old, new, new / old, low, high)


def _length(before: Sequence[float], after: Sequence[float]) -> Change:
    names = [str(number) for number in range(len(before))]
    rows = [(new - old, 1.0) for old, new in zip(before, after, strict=True)]
    found = Resampler(names, RESAMPLES, seed=0).estimate(names, rows, mean)
    old, new = (math.fsum(lengths) / len(lengths) for lengths in (before, after))
    return Change(old, new, new - old, found.low, found.high)


def change_lines(changes: Mapping[str, Change]) -> list[str]:
    """Return a line for each change, for a terminal."""
    lines = []
    if (found := changes.get(PERPLEXITY)) is not None:
        ends = _ends(found, "{:.3f}")
        lines.append(
            f"perplexity of evaluation.text: {found.before:.2f} -> {found.after:.2f}, "
            f"times {found.change:.3f}{ends}"
        )
    if (found := changes.get(LENGTH)) is not None:
        ends = _ends(found, "{:+.1f}")
        lines.append(
            f"tokens of a completion: {found.before:.1f} -> {found.after:.1f}, "
            f"{found.change:+.1f}{ends}"
        )
    return lines


def _ends(found: Change, form: str) -> str:
    if found.low is None or found.high is None:
        return ""
    return f" (95 %: {form.format(found.low)} to {form.format(found.high)})"


UNTRAINED, TRAINED = "untrained policy", "trained policy"

SMALLEST_GAP = 0.01
"""Smallest gap between the untrained policy and the best baselines of which a share is reported."""

Measure = Callable[[Sequence[Task]], Awaitable[TableRow]]
"""Measures something on problems, such as a policy."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows on the same ``problems`` and their summary: gold accuracies, or mean rewards where
    the environment has those (:attr:`by_reward`), and then no baseline is picked.

    ``best_single`` is the baseline with the highest accuracy over all kinds, ``best_by_kind`` the
    best of each kind and ``best_by_kind_gold`` the accuracy of choosing by kind. ``chosen_on``: the
    problems they were picked on; picking on the reported ones favours them, not the policy.
    ``gap_closed`` is (trained - untrained) / (best_by_kind_gold - untrained). ``drift``: by the
    name of a trained policy's row, the other changes (:func:`drift`).
    """

    problems: int
    simulated: bool
    rows: tuple[TableRow, ...]
    chosen_on: str
    best_single: str
    best_by_kind: Mapping[str, str]
    best_by_kind_gold: float
    gap_closed: float | None
    drift: Mapping[str, Mapping[str, Change]] = field(default_factory=dict)

    @property
    def by_reward(self) -> bool:
        """True for mean rewards, False for shares that are right by gold."""
        return any(row.by_reward for row in self.rows)

    def row(self, name: str) -> TableRow | None:
        return next((row for row in self.rows if row.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``evaluation.json``; no summary where there was nothing to pick."""
        value = asdict(self)
        keys = ("chosen_on", "best_single", "best_by_kind", "best_by_kind_gold", "gap_closed")
        summary = {key: value.pop(key) for key in keys}
        return {**value, "summary": summary if self.best_single else {}}


async def compare(
    environment: Environment,
    policies: Mapping[str, Measure],
    tasks: Sequence[Task],
    with_baselines: bool,
    select_on: Sequence[Task] = (),
    progress: Callable[[int, int, str], None] = lambda done, total, name: None,
    ledger: Ledger | None = None,
) -> Comparison:
    """Evaluate every policy and, if wanted, every baseline of the environment on ``tasks``.

    The best baselines are picked on ``select_on`` where it is given, else on ``tasks``. Rows that
    the ``ledger`` has are not measured again; it is given the others as they come.
    """
    baselines = environment.baselines() if with_baselines else ()
    picked = environment.reward_bounds is None
    selections = baselines if select_on and picked else ()
    total = len(policies) + len(baselines) + len(selections) + bool(baselines)
    rows: list[TableRow] = []
    picks: list[TableRow] = []

    async def add(where: Where, name: str, measured: Callable[[], Awaitable[TableRow]]) -> None:
        progress(len(rows) + len(picks), total, name)
        known = ledger.get(where, name) if ledger else None
        row = row_of(known) if known else await measured()
        if ledger and not known:
            ledger.put(where, asdict(row))
        (rows if where == "problems" else picks).append(row)

    async def rolled_out(baseline: Baseline, some: Sequence[Task]) -> TableRow:
        """Roll out its completion for every task as a policy's."""
        sample = Sample((), (), baseline.completion, "stop", -1)
        key = baseline.name.replace(": ", "/")
        groups = [[Completion(task, sample, f"{key}/{task.id}/0")] for task in some]
        rollouts = await rollout_all(environment, groups)
        return make_row(baseline.name, "baseline", rollouts, environment, baseline.shown)

    for name, evaluate in policies.items():
        await add("problems", name, partial(evaluate, tasks))
    policy = rows[-1]
    for baseline in baselines:
        await add("problems", baseline.name, partial(rolled_out, baseline, tasks))
    for baseline in selections:
        await add("selection", baseline.name, partial(rolled_out, baseline, select_on))
    if baselines:
        spent = {row.name: row.kinds["all"].tokens for row in rows if row.group == "baseline"}
        matched = environment.equal_tokens(policy.kinds["all"].tokens, spent)
        if matched is not None:
            await add("problems", matched.name, partial(rolled_out, matched, tasks))
    return summarise(rows, len(tasks), environment.simulated, picks)


def summarise(
    rows: Sequence[TableRow], problems: int, simulated: bool, picks: Sequence[TableRow] = ()
) -> Comparison:
    """Summarise rows. ``picks``: rows of baselines on other problems, to choose them by."""
    fixed = {row.name: row for row in rows if row.group == "baseline"}
    by_reward = any(row.by_reward for row in rows)
    candidates = [] if by_reward else picks or list(fixed.values())
    best_single, best_by_kind, best_gold = "", {}, 0.0
    if candidates:
        best_single = _best(candidates, "all")
        for kind in [kind for kind in candidates[0].kinds if kind != "all"]:
            best_by_kind[kind] = _best(candidates, kind)
            score = fixed[best_by_kind[kind]].kinds.get(kind)
            best_gold += (score.gold or 0.0) * score.problems / problems if score else 0.0
    return Comparison(
        problems,
        simulated,
        tuple(rows),
        "other problems" if picks else "the same problems",
        best_single,
        best_by_kind,
        best_gold,
        _gap_closed(rows, best_gold) if candidates else None,
        _drifts(rows),
    )


def _drifts(rows: Sequence[TableRow]) -> dict[str, Mapping[str, Change]]:
    """Return the drift of each policy's row from the untrained one, where there is one."""
    before = next((row for row in rows if row.name == UNTRAINED), None)
    if before is None:
        return {}
    after = [row for row in rows if row.group == "policy" and row is not before]
    return {row.name: found for row in after if (found := drift(before, row))}


def _best(rows: Sequence[TableRow], kind: str) -> str:
    """Return the name of the most accurate row; unmeasured rows come last."""
    return max(rows, key=lambda row: -1.0 if (g := row.kinds[kind].gold) is None else g).name


def _gap_closed(rows: Sequence[TableRow], best: float) -> float | None:
    gold = {row.name: row.kinds["all"].gold for row in rows}
    before, after = gold.get(UNTRAINED), gold.get(TRAINED)
    if before is None or after is None or best - before < SMALLEST_GAP:
        return None
    return (after - before) / (best - before)
