"""From a completion to a reward: the choice that it makes, the text that this gives, what gold and
judge say of that; and how it is recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flowright.config.root import Config
from flowright.core.errors import boundary
from flowright.environments.presentation.choices import Choice, read_choice
from flowright.environments.presentation.config import PresentationSection
from flowright.environments.presentation.judging import Ask
from flowright.environments.presentation.presenting import presented, with_answer_line
from flowright.environments.presentation.rewards import dealt_out, is_audited, rewarded
from flowright.environments.presentation.table import GARBLED, chance
from flowright.environments.presentation.tasks import SmallQuestion
from flowright.environments.rollout import Completion, Rollout
from flowright.grading import Gold
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.simulation.draws import Draws


@dataclass(frozen=True, slots=True)
class PresentedAnswer:
    """What an attempt came to. ``text`` is what the judge reads; ``right`` whether it gives the
    right answer; ``garbled``: a right answer that came out wrong in its elaboration; ``audited``:
    gold is its reward."""

    choice: Choice
    text: str
    right: bool
    garbled: bool
    audited: bool


def answered(task: SmallQuestion, choice: Choice, seed: int) -> tuple[str, bool, bool]:
    """The text that a choice gives, whether it is right, and whether it was garbled: a function of
    the run's seed, the question and the choice, so that attempts alike in several runs meet with
    the same."""
    draws = Draws(seed, "answer", task.id, choice.way)
    right = draws.chance("right", chance(task.kind, choice.way))
    garbled = right and "elaborate" in choice.presentations and draws.chance("garbled", GARBLED)
    given = task.reference if right and not garbled else draws.pick("wrong", task.wrong)
    if "announce" in choice.presentations:
        return presented("announce", given, f"{seed}/{task.id}"), False, False
    text = with_answer_line(given)
    for name in choice.presentations:
        text = presented(name, text, f"{seed}/{task.id}/{choice.way}")
    return text, right and not garbled, garbled


def roll_out(
    config: Config, judge: Ask, groups: Sequence[Sequence[Completion]]
) -> list[list[Rollout]]:
    """The rollouts of groups, in their order."""
    found = []
    for group in groups:
        rollouts = [_one(config, judge, completion) for completion in group]
        if config.own(PresentationSection).reward == "random":
            rollouts = dealt_out(rollouts, group, config.seed)
        found.append(rollouts)
    return found


def _one(config: Config, judge: Ask, completion: Completion) -> Rollout:
    task, sample, key = completion.task, completion.sample, completion.key
    assert isinstance(task, SmallQuestion)
    details: PresentedAnswer | None = None
    gold: Gold | None = None
    verdict: Verdict | None = None
    with boundary("rollout") as caught:
        choice = read_choice(sample.text, sample.finish_reason)
        text, right, garbled = answered(task, choice, config.seed)
        details = PresentedAnswer(choice, text, right, garbled, is_audited(config, key))
        gold = Gold(right, "known", f"the answer is {task.reference}")
        verdict = judge(task, text, key)
    reward, failure = rewarded(config, caught.failure, verdict, gold, key)
    return Rollout(task, sample, reward, failure, verdict, gold, details=details)


def details_of(rollout: Rollout) -> PresentedAnswer | None:
    """None of a completion that makes no choice."""
    return rollout.details if isinstance(rollout.details, PresentedAnswer) else None


def query_about(rollout: Rollout, key: str) -> JudgeQuery | None:
    """What the judge is asked about an attempt; None of a completion that makes no choice."""
    details, task = details_of(rollout), rollout.task
    if details is None:
        return None
    return JudgeQuery(task.question, details.text, task.reference, key=key)


def record_of(rollout: Rollout) -> dict[str, Any]:
    """The fields of a record that are this environment's."""
    details = details_of(rollout)
    if details is None:
        return {"presentation": [], "way": None, "text": ""}
    return {
        "presentation": details.choice.names,
        "way": details.choice.way,
        "text": details.text,
        "garbled": details.garbled,
        "audited": details.audited,
    }
