"""A judge that was trained, measured from its folder."""

from pathlib import Path

import pytest
from tiny_policy import checkpoint, tiny_policy

from flowright.core.errors import RunError
from flowright.data.task import Pair
from flowright.evaluation.trained_judge import open_trained_judge
from flowright.judging.measuring.benchmark_judges import JudgeName, open_measured_judge
from flowright.llm.chat import Message

PAIR = Pair("1", "own", (Message("user", "Say a."),), "a", "bcd", "first")
CONFIG = Path("config/judge_server.yaml")


async def test_a_folder_is_a_judge_that_ranks_by_its_scores(tmp_path: Path) -> None:
    policy = tiny_policy(head="score")
    policy.save_merged(tmp_path / "judge")
    async with open_measured_judge(
        JudgeName(str(tmp_path / "judge"), CONFIG), open_trained_judge
    ) as opened:
        judge = opened.judge
        scores = [(await judge.rate(PAIR.conversation, a, "")).score for a in ("a", "bcd")]
        games = await judge.compare(PAIR)
        refused = await judge.rate((Message("system", "Judge."), *PAIR.conversation), "a", "")
    assert judge.name == "judge" and None not in scores and scores[0] != scores[1]
    assert games.straight.scores == pytest.approx(scores, abs=1e-5)
    assert games.straight == games.swapped
    assert games.straight.preferred == ("first" if scores[0] > scores[1] else "second")
    assert refused.status == "ok"  # this template takes one


async def test_a_folder_of_a_model_that_writes_is_asked_as_a_judge() -> None:
    """One that has learned nothing says nothing that could be read: that is its own fault."""
    asked = JudgeName(str(checkpoint()), CONFIG, ["judge.max_tokens=8", "trained.max_tokens=2000"])
    async with open_measured_judge(asked, open_trained_judge) as opened:
        games = await opened.judge.compare(PAIR)
        assert opened.about["way"] == "pairwise" and opened.folders
    assert games.straight.status == games.swapped.status == "unreadable"
    assert games.straight.replies


async def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no model: no checkpoints"):
        async with open_measured_judge(JudgeName(str(tmp_path), CONFIG), open_trained_judge):
            pass
