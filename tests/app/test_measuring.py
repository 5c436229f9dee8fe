"""What an evaluation keeps attempts as."""

from pathlib import Path

import pytest

from flowright.app.measuring import kept_as


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        ([], []),
        (["a/step_000004"], [4]),
        (["a/step_000056", "a/step_000004", "b/step_000012"], [56, 4, 12]),
        (["b/step_000004", "a/step_000004"], [2, 1]),
        (["a/best", "a/step_000004"], [1, 2]),
        (["a/step_000000"], [1]),
    ],
)
def test_each_checkpoint_has_a_step_of_its_own(names: list[str], steps: list[int]) -> None:
    paths = [Path(name) for name in names]
    assert [kept_as(paths)[path] for path in paths] == steps
