"""Names of the judge integration guide: ``from reward.judge_reward_adapter import ...``.

The folder has no ``__init__.py``, so a package ``reward`` of your own comes first: copy this file
into it.
"""

from flowright import BaseJudgeReward, JudgeRewardSystem, RewardResult, create_judge_reward

__all__ = ["BaseJudgeReward", "JudgeRewardSystem", "RewardResult", "create_judge_reward"]
