"""What a configuration that names little is resolved to, and what it names stays."""

from typing import Any

import pytest

from flowright.config.root import Config
from flowright.core.errors import ConfigError
from flowright.environments.registry import make_config
from flowright.grpo.objectives import resolved


def config(**given: Any) -> Config:
    return make_config({"strategy_model": "some/model", **given})


@pytest.mark.parametrize(
    ("given", "device", "expected"),
    [
        ({}, "cpu", "ratio"),
        ({}, "cuda", "truncated"),  # where a batch is drawn one update ahead
        ({"pipeline": {"max_staleness": 0}}, "cuda", "ratio"),
        ({"pipeline": {"max_staleness": 3}}, "cpu", "truncated"),
        ({"policy": {"sampler": "vllm"}, "pipeline": {"max_staleness": 0}}, "cuda", "truncated"),
        ({"strategy_model": "tiny"}, "cuda", "ratio"),
        ({"grpo": {"off_policy": "ratio"}, "policy": {"sampler": "vllm"}}, "cuda", "ratio"),
        ({"grpo": {"off_policy": "sequence_masked"}}, "cpu", "sequence_masked"),
    ],
)
def test_older_samples_and_other_engines_are_corrected_for(
    given: dict[str, Any], device: str, expected: str
) -> None:
    assert config(**given).grpo.off_policy == given.get("grpo", {}).get("off_policy")
    assert resolved(config(**given), device).grpo.off_policy == expected


@pytest.mark.parametrize(
    ("grpo", "bounds"),
    [
        ({}, (0.2, 0.28)),
        ({"loss": "grpo"}, (0.2, 0.2)),
        ({"loss": "gspo"}, (3e-4, 4e-4)),
        ({"loss": "flowright.grpo.objectives:GSPO"}, (3e-4, 4e-4)),  # as one of a user's own
        ({"loss": "gspo", "clip_high": 0.1}, (3e-4, 0.1)),
        ({"loss": "cispo", "clip_low": 0.1, "clip_high": 0.3}, (0.1, 0.3)),
    ],
)
def test_an_objective_has_bounds_of_its_own(
    grpo: dict[str, Any], bounds: tuple[float, float]
) -> None:
    found = resolved(config(grpo=grpo), "cpu")
    assert (found.grpo.clip_low, found.grpo.clip_high) == bounds
    assert resolved(found, "cpu") == found


def test_the_buffer_is_a_fifth_of_a_completion() -> None:
    given = {"policy": {"max_new_tokens": 512}, "grpo": {"overlong": "soft"}}
    assert resolved(config(**given), "cpu").grpo.overlong_buffer == 102
    given["grpo"]["overlong_buffer"] = 600
    with pytest.raises(ValueError, match=r"grpo\.overlong_buffer: 600 tokens of completions of at"):
        config(**given)


def test_what_is_no_correction_is_named() -> None:
    wrong = config(grpo={"off_policy": "flowright.grpo.objectives:truncated_weights"})
    with pytest.raises(ConfigError, match=r"give a flowright\.grpo\.objectives\.Correction"):
        resolved(wrong, "cpu")
