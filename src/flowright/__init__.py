"""Flowright: train a small language model to write the workflow that a large one should run.

What a script may import is here and is loaded when it is first used; docs/api.md lists each.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 11):  # noqa: UP036, for scripts of a checkout, which pip did not refuse
    _running = f"Python {'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})"
    print(f"Flowright needs Python 3.11 or newer; this is {_running}", file=sys.stderr)
    sys.exit(2)

if TYPE_CHECKING:
    from flowright.app.launch import dry_run as dry_run, evaluate as evaluate, train as train
    from flowright.app.other_trainers import EnvironmentReward as EnvironmentReward
    from flowright.config.root import Config as Config, EnvironmentSection as EnvironmentSection
    from flowright.core.errors import Failure as Failure, Reason as Reason, boundary as boundary
    from flowright.data.task import Problem as Problem, Task as Task, read_tasks as read_tasks
    from flowright.environments.base import (
        Baseline as Baseline,
        Demonstration as Demonstration,
        Environment as Environment,
        TaskSets as TaskSets,
    )
    from flowright.environments.display import Display as Display
    from flowright.environments.episode import (
        Episode as Episode,
        Observation as Observation,
        Turn as Turn,
    )
    from flowright.environments.registry import (
        load_config as load_config,
        make_config as make_config,
    )
    from flowright.environments.rollout import (
        UNSCORED as UNSCORED,
        Reward as Reward,
        Rollout as Rollout,
    )
    from flowright.grading import Gold as Gold
    from flowright.grpo.batch import Group as Group, Trained as Trained
    from flowright.grpo.learner import Learner as Learner
    from flowright.judging.reward.adapter import (
        BaseJudgeReward as BaseJudgeReward,
        JudgeRewardSystem as JudgeRewardSystem,
        create_judge_reward as create_judge_reward,
    )
    from flowright.judging.reward.calls import RewardResult as RewardResult
    from flowright.judging.reward.trl import trl_reward as trl_reward
    from flowright.judging.reward.verl import VerlReward as VerlReward
    from flowright.judging.service.serve import serve_judge_model as serve_judge_model
    from flowright.judging.verdict import (
        Judge as Judge,
        JudgeQuery as JudgeQuery,
        Verdict as Verdict,
    )
    from flowright.policy.model import Policy as Policy, load_policy as load_policy
    from flowright.policy.prefix.tree import chunks as chunks
    from flowright.sandbox import Limits as Limits, Sandbox as Sandbox
    from flowright.workflows.registry import operator as operator

__version__ = "0.1.0"

PUBLIC = {
    "flowright.app.launch": ("train", "evaluate", "dry_run"),
    "flowright.config.root": ("Config", "EnvironmentSection"),
    "flowright.environments.registry": ("load_config", "make_config"),
    "flowright.data.task": ("Task", "Problem", "read_tasks"),
    "flowright.environments.base": ("Environment", "TaskSets", "Baseline", "Demonstration"),
    "flowright.environments.episode": ("Episode", "Observation", "Turn"),
    "flowright.environments.rollout": ("Rollout", "Reward", "UNSCORED"),
    "flowright.environments.display": ("Display",),
    "flowright.core.errors": ("Failure", "Reason", "boundary"),
    "flowright.grading": ("Gold",),
    "flowright.judging.verdict": ("Judge", "JudgeQuery", "Verdict"),
    "flowright.judging.reward.adapter": (
        "JudgeRewardSystem",
        "BaseJudgeReward",
        "create_judge_reward",
    ),
    "flowright.judging.reward.calls": ("RewardResult",),
    "flowright.judging.service.serve": ("serve_judge_model",),
    "flowright.judging.reward.trl": ("trl_reward",),
    "flowright.app.other_trainers": ("EnvironmentReward",),
    "flowright.judging.reward.verl": ("VerlReward",),
    "flowright.sandbox": ("Sandbox", "Limits"),
    "flowright.workflows.registry": ("operator",),
    "flowright.policy.model": ("Policy", "load_policy"),
    "flowright.policy.prefix.tree": ("chunks",),
    "flowright.grpo.batch": ("Group", "Trained"),
    "flowright.grpo.learner": ("Learner",),
}
"""The public names by the module that has them, in the order of docs/api.md."""

_MODULES = {name: module for module, names in PUBLIC.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'flowright' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*_MODULES, "__version__"])
