"""The before/after table: the policy untrained and trained, and the environment's baselines, on one
set of tasks; and how training changed other text and the length of completions.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from flowright.core.statistics import (
    RESAMPLES,
    SHARE,
    Estimate,
    Resampler,
    bootstrap,
    mean,
    ratio,
)
from flowright.data.mixture import tasks_by_kind
from flowright.data.task import Task
from flowright.environments.base import Baseline, Environment
from flowright.environments.episode import Episode
from flowright.environments.rollout import Rollout
from flowright.evaluation.evaluator import TableRow, make_row, rollout_all, row_of
from flowright.evaluation.ledger import Ledger, Where
from flowright.evaluation.money import (
    Mixture,
    Point,
    area,
    at_money,
    hull,
    nearest_points,
    oracle_points,
    shares_at,
    single_points,
)
from flowright.evaluation.perplexity import TextScore
from flowright.evaluation.probe import ProbedClass
from flowright.grpo.ranks import ONE, Ranks
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

BEST, BEST_BRANCHING = "best fixed", "best that branches"
BEST_BY_KIND, BEST_BY_CLASS = "best of each kind", "best of each class"
"""Choices of baselines: one for all problems, or one for each kind or class of problem."""

MIXTURE, ORACLE = "mixture, same money", "oracle, same money"
NEAREST = "nearest neighbours, same money"
"""Baselines that cost what the last policy does: two of them by chance, by class of problem, and by
the problem's text."""

SMALLEST_GAP = 0.01
"""Smallest gap between the untrained policy and the best baselines of which a share is reported."""

Measure = Callable[[Sequence[Task]], Awaitable[TableRow]]
"""Measures something on problems, such as a policy."""
KeepBaseline = Callable[[int, str, str, Sequence[Sequence[Rollout]]], None]
"""Keeps the attempts of a baseline: its number from 1, its name, the key of its draws."""
Outcomes = Sequence[Sequence[float | None]]
"""For each problem the result of each attempt; None: unscored."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The result of ``policy`` minus that of ``against``, problem by problem: mean over the
    ``problems`` that both have scored attempts at, paired 95 % interval, p of a sign-flip test.
    ``tokens``: the same difference of a problem's mean tokens."""

    policy: str
    against: str
    problems: int
    value: float | None
    low: float | None
    high: float | None
    p: float | None
    tokens: Estimate


@dataclass(frozen=True, slots=True)
class BestBaselines:
    """A choice of baselines and its result on the reported problems. ``choice``: the baseline of
    each class of problem, or that of "all"; ``gold`` and ``tokens``: of all problems and by
    kind."""

    name: str
    choice: Mapping[str, str]
    gold: Mapping[str, Estimate]
    tokens: float


@dataclass(frozen=True, slots=True)
class AtMoney:
    """Baselines at the money of the last policy: which, their accuracy, and an attempt's money;
    ``area``: mean accuracy over the money that baselines cost (:func:`money.area`), and
    ``area_with``: where the policy can be taken, too."""

    name: str
    mixture: Mixture
    gold: Estimate
    money: float
    area: float
    area_with: float


@dataclass(frozen=True, slots=True)
class TriedBaseline:
    """A baseline's result on the problems that the best ones are chosen on."""

    name: str
    gold: float | None
    tokens: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows on the same ``problems`` and their summary: gold accuracies, or mean rewards where
    the environment has those (:attr:`by_reward`), and then no baseline is picked.

    ``tasks``: the problems' ids, in the order of each row's outcomes. ``chosen_on``: the problems
    that the ``bests`` were picked on, by ``tried``; picking on the reported ones favours them, not
    the policy. ``differences``: of every policy against the untrained one, every baseline and every
    choice. ``gap_closed`` is (trained - untrained) / (last of the bests - untrained). ``drift``: by
    the name of a trained policy's row, the other changes (:func:`drift`). ``probed``: the last
    policy's probe (:mod:`flowright.evaluation.probe`), where the environment has twins of tasks.
    ``at_money``: where models have prices.
    """

    problems: int
    simulated: bool
    rows: tuple[TableRow, ...]
    tasks: tuple[str, ...]
    chosen_on: str
    tried: tuple[TriedBaseline, ...]
    bests: tuple[BestBaselines, ...]
    differences: tuple[PairedDifference, ...]
    gap_closed: Estimate | None
    drift: Mapping[str, Mapping[str, Change]] = field(default_factory=dict)
    probed: tuple[ProbedClass, ...] = ()
    at_money: tuple[AtMoney, ...] = ()

    @property
    def by_reward(self) -> bool:
        """True for mean rewards, False for shares that are right by gold."""
        return any(row.by_reward for row in self.rows)

    def row(self, name: str) -> TableRow | None:
        return next((row for row in self.rows if row.name == name), None)

    def best(self, name: str) -> BestBaselines | None:
        return next((best for best in self.bests if best.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``evaluation.json``; no summary where there was nothing to pick."""
        value = asdict(self)
        summary = {key: value.pop(key) for key in ("chosen_on", "gap_closed")}
        by_name = {best.name: best for best in self.bests}
        if single := by_name.get(BEST):
            summary["best_single"] = single.choice["all"]
        if by_kind := by_name.get(BEST_BY_KIND):
            summary["best_by_kind"] = dict(by_kind.choice)
            summary["best_by_kind_gold"] = by_kind.gold["all"].value
        return {**value, "summary": summary if self.bests else {}}


async def compare(
    environment: Environment,
    policies: Mapping[str, Measure],
    tasks: Sequence[Task],
    with_baselines: bool,
    select_on: Sequence[Task] = (),
    progress: Callable[[int, int, str], None] = lambda done, total, name: None,
    ledger: Ledger | None = None,
    samples: int = 1,
    keep: KeepBaseline | None = None,
    ranks: Ranks = ONE,
) -> Comparison:
    """Evaluate every policy and, if wanted, baselines of the environment on ``tasks``; each of the
    ``ranks`` rolls out its share of the baselines.

    With ``select_on`` every baseline is tried once on each of those problems; the best of them, and
    those that are always shown, are then measured on ``tasks`` with ``samples`` attempts a problem.
    Without, and for graded rewards, all are measured on ``tasks``. Rows that the ``ledger`` has are
    not measured again; it is given the others as they come.
    """
    baselines = environment.all_baselines() if with_baselines else []
    numbers = {baseline.name: number for number, baseline in enumerate(baselines, 1)}
    selections = baselines if select_on and environment.reward_bounds is None else []
    measured = list(baselines)
    rows: list[TableRow] = []
    picks: list[TableRow] = []

    async def add(where: Where, name: str, measure: Callable[[], Awaitable[TableRow]]) -> None:
        total = len(policies) + len(selections) + len(measured) + bool(baselines)
        progress(len(rows) + len(picks), total, name)
        known = ledger.get(where, name) if ledger else None
        if known and not known.get("outcomes"):  # measured before rows had them
            known = None
        row = row_of(known) if known else await measure()
        if ledger and not known:
            ledger.put(where, asdict(row))
        (rows if where == "problems" else picks).append(row)

    async def rolled_out(baseline: Baseline, some: Sequence[Task], attempts: int) -> TableRow:
        """Roll out its completion for every task as a policy's."""
        sample = Sample((), (), baseline.completion, "stop", -1)
        key = baseline.name.replace(": ", "/")
        groups = [
            [Episode.single(task, sample, f"{key}/{task.id}/{n}") for n in range(attempts)]
            for task in some
        ]
        rollouts = await rollout_all(environment, groups, ranks)
        if keep is not None and some is tasks:
            number = numbers.get(baseline.name, len(baselines) + 1)
            keep(number, baseline.name, key, rollouts)
        return make_row(baseline.name, "baseline", rollouts, environment, baseline.shown)

    for name, evaluate in policies.items():
        await add("problems", name, partial(evaluate, tasks))
    policy = rows[-1]
    for baseline in selections:
        await add("selection", baseline.name, partial(rolled_out, baseline, select_on, 1))
    choices = _choices(environment, baselines, select_on, picks)
    hulls = _hulls(environment, select_on, picks)
    if selections:
        mixed = [choice for mixture in _mixtures(hulls, policy).values() for _, choice in mixture]
        chosen = {name for choice in [*choices.values(), *mixed] for name in choice.values()}
        measured = [one for one in baselines if one.shown or one.name in chosen]
    for baseline in measured:
        await add("problems", baseline.name, partial(rolled_out, baseline, tasks, samples))
    if hulls and selections:  # among what is measured anyway
        names = {row.name for row in rows}
        some = [row for row in picks if row.name in names]
        hulls[NEAREST] = hull(nearest_points(some, select_on, tasks))
    if not selections:
        fixed = [row for row in rows if row.group == "baseline"]
        choices = _choices(environment, baselines, tasks, fixed)
        hulls = _hulls(environment, tasks, fixed)
    if baselines:
        spent = {row.name: row.kinds["all"].tokens for row in rows if row.group == "baseline"}
        matched = environment.equal_tokens(policy.kinds["all"].tokens, spent)
        if matched is not None:
            await add("problems", matched.name, partial(rolled_out, matched, tasks, samples))
    return summarise(environment, tasks, rows, choices, picks, hulls)


def _hulls(
    environment: Environment, tasks: Sequence[Task], rows: Sequence[TableRow]
) -> dict[str, list[Point]]:
    """Return the hulls of accuracy over money of single baselines and of choices by class, by what
    they are called at a policy's money; none without prices."""
    if not rows or not all(row.money for row in rows) or environment.reward_bounds is not None:
        return {}
    classes = [environment.problem_class(task) for task in tasks]
    points = {MIXTURE: single_points(rows), ORACLE: oracle_points(rows, classes)}
    return {name: hull(some) for name, some in points.items()}


def _mixtures(hulls: Mapping[str, Sequence[Point]], policy: TableRow) -> dict[str, Mixture]:
    """Return what baselines cost as much as the policy."""
    if not policy.money:
        return {}
    return {name: at_money(points, fmean(policy.money)) for name, points in hulls.items()}


def _choices(
    environment: Environment,
    baselines: Sequence[Baseline],
    tasks: Sequence[Task],
    rows: Sequence[TableRow],
) -> dict[str, dict[str, str]]:
    """Choose baselines by their rows on ``tasks``: for each kind of choice, by class of problem,
    a name. The ways that differ in nothing from another, or have no candidate, are left out."""
    if not rows or environment.reward_bounds is not None:
        return {}
    found = {BEST: {"all": _best(rows, range(len(tasks)))}}
    branching = {baseline.name for baseline in baselines if baseline.branches}
    if some := [row for row in rows if row.name in branching]:
        found[BEST_BRANCHING] = {"all": _best(some, range(len(tasks)))}
    kinds = [task.kind for task in tasks]
    classes = [environment.problem_class(task) for task in tasks]
    for name, labels in ((BEST_BY_KIND, kinds), (BEST_BY_CLASS, classes)):
        if name == BEST_BY_KIND or classes != kinds:
            places = {label: [i for i, x in enumerate(labels) if x == label] for label in labels}
            found[name] = {label: _best(rows, where) for label, where in places.items()}
    return found


def _best(rows: Sequence[TableRow], places: Iterable[int]) -> str:
    """Return the name of the most accurate row on the problems at ``places``, of equal ones the
    one with the fewest tokens; unmeasured rows come last."""
    where = list(places)

    def rank(row: TableRow) -> tuple[float, float]:
        known = [m for i in where if (m := _mean_of(row.outcomes[i])) is not None]
        spent = math.fsum(row.costs[i] for i in where)
        return (math.fsum(known) / len(known) if known else -1.0, -spent)

    return max(rows, key=rank).name


def summarise(
    environment: Environment,
    tasks: Sequence[Task],
    rows: Sequence[TableRow],
    choices: Mapping[str, Mapping[str, str]],
    picks: Sequence[TableRow] = (),
    hulls: Mapping[str, Sequence[Point]] = {},
) -> Comparison:
    """Summarise rows on ``tasks``. ``picks``: rows of baselines on other problems, by which the
    ``choices`` and ``hulls`` were made."""
    known = {row.name: row for row in rows}
    within = environment.reward_bounds or SHARE
    bests: list[BestBaselines] = []
    results: dict[str, tuple[Outcomes, Sequence[float]]] = {
        row.name: (row.outcomes, row.costs) for row in rows
    }

    def taken(choice: Mapping[str, str], labels: Sequence[str]) -> list[TableRow]:
        """Return a choice's row for each problem, by its id or its label; the best single one where
        it has none."""
        single = choices[BEST]["all"]
        return [
            known[choice.get("all") or choice.get(task.id) or choice.get(label, single)]
            for task, label in zip(tasks, labels, strict=True)
        ]

    for name, choice in choices.items():
        label = environment.problem_class if name == BEST_BY_CLASS else _kind
        rows_taken = taken(choice, [label(task) for task in tasks])
        outcomes = [row.outcomes[place] for place, row in enumerate(rows_taken)]
        costs = [row.costs[place] for place, row in enumerate(rows_taken)]
        gold = {"all": Estimate(*bootstrap(outcomes))}
        for kind in tasks_by_kind(tasks):
            some = [o for o, task in zip(outcomes, tasks, strict=True) if task.kind == kind]
            gold[kind] = Estimate(*bootstrap(some))
        bests.append(BestBaselines(name, choice, gold, math.fsum(costs) / max(1, len(costs))))
        results[name] = (outcomes, costs)
    at_money: list[AtMoney] = []
    classes = [environment.problem_class(task) for task in tasks]
    most = max((point.money for points in hulls.values() for point in points), default=0.0)
    for policy in [row for row in rows if row.group == "policy"][-1:]:
        for name, mixture in _mixtures(hulls, policy).items():
            parts = [taken(choice, classes) for _, choice in mixture]
            spent = [fmean(row.money[n] for n, row in enumerate(part)) for part in parts]
            shares = shares_at(spent, fmean(policy.money))
            drawn = _mixed(shares, parts)
            results[name] = ([[one.outcome] for one in drawn], [one.tokens for one in drawn])
            own, low = single_points([policy])[0], hulls[MIXTURE][0].money
            at_money.append(
                AtMoney(
                    name,
                    [(share, choice) for share, (_, choice) in zip(shares, mixture, strict=True)],
                    Estimate(*bootstrap(results[name][0])),
                    fmean(one.money for one in drawn),
                    area(hulls[name], low, most),
                    area(hull([*hulls[name], own]), low, most),
                )
            )
    names = tuple(task.id for task in tasks)
    policies = [row.name for row in rows if row.group == "policy"]
    others = [name for name in results if name == UNTRAINED or name not in policies]
    sampler = Resampler(names, RESAMPLES, seed=0)
    differences = [
        _difference(sampler, names, policy, other, results, within)
        for policy in policies
        for other in others
        if other != policy
    ]
    return Comparison(
        problems=len(tasks),
        simulated=environment.simulated,
        rows=tuple(rows),
        tasks=names,
        chosen_on=_chosen_on(picks),
        tried=tuple(
            TriedBaseline(r.name, r.kinds["all"].gold, r.kinds["all"].tokens) for r in picks
        ),
        bests=tuple(bests),
        differences=tuple(differences),
        gap_closed=_gap_closed(sampler, names, results, bests[-1].name) if bests else None,
        drift=_drifts(rows),
        at_money=tuple(at_money),
    )


class _Mixed(NamedTuple):
    """A mixture's result on a problem, in expectation."""

    outcome: float | None
    tokens: float
    money: float


def _mixed(shares: Sequence[float], parts: Sequence[Sequence[TableRow]]) -> list[_Mixed]:
    found = []
    for place, rows in enumerate(zip(*parts, strict=True)):
        each = [*zip(shares, rows, strict=True)]
        known = [(share, m) for share, r in each if (m := _mean_of(r.outcomes[place])) is not None]
        total = math.fsum(share for share, _ in known)
        outcome = math.fsum(share * m for share, m in known) / total if total else None
        tokens = math.fsum(share * row.costs[place] for share, row in each)
        money = math.fsum(share * row.money[place] for share, row in each)
        found.append(_Mixed(outcome, tokens, money))
    return found


def _chosen_on(picks: Sequence[TableRow]) -> str:
    return f"{picks[0].kinds['all'].problems} other problems" if picks else "the same problems"


def _kind(task: Task) -> str:
    return task.kind


def _mean_of(attempts: Sequence[float | None]) -> float | None:
    known = [value for value in attempts if value is not None]
    return math.fsum(known) / len(known) if known else None


def _difference(
    sampler: Resampler,
    names: Sequence[str],
    policy: str,
    against: str,
    results: Mapping[str, tuple[Outcomes, Sequence[float]]],
    within: tuple[float, float],
) -> PairedDifference:
    (ours, our_costs), (theirs, their_costs) = results[policy], results[against]
    both = [
        (name, first - second)
        for name, mine, other in zip(names, ours, theirs, strict=True)
        if (first := _mean_of(mine)) is not None and (second := _mean_of(other)) is not None
    ]
    span = within[1] - within[0]
    found = sampler.estimate(
        [name for name, _ in both], [(change, 1.0) for _, change in both], mean, (-span, span)
    )
    spent = [(a - b, 1.0) for a, b in zip(our_costs, their_costs, strict=True)]
    p = sampler.p_value([name for name, _ in both], [change for _, change in both])
    tokens = sampler.estimate(names, spent, mean)
    return PairedDifference(
        policy, against, len(both), found.value, found.low, found.high, p, tokens
    )


def _drifts(rows: Sequence[TableRow]) -> dict[str, Mapping[str, Change]]:
    """Return the drift of each policy's row from the untrained one, where there is one."""
    before = next((row for row in rows if row.name == UNTRAINED), None)
    if before is None:
        return {}
    after = [row for row in rows if row.group == "policy" and row is not before]
    return {row.name: found for row in after if (found := drift(before, row))}


def _gap_closed(
    sampler: Resampler,
    names: Sequence[str],
    results: Mapping[str, tuple[Outcomes, Sequence[float]]],
    best: str,
) -> Estimate | None:
    """Return the share of the gap from the untrained policy to the best that training closed;
    without an interval where the gap itself may be none."""
    if UNTRAINED not in results or TRAINED not in results:
        return None
    means = [map(_mean_of, results[name][0]) for name in (UNTRAINED, TRAINED, best)]
    known = [
        (name, (after - before, most - before, 1.0))
        for name, before, after, most in zip(names, *means, strict=True)
        if before is not None and after is not None and most is not None
    ]
    places, sums = [name for name, _ in known], [row for _, row in known]
    gap = sampler.estimate(places, sums, lambda s: ratio(s[..., 1], s[..., 2]))
    if gap.value is None or gap.value < SMALLEST_GAP:
        return None
    share = sampler.estimate(places, sums, lambda s: ratio(s[..., 0], s[..., 1]))
    return share if gap.low is not None and gap.low > 0 else Estimate(share.value)
