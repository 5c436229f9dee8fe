"""Attempts that are sampled from a richer prompt than they are learned on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_policy import same, tiny_policy, whole_logits
from torch import Tensor
from toy_run import TASKS, Killed, Toy, Wrapped, configured, train

from flowright.config.grpo import GrpoSection
from flowright.core.errors import ConfigError
from flowright.data.task import Task
from flowright.environments.base import Scaffold
from flowright.environments.rollout import UNSCORED, Reward, Rollout
from flowright.grpo.advantages import group_advantages
from flowright.grpo.batch import Group, trained_groups, whole_groups
from flowright.grpo.learner import Learner
from flowright.grpo.pipeline import SEED_STRIDE, Batch
from flowright.grpo.problems import (
    BatchTask,
    ShownPrompt,
    draw_samples,
    problems_of,
    shown_prompts,
)
from flowright.grpo.step_record import scaffold_metrics
from flowright.llm.chat import Message
from flowright.policy.local import LocalSampler
from flowright.policy.sampling import Prompt, Sample, Sampling, fitting, render
from flowright.runs.run_files import read_rollouts

POLICY = tiny_policy()
LONGEST = 100
HINTS = ("Say a.", "Say a.", "Say b, then c.", None)
"""What the attempts of a group are shown: the first two the same, the last nothing."""


@dataclass
class Hinting(Toy):
    """Shows the attempts of a group a hint each, until half of the steps are done."""

    hints: Sequence[str | None] = HINTS

    def scaffolds(self, task: Task, step: int, steps: int, attempts: int) -> Sequence[Scaffold]:
        own = self.messages(task)
        shown = [None] * attempts if 2 * step > steps else self.hints[:attempts]
        hinted = [own if hint is None else [Message("system", hint), *own] for hint in shown]
        return [*map(Scaffold, hinted)]


def encode(task: Task) -> Prompt:
    return render(Toy().messages(task), POLICY.tokenizer, LONGEST)


def fits(messages: Sequence[Message], longest: int = LONGEST) -> tuple[int, ...] | None:
    return fitting(messages, POLICY.tokenizer, longest)


def hinted(tasks: Sequence[Task], environment: Hinting | None = None) -> list[BatchTask]:
    environment = environment or Hinting()
    show = partial(shown_prompts, environment, fits, step=1, steps=4)
    problems = problems_of(environment, encode, list(enumerate(tasks)))
    return [problem.scaffolded(show, 4) for problem in problems]


def logprobs(prompt: Sequence[int], tokens: Sequence[int], grad: bool = False) -> Tensor:
    """Of each token, by the model's own forward pass."""
    if not grad:
        logits = whole_logits(POLICY, [*prompt, *tokens])[:-1]
    else:
        logits = POLICY.causal_lm(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, :-1]
    return logits.log_softmax(-1)[len(prompt) - 1 :].gather(1, torch.tensor(tokens)[:, None])[:, 0]


async def drawn(problems: Sequence[BatchTask]) -> list[list[Sample]]:
    sampling = Sampling(1.0, 1.0, 6, seed=7)
    return await draw_samples(
        LocalSampler(POLICY, 64).sample, problems, [4] * len(problems), sampling
    )


async def hinted_batch(rewards: Sequence[float] = (1.0, 0.0, 0.25, 0.5)) -> Batch:
    problems = hinted(TASKS[:2])
    samples_P_G = await drawn(problems)
    rollouts_P_G = [
        [
            Rollout(problem.task, sample, Reward(value, {"correctness": value}))
            for sample, value in zip(samples_G, rewards, strict=True)
        ]
        for problem, samples_G in zip(problems, samples_P_G, strict=True)
    ]
    prompts_P_G, shown_P_G = [p.prompts(4) for p in problems], [p.shown(4) for p in problems]
    pairs = zip(problems, samples_P_G, strict=True)
    episodes_P_G = [p.episodes(some, f"1/1/{p.place}") for p, some in pairs]
    return Batch(prompts_P_G, shown_P_G, episodes_P_G, rollouts_P_G)


def groups_of(batch: Batch) -> list[Group]:
    rewards = [[r.reward.value for r in group] for group in batch.rollouts_P_G]
    return trained_groups(batch, group_advantages(rewards))


def update(groups: Sequence[Group], **options: Any) -> tuple[list[Tensor], dict[str, float]]:
    """The gradients of the last optimizer step of an update, and its metrics."""
    before = {name: tensor.clone() for name, tensor in POLICY.state().items()}
    section = GrpoSection(
        **{"loss": "grpo", "kl_coefficient": 0.0, "learning_rate": 1e-3, "max_grad_norm": 1e9}
        | options
    )
    learner, steps = Learner(POLICY, section, 1.0, 0), []

    def keep(*_: object) -> None:
        steps.append([p.grad.clone() for p in POLICY.trainable() if p.grad is not None])

    learner.optimizer.register_step_pre_hook(keep)
    metrics = learner.update(groups, 1, 6)
    POLICY.load(before)
    return steps[-1], metrics


def plain_gradients(groups: Sequence[Group], weights: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Of the mean over samples of the mean over tokens of -w A p / p_old at p = p_old, where w is a
    function of p_old(bare) / p(as it was sampled), row by row."""
    samples = [(group.prompt_ids, sample) for group in groups for sample in group.samples]
    POLICY.model.zero_grad(set_to_none=True)
    for prompt, sample in samples:
        logprobs_T = logprobs(prompt, sample.token_ids, grad=True)
        now_T = logprobs_T.detach()
        ratio_T = (now_T - torch.tensor(sample.sampled_logprobs)).exp()
        terms_T = -weights(ratio_T) * sample.advantage * (logprobs_T - now_T).exp()
        (terms_T.mean() / len(samples)).backward()
    found = [p.grad.clone() for p in POLICY.trainable() if p.grad is not None]
    POLICY.model.zero_grad(set_to_none=True)
    return found


def assert_close(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    assert largest > 0
    for one, other in zip(found, wanted, strict=True):
        assert float((one - other).abs().max()) <= 1e-4 * largest


async def test_an_attempt_is_sampled_from_what_it_is_shown() -> None:
    problems = hinted(TASKS[:3])
    samples_P_G = await drawn(problems)
    for problem, samples_G in zip(problems, samples_P_G, strict=True):
        shown_G = problem.shown(4)
        assert [s is not None and s.scaffold for s in shown_G] == [*HINTS]
        assert [p.token_ids for p in problem.prompts(4)] == [encode(problem.task).token_ids] * 4
        for shown, sample in zip(shown_G, samples_G, strict=True):
            assert shown is not None
            wanted = logprobs(shown.token_ids, sample.token_ids)
            torch.testing.assert_close(torch.tensor(sample.logprobs), wanted, rtol=1e-4, atol=1e-5)
        assert len({sample.token_ids for sample in samples_G}) == 4, "each with its own draws"


async def test_those_of_one_prompt_are_asked_for_together() -> None:
    asked: list[tuple[int, int]] = []

    class Spy(LocalSampler):
        async def sample(self, prompts: Any, n: int, *others: Any) -> list[list[Sample]]:
            asked.append((len(prompts), n))
            return await super().sample(prompts, n, *others)

    sampling = Sampling(1.0, 1.0, 6, seed=7)
    await draw_samples(Spy(POLICY, 64).sample, hinted(TASKS[:3]), [4] * 3, sampling)
    # Of each task the third hint and the bare prompt once, the first hint twice.
    assert asked == [(6, 1), (3, 2)]


async def test_draws_depend_on_no_other_task_and_bare_ones_on_no_scaffold() -> None:
    problems = hinted(TASKS[:4])
    everything = tokens(await drawn(problems))
    assert tokens(await drawn(problems[1::2])) == everything[1::2], "as a second rank's share"
    bare = [replace(p, forms=[replace(f, shown=()) for f in p.forms]) for p in problems]
    unchanged = hinted(TASKS[:4], Hinting(hints=[None] * 4))
    assert tokens(await drawn(bare)) == tokens(await drawn(unchanged))


def tokens(samples_P_G: Sequence[Sequence[Sample]]) -> list[list[tuple[int, ...]]]:
    return [[sample.token_ids for sample in samples_G] for samples_G in samples_P_G]


@pytest.mark.parametrize("cap", [1.5, 1e9])
async def test_a_correction_has_the_ratio_of_bare_prompt_to_scaffold(cap: float) -> None:
    groups = groups_of(await hinted_batch())
    found, metrics = update(groups, off_policy="truncated", off_policy_cap=cap)
    assert_close(found, plain_gradients(groups, lambda ratio_T: ratio_T.clamp(max=cap)))
    ratios = [
        (logprobs(group.prompt_ids, s.token_ids) - torch.tensor(s.sampled_logprobs)).exp()
        for group in groups
        for s in group.samples
        if s.scaffolded
    ]
    assert len(ratios) == 6, "all but one of each group"
    ratio_N = torch.cat(ratios)
    assert float(ratio_N.log().abs().mean()) > 0.1, "the prompts are far apart"
    weights = {
        "policy/scaffold_weight": float(ratio_N.clamp(max=cap).mean()),
        "policy/scaffold_capped_frac": float((ratio_N >= cap).double().mean()),
        "policy/scaffold_logp_diff": float(ratio_N.log().abs().mean()),
        "policy/off_policy_weight": 1.0,
        "policy/off_policy_capped_frac": 0.0,
    }
    assert {name: metrics[name] for name in weights} == pytest.approx(weights, rel=1e-4, abs=1e-6)
    assert metrics["policy/sampler_logp_diff"] < 1e-5, "of the bare ones alone"


@pytest.mark.parametrize("off_policy", [None, "ratio", "ignored"])
async def test_without_a_correction_the_ratio_is_to_the_bare_prompt(off_policy: str | None) -> None:
    groups = groups_of(await hinted_batch())
    found, metrics = update(groups, off_policy=off_policy)
    assert_close(found, plain_gradients(groups, torch.ones_like))
    assert metrics["policy/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["policy/clip_frac"] == 0.0
    assert metrics["policy/scaffold_logp_diff"] > 0.1
    assert metrics["policy/sampler_logp_diff"] < 1e-5
    assert "policy/scaffold_weight" not in metrics


@pytest.mark.parametrize("minibatches", [1, 2])
async def test_a_second_pass_knows_the_policy_before_the_first(minibatches: int) -> None:
    """What the sampler said of the bare ones is what the learner knows of them before it moved."""
    groups = groups_of(await hinted_batch())
    options = {"epochs": 2, "minibatches": minibatches, "learning_rate": 0.05}
    found, metrics = update(groups, off_policy="ratio", **options)
    wanted, others = update(groups, off_policy="ignored", **options)
    assert_close(found, wanted)
    assert metrics == pytest.approx(others, rel=1e-3, abs=1e-5)
    assert metrics["policy/ratio_std"] > 1e-3, "the first pass moved it"


async def test_a_kl_in_the_reward_is_that_of_the_bare_prompt() -> None:
    groups = whole_groups(await hinted_batch())
    section = GrpoSection(kl_in="reward", kl_estimator="k1")
    found = Learner(POLICY, section, 1.0, 0).divergences(groups)
    samples = [(group.prompt_ids, s) for group in groups for s in group.samples]
    assert [s.scaffolded for _, s in samples] == [True, True, True, False] * 2
    for nats, (prompt, sample) in zip(found, samples, strict=True):
        with POLICY.reference():
            reference_T = logprobs(prompt, sample.token_ids)
        wanted = float((logprobs(prompt, sample.token_ids) - reference_T).sum())
        assert nats == pytest.approx(wanted, rel=1e-3, abs=1e-4)


def test_a_scaffold_that_is_too_long_is_left_out() -> None:
    task, prompt = TASKS[0], encode(TASKS[0])
    long, environment = "b" * LONGEST, Hinting()
    environment.hints = ["a", long, long, None]
    shown = shown_prompts(environment, fits, task, prompt, 4, 1, 4)
    assert [s.scaffold for s in shown] == ["a", None, None, None]
    assert [s.left_out for s in shown] == [False, True, True, False]
    assert [s.token_ids == prompt.token_ids for s in shown] == [False, True, True, True]
    assert (
        shown_prompts(environment, fits, task, prompt, 4, 3, 4)
        == [ShownPrompt(prompt.token_ids)] * 4
    )
    assert shown_prompts(Toy(), fits, task, prompt, 4, 1, 4) == [], "no environment's by default"


def test_rewards_with_and_without_a_scaffold_are_told_apart() -> None:
    def played(*values: float | None) -> list[Rollout]:
        sample = Sample((1,), (0.0,), "", "stop", 0)
        rewards = [UNSCORED if v is None else Reward(v, {"correctness": v}) for v in values]
        return [Rollout(TASKS[0], sample, reward) for reward in rewards]

    shown = [
        ShownPrompt((1, 2), "hint"),
        ShownPrompt((1, 2), "hint"),
        ShownPrompt((1,), left_out=True),
        ShownPrompt((1,)),
    ]
    rollouts_P_G = [played(1.0, None, 0.5, 0.0), played(0.5, 0.0, 0.0, 0.0)]
    found = scaffold_metrics(Batch([], [shown, shown], [], rollouts_P_G))
    assert found == pytest.approx(
        {
            "rollout/scaffolded_frac": 0.5,
            "rollout/scaffold_left_out": 0.25,
            "reward/scaffolded": 0.5,
            "reward/bare": 0.125,
        }
    )
    assert scaffold_metrics(Batch([], [[None, None]], [], [played(1.0, 0.0)])) == {}


def test_each_form_of_a_task_has_its_own_and_there_is_one_for_each_attempt() -> None:
    class Both(Hinting):
        def forms(self, task: Task) -> Sequence[Task]:
            return (task, TASKS[4])

    environment = Both(hints=("x", None))
    (problem,) = hinted(TASKS[:1], environment)
    shown = [s.scaffold for s in problem.shown(4) if s is not None]
    assert shown == ["x", None, "x", None]
    with pytest.raises(ConfigError, match="2 prompts for 4 attempts at t0; give one for each"):
        hinted(TASKS[:1], Hinting(hints=("x", None)))


@dataclass
class Asked(Wrapped):
    """Writes down which prompts were asked for with which seed."""

    asked: list[tuple[int, list[tuple[int, ...]]]] = field(default_factory=list)

    async def sample(
        self, prompts: Any, n: int, sampling: Sampling, places: Any = None
    ) -> list[list[Sample]]:
        self.asked.append((sampling.seed, [tuple(prompt) for prompt in prompts]))
        return await super().sample(prompts, n, sampling, places)


async def test_a_run_shows_scaffolds_in_training_alone_and_says_so(tmp_path: Path) -> None:
    spies: list[Asked] = []

    def spied(local: LocalSampler) -> Asked:
        spies.append(Asked(local))
        return spies[0]

    config = configured({"steps": 4}, evaluation={"every": 1, "problems": 3})
    done = await train(tmp_path, Hinting(), config, sampler=spied)
    bare = {encode(task).token_ids for task in TASKS}
    measured = [prompts for seed, prompts in spies[0].asked if seed < SEED_STRIDE]
    assert measured and {prompt for prompts in measured for prompt in prompts} <= bare
    for step, shown in ((1, HINTS), (2, HINTS), (3, [None] * 4), (4, [None] * 4)):
        row, rows = done.metrics[step], list(read_rollouts(tmp_path, step))
        scaffolds = [r["scaffold"] for r in rows]
        assert [s["text"] or None for s in scaffolds] == [*shown] * 2
        assert not any(s["left_out"] for s in scaffolds)
        assert row["rollout/scaffolded_frac"] == (0.75 if step < 3 else 0.0)
        assert row["rollout/scaffold_left_out"] == 0.0
        assert ("reward/scaffolded" in row) == (step < 3)
        values = [r["reward"]["value"] for r in rows if not r["scaffold"]["text"]]
        assert row["reward/bare"] == pytest.approx(sum(values) / len(values))
        tokens = [len(encode(task).token_ids) for task in TASKS]
        assert row["tokens/prompt_mean"] <= max(tokens), "of what is learned on"


def kill_at_three(version: int) -> None:
    if version == 3:
        raise Killed


@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_killed_run_resumed_shows_the_same(tmp_path: Path, staleness: int) -> None:
    options = {"steps": 6, "off_policy": "truncated", "epochs": 1, "minibatches": 1}
    config = configured(options, evaluation={"every": 0}, max_staleness=staleness)
    whole = await train(tmp_path / "whole", Hinting(), config)
    killed: Any = {
        "sampler": lambda local: Wrapped(local, refreshed=kill_at_three),
        "raises": Killed,
    }
    await train(tmp_path / "run", Hinting(), config, **killed)
    resumed = await train(tmp_path / "run", Hinting(), config, resume=True)
    assert resumed.metrics == whole.metrics
    assert same(resumed.weights, whole.weights)
    for step in range(1, 7):
        assert [*read_rollouts(tmp_path / "run", step)] == [
            *read_rollouts(tmp_path / "whole", step)
        ]


async def test_samples_of_another_scaffold_are_not_taken_up(tmp_path: Path) -> None:
    config = configured({"steps": 6}, evaluation={"every": 0}, max_staleness=1)
    killed: Any = {
        "sampler": lambda local: Wrapped(local, refreshed=kill_at_three),
        "raises": Killed,
    }
    await train(tmp_path, Hinting(), config, **killed)
    other = Hinting(hints=("Say z.", *HINTS[1:]))
    resumed = await train(tmp_path, other, config, resume=True)
    assert any("dropped 8 samples that waited for step 3" in line for line in resumed.reporter.said)
