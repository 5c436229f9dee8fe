"""The executor of workflows: validates programs, keeps what it found, runs them within limits."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Self

from flowright.config.workflow import ExecutorSection, WorkflowSection
from flowright.core.batch_calls import Memo
from flowright.core.errors import Failure, FailureError, boundary
from flowright.core.off_loop import in_thread
from flowright.data.task import Problem
from flowright.llm.chat import ChatModel, RequestRefused
from flowright.llm.context import DOUBTED, REFUSED_TRIES, WithControl
from flowright.workflows.checker import ProgramChecker
from flowright.workflows.context import Budget, CodeRunner
from flowright.workflows.interpreter import Interpreter
from flowright.workflows.operators import OPERATORS
from flowright.workflows.pool import ModelPool, add_model_parameter
from flowright.workflows.run import Host, Run, Watch
from flowright.workflows.source import Workflow, read_workflow
from flowright.workflows.trace import Exchange, Execution, OperatorCall

__all__ = ["Exchange", "Execution", "Executor", "OperatorCall"]

VALIDATED_KEPT = 4096  # programs, the latest used ones


class Executor:
    """Validates and runs workflows; an async context manager, for one event loop.

    ::

        async with Executor(model, sandbox) as executor:
            workflow = await executor.validate(completion)
            execution = await executor.execute(workflow, task, key="12/gsm8k-7/3")

    ``sandbox`` is entered and left by the caller. Programs can call the built-in operators and
    those of ``workflow.operators``; with a ``pool``, of the models by name in ``model``. Raises
    ConfigError where operators cannot be had.
    """

    def __init__(
        self,
        model: ChatModel | Mapping[str, ChatModel],
        sandbox: CodeRunner,
        workflow: WorkflowSection | None = None,
        executor: ExecutorSection | None = None,
        pool: ModelPool | None = None,
    ) -> None:
        limits = workflow or WorkflowSection()
        self._interpreter = Interpreter(limits)
        settings = executor or ExecutorSection()
        self._operators = OPERATORS.with_modules(limits.operators)
        if pool is not None:
            self._operators = add_model_parameter(self._operators)
        models = model if isinstance(model, Mapping) else {"": model}
        asked = {
            name: WithControl(one, REFUSED_TRIES, (RequestRefused, *DOUBTED))
            for name, one in models.items()
        }
        self._host = Host(
            asked, sandbox, limits, settings, self._interpreter, self._operators, pool
        )
        self._checker = ProgramChecker(self._operators)
        self._in_flight = asyncio.Semaphore(limits.in_flight)
        self._validated: Memo[Workflow | Failure] = Memo(VALIDATED_KEPT)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._interpreter)
            await stack.enter_async_context(self._checker)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    @property
    def limits(self) -> WorkflowSection:
        return self._host.limits

    async def validate(self, text: str, finish_reason: str = "stop") -> Workflow:
        """Read a completion and check its program against the language and the operators' stubs,
        before any call. Verdicts on the latest texts are kept. Raises FailureError."""
        key = (text, finish_reason == "length")
        verdict = await self._validated.get(key, lambda: self._read_and_check(text, finish_reason))
        if isinstance(verdict, Failure):
            raise FailureError(verdict.reason, verdict.message, verdict.line)
        return verdict

    async def _read_and_check(self, text: str, finish_reason: str) -> Workflow | Failure:
        try:
            workflow = await in_thread(lambda: read_workflow(text, finish_reason, self._operators))
        except FailureError as error:
            return error.failure
        failure = await self._checker.check(workflow.program)
        if failure is None:
            return workflow
        return Failure(failure.reason, failure.message, workflow.source_line(failure.line))

    async def execute(
        self,
        workflow: Workflow,
        task: Problem,
        key: str,
        watch: Watch | None = None,
        budget: Budget | None = None,
    ) -> Execution:
        """Run a workflow on a task. ``key`` names the rollout: all seeds derive from it, so that
        the same workflow, task, key and replies give the same execution in whatever order the
        replies arrive. Failures of the workflow, a server or a worker end up in ``failure``.
        ``watch`` is called with each operator call as it ends. ``budget``: the rest of that of an
        attempt with earlier executions; a new one by default."""
        async with self._in_flight:
            run = Run(self._host, workflow, task, key, watch)
            run.budget = budget or run.budget
            answer: str | None = None
            with boundary("workflow") as caught:
                answer = await run.play()
            return run.execution(answer, caught.failure)
