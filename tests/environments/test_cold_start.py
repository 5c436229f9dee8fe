"""The embedded policy as a judge before any training: it knows the form, and no verdict."""

import pytest
import tiny_policy  # noqa: F401 - for one thread and no progress bars

from flowright.app.open_policies import open_policy
from flowright.config.root import Config
from flowright.environments.base import make_environment, prompt_encoder
from flowright.environments.episode import Episode
from flowright.environments.registry import make_config
from flowright.policy.local import LocalSampler
from flowright.policy.sampling import Sampling


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    small = {"hidden_size": 64, "layers": 1, "heads": 2, "examples": 800, "programs": 1}
    small |= {"steps": 100, "learning_rate": 0.01, "matrix_learning_rate": 0.02}
    small |= {"prompt_weight": 0.0, "cache_dir": tmp_path_factory.mktemp("cache")}
    rule = {"train": 800, "held_out": 100, "words": 1}
    return make_config(
        {
            "environment": "judging",
            "strategy_model": "tiny",
            "judging": {"wording": "short", "ties": "drop", "known_rule": rule},
            "policy": {"device": "cpu", "max_prompt_tokens": 128, "tiny": small},
        }
    )


async def test_a_cold_start_knows_the_form_and_is_at_chance(config: Config) -> None:
    made = make_environment(config)
    tasks = made.tasks()
    policy = open_policy(config, made, tasks.train)
    encode = prompt_encoder(made, policy.tokenizer, config.policy.max_prompt_tokens)
    prompts = [encode(task).token_ids for task in tasks.val]
    groups = await LocalSampler(policy, 256).sample(prompts, 2, Sampling(1.0, 1.0, 48, seed=0))
    rollouts = await made.rollout(
        [
            [Episode.single(task, sample, f"{task.id}/{n}") for n, sample in enumerate(group)]
            for task, group in zip(tasks.val, groups, strict=True)
        ]
    )
    metrics = made.summarise([rollout for group in rollouts for rollout in group])
    assert metrics["judge/unreadable"] < 0.1
    assert abs(metrics["judge/accuracy"] - 0.5) < 0.15  # four standard errors of 200 fair coins
    assert abs(metrics["judge/position_bias"]) < 0.3
