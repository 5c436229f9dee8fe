"""What the packages of ``run.loggers`` are told: a run's name, its configuration, and each step's
metrics under their own names and steps. Sample texts go to TensorBoard alone.

Each function is given its package, which nothing here imports. Where a package sends things, and
with which key, its own environment variables say (docs/viewing.md).
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")

METRICS_AT_ONCE, PARAMS_AT_ONCE, PARAM_CHARS = 1000, 100, 6000
"""What MLflow takes in one request, and of a parameter's value."""

ENDS = {"finished": "FINISHED", "failed": "FAILED"}
"""MLflow's words for how a run ended; it was stopped where it ended otherwise."""


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """A run as its packages know it. ``identity`` is its own, whatever runs have its name;
    ``resumed``: it had that before."""

    path: Path
    name: str
    project: str
    identity: str
    config: Mapping[str, Any]
    resumed: bool


class _Metrics:
    """The base of what takes metrics alone."""

    def text(self, step: int, name: str, markdown: str) -> None: ...

    def forget_after(self, step: int) -> None:
        """None of the packages can: steps that are done again are there twice, the valid ones
        last."""


class WandbLogger(_Metrics):
    """W&B: one history row a step, with ``step`` in it, which charts are drawn over. W&B's own
    counter is the step, too, until steps are done again."""

    def __init__(self, wandb: Any, run: LoggedRun) -> None:
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.identity,
            resume="allow",
            config=dict(run.config),
            allow_val_change=True,
            dir=os.environ.get("WANDB_DIR") or str(run.path),
            reinit="create_new",
            settings=wandb.Settings(console="off", disable_git=True, disable_code=True),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self._next = int(self._run.step)

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        own = max(step, self._next)  # W&B drops what has an earlier one
        self._run.log({**metrics, "step": step}, step=own)
        self._next = own + 1

    def close(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MlflowLogger(_Metrics):
    """MLflow: a run found again by its tag, the configuration as dotted parameters."""

    def __init__(self, mlflow: Any, run: LoggedRun) -> None:
        self._mlflow = mlflow
        self._client = mlflow.MlflowClient()
        known = self._client.get_experiment_by_name(run.project)
        where = known.experiment_id if known else self._client.create_experiment(run.project)
        self._id = self._again(where, run.identity) if run.resumed else None
        if self._id is not None:
            return  # what changed since is in the run directory: a parameter is written once
        tags = {"flowright.id": run.identity, "flowright.directory": str(run.path.absolute())}
        self._id = self._client.create_run(where, run_name=run.name, tags=tags).info.run_id
        params = [
            mlflow.entities.Param(key, str(value)[:PARAM_CHARS]) for key, value in _flat(run.config)
        ]
        for some in _parts(params, PARAMS_AT_ONCE):
            self._client.log_batch(self._id, params=some)

    def _again(self, where: str, identity: str) -> str | None:
        found = self._client.search_runs([where], f"tags.`flowright.id` = '{identity}'")
        if not found:
            return None
        self._client.update_run(found[0].info.run_id, status="RUNNING")
        return found[0].info.run_id

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        rows = [
            self._mlflow.entities.Metric(re.sub(r"[^\w./: -]", "_", name), value, now, step)
            for name, value in metrics.items()
        ]
        for some in _parts(rows, METRICS_AT_ONCE):
            self._client.log_batch(self._id, metrics=some)

    def close(self, status: str) -> None:
        self._client.set_terminated(self._id, ENDS.get(status, "KILLED"))


class TrackioLogger(_Metrics):
    """trackio: a run by its name and identity, since it knows runs by their names."""

    def __init__(self, trackio: Any, run: LoggedRun) -> None:
        self._run = trackio.init(
            project=run.project,
            name=f"{run.name}-{run.identity}",
            resume="allow",
            config={"run_name": run.name, **run.config},
            embed=False,
        )

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, status: str) -> None:
        self._run.finish()


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


PACKAGES: Mapping[str, Callable[[Any, LoggedRun], Any]] = {
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
    "trackio": TrackioLogger,
}
