"""Measures policies and baselines on the same tasks, with the same servers and judge, and keeps
their attempts. Rows go to ``evaluation.json`` and to the screens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from flowright.config.grpo import GrpoSection
from flowright.config.root import Config
from flowright.core.files import disk_errors
from flowright.core.statistics import Estimate, bootstrap, pass_at
from flowright.data.mixture import tasks_by_kind
from flowright.data.task import Task
from flowright.environments.base import Environment, prompt_encoder
from flowright.environments.episode import Episode
from flowright.environments.rollout import Reward, Rollout, to_record
from flowright.evaluation.perplexity import TextScore, text_score_of
from flowright.grading import Gold
from flowright.grading.gold import is_free_text
from flowright.grading.word_scores import SCORERS
from flowright.grpo.batch import Group, scalar_scores
from flowright.grpo.episodes import Player, rolled_out
from flowright.grpo.fixed_data import FixedData
from flowright.grpo.pipeline import SEED_STRIDE
from flowright.grpo.problems import problems_of
from flowright.grpo.ranks import ONE, Ranks, interleaved
from flowright.policy.model import Policy
from flowright.policy.model_thread import on_model_thread
from flowright.policy.sampling import Prompt, Sample, Sampler, Sampling
from flowright.policy.turns import Contexts
from flowright.runs.run_files import BASELINES, write_answers

AT_ONCE = 256
"""Rollouts at a time: a baseline over a whole test split is thousands of calls."""


Keep = Callable[[str, Sequence[Sequence[Rollout]]], None]


@dataclass(frozen=True, slots=True)
class Score:
    """Results on some problems. Accuracies have 95 % intervals from a bootstrap over problems;
    ``valid`` is a share of the attempts that were not lost; the rest are means per attempt. A value
    that was measured on no attempt is None, never 0 (law 1)."""

    problems: int
    gold: float | None
    gold_low: float | None
    gold_high: float | None
    judge: float | None
    judge_low: float | None
    judge_high: float | None
    valid: float | None
    unscored: float
    llm_calls: float
    tokens: float
    seconds: float

    @property
    def headline(self) -> Estimate:
        """The value that rows are compared by."""
        return Estimate(self.gold, self.gold_low, self.gold_high)


@dataclass(frozen=True, slots=True)
class RewardScore(Score):
    """Results with graded rewards (:attr:`Environment.reward_bounds`): the mean reward as well,
    with a 95 % interval from the same bootstrap."""

    reward: float | None
    reward_low: float | None
    reward_high: float | None

    @property
    def headline(self) -> Estimate:
        return Estimate(self.reward, self.reward_low, self.reward_high)


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of the table: scores by kind of task ("all" included) and by dataset (``sources``),
    and the composition of attempts by kind (``mix``).

    ``shown``: in short tables, too. Of a policy also ``lengths``, the mean tokens of its
    completions problem by problem, and the score of a ``text`` that it was not trained on. ``f1``
    and ``exact``: by dataset the mean token F1, and the exact match of its own scorer, with
    intervals, where answers are free text. ``cut``: problems
    whose prompt was cut. ``outcomes``: for each problem, in their order, each attempt's gold or
    reward (None: unscored); ``costs``: its mean tokens of large models, ``money`` where they have
    prices. ``pass_at``: pass@k by k, where problems have several attempts.
    """

    name: str
    group: Literal["policy", "baseline"]
    kinds: Mapping[str, Score]
    sources: Mapping[str, Score]
    mix: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    shown: bool = True
    lengths: tuple[float, ...] = ()
    text: TextScore | None = None
    f1: Mapping[str, Estimate] = field(default_factory=dict)
    exact: Mapping[str, Estimate] = field(default_factory=dict)
    cut: int = 0
    outcomes: tuple[tuple[float | None, ...], ...] = ()
    costs: tuple[float, ...] = ()
    pass_at: Mapping[str, Estimate] = field(default_factory=dict)
    money: tuple[float, ...] = ()

    @property
    def by_reward(self) -> bool:
        """True for mean rewards, False for shares that are right."""
        return isinstance(self.kinds["all"], RewardScore)


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Measures a policy, with the same draws under the same configuration. ``keep`` gets the key of
    the draws and the rollouts of a row, task by task. ``contexts``: for environments of several
    turns."""

    environment: Environment
    encode: Callable[[Task], Prompt]
    config: Config
    ranks: Ranks = ONE
    keep: Keep | None = None
    contexts: Contexts | None = None

    async def row(
        self,
        name: str,
        sampler: Sampler,
        tasks: Sequence[Task],
        draw: int = 0,
        samples: int | None = None,
        text: TextScore | None = None,
    ) -> TableRow:
        """Return the row of the policy that ``sampler`` serves, with ``samples`` attempts a problem
        (None: as while training). ``draw`` numbers the evaluation; ``text`` is the policy's score
        of a text."""
        config = self.config
        number = samples or config.evaluation.samples
        mine = self.ranks.mine(list(enumerate(tasks)))
        problems = problems_of(self.environment, self.encode, mine)
        key = f"{config.seed}/evaluation/{draw}"
        player = Player(self.environment, sampler, self.contexts)
        groups = await player.play(
            problems,
            [number] * len(problems),
            self.sampling(draw),
            [f"{key}/{problem.task.id}" for problem in problems],
        )
        done = await rollout_all(self.environment, groups)
        done = [
            problem.with_cut_prompts(self.environment, some)
            for problem, some in zip(problems, done, strict=True)
        ]
        shares = await self.ranks.all_gather(done)
        rollouts = interleaved(shares)
        if self.keep is not None:
            self.keep(key, rollouts)
        row = make_row(name, "policy", rollouts, self.environment)
        return replace(row, text=text)

    def sampling(self, draw: int) -> Sampling:
        """Return how the attempts of an evaluation are drawn."""
        config = self.config
        return Sampling(
            config.evaluation.temperature,
            config.policy.top_p,
            config.policy.max_new_tokens,
            # Never a training step's draws: steps count up from 1, these seeds down from -1.
            seed=config.seed * SEED_STRIDE - 1 - draw,
        )


def make_evaluator(
    config: Config, environment: Environment, policy: Policy, ranks: Ranks = ONE
) -> Evaluator:
    """Make the evaluator of a policy's prompts. Raises ConfigError for a chat template that cannot
    continue an attempt of several turns."""
    encode = prompt_encoder(environment, policy.tokenizer, config.policy.max_prompt_tokens)
    contexts = Contexts(policy.tokenizer, policy.end_ids)
    if environment.max_turns > 1:
        contexts.check()
    return Evaluator(environment, encode, config, ranks, contexts=contexts)


async def rollout_all(
    environment: Environment, groups: Sequence[Sequence[Episode]], ranks: Ranks = ONE
) -> list[list[Rollout]]:
    """Roll out in parts, so that a large evaluation does not start every request at once; each of
    the ``ranks`` its share."""
    groups = ranks.mine(groups)
    size = max(1, AT_ONCE // max(1, max((len(group) for group in groups), default=1)))
    done: list[list[Rollout]] = []
    for start in range(0, len(groups), size):
        done += await rolled_out(environment, groups[start : start + size])
    return interleaved(await ranks.all_gather(done))


def make_row(
    name: str,
    group: Literal["policy", "baseline"],
    rollouts: Sequence[Sequence[Rollout]],
    environment: Environment,
    shown: bool = True,
) -> TableRow:
    """Make a row from groups of rollouts, one group a task."""
    bounds = environment.reward_bounds
    kinds = {"all": score(rollouts, bounds)}
    for kind in tasks_by_kind([g[0].task for g in rollouts]):
        kinds[kind] = score([g for g in rollouts if g[0].task.kind == kind], bounds)
    names = sorted({g[0].task.source for g in rollouts})
    sources = {s: score([g for g in rollouts if g[0].task.source == s], bounds) for s in names}
    flat = [r for g in rollouts for r in g]
    lengths = [_mean([float(r.length) for r in g]) for g in rollouts]
    # Baselines and scores were not drawn token by token and have no length.
    drawn = group == "policy" and any(lengths)
    mix = environment.mix(flat)
    cut = sum(any(r.cut_prompt is not None for r in g) for g in rollouts)
    outcomes = tuple(tuple(r.reward.value if bounds else r.gold_score for r in g) for g in rollouts)
    return TableRow(
        name,
        group,
        kinds,
        sources,
        mix,
        shown,
        tuple(lengths) if drawn else (),
        f1=_word_scores(rollouts, names, "f1"),
        exact=_word_scores(rollouts, names, "exact"),
        cut=cut,
        outcomes=outcomes,
        costs=tuple(_mean([float(r.spent.tokens) for r in g if r.spent]) for g in rollouts),
        pass_at={} if bounds else _pass_at(outcomes),
        money=tuple(_mean([r.spent.money for r in g if r.spent]) for g in rollouts)
        if any(r.spent and r.spent.money for r in flat)
        else (),
    )


def _pass_at(outcomes: Sequence[Sequence[float | None]]) -> dict[str, Estimate]:
    """Return pass@k for the powers of two, and the number of attempts, above 1."""
    most = max(map(len, outcomes), default=0)
    wanted = [k for k in (*(1 << n for n in range(1, most.bit_length())), most) if 1 < k <= most]
    estimates = {k: bootstrap([[pass_at(some, k)] for some in outcomes]) for k in wanted}
    return {str(k): Estimate(*found) for k, found in estimates.items()}


def _word_scores(
    rollouts: Sequence[Sequence[Rollout]], sources: Sequence[str], name: Literal["f1", "exact"]
) -> dict[str, Estimate]:
    """Return the mean score by dataset, without those where an answer is not free text or has no
    such score."""
    found: dict[str, Estimate] = {}
    for source in sources:
        groups = [group for group in rollouts if group[0].task.source == source]
        checked = [r.gold for g in groups for r in g if r.gold and r.gold.correct is not None]
        if name == "exact" and source not in SCORERS:
            continue
        if not all(is_free_text(group[0].task) for group in groups):
            continue
        if all(getattr(gold, name) is not None for gold in checked):
            scores = [[rollout.word_score(name) for rollout in group] for group in groups]
            found[source] = Estimate(*bootstrap(scores))
    return found


def row_of(known: Mapping[str, Any]) -> TableRow:
    """Restore a row from the mapping that ``asdict`` made of it."""
    scores = {
        name: {key: _score_of(score) for key, score in known[name].items()}
        for name in ("kinds", "sources")
    }
    text = known.get("text")
    whole: dict[str, Any] = {
        **known,
        **scores,
        "lengths": tuple(known.get("lengths", ())),
        "text": None if text is None else text_score_of(text),
        **{
            name: {key: Estimate(**found) for key, found in known.get(name, {}).items()}
            for name in ("f1", "exact", "pass_at")
        },
        "outcomes": tuple(map(tuple, known.get("outcomes", ()))),
        "costs": tuple(known.get("costs", ())),
        "money": tuple(known.get("money", ())),
    }
    return TableRow(**whole)


def _score_of(known: Mapping[str, Any]) -> Score:
    return RewardScore(**known) if "reward" in known else Score(**known)


def score(
    groups: Sequence[Sequence[Rollout]], reward_bounds: tuple[float, float] | None = None
) -> Score:
    """Score some problems, each a group of attempts; with ``reward_bounds`` as a
    :class:`RewardScore`. Unscored attempts take no part in an accuracy or a mean reward, as in
    training; a problem with none left does not count."""
    gold = bootstrap([[r.gold_score for r in g] for g in groups])
    flat = [r for g in groups for r in g]
    # An attempt that neither failed nor was judged comes from an environment without a judge, or is
    # the only answer of its group.
    judged = not any(r.failure is None and (not r.verdict or r.verdict.standing) for r in flat)
    judge = bootstrap([[_judged(r) for r in g] for g in groups] if judged else [])
    spent = [r.spent for r in flat if r.spent]
    known = [float(r.failure is None) for r in flat if not r.lost]
    found = Score(
        len(groups),
        *gold,
        *judge,
        _mean(known) if known else None,
        _mean([float(r.reward.value is None and bool(r.failure)) for r in flat]),
        _mean([float(s.calls) for s in spent]),
        _mean([float(s.tokens) for s in spent]),
        _mean([s.seconds for s in spent]),
    )
    if reward_bounds is None:
        return found
    mean, low, high = bootstrap([[r.reward.value for r in g] for g in groups], reward_bounds)
    return RewardScore(**asdict(found), reward=mean, reward_low=low, reward_high=high)


def _judged(rollout: Rollout) -> float | None:
    if rollout.reward.value is None:
        return None
    return float(rollout.verdict is not None and bool(rollout.verdict.correct))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


@dataclass(frozen=True, slots=True)
class Validation:
    """Metrics ``val/*`` of the policy in training on held-out tasks. ``keep`` gets the step, and
    then the arguments of :class:`Evaluator`'s."""

    evaluator: Evaluator
    sampler: Sampler
    tasks: Sequence[Task]
    keep: Callable[[int, str, Sequence[Sequence[Rollout]]], None] | None = None

    async def __call__(self, step: int) -> dict[str, float]:
        keep = partial(self.keep, step) if self.keep else None
        evaluator = replace(self.evaluator, keep=keep)
        row = await evaluator.row(f"step {step}", self.sampler, self.tasks, step)
        every = row.kinds["all"]
        measured = {
            "val/gold": every.gold,
            "val/reward": every.headline.value if row.by_reward else None,
            "val/judge": every.judge,
            "val/valid_frac": every.valid,
            "val/unscored": every.unscored,
            "val/tokens_llm_mean": every.tokens,
            "val/tokens_completion_mean": _mean(row.lengths) if row.lengths else None,
            **{f"val/gold/{kind}": s.gold for kind, s in row.kinds.items() if kind != "all"},
        }
        return {name: value for name, value in measured.items() if value is not None}


class Keeper(Protocol):
    """A run, or the ledger of an evaluation."""

    def keep_rollouts(self, step: int, rollouts: Sequence[dict[str, Any]], part: str) -> None: ...


def keep_attempts(
    run: Keeper,
    environment: Environment,
    part: str,
    step: int,
    key: str,
    groups: Sequence[Sequence[Rollout]],
    baseline: str | None = None,
) -> None:
    """Keep the attempts of an evaluation as those of a training step, in ``part`` of
    :data:`flowright.runs.run_files.HELD_OUT`: a group is a problem, and each attempt also has the
    ``key`` that replays it, and the name of its ``baseline``. Raises RunError on a full disk."""
    named = {} if baseline is None else {"baseline": baseline}
    records = [
        to_record(rollout, environment.record(rollout), step, group, index, None)
        | {"key": f"{key}/{rollout.task.id}/{index}", **named}
        for group, attempts in enumerate(groups)
        for index, rollout in enumerate(attempts)
    ]
    run.keep_rollouts(step, records, part)


def keep_baseline(
    run: Keeper,
    environment: Environment,
    number: int,
    name: str,
    key: str,
    groups: Sequence[Sequence[Rollout]],
) -> None:
    """Keep the attempts of a baseline under its number. Raises RunError on a full disk."""
    keep_attempts(run, environment, BASELINES, number, key, groups, name)


def keep_answers(run: Path, environment: Environment, groups: Sequence[Sequence[Rollout]]) -> None:
    """Write ``answers.jsonl.zst``: a line an attempt with ``task``, ``index``, the ``query`` to a
    judge (null without an answer), ``gold`` (1, 0 or null), the verdict of the run's own judge
    (``correct``), and whether a failure of ours ``lost`` it. Nothing where the environment has no
    judge of single answers. Raises RunError on a full disk."""
    if environment.judge_settings() is None:
        return
    rows = []
    for group in groups:
        for index, rollout in enumerate(group):
            query = environment.query(rollout, f"{rollout.task.id}/{index}")
            row = {
                "task": rollout.task.id,
                "index": index,
                "query": None if query is None else asdict(query),
                "gold": rollout.gold_score,
                "correct": None if rollout.verdict is None else rollout.verdict.correct,
                "lost": rollout.lost,
            }
            rows.append(row)
    with disk_errors(run):
        write_answers(run, rows)


async def scored_row(
    name: str,
    tasks: Sequence[Task],
    policy: Policy,
    batches: FixedData,
    section: GrpoSection,
) -> TableRow:
    """Return the row of a policy that scores: its gold accuracy is the share of pairs ranked as
    people ranked them. Two equal scores are half right; pairs without a preference do not count."""
    groups = [group for task in tasks for group in batches.groups([task])]
    scores = await on_model_thread(scalar_scores, policy, groups, section)
    pairs = zip(scores[::2], scores[1::2], strict=True)
    rollouts = [
        _outcomes(task, group, first - second)
        for task, group, (first, second) in zip(tasks, groups, pairs, strict=True)
    ]
    row = make_row(name, "policy", rollouts, batches.environment)
    return replace(row, pass_at={})  # its attempts are halves, not draws


def _outcomes(task: Task, group: Group, difference: float) -> list[Rollout]:
    """Return two halves, one of which is right for a tie."""
    strength = group.samples[0].advantage - group.samples[1].advantage
    sample = Sample((), (), f"{difference:+.4f}", "stop", -1)
    why = f"scores differ by {difference:+.4f}, strengths by {strength:+g}"
    if not strength:
        return [Rollout(task, sample, Reward(None, {}), gold=Gold(None, "label", why))]
    rights = (difference * strength > 0, difference * strength >= 0)
    return [_outcome(task, sample, right, why) for right in rights]


def _outcome(task: Task, sample: Sample, right: bool, why: str) -> Rollout:
    reward = Reward(float(right), {"agreement": float(right)})
    return Rollout(task, sample, reward, gold=Gold(right, "label", why))
