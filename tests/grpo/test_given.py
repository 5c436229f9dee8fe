"""Learning from what the data gives: the loss is the plain model's, whatever the path; a pair is
scored as whole texts; nothing else than what is learned moves."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tiny_policy import random_groups, same, tiny_policy, weights, whole_logits

from flowright.config.grpo import GrpoSection, PairsSection
from flowright.core.errors import ConfigError, DataError
from flowright.environments.base import TrainingConversation
from flowright.grpo.batch import Group, Trained
from flowright.grpo.fixed_data import (
    completion_group,
    conversation_groups,
    merged_groups,
    pair_group,
)
from flowright.grpo.learner import Learner
from flowright.grpo.objectives import Pairs, bradley_terry
from flowright.llm.chat import Message
from flowright.policy.model import Policy
from flowright.policy.sampling import render, template_text

SECTION = GrpoSection(loss="sft", kl_coefficient=0.0, learning_rate=0.05, max_grad_norm=1.0)
PAIRS = SECTION.model_copy(update={"loss": "bradley_terry"})


def learner(policy: Policy, section: GrpoSection = SECTION, **changes: object) -> Learner:
    return Learner(policy, section.model_copy(update=changes), temperature=0.7, seed=0)


def lessons(seed: int = 0, template: int = 0) -> list[Group]:
    """Of two samples a group, the later weighs more; some tokens of the longest are not learned."""
    groups = random_groups(seed, [(3, [2, 1]), (1, [4]), (4, [3, 5])])
    return [
        Group(
            [*[7] * template, *group.prompt_ids],
            [
                Trained(s.token_ids, (), 0.5 + i, [n != 2 for n in range(5)][: len(s.token_ids)])
                for i, s in enumerate(group.samples)
            ],
        )
        for group in groups
    ]


def plain_loss(policy: Policy, some: Sequence[Group]) -> float:
    """From the model's own logits, one row at a time."""
    count, cost = 0, 0.0
    for group in some:
        for sample in group.samples:
            prompt, ids = list(group.prompt_ids), sample.token_ids
            logprobs = whole_logits(policy, [*prompt, *ids])[len(prompt) - 1 : -1].log_softmax(-1)
            for t, token in enumerate(ids):
                if sample.learned is None or sample.learned[t]:
                    cost -= sample.advantage * float(logprobs[t, token])
                    count += 1
    return cost / count


@given(
    seed=st.integers(0, 5),
    template=st.sampled_from([0, 20]),
    budget=st.integers(1, 40),
    sharing=st.booleans(),
)
@settings(max_examples=8)
def test_the_loss_is_that_of_the_plain_model(seed: int, template: int, budget: int, sharing: bool):
    policy, some = tiny_policy(), lessons(seed, template)
    one = learner(policy, micro_batch_tokens=budget, prefix_sharing=sharing)
    expected = plain_loss(policy, some)
    assert one.measure(some)["policy/loss"] == pytest.approx(expected, rel=1e-4)
    assert one.update(some, 1, 1)["policy/loss"] == pytest.approx(expected, rel=1e-4)


def test_it_learns_what_it_is_shown_and_the_base_stays():
    policy, some = tiny_policy(trained=False), lessons()
    base = {n: p.clone() for n, p in policy.model.named_parameters() if not p.requires_grad}
    one = learner(policy)
    steps = [one.update(some, step, 1) for step in range(1, 9)]
    assert steps[-1]["policy/loss"] < 0.8 * steps[0]["policy/loss"]
    assert steps[0].keys() == {
        *("policy/lr", "policy/grad_norm", "policy/skipped_updates"),
        *("policy/loss", "policy/entropy"),
    }
    assert all(torch.equal(p, base[n]) for n, p in policy.model.named_parameters() if n in base)


def test_a_gradient_that_is_not_finite_moves_nothing():
    policy = tiny_policy()
    before = weights(policy)
    metrics = learner(policy).update([Group([5, 6], [Trained([7, 8], (), math.nan)])], 1, 1)
    assert metrics["policy/skipped_updates"] == 1.0 and "policy/loss" not in metrics
    assert same(weights(policy), before)


def turns(*texts: str) -> list[Message]:
    return [Message("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)]


def test_a_lesson_is_the_prompt_that_is_asked_and_the_answer_with_its_end():
    policy = tiny_policy()
    (group,) = conversation_groups(
        TrainingConversation(turns("Is 5 > 4?", "True"), 2.0), policy.tokenizer
    )
    assert list(group.prompt_ids) == list(
        render(turns("Is 5 > 4?"), policy.tokenizer, 99).token_ids
    )
    (sample,) = group.samples
    assert policy.tokenizer.decode(sample.token_ids) == "True<|im_end|>"
    assert sample.token_ids[-1] in policy.end_ids
    assert (sample.learned, sample.advantage, sample.count) == (None, 2.0, 5)


def test_of_several_turns_the_answers_are_learned():
    tokenizer = tiny_policy().tokenizer
    talk = turns("1+1?", "2", "2+2?", "4")
    (last,) = conversation_groups(TrainingConversation(talk), tokenizer)
    (every,) = conversation_groups(TrainingConversation(talk, every_turn=True), tokenizer)
    assert tokenizer.decode(last.samples[0].token_ids) == "4<|im_end|>"
    sample = every.samples[0]
    assert sample.learned is not None
    kept = [t for t, learned in zip(sample.token_ids, sample.learned, strict=True) if learned]
    assert tokenizer.decode(kept) == "2<|im_end|>4<|im_end|>"
    whole = template_text(talk, tokenizer, to_answer=False)
    assert whole.startswith(tokenizer.decode([*every.prompt_ids, *sample.token_ids]))


def test_a_template_that_forgets_thoughts_gives_each_answer_a_group():
    tokenizer = tiny_policy().tokenizer
    plain = tokenizer.chat_template
    try:
        tokenizer.chat_template = (
            "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}"
            "(thought) {% endif %}{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}"
        )
        groups = conversation_groups(
            TrainingConversation(turns("a", "b", "c", "d"), every_turn=True), tokenizer
        )
    finally:
        tokenizer.chat_template = plain
    shown = [(tokenizer.decode(g.prompt_ids), tokenizer.decode(g.samples[0].token_ids))
             for g in groups]  # fmt: skip
    assert shown == [
        ("<user>a<assistant>", "(thought) b"),
        ("<user>a<assistant>b<user>c<assistant>", "(thought) d"),
    ]


@pytest.mark.parametrize("talk", [turns("a"), [], turns("a", "b", "c"), turns("a", "")])
def test_what_has_no_answer_is_named(talk: list[Message]):
    tokenizer = tiny_policy().tokenizer
    if talk == turns("a", ""):  # its end can be learned, and nothing else
        (group,) = conversation_groups(TrainingConversation(talk), tokenizer)
        assert tokenizer.decode(group.samples[0].token_ids) == "<|im_end|>"
        return
    with pytest.raises(DataError, match="does not end with an answer"):
        conversation_groups(TrainingConversation(talk), tokenizer)


def test_completions_end_as_the_policy_ends_them():
    policy = tiny_policy()
    asked = turns("Is 5 > 4?")
    group = completion_group(asked, ["True", "False"], policy.tokenizer, 100)
    assert tuple(group.prompt_ids) == render(asked, policy.tokenizer, 100).token_ids
    texts = [policy.tokenizer.decode(sample.token_ids) for sample in group.samples]
    assert texts == ["True<|im_end|>", "False<|im_end|>"]


def test_lessons_behind_one_prompt_are_one_group():
    tokenizer = tiny_policy().tokenizer
    some = [TrainingConversation(turns("a", answer)) for answer in ("b", "c")] + [
        TrainingConversation(turns("d", "e"))
    ]
    groups = merged_groups([group for one in some for group in conversation_groups(one, tokenizer)])
    assert [len(group.samples) for group in groups] == [2, 1]


def scoring() -> Policy:
    return tiny_policy(head="score")


def pair(better: str, worse: str, strength: float = 1.0) -> Group:
    talks = [
        TrainingConversation(turns("Say a.", better), strength),
        TrainingConversation(turns("Say a.", worse), 0.0),
    ]
    return pair_group(talks, scoring().tokenizer)


def test_a_score_is_that_of_the_whole_text_in_transformers_own_model():
    policy = scoring()
    texts = [template_text(turns("Say a.", a), policy.tokenizer, False) for a in ("a", "bcd")]
    own = []
    with torch.no_grad():
        for text in texts:
            ids = torch.tensor([policy.tokenizer.encode(text, add_special_tokens=False)])
            own.append(float(policy.causal_lm(input_ids=ids).logits))
    difference = own[0] - own[1]
    expected = math.log1p(math.exp(-difference)) + 0.01 * sum(own) ** 2
    for sharing in (True, False):
        metrics = learner(policy, PAIRS, prefix_sharing=sharing).measure([pair("a", "bcd")])
        assert metrics["policy/loss"] == pytest.approx(expected, rel=1e-4)
        assert metrics["policy/lead_mean"] == pytest.approx(difference, rel=1e-4)
        assert metrics["policy/score_mean"] == pytest.approx(sum(own) / 2, rel=1e-4)
        assert metrics["policy/accuracy"] == float(difference > 0)


@pytest.mark.parametrize("budget", [1, 30, 4096])
def test_both_paths_make_the_same_step_of_pairs(budget: int):
    some = [pair("a", "bcd"), pair("ab", "a", 2.0), pair("c", "d", 0.0), pair("c", "a", -1.0)]
    after = []
    for sharing in (True, False):
        policy = scoring()
        one = learner(policy, PAIRS, prefix_sharing=sharing, micro_batch_tokens=budget)
        metrics = one.update(some, 1, 1)
        assert metrics["policy/skipped_updates"] == 0
        after.append((metrics["policy/loss"], metrics["policy/grad_norm"]))
    assert after[0] == pytest.approx(after[1], rel=1e-4)


def test_an_untrained_judge_prefers_nothing_and_learns_to():
    policy = tiny_policy(trained=False, head="score")
    some = [pair("a", "bcd"), pair("a", "x")]
    one = learner(policy, PAIRS, learning_rate=0.01)
    first = one.measure(some)
    assert (first["policy/accuracy"], first["policy/score_mean"]) == (0.5, 0.0)
    assert first["policy/loss"] == pytest.approx(math.log(2))
    for step in range(1, 9):
        one.update(some, step, 1)
    assert one.measure(some)["policy/accuracy"] == 1.0


def test_a_writing_policy_cannot_be_scored_nor_a_scoring_one_sampled():
    with pytest.raises(ConfigError, match="set it to score"):
        learner(tiny_policy(), PAIRS).measure([pair("a", "b")])
    with pytest.raises(ConfigError, match="writes none"):
        learner(scoring()).measure(lessons())


def terms(
    first: float, second: float, better: bool, margin: float = 0.0, **section: float
) -> float:
    tensors = (torch.tensor([first]), torch.tensor([second]))
    pairs = Pairs(*tensors, torch.tensor([better]), torch.tensor([margin]))
    return float(bradley_terry(pairs, PairsSection(**{"centring": 0.0, **section})))


def test_bradley_terry_by_hand():
    assert terms(2.0, 1.0, True) == pytest.approx(math.log1p(math.exp(-1)))
    assert terms(2.0, 1.0, True, margin=3.0) == pytest.approx(math.log1p(math.exp(2)))
    assert terms(2.0, 1.0, True, centring=0.01) == pytest.approx(math.log1p(math.exp(-1)) + 0.09)
    half = (math.log1p(math.exp(-1)) + math.log1p(math.exp(1))) / 2
    assert terms(2.0, 1.0, False) == pytest.approx(half)


def test_davidsons_ties_by_hand():
    total = math.exp(0.5) + math.exp(-0.5) + 0.5
    assert terms(2.0, 1.0, True, tie_weight=0.5) == pytest.approx(-math.log(math.exp(0.5) / total))
    assert terms(2.0, 1.0, False, tie_weight=0.5) == pytest.approx(-math.log(0.5 / total))
    assert terms(1.0, 2.0, True, tie_weight=0.5) == pytest.approx(-math.log(math.exp(-0.5) / total))
    outcomes = [terms(2.0, 1.0, True, tie_weight=0.5), terms(1.0, 2.0, True, tie_weight=0.5),
                terms(2.0, 1.0, False, tie_weight=0.5)]  # fmt: skip
    assert sum(math.exp(-outcome) for outcome in outcomes) == pytest.approx(1.0)


def test_scores_are_saved_with_the_adapter_and_loaded_by_name(tmp_path):
    policy = scoring()
    policy.save(tmp_path / "adapter")
    other = tiny_policy(trained=False, head="score")
    other.load(other.tuning.read(tmp_path / "adapter", policy.name))
    assert same(weights(policy), weights(other))
    assert any("score" in name for name in weights(policy))


def test_pairs_need_two_that_begin_alike():
    tokenizer = scoring().tokenizer
    with pytest.raises(DataError, match="3 conversations"):
        pair_group([TrainingConversation(turns("a", "b"))] * 3, tokenizer)
    same_twice = [replace(TrainingConversation(turns("a", "b")), weight=w) for w in (1.0, 0.0)]
    samples = pair_group(same_twice, tokenizer).samples
    assert [len(sample.token_ids) for sample in samples] == [2, 2]
