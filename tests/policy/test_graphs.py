"""Decoding by repeated kernels; on a CPU a function is repeated in place of a CUDA graph."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tiny_policy import tiny_policy

from flowright.policy.local import LocalSampler
from flowright.policy.prefix.decoding import SharedDecoding, shared_decoding
from flowright.policy.prefix.graphs import PLAIN_STEPS, ReplayedDecoding, Work
from flowright.policy.prefix.kept import Kept
from flowright.policy.sampling import Sampling

TEMPLATE = list(range(100, 120))
PROMPTS = [[*TEMPLATE, *own] for own in ([70], [60, 61, 62, 63], [90, 91, 92], [50, 51])]
ROOM = 24


@pytest.mark.parametrize("n", [1, 2])
def test_rows_that_have_ended_change_no_other(n: int) -> None:
    policy = tiny_policy()
    records: list[Work] = []
    runs: list[int] = []

    def record(work: Work) -> Work:
        records.append(work)

        def repeat() -> torch.Tensor:
            runs.append(len(records))
            return work()

        return repeat

    with torch.inference_mode(), shared_decoding(policy, PROMPTS, Kept(0)) as factory:
        sizes = (n, len(PROMPTS) * n, ROOM, max(map(len, PROMPTS)))
        plain, made = factory(*sizes), factory(*sizes)
        made.__class__ = type("Repeating", (SharedDecoding,), {"repeats": True})
        other = ReplayedDecoding(made, policy.device, record)
        draw = torch.Generator().manual_seed(0)
        rows = 0
        for step in range(20):
            if step in (0, 12):  # at first, and where others have ended
                prompts = PROMPTS if not step else PROMPTS[:1]
                rows += n * len(prompts)
                torch.testing.assert_close(other.join(prompts), plain.join(prompts))
            if step in (5, 8, 14, 16):  # one ends; with one row a prompt the last takes its place
                going = [row for row in range(rows) if row != 1]
                going = [0, rows - 1, *range(2, rows - 1)] if n == 1 and rows > 2 else going
                plain.keep(going)
                other.keep(going)
                rows -= 1
            tokens = torch.randint(3, 200, (rows,), generator=draw)
            torch.testing.assert_close(other.step(tokens), plain.step(tokens))
    # Not in the first steps, and anew when rows have moved or joined.
    assert runs[0] == 1 and len(runs) <= 20 - PLAIN_STEPS * len(records)
    assert len(records) >= 2
    assert made.rows < len(PROMPTS) * n + n


def test_what_cannot_be_recorded_is_decoded_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(work: Work) -> Work:
        raise RuntimeError("operation not permitted when stream is capturing")

    policy = tiny_policy()
    with torch.inference_mode(), shared_decoding(policy, PROMPTS, Kept(0)) as factory:
        sizes = (2, 2 * len(PROMPTS), ROOM, max(map(len, PROMPTS)))
        plain, made = factory(*sizes), factory(*sizes)
        made.__class__ = type("Repeating", (SharedDecoding,), {"repeats": True})
        other = ReplayedDecoding(made, policy.device, refuse)
        assert torch.equal(plain.join(PROMPTS), other.join(PROMPTS))
        for token in range(5, 10):
            tokens = torch.full((plain.rows,), token)
            torch.testing.assert_close(other.step(tokens), plain.step(tokens))
    assert len(caplog.records) == 1 and "without CUDA graphs" in caplog.text


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("repeats", [True, False])  # False: a kernel that has no graph
def test_prompts_join_where_rows_have_moved(repeats: bool, n: int) -> None:
    policy = tiny_policy()
    policy.causal_lm.generation_config.eos_token_id = [2, *range(80, 160)]  # rows end all the time
    records: list[Work] = []

    @contextmanager
    def repeating(*arguments: Any) -> Iterator[Callable[..., ReplayedDecoding]]:
        with shared_decoding(*arguments) as factory:

            def made(*sizes: int) -> ReplayedDecoding:
                one = factory(*sizes)
                one.__class__ = type("Repeating", (SharedDecoding,), {"repeats": repeats})
                return ReplayedDecoding(one, policy.device, lambda w: records.append(w) or w)

            yield made

    sampling = Sampling(1.0, 1.0, ROOM, seed=7)
    sampler = LocalSampler(policy, 12)
    wanted = sampler.draw(PROMPTS * 4, n, sampling)
    sampler._decoding = repeating
    for group, other in zip(sampler.draw(PROMPTS * 4, n, sampling), wanted, strict=True):
        assert [sample.token_ids for sample in group] == [sample.token_ids for sample in other]
    assert len(records) > 1 if repeats else not records


def test_a_kernel_without_a_graph_drops_a_row_where_it_ends() -> None:
    """Decoded on beside rows that joined later, it would outgrow its places."""
    policy = tiny_policy()
    with torch.inference_mode(), shared_decoding(policy, PROMPTS, Kept(0)) as factory:
        made = factory(1, 5, 6, max(map(len, PROMPTS)))
        other = ReplayedDecoding(made, policy.device)
        other.join([PROMPTS[1]])  # the longest
        for _ in range(4):
            other.step(torch.tensor([9]))
        other.join([PROMPTS[0]] * 4)
        other.keep([4, 1, 2, 3])
        for _ in range(5):
            assert other.step(torch.full((4,), 9)).isfinite().all()
        assert made.rows == 4
