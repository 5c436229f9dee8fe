"""Laying out groups plainly: what a row holds, who sees whom, and what a pack may hold."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tiny_policy import ARCHITECTURES, random_groups, tiny_policy, whole_logits

from flowright.config.grpo import GrpoSection
from flowright.grpo.batch import score
from flowright.policy.layout import lay_out, packs_of
from flowright.policy.prefix.tree import chunks, plain_predictions

SHAPE = st.tuples(st.integers(1, 6), st.lists(st.integers(1, 5), min_size=1, max_size=4))
SHAPES = st.lists(SHAPE, min_size=1, max_size=3)


def test_several_texts_behind_one_prompt_by_hand():
    layout = lay_out([([5, 6, 7], [[8, 2], [9]])])
    assert layout.input_ids.tolist() == [[5, 6, 7, 8, 2, 9]]
    assert layout.positions.tolist() == [[0, 1, 2, 3, 4, 3]]  # the second goes on from the prompt
    # The last token of the prompt predicts the first of each text.
    assert [source.tolist() for source in layout.sources] == [[2, 3], [2]]
    assert layout.mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 0, 0, 1],  # not the other text
    ]


def test_rows_of_different_lengths_are_padded():
    layout = lay_out([([5, 6, 7], [[8, 2]]), ([5, 6, 7], [[9]])])
    assert layout.input_ids.tolist() == [[5, 6, 7, 8, 2], [5, 6, 7, 9, 0]]
    assert layout.positions.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 0]]
    assert [source.tolist() for source in layout.sources] == [[2, 3], [5 + 2]]
    assert layout.mask[1, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [0, 0, 0, 0, 1],  # padding sees itself alone
    ]


@pytest.mark.parametrize("sharing", [True, False])
def test_samples_are_numbered_in_order_and_each_has_its_hidden_states(sharing: bool):
    policy, groups = tiny_policy(), random_groups(0, [(3, [2, 1]), (1, [1]), (4, [3, 5])])
    rows = [(group.prompt_ids, ids) for group in groups for ids in group.completions]
    seen: list[int] = []
    with torch.no_grad():
        alone = [plain_predictions(policy, [row]) for row in rows]
        for hidden_N, numbers in chunks(policy, groups, 9, sharing):
            wanted = torch.cat([alone[number] for number in numbers])
            torch.testing.assert_close(hidden_N, wanted, rtol=1e-4, atol=1e-5)
            assert len(numbers) < len(rows)
            seen += numbers
    assert sorted(seen) == [0, 1, 2, 3, 4]


@given(st.lists(st.integers(1, 11), max_size=12), st.integers(1, 80))
def test_packs_hold_every_row_once_and_keep_the_budget(lengths: list[int], budget: int):
    cut = list(packs_of(lengths, budget, padded=True))
    assert sorted(row for pack in cut for row in pack) == list(range(len(lengths)))
    for pack in cut:
        assert len(pack) == 1 or len(pack) * max(lengths[row] for row in pack) <= budget


def test_the_hidden_states_of_a_pack_are_those_of_its_rows():
    policy = tiny_policy()
    rows = [([5, 6, 7], [8, 2]), ([5, 6, 7], [9])]
    with torch.no_grad():
        both = plain_predictions(policy, rows)
        alone = torch.cat([plain_predictions(policy, [row]) for row in rows])
    torch.testing.assert_close(both, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "sliding"])
def test_both_paths_score_as_the_model_alone(architecture: str):
    policy = tiny_policy(architecture)

    @settings(max_examples=12)
    @given(SHAPES, st.integers(0, 2**31), st.sampled_from([0.6, 1.0]), st.booleans())
    def check(shapes: list, seed: int, temperature: float, sharing: bool):
        groups = random_groups(seed, shapes)
        sharing = sharing and architecture != "sliding"
        section = GrpoSection(prefix_sharing=sharing, micro_batch_tokens=1 + seed % 40)
        found = score(policy, groups, section, temperature)
        pairs = [(group, sample) for group in groups for sample in group.samples]
        assert len(found) == len(pairs)
        for logprobs, (group, sample) in zip(found, pairs, strict=True):
            logits = whole_logits(policy, [*group.prompt_ids, *sample.token_ids])[:-1] / temperature
            every = logits.log_softmax(-1)[len(group.prompt_ids) - 1 :]
            wanted = every.gather(1, torch.tensor(sample.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(logprobs, wanted, rtol=1e-4, atol=1e-5)

    check()
