"""Laying out groups: what a row holds, who sees whom, and that both layouts compute the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_policy import ARCHITECTURES, random_groups, tiny_policy, whole_logits

from flowright.grpo.batch import Group, Trained, micro_batches, pack
from flowright.grpo.learner import score

GROUP = Group([5, 6, 7], [Trained([8, 2], [-1.0, -2.0], 0.5), Trained([9], [-3.0], -0.5)])
SHAPE = st.tuples(st.integers(1, 6), st.lists(st.integers(1, 5), min_size=1, max_size=4))
SHAPES = st.lists(SHAPE, min_size=1, max_size=3)


def test_the_shared_layout_by_hand():
    batch = pack([GROUP])
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 2, 9]]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 4, 3]]  # the second goes on from the prompt
    # The last token of the prompt predicts the first of each completion.
    assert batch.source_N.tolist() == [2, 3, 2]
    assert batch.target_N.tolist() == [8, 2, 9]
    assert batch.sample_N.tolist() == [0, 0, 1]
    assert batch.lengths_S.tolist() == [2, 1]
    assert batch.old_logprobs_N.tolist() == [-1.0, -2.0, -3.0]
    assert batch.advantages_N.tolist() == [0.5, 0.5, -0.5]
    assert batch.mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 0, 0, 1],  # not the other completion
    ]


def test_the_plain_layout_by_hand():
    batch = pack([GROUP], shared=False)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 2], [5, 6, 7, 9, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 0]]
    assert batch.source_N.tolist() == [2, 3, 5 + 2]
    assert batch.target_N.tolist() == [8, 2, 9]
    assert batch.mask[1, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [0, 0, 0, 0, 1],  # padding sees itself alone
    ]


def test_groups_of_different_lengths_are_padded():
    batch = pack([GROUP, Group([5], [Trained([6], [-1.0], 1.0)])])
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 2, 9], [5, 6, 0, 0, 0, 0]]
    assert batch.source_N.tolist() == [2, 3, 2, 6 + 0]
    assert batch.sample_N.tolist() == [0, 0, 1, 2]


@given(SHAPES, st.integers(1, 80), st.booleans())
def test_micro_batches_hold_every_group_once_and_keep_the_budget(
    shapes: list, budget: int, shared: bool
):
    groups = random_groups(0, shapes)
    packs = list(micro_batches(groups, budget, shared))
    assert sorted(id(g) for part in packs for g in part) == sorted(map(id, groups))
    for part in packs:
        assert len(part) == 1 or pack(part, shared).input_ids.numel() <= budget


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_both_layouts_score_as_the_model_alone(architecture: str):
    policy = tiny_policy(architecture)

    @settings(max_examples=12)
    @given(SHAPES, st.integers(0, 2**31), st.sampled_from([0.6, 1.0]))
    def check(shapes: list, seed: int, temperature: float):
        groups = random_groups(seed, shapes)
        with torch.no_grad():
            shared = score(policy, pack(groups), temperature)
            plain = score(policy, pack(groups, shared=False), temperature)
        alone = [
            (whole_logits(policy, [*g.prompt_ids, *s.token_ids])[:-1] / temperature)
            .log_softmax(-1)[len(g.prompt_ids) - 1 :]
            .double()
            for g in groups
            for s in g.samples
        ]
        chosen = torch.tensor([t for g in groups for s in g.samples for t in s.token_ids])
        expected = torch.cat(alone)
        entropy = -(expected.exp() * expected).sum(-1)
        for logprobs, entropies in (shared, plain):
            wanted = expected.gather(1, chosen[:, None])[:, 0]
            torch.testing.assert_close(logprobs.double(), wanted, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(entropies.double(), entropy, rtol=1e-4, atol=1e-5)

    check()


def test_a_completion_does_not_change_what_another_is_worth():
    policy = tiny_policy()
    (group,) = random_groups(1, [(4, [3, 5])])
    with torch.no_grad():
        both, _ = score(policy, pack([group]), 1.0)
        for one in (0, 1):
            single, _ = score(policy, pack([Group(group.prompt_ids, [group.samples[one]])]), 1.0)
            torch.testing.assert_close(both[:3] if one == 0 else both[3:], single)
