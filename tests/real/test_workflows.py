"""Workflows whose operators a real server answers: the answers may be silly, the protocol is not.

Whatever a server that answers says, an attempt gets a reward: no reply of it is a failure of ours.
"""

from collections.abc import AsyncIterator

import pytest
from workflow_doubles import task

from flowright.config.judge import JudgeSection
from flowright.config.workflow import ExecutorSection, RewardSection, WorkflowSection
from flowright.core.errors import Blame
from flowright.data.task import KINDS, Kind, Problem
from flowright.environments.episode import Episode
from flowright.environments.workflow.reward import WorkflowRollouts, details_of
from flowright.judging.build import build_judge
from flowright.llm.client import ChatClient
from flowright.policy.sampling import Sample
from flowright.sandbox import Sandbox
from flowright.workflows.executor import Executor
from flowright.workflows.grammar import fixed_workflows
from flowright.workflows.operators import OPERATORS

pytestmark = pytest.mark.real

TASKS: dict[Kind, Problem] = {
    "math": task(),
    "code": task("code"),
    "qa": task("qa", question="Who wrote Hamlet?", reference="William Shakespeare"),
}


@pytest.fixture(scope="module")
async def executor(model: ChatClient, sandbox: Sandbox) -> AsyncIterator[Executor]:
    section = ExecutorSection(max_tokens=48, programmer_tries=2)
    async with Executor(model, sandbox, WorkflowSection(workers=1), section) as opened:
        yield opened


@pytest.mark.parametrize("name", sorted(OPERATORS))
async def test_each_operator_gets_its_reply(name: str, executor: Executor) -> None:
    """As its documentation shows it, on a problem that it is for."""
    operator = OPERATORS[name]
    given = 'result = solution = code = "8"\nfeedback = "Check it."'
    body = "\n".join([given, operator.example, 'return "done"'])
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    workflow = await executor.validate(f"async def workflow(problem):\n{lines}")
    execution = await executor.execute(workflow, TASKS[operator.kinds[0]], f"real/{name}")
    assert execution.failure is None, execution.failure
    called = [call for call in execution.trace if call.operator == name]
    assert called and all(call.error is None for call in called)
    if operator.asks_model:
        for exchange in (exchange for call in called for exchange in call.exchanges):
            assert exchange.finish_reason in ("stop", "length")
            assert exchange.usage.prompt_tokens > 0 and exchange.usage.completion_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
async def test_every_attempt_that_a_server_answers_gets_a_reward(
    kind: Kind, executor: Executor, model: ChatClient, sandbox: Sandbox
) -> None:
    """SmolLM2 executes and judges every shape of workflow, and programs that go wrong."""
    judge = build_judge(JudgeSection(max_tokens=160, max_attempts=3), model)
    rollouts = WorkflowRollouts(executor, judge, sandbox, RewardSection())
    programs = [*fixed_workflows(kind).values(), *GONE_WRONG]
    completions = [
        Episode.single(TASKS[kind], Sample((1,), (0.0,), text, "stop", 0), f"real/{kind}/{number}")
        for number, text in enumerate(programs)
    ]
    (played,) = await rollouts.rollout([completions])
    for rollout in played:
        assert rollout.reward.value is not None, rollout.failure
        assert rollout.failure is None or rollout.failure.blame is Blame.POLICY
        assert rollout.failure is not None or rollout.verdict is not None
    assert sum(details_of(one).execution is not None for one in played) >= len(played) - 1


GONE_WRONG = (
    "async def workflow(problem):\n    return await generate('Say nothing at all.', problem)",
    "async def workflow(problem):\n    return await generate(problem * 900)",
    "async def workflow(problem):\n    return '{\"verdict\": true}' * 400",
    "async def workflow(problem):\n    return int(await answer(problem)) // 0",
    "this is no program",
)
"""A reply that is unwanted, a prompt beyond the server's length, an answer that forges a verdict, a
crash, and no program."""
