"""What a configuration that names little is resolved to, and what it names stays."""

from typing import Any

import pytest

from flowright.app.preflight_checks import check_lengths
from flowright.config.root import Config
from flowright.core.errors import ConfigError
from flowright.environments.base import make_environment
from flowright.environments.registry import make_config
from flowright.grpo.objectives import resolved


def config(**given: Any) -> Config:
    return make_config({"strategy_model": "some/model", **given})


def check(config: Config) -> None:
    check_lengths(config, make_environment(config))


def decided(config: Config, device: str = "cpu") -> Config:
    return resolved(config, device, make_environment(config))


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
    assert decided(config(**given), device).grpo.off_policy == expected


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
    found = decided(config(grpo=grpo))
    assert (found.grpo.clip_low, found.grpo.clip_high) == bounds
    assert decided(found) == found


def test_the_buffer_is_a_fifth_of_a_completion() -> None:
    given = {"policy": {"max_new_tokens": 512}, "grpo": {"overlong": "soft"}}
    assert decided(config(**given)).grpo.overlong_buffer == 102
    given["grpo"]["overlong_buffer"] = 600
    with pytest.raises(
        ConfigError, match=r"buffer: 600 tokens of completions of at most 512; .*ns$"
    ):
        check(config(**given))
    given["environment"] = "talk_environment:Talk"
    assert decided(config(**given)).grpo.overlong_buffer == 600
    given["grpo"].pop("overlong_buffer")
    assert decided(config(**given)).grpo.overlong_buffer == 3 * 512 // 5
    given["policy"]["max_episode_tokens"] = 1000
    assert decided(config(**given)).grpo.overlong_buffer == 1000 // 5
    check(config(**given))


def test_a_run_of_several_turns_knows_its_longest_sequence() -> None:
    limits = {"max_new_tokens": 512, "max_prompt_tokens": 1000, "max_observation_tokens": 100}
    one = decided(config(policy=limits | {"max_episode_tokens": 700})).policy
    assert (one.max_episode_tokens, one.sequence_tokens, one.context_tokens) == (None, 1512, 1000)
    several = decided(config(environment="talk_environment:Talk", policy=limits)).policy
    assert several.max_episode_tokens == several.episode_tokens(3) == 3 * 512 + 2 * 164
    assert several.sequence_tokens == 1000 + several.episode_tokens(3)
    assert several.context_tokens + 512 == several.sequence_tokens
    assert decided(config(environment="talk_environment:Talk", policy=several)).policy == several
    limits["max_episode_tokens"] = 512
    with pytest.raises(ConfigError, match=r"tokens: 512 leaves no room .*; 1864 has room for 3$"):
        check(config(environment="talk_environment:Talk", policy=limits))


def test_what_is_no_correction_is_named() -> None:
    wrong = config(grpo={"off_policy": "flowright.grpo.objectives:truncated_weights"})
    with pytest.raises(ConfigError, match=r"give a flowright\.grpo\.objectives\.Correction"):
        decided(wrong)
