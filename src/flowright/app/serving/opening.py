"""Which policy is to work, and whether it can: known before torch is loaded, before a model is
opened or a server asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowright.app.first_look import (
    check_checkpoint,
    check_model,
    check_quantised,
    load_tasks,
    refuse,
)
from flowright.config.loading import load_entries
from flowright.config.root import Config
from flowright.core.errors import UserError
from flowright.data.task import Kind, Problem
from flowright.environments.base import Environment, TaskSets, make_environment
from flowright.environments.registry import load_config
from flowright.environments.workflow.environment import WorkflowEnvironment
from flowright.runs.checkpoints import checkpoint_of, chosen_as_best


@dataclass(frozen=True, slots=True)
class Opening:
    """A checkpoint with the configuration of its run."""

    config: Config
    checkpoint: Path
    environment: Environment
    tasks: TaskSets

    @property
    def name(self) -> str:
        """The run's, and the checkpoint's."""
        return f"{self.config.run.name}/{self.checkpoint.name}"

    @property
    def words(self) -> str:
        """The policy, for people."""
        best = chosen_as_best(self.checkpoint)
        return f"{self.checkpoint}, the best of its run: {best}" if best else str(self.checkpoint)


def look(source: Path, config: Path | None = None, overrides: Sequence[str] = ()) -> Opening:
    """What a run (its best checkpoint, or else its newest) or a checkpoint needs to be at work.
    Its settings are those of its run, or of the file ``config``, with ``overrides``.

    Raises UserError with a line for everything that is in the way."""
    if not source.is_dir():
        raise UserError(f"{source}: no such folder; give a run of outputs/, or a checkpoint of one")
    checkpoint = checkpoint_of(source)
    settings = load_config(config or _config_of(checkpoint), overrides)
    environment = make_environment(settings)
    if not isinstance(environment, WorkflowEnvironment):
        raise UserError(
            f"environment: {settings.environment}: its policy writes no workflows; give a run of "
            "environment: workflow"
        )
    found: list[TaskSets] = []
    refuse(
        lambda: check_checkpoint(checkpoint, settings),
        lambda: check_quantised(settings.policy),
        lambda: check_model(settings),
        lambda: load_entries(settings.llm.file, {settings.aflow_executor_model}),
        lambda: found.append(load_tasks(environment, batches=False)),
    )
    return Opening(settings, checkpoint, environment, found[0])


def _config_of(checkpoint: Path) -> Path:
    file = checkpoint.absolute().parent.parent / "config.json"
    if not file.is_file():
        raise UserError(
            f"{checkpoint}: no run around it whose config.json says how it was trained; give the "
            "run, or --config FILE"
        )
    return file


def question_of(text: str, kind: Kind, context: str | None = None) -> Problem:
    """A question as a problem whose answer nobody knows."""
    return Problem("question", kind, "asked", text, "", context=context)
