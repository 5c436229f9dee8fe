"""The toy run of :mod:`toy_run`, sampled from a server."""

from pathlib import Path
from typing import Any

from tiny_policy import tiny_policy
from toy_run import Lines, Toy, configured
from vllm_double import BASE

from flowright.app.open_policies import open_samplers
from flowright.app.session import make_trainer
from flowright.config.policy import LoraSection, PolicySection, VllmSection
from flowright.config.root import Config
from flowright.grpo.ranks import ONE, Follower, Ranks
from flowright.policy.model import Policy
from flowright.runs.directory import RunDirectory


def served(url: str, path: Path, wait_seconds: float = 0.2, **run: Any) -> Config:
    grpo = {"steps": 3, "prompts_per_step": 1, "epochs": 1, "minibatches": 1}
    config = configured(grpo, run | {"output_dir": path}, {"every": 0})
    policy = PolicySection(
        sampler="vllm",
        max_new_tokens=6,
        max_prompt_tokens=100,
        lora=LoraSection(rank=4, alpha=8),
        vllm=VllmSection(
            base_urls=(url,),
            model_name=BASE,
            tolerance=1e-3,
            wait_seconds=wait_seconds,
            backoff_seconds=0.01,
        ),
    )
    return config.model_copy(update={"policy": policy})


async def train(
    config: Config,
    resume: bool = False,
    policy: Policy | None = None,
    ranks: Ranks = ONE,
    environment: Toy | None = None,
) -> int:
    policy, environment = policy or tiny_policy(trained=False), environment or Toy()
    path = config.run.output_dir / config.run.name
    run = RunDirectory(path, config, resume) if ranks.is_first else Follower(path)
    try:
        async with open_samplers(config, policy, ranks=ranks) as (sampler, _):
            tasks = environment.tasks()
            trainer = make_trainer(config, run, Lines(), environment, tasks, policy, sampler, ranks)
            return await trainer.train(resume)
    finally:
        run.close()
