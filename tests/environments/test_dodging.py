"""The strategies of benchmarks/dodging.py: where a policy is wrong, no way of not being scored."""

import importlib.util
import sys
from pathlib import Path

import pytest

from flowright.config.workflow import RewardSection

_PATH = Path(__file__).parents[2] / "benchmarks" / "dodging.py"
_SPEC = importlib.util.spec_from_file_location("dodging", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
dodging = importlib.util.module_from_spec(_SPEC)
sys.modules["dodging"] = dodging  # where its dataclasses look for it
_SPEC.loader.exec_module(dodging)


@pytest.mark.parametrize("strategy", dodging.STRATEGIES, ids=lambda strategy: strategy.name)
async def test_no_dodge_pays(strategy) -> None:
    honest, dodger = await dodging.outcomes(strategy, 2, dodging.Server())
    assert honest.right and dodger.wrong
    assert set(honest.right) | set(dodger.right) == {RewardSection().right}
    assert all(value is not None and value <= RewardSection().wrong for value in dodger.wrong)
    told = dodging.figures(honest, dodger)
    assert told["dodger"] <= told["honest"] + 1e-9
