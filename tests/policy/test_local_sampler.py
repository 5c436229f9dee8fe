"""Sampling from the learner's own weights: the right distribution, and the same draws again."""

import asyncio
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny_policy import (
    ARCHITECTURES,
    random_groups,
    same,
    shake,
    tiny_policy,
    weights,
    whole_logits,
)
from torch import Tensor

from flowright.config.grpo import GrpoSection
from flowright.grpo.learner import Learner
from flowright.policy.local import LocalSampler, _draw
from flowright.policy.lora import merged
from flowright.policy.model import Policy
from flowright.policy.sampling import Sample, Sampling

PROMPTS = [[70], [60, 61, 62, 63, 64, 65, 66], [90, 91, 92]]
TEMPLATE = list(range(100, 120))
BEHIND_A_TEMPLATE = [[*TEMPLATE, *prompt] for prompt in PROMPTS]


async def draw(
    policy: Policy,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    n: int = 4,
    decode_batch: int = 256,
    trained: bool = True,
    sharing: bool = True,
    **given: Any,
) -> list[list[Sample]]:
    sampling = Sampling(
        **{"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 12, "seed": 7, **given}
    )
    return await LocalSampler(policy, decode_batch, trained, sharing).sample(prompts, n, sampling)


def flat(groups: list[list[Sample]]) -> list[Sample]:
    return [sample for group in groups for sample in group]


def distribution(policy: Policy, prompt: Sequence[int], sample: Sample) -> Tensor:
    """[T, V] log-probabilities at temperature 1 that the sample's tokens were drawn from."""
    logits = whole_logits(policy, [*prompt, *sample.token_ids])
    return logits.log_softmax(-1)[len(prompt) - 1 : -1]


def ending_soon(policy: Policy) -> Policy:
    """A third of the vocabulary ends a completion, so that rows leave the batch all the time."""
    policy.causal_lm.generation_config.eos_token_id = [2, *range(80, 160)]
    return policy


def close(one: Sequence[Sample], other: Sequence[Sample]) -> bool:
    """The same draws, and the same log-probabilities but for rounding."""
    return [s.token_ids for s in one] == [s.token_ids for s in other] and all(
        a.logprobs == pytest.approx(b.logprobs, abs=1e-4) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("prompts", [PROMPTS, BEHIND_A_TEMPLATE, BEHIND_A_TEMPLATE[:1]])
@pytest.mark.parametrize(("temperature", "sharing"), [(0.7, True), (1.0, True), (0.7, False)])
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "sliding"])
async def test_the_log_probabilities_are_the_models_own(
    architecture: str, temperature: float, sharing: bool, prompts: list[list[int]]
):
    if architecture == "sliding" and sharing:
        return  # refused before a run
    policy = ending_soon(tiny_policy(architecture))
    groups = await draw(policy, prompts, temperature=temperature, sharing=sharing)
    assert len({len(s.token_ids) for group in groups for s in group}) > 1
    for prompt, group in zip(prompts, groups, strict=True):
        for sample in group:
            logits = whole_logits(policy, [*prompt, *sample.token_ids]) / temperature
            rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
            expected = [rows[t, id_].item() for t, id_ in enumerate(sample.token_ids)]
            assert sample.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("given", [{}, {"temperature": 0.0}, {"top_p": 0.8}, {"trained": False}])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_sharing_draws_what_plain_decoding_draws(architecture: str, given: dict[str, Any]):
    policy = tiny_policy(architecture)
    for prompts in (PROMPTS, BEHIND_A_TEMPLATE):
        shared = await draw(policy, prompts, **given)
        assert close(flat(shared), flat(await draw(policy, prompts, sharing=False, **given)))


async def test_every_token_of_a_prompt_is_computed_once():
    policy = tiny_policy()
    passes: list[int] = []
    embed = policy.causal_lm.get_input_embeddings()
    handle = embed.register_forward_hook(lambda *_: passes.append(_[2].shape[1]))
    await draw(policy, BEHIND_A_TEMPLATE, 4, max_new_tokens=3)
    assert passes == [20, 1 + 7 + 3, 12, 12]  # the last token is not fed
    passes.clear()
    await draw(policy, BEHIND_A_TEMPLATE, 4, decode_batch=8, max_new_tokens=2)
    assert passes == [20, 1 + 7, 8, 3, 4], "the template once a call, in whatever waves"
    handle.remove()


async def test_the_draws_follow_the_distribution():
    policy, n = tiny_policy(), 4000
    (group,) = await draw(policy, [[60, 61, 62]], n, max_new_tokens=1)
    expected = whole_logits(policy, [60, 61, 62])[-1].softmax(-1)
    counts = torch.bincount(torch.tensor([s.token_ids[0] for s in group]), minlength=259)
    error = (expected * (1 - expected) / n).sqrt()
    assert float(((counts / n - expected).abs() / (error + 1 / n)).max()) < 5


def test_a_token_of_no_probability_is_never_drawn():
    """Not even by the ends of the unit interval: its log-probability would be no number."""
    logits = torch.tensor([[-1000.0, 0.0, -1000.0, 1.0, -1000.0]] * 2)
    ends = torch.tensor([0.0, 1 - 2**-24])
    tokens, logprobs = _draw(logits, ends, Sampling(1.0, 1.0, 1, 0))
    assert tokens.tolist() == [1, 3]
    assert logprobs.tolist() == pytest.approx([-1.313262, -0.313262], rel=1e-5)  # softmax(0, 1)


@pytest.mark.parametrize("vocabulary", [5, 256, 300, 1000])
def test_draws_are_where_the_cumulative_sum_passes_the_uniform_number(vocabulary: int):
    generator = torch.Generator().manual_seed(1)
    logits = 6 * torch.randn(200, vocabulary, generator=generator)
    logits[torch.rand(logits.shape, generator=generator) < 0.5] = -torch.inf
    logits[:, vocabulary // 2] = 0.0
    uniform = torch.cat([torch.tensor([0.0, 1 - 2**-24]), torch.rand(198, generator=generator)])
    tokens, logprobs = _draw(logits.clone(), uniform, Sampling(1.0, 1.0, 1, 0))
    p = logits.double().softmax(dim=-1)
    before = (p.cumsum(dim=-1) - p).gather(1, tokens[:, None])[:, 0]
    drawn = p.gather(1, tokens[:, None])[:, 0]
    assert (drawn > 0).all()
    assert (uniform >= before - 1e-6).all() and (uniform <= before + drawn + 1e-6).all()
    torch.testing.assert_close(logprobs.double(), drawn.log(), rtol=1e-5, atol=1e-5)


async def test_a_seed_fixes_the_draws():
    policy = tiny_policy()
    assert await draw(policy) == await draw(policy)
    assert await draw(policy) != await draw(policy, seed=8)


async def test_sampling_touches_neither_weights_nor_torchs_random_state():
    policy = tiny_policy()
    before = {name: (p.data_ptr(), p.clone()) for name, p in policy.model.named_parameters()}
    state = torch.get_rng_state()
    await draw(policy)
    assert torch.equal(torch.get_rng_state(), state)
    for name, parameter in policy.model.named_parameters():
        pointer, value = before[name]
        assert parameter.data_ptr() == pointer, name
        assert torch.equal(parameter, value), name
        assert not parameter.is_inference()


@pytest.mark.parametrize("prompts", [PROMPTS, BEHIND_A_TEMPLATE])
@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("decode_batch", [1, 4, 8])
async def test_rows_that_leave_the_batch_do_not_change_the_others(
    decode_batch: int, sharing: bool, prompts: list[list[int]]
):
    """Prompts decoded alone, in pairs and together: the same draws."""
    policy = ending_soon(tiny_policy())
    together = await draw(policy, prompts, sharing=sharing)
    apart = await draw(policy, prompts, decode_batch=decode_batch, sharing=sharing)
    assert close(flat(together), flat(apart))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("template", [0, 20, 140])
async def test_a_row_that_ends_gives_its_place_to_the_next_prompt(template: int, n: int):
    """Four places for 24 rows that end at any time: the samples of all at once, in fewer steps
    than waves would take."""
    policy = ending_soon(tiny_policy())
    shared = [3 + i % 70 for i in range(template)]
    prompts = [[*shared, *range(60 + i, 61 + i + i % 5)] for i in range(24 // n)]
    together = await draw(policy, prompts, n, max_new_tokens=16)
    fed: list[int] = []
    embed = policy.causal_lm.get_input_embeddings()
    handle = embed.register_forward_hook(lambda *_: fed.append(_[2].shape[1]))
    apart = await draw(policy, prompts, n, decode_batch=4, max_new_tokens=16)
    handle.remove()
    assert close(flat(together), flat(apart))
    lengths = [len(sample.token_ids) for sample in flat(apart)]
    waves = sum(max(lengths[start : start + 4]) - 1 for start in range(0, 24, 4))
    prefills = sum(len(prompt) - template for prompt in prompts) + template
    assert sum(fed) == prefills + sum(lengths) - 24, "each token once"
    assert len(set(lengths)) > 4
    assert len(fed) < waves + len(prompts) + 1


async def test_prompts_wait_until_there_is_memory_for_their_tokens():
    """The same samples, whatever there is."""
    policy = ending_soon(tiny_policy())
    prompts = [[60 + i] * (4 + 12 * (i % 3 == 0)) for i in range(6)]
    for n in (1, 2):
        free = await draw(policy, prompts, n)
        for tokens in (1, 70):
            sampler = LocalSampler(policy, 256, tokens=tokens)
            found = await sampler.sample(prompts, n, Sampling(1.0, 1.0, 12, 7))
            assert close(flat(free), flat(found))


async def test_a_samples_draws_are_its_own():
    """A function of the seed and of its prompt's and its own index."""
    policy = ending_soon(tiny_policy())
    every = await draw(policy, n=6)
    for n in (1, 3):
        fewer = await draw(policy, n=n)
        assert close(flat(fewer), flat([group[:n] for group in every]))
    first = await draw(policy, [PROMPTS[0]], n=6)
    assert close(first[0], every[0])
    others = await draw(policy, [[33, 34], PROMPTS[1], [35]], n=6)
    assert close(others[1], every[1])
    part = await LocalSampler(policy, 2).sample(
        [PROMPTS[0], PROMPTS[2]], 6, Sampling(1.0, 1.0, 12, 7), places=[0, 2]
    )
    assert close(flat(part), flat([every[0], every[2]])), "as one rank of several draws them"
    shorter = await draw(policy, n=6, max_new_tokens=4)
    assert [s.token_ids for s in flat(shorter)] == [s.token_ids[:4] for s in flat(every)]
    one, other = flat(await draw(policy, [PROMPTS[1], PROMPTS[1]], n=1))
    assert one.token_ids != other.token_ids, "equal prompts, unequal draws"


async def test_no_prompts_give_no_samples():
    assert await draw(tiny_policy(), []) == []


async def test_the_event_loop_goes_on_while_it_samples():
    sampling = asyncio.create_task(draw(tiny_policy(), max_new_tokens=100))
    turns = 0
    while not sampling.done():
        turns += 1
        await asyncio.sleep(0.001)
    assert len(flat(sampling.result())) == 12
    assert turns > 3


async def test_a_cancelled_call_ends_soon_and_puts_the_weights_back():
    policy = tiny_policy()
    before = {name: (p.data_ptr(), p.clone()) for name, p in policy.model.named_parameters()}
    fed, steps = threading.Event(), []

    def count(*_: object) -> None:
        steps.append(1)
        fed.set()

    embed = policy.causal_lm.get_input_embeddings()
    handle = embed.register_forward_hook(count)
    drawing = asyncio.create_task(draw(policy, decode_batch=4, max_new_tokens=10_000))
    await asyncio.to_thread(fed.wait)
    drawing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drawing
    handle.remove()
    assert 0 < len(steps) < 10_000
    for name, parameter in policy.model.named_parameters():
        pointer, value = before[name]
        assert parameter.data_ptr() == pointer, name
        assert torch.equal(parameter, value), name


async def test_temperature_zero_takes_the_likeliest_token():
    policy = tiny_policy()
    ((first, second),) = await draw(policy, [[60, 61]], 2, temperature=0.0, max_new_tokens=6)
    ids = [60, 61]
    for token in first.token_ids:
        assert token == int(whole_logits(policy, ids)[-1].argmax())
        ids.append(token)
    assert first == second
    rows = distribution(policy, [60, 61], first)
    assert first.logprobs == pytest.approx(rows.max(-1).values.tolist(), abs=1e-4)


def nucleus(row: Tensor, top_p: float) -> dict[int, float]:
    """The likeliest tokens that make up at least ``top_p``, with renormalised probabilities."""
    kept: dict[int, float] = {}
    for probability, token in sorted(((p, i) for i, p in enumerate(row.tolist())), reverse=True):
        kept[token] = probability
        if sum(kept.values()) >= top_p:
            break
    total = sum(kept.values())
    return {token: probability / total for token, probability in kept.items()}


@pytest.mark.parametrize("top_p", [0.3, 0.8, 1e-6])
async def test_top_p_draws_from_the_renormalised_nucleus(top_p: float):
    policy = tiny_policy()
    seen: set[int] = set()
    for prompt, group in zip(PROMPTS, await draw(policy, n=8, top_p=top_p), strict=True):
        for sample in group:
            rows = distribution(policy, prompt, sample).exp()
            for row, token, logprob in zip(rows, sample.token_ids, sample.logprobs, strict=True):
                kept = nucleus(row, top_p)
                assert token in kept
                assert logprob == pytest.approx(math.log(kept[token]), abs=1e-4)
                seen.add(len(kept))
    assert (max(seen) == 1) == (top_p == 1e-6)


async def test_a_completion_ends_with_its_stop_token_or_at_the_limit():
    policy = ending_soon(tiny_policy())
    samples = flat(await draw(policy, n=16, max_new_tokens=6))
    assert {s.finish_reason for s in samples} == {"stop", "length"}
    for sample in samples:
        stops = [token in policy.end_ids for token in sample.token_ids]
        assert len(sample.token_ids) == len(sample.logprobs) <= 6
        assert not any(stops[:-1])
        assert stops[-1] == (sample.finish_reason == "stop")
        if sample.finish_reason == "length":
            assert len(sample.token_ids) == 6
        body = sample.token_ids[:-1] if stops[-1] else sample.token_ids
        assert sample.text == policy.tokenizer.decode(list(body))


async def test_the_tokenizers_end_token_ends_too():
    policy = tiny_policy()
    policy.causal_lm.generation_config.eos_token_id = 100
    assert policy.end_ids == {2, 100}
    policy.causal_lm.generation_config.eos_token_id = None
    assert policy.end_ids == {2}


async def test_without_the_adapter_it_is_the_base_model():
    policy = tiny_policy()
    base = tiny_policy(trained=False)
    plain = await draw(policy, trained=False)
    assert [s.token_ids for s in flat(plain)] == [s.token_ids for s in flat(await draw(base))]
    for prompt, group in zip(PROMPTS, plain, strict=True):
        for sample in group:
            with policy.reference():
                rows = distribution(policy, prompt, sample)
            expected = [rows[t, id_].item() for t, id_ in enumerate(sample.token_ids)]
            assert sample.logprobs == pytest.approx(expected, abs=1e-4)


async def test_what_the_learner_changed_is_what_is_sampled_next():
    policy = tiny_policy()
    sampler = LocalSampler(policy, 64)
    sampling = Sampling(1.0, 1.0, 12, 7)
    before = await sampler.sample(PROMPTS, 4, sampling)
    learner = Learner(policy, GrpoSection(learning_rate=0.05), 1.0, 0)
    learner.update(random_groups(0, [(3, [4, 5])]), 1, 12)
    await sampler.refresh(1)
    after = await sampler.sample(PROMPTS, 4, sampling)
    assert [s.token_ids for s in flat(before)] != [s.token_ids for s in flat(after)]
    assert {s.version for s in flat(before)} == {0}
    assert {s.version for s in flat(after)} == {1} == {sampler.version}


async def test_gradient_checkpointing_does_not_disturb_sampling():
    with_it, without = tiny_policy(gradient_checkpointing=True), tiny_policy()
    assert await draw(with_it) == await draw(without)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_merged_weights_are_the_adapter_and_go_back_bit_for_bit(architecture: str):
    policy = tiny_policy(architecture)
    before = {name: (p.data_ptr(), p.clone()) for name, p in policy.model.named_parameters()}
    adapter, logits = weights(policy), whole_logits(policy, PROMPTS[1])
    with pytest.raises(RuntimeError, match="in the middle"), merged(policy.model):
        inside = whole_logits(policy, PROMPTS[1])
        torch.testing.assert_close(inside, logits, rtol=1e-4, atol=1e-4)
        raise RuntimeError("in the middle of decoding")
    for name, parameter in policy.model.named_parameters():
        pointer, value = before[name]
        assert (parameter.data_ptr(), parameter.dtype) == (pointer, value.dtype), name
        assert torch.equal(parameter, value), name
    assert same(weights(policy), adapter)
    assert torch.equal(whole_logits(policy, PROMPTS[1]), logits)
    shake(policy, seed=9)
    with merged(policy.model):
        moved = whole_logits(policy, PROMPTS[1])
    assert float((moved - logits).abs().max()) > 0.01  # merged anew, not remembered


@pytest.mark.parametrize(("top_k", "top_p"), [(1, 1.0), (5, 1.0), (5, 0.6)])
async def test_top_k_comes_before_top_p(top_k: int, top_p: float):
    policy = tiny_policy()
    for prompt, group in zip(
        PROMPTS, await draw(policy, n=8, top_k=top_k, top_p=top_p), strict=True
    ):
        for sample in group:
            rows = distribution(policy, prompt, sample)
            for row, token, logprob in zip(rows, sample.token_ids, sample.logprobs, strict=True):
                likely = row.topk(top_k)
                among = torch.zeros_like(row)
                among[likely.indices] = likely.values.softmax(-1)
                kept = nucleus(among, top_p)
                assert logprob == pytest.approx(math.log(kept[token]), abs=1e-4)


async def test_each_sample_is_told_as_it_ends():
    policy = ending_soon(tiny_policy())
    told: dict[tuple[int, int], Sample] = {}

    def ended(prompt: int, number: int, sample: Sample) -> None:
        assert (prompt, number) not in told
        told[prompt, number] = sample

    sampler = LocalSampler(policy, 4)
    drawn = sampler.draw(PROMPTS, 2, Sampling(1.0, 1.0, 12, 7), ended=ended)
    assert told == {(p, n): one for p, group in enumerate(drawn) for n, one in enumerate(group)}
