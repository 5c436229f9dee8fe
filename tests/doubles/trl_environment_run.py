"""Two steps of TRL's own GRPOTrainer on an environment, in a Python that has trl.

``python trl_environment_run.py FOLDER`` prints one line of JSON, as ``trl_run.py``.
"""

import json
import sys
from typing import Any

import torch
from trl_run import made

from flowright.app.other_trainers import EnvironmentReward
from flowright.environments.registry import make_config

VOCABULARY = ("<pad>", "<eos>", "y", "n", "m", "x", "user", "assistant")


def main(folder: str) -> None:
    kept: list[list[float | None]] = []

    class Kept(EnvironmentReward):
        async def __call__(self, *arguments: Any, **named: Any) -> list[float | None]:
            kept.append(await super().__call__(*arguments, **named))
            return kept[-1]

    reward = Kept(make_config(environment="words_environment:Words"))
    trainer = made(folder, VOCABULARY, reward, reward.dataset())
    trainer.train()
    reward.close()
    logs = [row for row in trainer.state.log_history if "rewards/environment_reward/mean" in row]
    finite = all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
    steps = trainer.state.global_step
    print(json.dumps({"rewards": kept, "logs": logs, "steps": steps, "finite": finite}))


if __name__ == "__main__":
    main(*sys.argv[1:])
