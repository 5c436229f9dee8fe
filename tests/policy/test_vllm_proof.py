"""What the probe's log-probabilities prove, by hand and in half precision."""

import pytest
import torch
from tiny_policy import shake, tiny_policy, whole_logits
from torch import Tensor

from flowright.errors import RunError
from flowright.policy.vllm.proof import (
    Known,
    Proof,
    consistent,
    learner_scores,
    probe_ids,
    prove_adapter,
    prove_base,
    scales,
)


def row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


BASE = Known("the base model", row(-1.0, -2.0, -3.0, -4.0))
WANTED = Known("version 2", row(-1.2, -1.8, -3.2, -3.8))  # moved by 0.2 each
BEFORE = Known("version 1", row(-1.1, -1.9, -3.1, -3.9))  # by 0.1 each
ARITHMETIC = row(0.01, -0.01, 0.01, 0.01)  # what the server's does to every weights'
SERVED_BASE = BASE.scores + ARITHMETIC


def prove(served: Tensor, tolerance: float = 0.25, base: Tensor = SERVED_BASE) -> Proof:
    return prove_adapter(served, base, WANTED, BASE, [BEFORE], tolerance)


def test_the_right_adapter_by_hand() -> None:
    """gap: 0.01; share: the server moved by exactly what the learner did; of both others it is
    told apart, as 0.1 is above 3 x 0.01 and above 0.05 x 0.25."""
    proof = prove(WANTED.scores + ARITHMETIC)
    assert proof == Proof(pytest.approx(0.01), pytest.approx(0.01), pytest.approx(1.0), 2)


def test_part_of_the_way_counts_by_its_share() -> None:
    """Moved by 0.12, 0.12, 0.12, 0.12 of 0.2: 60 %. From version 1 on: 0.02 of 0.1, 20 %."""
    served = SERVED_BASE + 0.6 * (WANTED.scores - BASE.scores)
    with pytest.raises(RunError, match=r"not serve version 2 but what version 1 was.*show 20%"):
        prove(served)
    assert prove_adapter(served, SERVED_BASE, WANTED, BASE, [], 0.25).share == pytest.approx(0.6)


@pytest.mark.parametrize(("known", "name"), [(BASE, "the base model"), (BEFORE, "version 1")])
@pytest.mark.parametrize("tolerance", [0.25, 0.05])
def test_other_weights_are_called_by_their_name(known: Known, name: str, tolerance: float) -> None:
    """At 0.25 both are within the tolerance, at 0.05 beyond it."""
    with pytest.raises(RunError, match=f"it does not serve version 2.*{name}"):
        prove(known.scores + ARITHMETIC, tolerance)


def test_weights_that_nobody_knows_are_none_of_the_run() -> None:
    with pytest.raises(RunError, match="no weights of this run either"):
        prove(WANTED.scores + 3)
    with pytest.raises(RunError, match="no weights of this run either"):
        prove(row(-1.2, float("nan"), -3.2, -3.8))


def test_what_is_below_the_arithmetics_noise_is_not_judged() -> None:
    """0.1 and 0.2 are no more than three times 0.07: the base model passes, unproven."""
    noisy = BASE.scores + row(0.07, -0.07, 0.07, 0.07)
    assert prove(noisy, base=noisy) == Proof(
        pytest.approx(0.2, abs=0.1), pytest.approx(0.07), None, 0
    )


def test_another_base_model_is_refused() -> None:
    prove_base(SERVED_BASE, BASE, 0.05)
    with pytest.raises(RunError, match=r"base model is not the learner's: .* 0\.5 nats"):
        prove_base(BASE.scores + 0.5, BASE, 0.05)
    with pytest.raises(RunError, match="base model"):
        prove_base(BASE.scores * float("nan"), BASE, 0.05)


def test_drawn_and_scored_must_agree() -> None:
    consistent([-1.0, -2.0], [-1.05, -2.05], 0.1)
    with pytest.raises(RunError, match="draws tokens with other weights"):
        consistent([-1.0, -2.0], [-1.0, -2.5], 0.1)


def test_the_temperature_shows_in_the_spread_of_the_likeliest() -> None:
    """softmax of logits (2, 1, 0) at temperature 1 and at 1/2: spreads of 2 and 4."""
    plain = row(2, 1, 0).log_softmax(0).tolist()
    halved = row(4, 2, 0).log_softmax(0).tolist()
    assert scales(plain, halved)
    assert not scales(plain, plain)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_the_learners_scores_are_the_models_own(architecture: str) -> None:
    policy = tiny_policy(architecture)
    ids = probe_ids(policy)
    assert 200 < len(ids) <= 256
    rows = whole_logits(policy, ids).double().log_softmax(-1)
    expected = [float(rows[i, token]) for i, token in enumerate(ids[1:])]
    assert learner_scores(policy, ids).tolist() == pytest.approx(expected, abs=1e-4)
    with policy.reference():
        assert not torch.allclose(learner_scores(policy, ids), torch.tensor(expected).double())


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_half_precision_passes_and_is_told_from_the_base(architecture: str) -> None:
    """The default tolerance, with a server that computes in bfloat16."""
    learner, server = (
        tiny_policy(architecture, trained=False, dtype=dtype) for dtype in ("float32", "bfloat16")
    )
    ids = probe_ids(learner)
    with learner.reference(), server.reference():
        base = Known("the base model", learner_scores(learner, ids))
        served_base = learner_scores(server, ids)
    earlier: list[Known] = []
    for version in range(1, 13):
        shake(learner, seed=version, scale=0.004)
        server.load(learner.state())
        wanted = Known(f"version {version}", learner_scores(learner, ids))
        served = learner_scores(server, ids)
        proof = prove_adapter(served, served_base, wanted, base, earlier, 0.1)
        earlier.append(wanted)
    assert proof.share == pytest.approx(1.0, abs=0.3)
    assert proof.told_apart > 6
    with pytest.raises(RunError, match="the base model"):
        prove_adapter(served_base, served_base, wanted, base, earlier, 0.1)
    with pytest.raises(RunError, match="does not serve version 12"):
        prove_adapter(first_of(served_base, earlier, base), served_base, wanted, base, earlier, 0.1)


def first_of(served_base: Tensor, earlier: list[Known], base: Known) -> Tensor:
    """A server that stays with the first version."""
    return earlier[0].scores + served_base - base.scores
