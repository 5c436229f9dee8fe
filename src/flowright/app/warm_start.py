"""``scripts/warm_start.py``: a policy that cannot do its task yet is shown how, before GRPO.

It learns from completions that the environment draws, as the embedded policy does, kept where they
passed on train problems (rejection sampling, as in arXiv 2308.01825, section 3.3). For a kind of
problem, each way (what a completion is made of, such as the operators that it calls) is shown as
often as the others, however often it passed: what pays is left for the reward to teach. The result
is an ordinary Hugging Face folder, the adapter merged, so that GRPO's reference is the warm-started
policy.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console

from flowright.app.open_policies import base_model, local_sampler
from flowright.app.preflight_checks import check_warm_start, load_tasks, refuse, warm_start_recipe
from flowright.app.terminal import stage_progress
from flowright.config.grpo import GrpoSection
from flowright.config.policy import SftSection
from flowright.config.root import Config
from flowright.core.command_line import say
from flowright.core.errors import DataError, RunPaused, UserError
from flowright.core.files import atomic_directory, check_writable, in_turn
from flowright.data.mixture import Mixture, tasks_hash
from flowright.data.task import Task
from flowright.environments.base import Environment, make_environment
from flowright.environments.episode import Episode
from flowright.environments.rollout import Rollout
from flowright.evaluation.evaluator import Score, make_evaluator, rollout_all
from flowright.grpo.batch import Group
from flowright.grpo.fixed_data import completion_group
from flowright.grpo.learner import Learner
from flowright.grpo.selfcheck import check_sharing
from flowright.policy.base_models import Origin, origin_of
from flowright.policy.model import Policy, choose_device, load_policy
from flowright.policy.sampling import Sample

Way = tuple[str, ...]
"""Parts of a completion by the environment's ``mix``, or its text without one."""

LEAST_PASSED = 0.5
"""Share of a completion's attempts that must pass for it to be kept."""

COMPLETIONS_PER_PROMPT = 4
"""Kept completions of a problem that are drawn for each step that trains on it."""


@dataclass(frozen=True, slots=True)
class WarmStartExample:
    """A train problem with the completions that passed on it, each with its way."""

    task: Task
    completions: Mapping[str, Way]


def warm_start(config: Config, console: Console, overwrite: bool = False) -> int:
    """Measure the policy, train it where that is needed, leave it in ``policy.warm_start.folder``.

    Raises UserError for what the user can mend.
    """
    folder = config.policy.warm_start.folder
    if folder is None:
        raise UserError(
            "policy.warm_start.folder: name the folder of the warm-started model, such as "
            "data/cache/warm-start"
        )
    environment = make_environment(config)
    refuse(lambda: check_writable(folder.parent), lambda: load_tasks(environment))
    with in_turn(folder):
        there = origin_of(folder)
        if there is not None and not overwrite:
            check_warm_start(config, folder)
            say(console, f"already there: {folder}")
            return 0
        if there is None and folder.exists() and any(folder.iterdir()):
            raise UserError(f"policy.warm_start.folder: {folder} holds something else")
        return uvloop.run(_WarmStart(config, environment, console).run(folder))


class _WarmStart:
    """A warm start; its prints follow its steps."""

    def __init__(self, config: Config, environment: Environment, console: Console) -> None:
        self._config = config.on(choose_device(config.policy).type)
        self._section = config.policy.warm_start
        self._environment, self._console = environment, console
        self._seed = f"{self._section.seed}/warm start"

    async def run(self, folder: Path) -> int:
        config, section = self._config, self._section
        train = self._environment.tasks().train
        tasks = Mixture(train, self._seed).distinct(section.probes + section.problems)
        probes, problems = tasks[: section.probes], tasks[section.probes :]
        if not problems:
            raise DataError(
                f"train_dataset: {len(tasks)} problems, all of them needed as "
                "policy.warm_start.probes; give more problems or fewer probes"
            )
        with stage_progress(self._console, "making the policy") as progress:
            path = base_model(config, self._environment, train, progress)
        policy = load_policy(path, config.policy, section.seed)
        origin = origin_of(path)
        words = origin.summary if origin else path
        self._say(f"policy    {words}, on {policy.device}")
        check_sharing(policy, config.grpo)
        async with self._environment.open(tasks):
            for line in self._environment.introduction():
                self._say(line)
            before = await self._measure("before", policy, probes)
            if before >= section.enough_valid:
                self._say(
                    "no warm start is needed: leave policy.warm_start.folder out, the policy "
                    f"starts as {config.strategy_model}"
                )
                return 0
            examples = await self._examples(problems)
            self._train(policy, examples)
            after = await self._measure("after", policy, probes)
        shown = sum(len(example.completions) for example in examples)
        done = (
            f"warm-started by {section.steps} supervised steps on {shown} completions that passed "
            f"on {len(examples)} train problems; from {words}"
        )
        recipe = {
            **warm_start_recipe(config),
            "base": dict(origin.recipe) if origin else path,
            "train": tasks_hash(train),
            "valid": {"before": before, "after": after},
        }
        with atomic_directory(folder) as part:
            policy.save_merged(part)
            Origin(done, recipe).write(part)
        self._say(f"written   {folder}")
        return 0

    async def _measure(self, when: str, policy: Policy, probes: Sequence[Task]) -> float:
        """Return the share of valid completions on problems outside the training set, sampled as in
        training. Raises RunPaused if none could be run."""
        config, samples = self._config, self._section.probe_samples
        sampling = {"samples": samples, "temperature": config.policy.temperature}
        config = config.model_copy(
            update={"evaluation": config.evaluation.model_copy(update=sampling)}
        )
        sampler = local_sampler(config, policy)
        evaluator = make_evaluator(config, self._environment, policy)
        with self._console.status(f"measuring the policy {when}"):
            row = await evaluator.row(when, sampler, probes)
        score: Score = row.kinds["all"]
        if score.valid is None:
            raise RunPaused(f"{when}: none of the policy's completions could be run")
        gold = "" if score.gold is None else f", {score.gold:.0%} right by gold"
        self._say(
            f"{when:<9} {score.valid:.0%} of {len(probes) * samples} completions valid{gold}, on "
            f"{len(probes)} train problems that it is not trained on"
        )
        return score.valid

    async def _examples(self, problems: Sequence[Task]) -> list[WarmStartExample]:
        """Completions that passed, by problem; problems without one are left out."""
        section = self._section
        drawn = []
        for index, task in enumerate(problems):
            seed = section.seed * len(problems) + index
            (shown,) = self._environment.demonstrations([task], 1, section.completions, seed)
            drawn.append(list(dict.fromkeys(shown.completions)))
        groups = [
            [
                Episode.single(
                    task, Sample((), (), text, "stop", -1), f"{self._seed}/{task.id}/{i}/{n}"
                )
                for i, text in enumerate(texts)
                for n in range(section.attempts)
            ]
            for task, texts in zip(problems, drawn, strict=True)
        ]
        with self._console.status("running what is to be shown"):
            rolled = await rollout_all(self._environment, groups)
        self._refuse_lost([rollout for group in rolled for rollout in group])
        ways = {r.sample.text: self._way(r) for group in rolled for r in group if not r.lost}
        kept = [
            WarmStartExample(task, {text: ways[text] for text in passed(group, LEAST_PASSED)})
            for task, group in zip(problems, rolled, strict=True)
        ]
        kept = [example for example in kept if example.completions]
        count = sum(len(example.completions) for example in kept)
        if not kept:
            raise UserError(
                "policy.warm_start: nothing that the environment draws passed on a train problem"
            )
        self._say(
            f"examples  {count} of {sum(map(len, drawn))} drawn completions passed, on "
            f"{len(kept)} of {len(problems)} train problems; graded by gold where there is any"
        )
        return kept

    def _way(self, rollout: Rollout) -> Way:
        parts = {name for mix in self._environment.mix([rollout]).values() for name in mix}
        return tuple(sorted(parts)) or (rollout.sample.text,)

    def _refuse_lost(self, rollouts: Sequence[Rollout]) -> None:
        lost = [rollout for rollout in rollouts if rollout.lost]
        if len(lost) > self._config.grpo.max_unscored * len(rollouts):
            raise RunPaused(
                f"{len(lost)} of {len(rollouts)} completions could not be run or judged, for "
                f"instance: {lost[0].failure}"
            )

    def _train(self, policy: Policy, examples: Sequence[WarmStartExample]) -> None:
        section, grpo = self._section, self._config.grpo
        weights = balanced(examples)
        by_id = {example.task.id: example for example in examples}
        mixture = Mixture([example.task for example in examples], f"{self._seed}/steps")
        learner = Learner(policy, supervised(section, grpo), 1.0, section.seed)
        with stage_progress(self._console, "supervised training") as progress:
            for step in range(1, section.steps + 1):
                tasks = mixture.batch(step - 1, section.prompts_per_step)
                groups = [
                    self._example_group(policy, by_id[task.id], weights, f"{step}/{place}")
                    for place, task in enumerate(tasks)
                ]
                metrics = learner.update(groups, step, self._config.policy.max_new_tokens)
                progress(step, section.steps, metrics.get("policy/loss", "not finite"))

    def _example_group(
        self,
        policy: Policy,
        example: WarmStartExample,
        weights: Mapping[tuple[str, str], float],
        key: str,
    ) -> Group:
        rng = random.Random(f"{self._seed}/{key}")
        shares = {text: weights[example.task.kind, text] for text in example.completions}
        drawn = weighted_sample(shares, COMPLETIONS_PER_PROMPT, rng)
        messages = self._environment.messages(example.task)
        longest = self._config.policy.max_prompt_tokens
        return completion_group(messages, drawn, policy.tokenizer, longest)

    def _say(self, line: str) -> None:
        say(self._console, line)


def supervised(section: SftSection, grpo: GrpoSection) -> GrpoSection:
    """Settings of the learner for these supervised steps on one device."""
    return GrpoSection(
        loss="sft",
        steps=section.steps,
        learning_rate=section.learning_rate,
        warmup_steps=section.warmup_steps,
        schedule=section.schedule,
        weight_decay=section.weight_decay,
        max_grad_norm=section.max_grad_norm,
        adam_beta2=0.999,
        kl_coefficient=0.0,
        micro_batch_tokens=grpo.micro_batch_tokens,
        prefix_sharing=grpo.prefix_sharing,
    )


def passed(rollouts: Sequence[Rollout], least: float) -> list[str]:
    """Completions of a problem that passed in at least this share of their attempts, in order.
    Infrastructure failures do not count (law 1); a completion with no other attempt is left out."""
    results: dict[str, list[bool]] = {}
    for rollout in rollouts:
        outcome = _passed(rollout)
        if outcome is not None:
            results.setdefault(rollout.sample.text, []).append(outcome)
    return [text for text, some in results.items() if sum(some) >= least * len(some)]


def _passed(rollout: Rollout) -> bool | None:
    """Return True by gold if there is one (this is training data), else by the judge, else for
    attempts without a failure."""
    if rollout.gold_score is not None:
        return bool(rollout.gold_score)
    if rollout.lost:
        return None
    return rollout.failure is None and (rollout.verdict is None or bool(rollout.verdict.correct))


def balanced(examples: Sequence[WarmStartExample]) -> dict[tuple[str, str], float]:
    """Weight of each (kind of problem, completion): over all examples, the ways of a kind weigh the
    same, and so do the completions of a way."""
    counts = Counter((e.task.kind, text) for e in examples for text in e.completions)
    way_of = {(e.task.kind, text): way for e in examples for text, way in e.completions.items()}
    alike = Counter((kind, way) for (kind, _), way in way_of.items())
    return {key: 1 / (alike[key[0], way_of[key]] * count) for key, count in counts.items()}


def weighted_sample(weights: Mapping[str, float], count: int, rng: random.Random) -> list[str]:
    """Draw up to ``count`` texts one after the other, with chances in proportion to their weights
    (Efraimidis and Spirakis 2006, algorithm A)."""
    keys = {text: rng.random() ** (1 / weight) for text, weight in weights.items()}
    return sorted(keys, key=keys.__getitem__, reverse=True)[:count]
