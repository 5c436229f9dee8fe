"""Supervised training: the loss of the completions' tokens alone, each by its weight."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tiny_policy import random_groups, same, tiny_policy, weights, whole_logits

from flowright.config import SftSection
from flowright.grpo.supervised import Lesson, SupervisedLearner, encode_lesson
from flowright.llm.chat import Message
from flowright.policy.model import Policy
from flowright.policy.prompt import render

SECTION = SftSection(steps=8, learning_rate=0.05, warmup_steps=0, schedule="constant")


def lessons(seed: int = 0, template: int = 0) -> list[Lesson]:
    groups = random_groups(seed, [(3, [2, 1]), (1, [4]), (4, [3, 5])])
    start = [7] * template
    return [
        Lesson([*start, *g.prompt_ids], g.completions, [0.5 + i for i in range(len(g.completions))])
        for g in groups
    ]


def plain_loss(policy: Policy, some: list[Lesson]) -> float:
    """From the model's own logits, one row at a time."""
    total, cost = 0.0, 0.0
    for lesson in some:
        for ids, weight in zip(lesson.completions, lesson.weights, strict=True):
            prompt = list(lesson.prompt_ids)
            logprobs = whole_logits(policy, [*prompt, *ids])[len(prompt) - 1 : -1].log_softmax(-1)
            cost -= weight * sum(float(logprobs[t, token]) for t, token in enumerate(ids))
            total += weight * len(ids)
    return cost / total


@given(
    seed=st.integers(0, 5),
    template=st.sampled_from([0, 20]),
    budget=st.integers(1, 40),
    sharing=st.booleans(),
)
@settings(max_examples=8)
def test_the_loss_is_that_of_the_plain_model(seed: int, template: int, budget: int, sharing: bool):
    policy, some = tiny_policy(), lessons(seed, template)
    learner = SupervisedLearner(policy, SECTION, budget, sharing)
    expected = plain_loss(policy, some)
    assert learner.update(some, 1)["sft/loss"] == pytest.approx(expected, rel=1e-4)


def test_both_paths_make_the_same_step():
    after = []
    for sharing in (True, False):
        policy = tiny_policy()
        sgd = SupervisedLearner(policy, SECTION, 16, sharing)
        after.append(sgd.update(lessons(template=20), 1)["sft/grad_norm"])
    assert after[0] == pytest.approx(after[1], rel=1e-4)


def test_it_learns_what_it_is_shown_and_the_base_stays():
    policy, some = tiny_policy(trained=False), lessons()
    base = {n: p.clone() for n, p in policy.model.named_parameters() if not p.requires_grad}
    learner = SupervisedLearner(policy, SECTION, 64, True)
    steps = [learner.update(some, step) for step in range(1, 9)]
    assert steps[-1]["sft/loss"] < 0.8 * steps[0]["sft/loss"]
    assert steps[0]["sft/tokens"] == 15 and steps[0]["sft/lr"] == 0.05
    assert all(torch.equal(p, base[n]) for n, p in policy.model.named_parameters() if n in base)


def test_a_weight_of_zero_is_as_if_it_were_not_shown():
    first, *others = lessons()
    without = [Lesson(first.prompt_ids, first.completions[:1], [1.0]), *others]
    unweighted = [Lesson(first.prompt_ids, first.completions, [1.0, 0.0]), *others]
    policies = [tiny_policy(), tiny_policy()]
    for policy, some in zip(policies, (without, unweighted), strict=True):
        SupervisedLearner(policy, SECTION, 64, True).update(some, 1)
    pairs = zip(weights(policies[0]).values(), weights(policies[1]).values(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)


def test_a_gradient_that_is_not_finite_moves_nothing():
    policy = tiny_policy()
    before = weights(policy)
    some = [Lesson([5, 6], [[7, 8]], [float("nan")])]
    metrics = SupervisedLearner(policy, SECTION, 64, True).update(some, 1)
    assert metrics["sft/skipped_updates"] == 1.0
    assert "sft/loss" not in metrics and "sft/grad_norm" not in metrics
    assert same(weights(policy), before)


def test_a_lesson_is_the_prompt_that_is_asked_and_the_answer_with_its_end():
    policy = tiny_policy()
    messages = [Message("user", "Is 5 > 4?")]
    lesson = encode_lesson(policy, messages, [("True", 1.0), ("False", 2.0)], 100)
    assert lesson.prompt_ids == render(messages, policy.tokenizer, 100).token_ids
    texts = [policy.tokenizer.decode(ids) for ids in lesson.completions]
    assert texts == ["True<|im_end|>", "False<|im_end|>"]
    assert {ids[-1] for ids in lesson.completions} <= policy.end_ids
    assert lesson.weights == [1.0, 2.0]
