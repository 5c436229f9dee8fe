"""On-policy distillation: the gradient, who takes part, failures, resumed runs, and servers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web
from tiny_policy import (
    VOCAB_SIZE,
    random_groups,
    same,
    shake,
    tiny_policy,
    whole_logits,
)
from torch import Tensor
from toy_run import Killed, Toy, configured, train
from vllm_double import BASE, VllmDouble, error

from flowright.config.grpo import GrpoSection, TeacherSection
from flowright.core.errors import ConfigError, RunPaused, UserError
from flowright.grpo.batch import Group, Logprobs, Trained
from flowright.grpo.learner import Learner
from flowright.grpo.objectives import choices_of
from flowright.grpo.teacher import LocalTeacher, ServedTeacher, Teacher, check_teacher, open_teacher
from flowright.llm.counters import Counters
from flowright.policy.model import Policy, load_policy

ALONE = {"model": "teacher", "reward_weight": 0.0}


def gradients(
    policy: Policy, groups: Sequence[Group], temperature: float = 1.0, **grpo: Any
) -> tuple[list[Tensor], dict[str, float]]:
    """The gradients of one optimizer step, before they are clipped, and its metrics."""
    section = GrpoSection(**{"kl_coefficient": 0.0, "max_grad_norm": 1e9, **grpo})
    learner, found = Learner(policy, section, temperature, 0), []
    learner.optimizer.register_step_pre_hook(
        lambda *_: found.extend(p.grad.clone() for p in policy.trainable())  # type: ignore[union-attr]
    )
    metrics = learner.update(groups, 1, 8)
    return found, metrics


def assert_close(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    largest = max(float(gradient.abs().max()) for gradient in theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * largest)


def test_the_expected_gradient_is_that_of_the_reverse_kl():
    """Every token of the vocabulary once, weighted by its probability under the policy: with a
    uniform sampler the off-policy weight is that, times the number of tokens."""
    policy, teacher, prompt = tiny_policy(), tiny_policy("llama"), [60, 70, 80]
    of_teacher = whole_logits(teacher, prompt)[-1].log_softmax(-1)
    uniform = [-math.log(VOCAB_SIZE)]
    samples = [
        Trained([n], uniform, 0.0, teacher_logprobs=[float(of_teacher[n])])
        for n in range(VOCAB_SIZE)
    ]
    how = {"off_policy": "truncated", "off_policy_cap": 1e9, "teacher": ALONE | {"weight": 0.7}}
    found, metrics = gradients(tiny_policy(), [Group(prompt, samples)], **how)
    rows = policy.causal_lm(input_ids=torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    kl = (rows.exp() * (rows - of_teacher)).sum()
    wanted = torch.autograd.grad(0.7 * kl, policy.trainable())
    assert_close(found, wanted)
    assert metrics["teacher/kl"] == pytest.approx((rows - of_teacher).mean().item(), rel=1e-4)


@pytest.mark.parametrize("several", [{}, {"epochs": 1, "top_entropy": 1.0, "loss": "grpo"}])
def test_rewards_and_teacher_add_up_in_a_tokens_advantage(several: dict[str, Any]):
    """Against the loss written out from the model's whole logits."""
    policy = tiny_policy()
    groups = [
        replace(g, samples=[replace(s, teacher_logprobs=lower(s)) for s in g.samples])
        for g in random_groups(3, [(3, [2, 4]), (5, [1, 3])])
    ]
    teacher = {"model": "teacher", "weight": 0.5}
    found, metrics = gradients(tiny_policy(), groups, 0.8, teacher=teacher, **several)
    loss, leads, total = torch.zeros(()), [], 10
    for group in groups:
        for sample in group.samples:
            ids = torch.tensor([[*group.prompt_ids, *sample.token_ids]])
            rows = (policy.causal_lm(input_ids=ids).logits[0] / 0.8).log_softmax(-1)
            rows = rows[len(group.prompt_ids) - 1 : -1]
            logprobs = rows.gather(1, torch.tensor(sample.token_ids)[:, None])[:, 0]
            lead = logprobs.detach() - torch.tensor(sample.teacher_logprobs)
            gains = sample.advantage - 0.5 * lead
            ratio = (logprobs - torch.tensor(sample.sampled_logprobs)).exp()
            high = 1.2 if several else 1.28
            term = torch.minimum(ratio * gains, ratio.clamp(0.8, high) * gains)
            term = torch.where(gains < 0, torch.maximum(term, 3.0 * gains), term)
            share = 4 * len(sample.token_ids) if several else total
            loss = loss - term.sum() / share
            leads += lead.tolist()
    assert_close(found, torch.autograd.grad(loss, policy.trainable()))
    assert metrics["policy/loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["teacher/kl"] == pytest.approx(sum(leads) / total, rel=1e-4)


def lower(sample: Trained) -> list[float]:
    return [value / 2 - 1 for value in sample.sampled_logprobs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that was trained away from the tiny policy's."""
    path = tmp_path_factory.mktemp("teacher") / "model"
    policy = tiny_policy(trained=False)
    shake(policy, seed=11, scale=0.08)
    policy.save_merged(path)
    return str(path)


def local(folder: str) -> LocalTeacher:
    model = load_policy(folder, tiny_section(), 0)
    return LocalTeacher(model, GrpoSection())


def tiny_section() -> Any:
    return configured().policy.model_copy(update={"device": "cpu"})


async def test_a_local_teacher_scores_at_temperature_one(folder: str):
    teacher, groups = local(folder), random_groups(5, [(3, [2, 4]), (5, [1])])
    found = await teacher.score(groups)
    reference = load_policy(folder, tiny_section(), 0)
    numbers = [(group, sample) for group in groups for sample in group.samples]
    for (group, sample), logprobs in zip(numbers, found, strict=True):
        assert not isinstance(logprobs, str)
        assert logprobs == pytest.approx(by_logits(reference, group, sample), abs=1e-4)


def by_logits(model: Policy, group: Group, sample: Trained) -> list[float]:
    rows = whole_logits(model, [*group.prompt_ids, *sample.token_ids]).log_softmax(-1)
    start = len(group.prompt_ids) - 1
    return [float(rows[start + t, token]) for t, token in enumerate(sample.token_ids)]


def distilled(**more: Any) -> Any:
    grpo = {"teacher": ALONE, "kl_coefficient": 0.0, "epochs": 1, "minibatches": 1}
    return configured(grpo | more, evaluation={"every": 0})


async def test_the_policy_comes_to_its_teacher_without_a_reward(folder: str, tmp_path: Path):
    """Not one sample has a reward, and the environment's is never 0 instead."""
    config = distilled(steps=30, prompts_per_step=4, group_size=8, learning_rate=0.01)
    environment = Toy(lost=lambda completion: "evaluation" not in completion.key)
    found = await train(tmp_path, environment, config, teacher=local(folder))
    assert found.step == 30
    kl = [row["teacher/kl"] for row in found.metrics if "teacher/kl" in row]
    assert len(kl) == 30 and all(row.get("teacher/failed", 0) == 0 for row in found.metrics)
    assert sum(kl[-5:]) < 0.6 * sum(kl[:5])


@dataclass
class Failing(LocalTeacher):
    """A teacher that fails on the samples with some numbers of each call."""

    inner: Teacher
    fails: frozenset[int] = frozenset()
    counters: Sequence[Counters] = ()

    async def score(self, groups: Sequence[Group]) -> list[Logprobs | str]:
        found = await self.inner.score(groups)
        return ["it is down" if n in self.fails else one for n, one in enumerate(found)]


async def test_a_sample_that_the_teacher_failed_on_is_left_out_and_counted(
    folder: str, tmp_path: Path
):
    config = distilled(steps=1, max_unscored=0.3)
    whole = await train(tmp_path / "whole", config=config, teacher=local(folder))
    teacher = Failing(local(folder), frozenset({0, 5}))
    some = await train(tmp_path / "some", config=config, teacher=teacher)
    assert [row.get("teacher/failed") for row in whole.metrics] == [None, 0.0]
    assert [row.get("teacher/failed") for row in some.metrics] == [None, 0.25]
    assert not same(some.weights, whole.weights)
    # As if it had not been drawn: the others' mean is over themselves.
    assert some.metrics[1]["policy/covered_frac"] == 1.0


async def test_a_teacher_that_fails_too_often_pauses_the_run(folder: str, tmp_path: Path):
    teacher = Failing(local(folder), frozenset({0, 5}))
    found = await train(tmp_path, config=distilled(), teacher=teacher, raises=RunPaused)
    assert "the teacher did not score 2 of 8 samples (limit 20%)" in found.reporter.said[-2]
    assert found.reporter.said[-1] == "  it is down"
    resumed = await train(tmp_path, config=distilled(), teacher=local(folder), resume=True)
    assert resumed.step == 4


@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_killed_distillation_repeats_the_uninterrupted_one(
    folder: str, tmp_path: Path, staleness: int
):
    grpo = {"teacher": {"model": "teacher", "weight": 0.5}}

    def kill(step: int) -> None:
        if step == 4:
            raise Killed

    def config() -> Any:
        return configured(grpo, max_staleness=staleness, evaluation={"every": 0})

    whole = await train(tmp_path / "whole", config=config(), teacher=local(folder))
    environment, teacher = Toy(before=kill), local(folder)
    await train(tmp_path / "run", environment, config(), raises=Killed, teacher=teacher)
    resumed = await train(tmp_path / "run", config=config(), resume=True, teacher=local(folder))
    assert resumed.metrics == whole.metrics
    assert same(resumed.weights, whole.weights)


def section(*servers: VllmDouble, **more: Any) -> TeacherSection:
    quick = {"model": BASE, "wait_seconds": 0.2, "backoff_seconds": 0.01, "attempts": 2}
    return TeacherSection(base_urls=tuple(s.url for s in servers), **quick | more)


async def test_servers_score_by_token_ids_and_a_failure_is_no_score():
    groups = random_groups(7, [(3, [2, 4]), (5, [1])])
    bad = [*groups[1].prompt_ids, *groups[1].samples[0].token_ids]

    def fail(path: str, body: dict[str, Any]) -> web.Response | None:
        return error(500, "out of memory") if body.get("prompt") == bad else None

    async with VllmDouble(fail=fail) as one, VllmDouble(fail=fail) as other:
        teacher = ServedTeacher(section(one, other))
        found = await teacher.score(groups)
        await teacher.aclose()
        assert sum(server.seen["completions"] for server in (one, other)) == 2 + 2
        model = one.model.policy
    first, second, third = found
    with model.reference():
        for sample, logprobs in zip(groups[0].samples, (first, second), strict=True):
            assert logprobs == pytest.approx(by_logits(model, groups[0], sample), abs=1e-5)
    assert isinstance(third, str) and "out of memory" in third


async def test_an_impossible_token_is_no_failure():
    """It is the policy's doing: it may not take its sample out of the update."""

    def edit(reply: dict[str, Any], body: dict[str, Any]) -> None:
        for row in reply["choices"][0]["prompt_logprobs"][1:]:
            for entry in row.values():
                entry["logprob"] = -9999.0

    async with VllmDouble(edit=edit) as server:
        teacher = ServedTeacher(section(server))
        assert await teacher.score(random_groups(7, [(3, [2])])) == [[-100.0, -100.0]]
        await teacher.aclose()


async def checked(server: VllmDouble, **more: Any) -> str:
    config = configured({"teacher": section(server, **more).model_dump()})
    return await check_teacher(config, tiny_policy().tokenizer)


async def test_the_dry_run_asks_the_teacher():
    async with VllmDouble() as server:
        assert "weight 1, reward 1" in await checked(server)
        with pytest.raises(UserError, match="serves tiny-base, not larger"):
            await checked(server, model="larger")
        server.max_model_len = 106
        with pytest.raises(UserError, match="106, and a prompt with its sample may have 106"):
            await checked(server)
        server.max_model_len = 107
        await checked(server)
        server.edit = lambda reply, body: reply["choices"][0].pop("prompt_logprobs", None)
        with pytest.raises(UserError, match="no prompt_logprobs"):
            await checked(server)
        server.edit = lambda reply, body: reply["choices"][0]["prompt_token_ids"].append(7)
        with pytest.raises(UserError, match=r"prompt that it answers|its tokenizer is another"):
            await checked(server)


async def test_a_teacher_of_another_vocabulary_is_refused(folder: str, tmp_path: Path):
    policy, other = tiny_policy(), tiny_policy().tokenizer
    other.add_tokens(["<more>"])
    with pytest.raises(ConfigError, match="'<more>' is None, and"):
        await check_teacher(configured({"teacher": {"model": folder}}), other)
    config = configured({"teacher": {"model": str(tmp_path / "none")}})
    with pytest.raises(ConfigError, match=r"grpo\.teacher\.model: cannot load"):
        async with open_teacher(config, policy):
            pass
    async with open_teacher(configured({"teacher": {"model": folder}}), policy) as teacher:
        assert isinstance(teacher, LocalTeacher)


def test_keys_that_do_not_fit_a_teacher_are_refused():
    with pytest.raises(ConfigError, match=r"grpo\.teacher: sft samples nothing"):
        choices_of(GrpoSection(loss="sft", teacher=TeacherSection(model="x")))
    with pytest.raises(ValueError, match="resample_rounds"):
        GrpoSection(resample_rounds=1, teacher=TeacherSection(**ALONE))
