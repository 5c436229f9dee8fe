"""The environment as a whole: completions in, rewards out; and a judge that is found out."""

from typing import Literal

import pytest
from lost_sandbox import LostSandbox
from workflow_doubles import ScriptedModel, task

from flowright.config.judge import JudgeSection
from flowright.config.workflow import RewardSection, WorkflowSection
from flowright.core.errors import Reason
from flowright.data.task import Problem
from flowright.environments.base import make_environment
from flowright.environments.episode import Episode
from flowright.environments.registry import make_config
from flowright.environments.rollout import Rollout
from flowright.environments.workflow.environment import workflow_metrics
from flowright.environments.workflow.reward import WorkflowRollouts
from flowright.evaluation.evaluator import score
from flowright.judging.group_judge import GroupJudge
from flowright.judging.verdict import JudgeQuery, Verdict
from flowright.llm.chat import Usage
from flowright.policy.sampling import Sample
from flowright.sandbox import Sandbox
from flowright.workflows.executor import Executor

SAYS = "async def workflow(problem):\n    return {!r}"


class Generous:
    """Calls everything right."""

    name = "generous"

    async def judge(self, query: JudgeQuery) -> Verdict:
        return Verdict(1.0, True, "llm", "ok", "fine", 1, self.name, Usage(1, 10, 5))


async def rolled_out(
    trust: JudgeSection,
    answers: list[str],
    of: Problem,
    rewards: RewardSection | None = None,
    ranking: GroupJudge | None = None,
) -> list[Rollout]:
    samples = [
        Episode.single(of, Sample((1,), (0.0,), SAYS.format(text), "stop", 0), f"0/1/0/{n}")
        for n, text in enumerate(answers)
    ]
    async with (
        Sandbox(workers=1) as sandbox,
        Executor(ScriptedModel(), sandbox, WorkflowSection(workers=1)) as executor,
    ):
        rewards = rewards or RewardSection()
        rollouts = WorkflowRollouts(executor, Generous(), sandbox, rewards, trust, ranking)
        (group,) = await rollouts.rollout([samples])
        assert "rollout/failed/unsupported" in workflow_metrics(group)
        return group


class Asked(Generous):
    asked = 0

    async def judge(self, query: JudgeQuery) -> Verdict:
        self.asked += 1
        return await super().judge(query)


@pytest.mark.parametrize("low_agreement", ["warn", "rules"])
async def test_code_whose_tests_could_not_be_run_is_unscored_and_not_judged(
    low_agreement: Literal["warn", "rules"],
) -> None:
    trust = JudgeSection(min_agreement=0.9, low_agreement=low_agreement)
    judge, sandbox, of = Asked(), LostSandbox(workers=1), task("code")
    texts = ["def add(a, b): return a + b", "def add(a, b): return 0"]
    completions = [
        Episode.single(of, Sample((1,), (0.0,), SAYS.format(text), "stop", 0), f"0/1/0/{n}")
        for n, text in enumerate(texts)
    ]
    async with Executor(ScriptedModel(), sandbox, WorkflowSection(workers=1)) as executor:
        rollouts = WorkflowRollouts(executor, judge, sandbox, RewardSection(), trust)
        (group,) = await rollouts.rollout([completions])
    assert [r.reward.value for r in group] == [None, None]
    assert [r.failure.reason for r in group if r.failure] == [Reason.SANDBOX_LOST] * 2
    assert [r.verdict for r in group] == [None, None]
    assert judge.asked == 0


ANSWERS = ["42", "41", "40", "39"]


@pytest.mark.parametrize(
    "trust",
    [
        JudgeSection(),
        JudgeSection(min_agreement=0.2, low_agreement="rules"),
        JudgeSection(min_agreement=0.9, low_agreement="warn"),
    ],
)
async def test_the_reward_stays_the_judges(trust: JudgeSection) -> None:
    group = await rolled_out(trust, ANSWERS, task())
    assert [r.reward.value for r in group] == [1.0] * 4
    assert [r.gold.correct for r in group if r.gold] == [True, False, False, False]
    assert {r.verdict.source for r in group if r.verdict} == {"llm"}


async def test_rules_decide_a_step_in_which_the_judge_is_found_out() -> None:
    trust = JudgeSection(min_agreement=0.9, low_agreement="rules")
    group = await rolled_out(trust, [*ANSWERS, ""], task())
    assert [r.reward.value for r in group] == [1.0, 0.0, 0.0, 0.0, RewardSection().crashed]
    verdicts = [r.verdict for r in group if r.verdict]
    assert len(verdicts) == 4 and {v.source for v in verdicts} == {"rule_fallback"}
    assert "the judge agreed with gold on 25% of the step" in verdicts[0].reason
    assert [v.members[0].judge for v in verdicts] == ["generous"] * 4
    assert sum(v.usage.calls for v in verdicts) == 4, "what the judge cost is kept"


async def test_the_rules_evaluate_expressions_where_gold_does() -> None:
    trust = JudgeSection(min_agreement=0.9, low_agreement="rules")
    group = await rolled_out(trust, ["1 + x^2", "x^3"], task(reference="x^2 + 1"))
    assert [r.reward.value for r in group] == [1.0, 0.0]


async def test_what_no_rule_decides_is_unscored_then() -> None:
    trust = JudgeSection(min_agreement=0.9, low_agreement="rules")
    group = await rolled_out(
        trust, ["It melts.", "It boils."], task(kind="qa", reference="so " * 13)
    )
    assert [r.reward.value for r in group] == [None, None]
    assert {r.failure.reason for r in group if r.failure} == {Reason.JUDGE_FAILED}


def test_the_prompt_is_the_environments_and_says_the_runs_limits() -> None:
    config = make_config({"workflow": {"max_llm_calls": 4, "max_tokens": 777}})
    system, user = make_environment(config).messages(task())
    assert "At most 4 calls of the model and 777 tokens" in system.content
    assert task().problem in user.content


class Larger(Generous):
    """Prefers the larger number."""

    async def judge(self, query: JudgeQuery) -> Verdict:
        assert query.rival is not None
        if "down" in (query.answer, query.rival):
            return Verdict(None, None, "llm", "unavailable", "HTTP 500")
        score = float(int(query.answer) > int(query.rival))
        return Verdict(score, score > 0.5, "llm", "ok", "it is larger", 1, self.name)


RANKED = JudgeSection.model_validate({"group": {"method": "round_robin"}})


async def test_a_group_earns_by_its_places_between_wrong_and_right() -> None:
    rewards = RewardSection(crashed=-1, invalid=-1, wrong=-0.5, right=1.5)
    answers = ["42", "41", "", "41", "40", "39"]
    group = await rolled_out(RANKED, answers, task(), rewards, GroupJudge(RANKED, Larger(), None))
    # Each is compared with three others and with the attempt that has no answer.
    earned = [-0.5 + 2 * share for share in (1, 3 / 4, 3 / 4, 2 / 4, 1 / 4)]
    assert [r.reward.value for r in group] == [earned[0], earned[1], -1, *earned[2:]]
    assert [r.reward.parts.get("correctness") for r in group if not r.failure] == earned
    measured = workflow_metrics(group)
    assert measured["judge/agreement_with_gold"] == 1, "gold: 42 alone is right"
    assert "reward/right_frac" not in measured and "judge/drift" not in measured


async def test_a_lone_answer_is_measured_by_gold_alone() -> None:
    ranking = GroupJudge(RANKED, Larger(), None)
    (alone,) = await rolled_out(RANKED, ["42"], task(), ranking=ranking)
    assert (alone.reward.value, alone.verdict, alone.failure) == (None, None, None)
    assert alone.gold_score == 1
    found = score([[alone]])
    assert (found.gold, found.judge, found.unscored) == (1.0, None, 0.0)


async def test_an_answer_whose_comparisons_all_fail_is_unscored() -> None:
    ranking = GroupJudge(RANKED, Larger(), None)
    group = await rolled_out(RANKED, ["42", "down", "41"], task(), ranking=ranking)
    assert [r.reward.value for r in group] == [1.0, None, 0.0]
    assert group[1].lost and group[1].failure and "HTTP 500" in group[1].failure.message


def test_the_calls_of_a_ranking_are_planned() -> None:
    for group, calls in (
        ({"method": "round_robin"}, 28 * 2 / 8),
        ({"method": "swiss", "rounds": 3}, 12 * 2 / 8),
        ({"method": "list", "orders": 2}, 2 / 8),
    ):
        keys = {"judge": {"group": group}, "grpo": {"group_size": 8}}
        made = make_environment(make_config(keys))
        assert made.planned_calls(made.tasks().train)["judge"] == calls
        assert made.judge_settings() is None, "no judge of single answers"
