"""Later turns behind kept keys and values: the same draws, and each token computed once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tiny_policy import ARCHITECTURES, shake, tiny_policy

from flowright.policy.local import LocalSampler
from flowright.policy.model import Policy
from flowright.policy.prefix.kept import Kept
from flowright.policy.sampling import Draw, Sample, Sampling

PROMPTS = [[70], [60, 61, 62, 63, 64, 65, 66], [90, 91, 92]]
SHARED = {"nothing": 0, "a short template": 20, "a long template": 140}


def behind(shared: str) -> list[list[int]]:
    return [[*range(30, 30 + SHARED[shared]), *prompt] for prompt in PROMPTS]


def ending_soon(policy: Policy) -> Policy:
    """A tenth of the vocabulary ends a completion, so that rows differ in length."""
    policy.causal_lm.generation_config.eos_token_id = [2, *range(80, 106)]
    return policy


@contextmanager
def fed(policy: Policy) -> Iterator[list[int]]:
    """The tokens of each forward pass."""
    found: list[int] = []

    def count(module: object, inputs: tuple[torch.Tensor, ...], output: object) -> None:
        found.append(inputs[0].numel())

    handle = policy.causal_lm.get_input_embeddings().register_forward_hook(count)
    yield found
    handle.remove()


@dataclass
class Played:
    """The samples of each turn, by attempt; tokens that were computed, and that had to be."""

    samples: list[dict[int, Sample]] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    new: list[int] = field(default_factory=list)


async def play(
    policy: Policy,
    draw: Draw,
    prompts: Sequence[Sequence[int]],
    turns: int = 3,
    n: int = 4,
    rewrites: bool = False,
) -> Played:
    """A quarter of the attempts ends with each turn; the others are answered with one to five
    tokens."""
    played = Played()
    contexts = {p: list(prompt) for p, prompt in enumerate(prompts)}
    before = dict.fromkeys(contexts, 0)
    for turn in range(turns):
        each = 1 if turn else n
        sampling = Sampling(1.0, 1.0, 8, turn)
        with fed(policy) as tokens:
            drawn = await draw([*contexts.values()], each, sampling, [*contexts])
        samples = {
            (number if turn else 100 + number * n + i): sample
            for number, group in zip(contexts, drawn, strict=True)
            for i, sample in enumerate(group)
        }
        owner = {key: key if turn else (key - 100) // n for key in samples}
        played.samples.append(samples)
        played.computed.append(sum(tokens))
        read = sum(len(contexts[key]) - before[key] for key in contexts)
        played.new.append(read + sum(len(s.token_ids) - 1 for s in samples.values()))
        going = {key: s for key, s in samples.items() if (key + turn) % 4}
        later = {
            key: [*contexts[owner[key]], *s.token_ids, *range(200, 201 + key % 5)]
            for key, s in going.items()
        }
        before = {key: len(contexts[owner[key]]) + len(s.token_ids) - 1 for key, s in going.items()}
        if rewrites:
            later = {
                key: [*contexts[owner[key]], *(9 + token % 9 for token in s.token_ids), 200]
                for key, s in going.items()
            }
        contexts = later
    return played


def close(one: Played, other: Played) -> None:
    assert [s.keys() for s in one.samples] == [s.keys() for s in other.samples]
    for mine, theirs in zip(one.samples, other.samples, strict=True):
        for key, sample in mine.items():
            assert sample.token_ids == theirs[key].token_ids
            assert sample.logprobs == pytest.approx(theirs[key].logprobs, abs=1e-5)


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_kept_and_computed_again_draw_the_same(architecture: str, shared: str) -> None:
    policy = ending_soon(tiny_policy(architecture))
    prompts, sampler = behind(shared), LocalSampler(policy, 256)
    again = await play(policy, sampler.sample, prompts, 4)
    kept = await play(policy, sampler.for_episodes(1), prompts, 4)
    close(kept, again)
    assert [*map(len, again.samples)] == [12, 9, 6, 3]
    template = SHARED[shared] * (len(prompts) - 1)
    assert kept.computed[0] == kept.new[0] - template
    assert kept.computed[1:] == kept.new[1:], "each token once"
    assert sum(kept.computed) < sum(again.computed)
    alone = await play(policy, sampler.for_episodes(1), prompts[1:2])
    close(alone, await play(policy, sampler.sample, prompts[1:2]))
    assert alone.computed == alone.new


@pytest.mark.parametrize("shared", SHARED)
async def test_in_waves_of_few_rows(shared: str) -> None:
    policy = ending_soon(tiny_policy())
    prompts = behind(shared)
    again = await play(policy, LocalSampler(policy, 256).sample, prompts)
    kept = await play(policy, LocalSampler(policy, 4).for_episodes(1), prompts)
    close(kept, again)
    assert kept.computed[1:] == kept.new[1:]


@pytest.mark.parametrize("shared", SHARED)
async def test_what_there_is_no_room_for_is_computed_again(shared: str) -> None:
    """In the same way each time."""
    policy = ending_soon(tiny_policy())
    prompts = behind(shared)
    again = await play(policy, LocalSampler(policy, 256).sample, prompts)
    computed = []
    for room in (0, SHARED[shared] + 25, 10_000):
        found = [
            await play(policy, LocalSampler(policy, 256, kept=2 * room).for_episodes(2), prompts)
            for _ in range(2)
        ]
        close(found[0], again)
        assert found[0] == found[1], "bit for bit"
        computed.append(sum(found[0].computed))
    assert sum(again.computed) == computed[0] > computed[1] > computed[2]


async def test_of_a_rewritten_history_the_prompt_is_kept() -> None:
    policy = ending_soon(tiny_policy())
    prompts, sampler = behind("a short template"), LocalSampler(policy, 256)
    again = await play(policy, sampler.sample, prompts, 2, rewrites=True)
    kept = await play(policy, sampler.for_episodes(1), prompts, 2, rewrites=True)
    close(kept, again)
    contexts = sum(len(again.samples[0][key].token_ids) + 1 for key in again.samples[1])
    drawn = sum(len(s.token_ids) - 1 for s in again.samples[1].values())
    assert kept.computed[1] == contexts + drawn


async def test_other_weights_use_nothing_of_the_earlier_ones() -> None:
    policy = ending_soon(tiny_policy())
    prompts, sampler = behind("a long template"), LocalSampler(policy, 256)

    @dataclass
    class Updated:
        inner: Draw
        calls: int = 0

        async def __call__(self, *given: Any) -> list[list[Sample]]:
            self.calls += 1
            if self.calls == 2:
                shake(policy, seed=9)
                await sampler.refresh(sampler.version + 1)
            return await self.inner(*given)

    before = {name: tensor.clone() for name, tensor in policy.state().items()}
    kept = await play(policy, Updated(sampler.for_episodes(1)), prompts, 3)
    with torch.no_grad():
        for parameter, tensor in zip(policy.trainable(), before.values(), strict=True):
            parameter.copy_(tensor)
    again = await play(policy, Updated(sampler.sample), prompts, 3)
    close(kept, again)
    assert kept.computed[1] == again.computed[1] and kept.computed[2] == kept.new[2]


async def test_without_shared_prefixes_nothing_is_kept() -> None:
    policy = ending_soon(tiny_policy())
    sampler = LocalSampler(policy, 256, sharing=False)
    prompts = behind("a short template")
    again = await play(policy, sampler.sample, prompts)
    assert await play(policy, sampler.for_episodes(1), prompts) == again


def test_texts_that_no_context_begins_with_are_dropped() -> None:
    kept = Kept(10)

    def numbers(*ids: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        keys = torch.tensor(ids, dtype=torch.float)[None, :, None]
        return [(keys, -keys)]

    prompt, one, other = numbers(1, 2), numbers(3, 4), numbers(3)
    kept.add([1, 2, 3, 4, 0], ([], prompt, one))
    kept.add([1, 2, 3, 0], ([], prompt, other))
    assert kept.tokens == 5
    kept.add([1, 2, 5, 5, 5, 5, 5, 5, 0], ([], prompt, numbers(5, 5, 5, 5, 5, 5)))
    assert kept.tokens == 5, "no room"
    assert kept.find([1, 2, 3, 4, 5]).length == 4, "the longest"
    assert kept.find([1, 2, 3, 4]).length == 3, "the last token is left to compute"
    assert kept.find([1, 9, 3]).length == 0
    ((keys, values),) = kept.find([1, 2, 3, 4, 5]).keys_values(1, 3)
    assert keys.flatten().tolist() == [2, 3] and values.flatten().tolist() == [-2, -3]
    kept.retain([[1, 2, 3, 5]])
    assert kept.find([1, 2, 3, 4, 5]).length == 3 == kept.tokens
    kept.begin(1)
    assert kept.find([1, 2, 3, 4, 5]).length == 0 == kept.tokens
