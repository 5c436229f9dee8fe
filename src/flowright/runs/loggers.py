"""Metrics and texts of a run beside ``metrics.jsonl``: TensorBoard's event files, and the packages
of ``run.loggers``.

None is read again and none can end a run: one that fails is off from then on, with one warning.
Packages get the run's name, its configuration and each step's metrics under their own names and
steps; sample texts go to TensorBoard alone. A package's own environment variables say where it
sends them, and with which key (docs/monitoring.md).
"""

import importlib
import importlib.util
import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flowright.config.root import Config
from flowright.config.run import RunSection
from flowright.core.errors import ConfigError, boundary
from flowright.core.files import read_json, write_json
from flowright.core.formatting import flatten

IDENTITY = "loggers.json"
"""File of the run directory with the name that packages know the run by, for a resumed run."""

LAST_SECONDS = 60.0
"""Time at the end of a run for packages to deliver what is left."""


class Logger(Protocol):
    """Anything that takes a run's numbers. Any exception means that it has failed."""

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def text(self, step: int, name: str, markdown: str) -> None: ...

    def forget_after(self, step: int) -> None:
        """Drop later steps, which are done again."""

    def close(self, status: str) -> None:
        """``status``: as in ``state.json``."""


Act = Callable[[Logger], object]


def check_loggers(section: RunSection) -> str:
    """Return the names in ``run.loggers``; nothing is imported. Raises ConfigError with a line for
    each package that is not installed."""
    # A folder of that name, such as W&B's own ./wandb, is a module without a file.
    missing = [
        f"run.loggers: {name} is not installed; pip install -r requirements-loggers.txt, or leave "
        "it out"
        for name in section.packages
        if (found := importlib.util.find_spec(name)) is None or found.origin is None
    ]
    if missing:
        raise ConfigError(*missing)
    return ", ".join(section.packages)


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """A run as packages know it. ``identity`` is its own, even if other runs have its name;
    ``resumed``: it had one before."""

    path: Path
    name: str
    project: str
    identity: str
    config: Mapping[str, Any]
    resumed: bool


class Loggers:
    """All loggers of a run directory that its trainer has opened."""

    def __init__(
        self,
        path: Path,
        config: Config,
        resolved: Mapping[str, Any],
        last_seconds: float = LAST_SECONDS,
    ) -> None:
        section = config.run
        self._last_seconds = last_seconds
        self._failures: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._all: list[_Inline | _Threaded] = []
        if section.tensorboard:
            self._all.append(_Inline(path / "tensorboard", self._failures))
        if section.packages:
            identity, resumed = _identity(path)
            run = LoggedRun(path, section.name, section.project, identity, resolved, resumed)
            self._all += [_Threaded(name, run, self._failures) for name in section.packages]

    def do(self, act: Act) -> None:
        """Have each logger do something, unless it has failed."""
        for logger in self._all:
            logger.do(act)

    def close(self, status: str) -> None:
        """Close all with the run's ``status``; wait until everything is delivered, up to the time
        limit."""
        for logger in self._all:
            logger.do(lambda one: one.close(status))
        end = time.monotonic() + self._last_seconds
        for logger in self._all:
            if not logger.end(max(0.0, end - time.monotonic())):
                late = f"not done {self._last_seconds:.0f} seconds after the run's end"
                self._failures.put(_failure(logger.name, late))

    def failures(self) -> list[str]:
        """Return a line for each failure since the last call."""
        return [self._failures.get() for _ in range(self._failures.qsize())]


def _identity(path: Path) -> tuple[str, bool]:
    """Return the run's name for packages, and whether it had one before."""
    file = path / IDENTITY
    try:
        known = read_json(file)["id"]
        if isinstance(known, str) and known:
            return known, True
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none yet, or a damaged one: its earlier logs cannot be found again
    identity = secrets.token_hex(4)
    write_json(file, {"id": identity})
    return identity, False


def _failure(name: str, message: str) -> str:
    line = " ".join(message.split())[:300]
    return f"run.loggers: {name} is off from here on ({line}); metrics.jsonl has every step"


class _Inline:
    """TensorBoard, in the trainer's own thread."""

    name = "tensorboard"

    def __init__(self, path: Path, failures: "queue.SimpleQueue[str]") -> None:
        self._failures = failures
        self._logger: Logger | None = None
        with boundary(self.name) as caught:
            self._logger = Events(path)
        if caught.failure is not None:
            failures.put(_failure(self.name, caught.failure.message))

    def do(self, act: Act) -> None:
        if self._logger is None:
            return
        with boundary(self.name) as caught:
            act(self._logger)
        if caught.failure is not None:
            self._logger = None
            self._failures.put(_failure(self.name, caught.failure.message))

    def end(self, seconds: float) -> bool:
        return True


class _Threaded:
    """A package on a thread of its own: a server that is slow or gone holds up no step.

    It is imported in the trainer's thread, since imports in two threads at once can wait for each
    other.
    """

    def __init__(self, name: str, run: LoggedRun, failures: "queue.SimpleQueue[str]") -> None:
        self.name = name
        self._failures = failures
        self._acts: queue.SimpleQueue[Act | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        with boundary(name) as caught:
            package = importlib.import_module(name)
            thread = threading.Thread(
                target=self._work, args=(package, run), name=name, daemon=True
            )
            thread.start()
            self._thread = thread
        if caught.failure is not None:
            failures.put(_failure(name, caught.failure.message))

    def _work(self, package: Any, run: LoggedRun) -> None:
        try:
            with boundary(self.name) as caught:
                logger = PACKAGES[self.name](package, run)
                while (act := self._acts.get()) is not None:
                    act(logger)
        except SystemExit as error:  # raised by a package that would end its program
            self._failures.put(_failure(self.name, f"it exits: {error}"))
        else:
            if caught.failure is not None:
                self._failures.put(_failure(self.name, caught.failure.message))

    def do(self, act: Act) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._acts.put(act)

    def end(self, seconds: float) -> bool:
        """Return whether everything was delivered within the time."""
        if self._thread is None:
            return True
        self._acts.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()


FAMILIES = {"repair/": "rollout/repaired", "operators/": ""}
"""Metrics that a step leaves out where there is nothing to count, so that a curve would skip it.
Each with the metric that shows that there was something to count; without one it is any other of
the same kind."""


def _counts(name: str, metrics: Mapping[str, float]) -> bool:
    """Return whether a metric of FAMILIES that a step lacks is 0 there, and not unknown."""
    witness = next(shown for family, shown in FAMILIES.items() if name.startswith(family))
    kind = name.rpartition("/")[0] + "/"
    return witness in metrics or any(other.startswith(kind) for other in metrics)


class Events:
    """TensorBoard's event file in the folder ``path``, written without torch."""

    def __init__(self, path: Path) -> None:
        # Imported here: half a second that a run without TensorBoard and every reader save.
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        # Generated protobuf modules build their classes at import: no checker sees them.
        self._event: Any = getattr(event_pb2, "Event")  # noqa: B009
        self._session: Any = getattr(event_pb2, "SessionLog")  # noqa: B009
        self._summary: Any = getattr(summary_pb2, "Summary")  # noqa: B009
        self._tensor: Any = getattr(tensor_pb2, "TensorProto")  # noqa: B009
        self._string_type: int = getattr(types_pb2, "DT_STRING")  # noqa: B009
        self._text_metadata = create_summary_metadata("", "")
        self._writer = EventFileWriter(str(path))
        self._counted: dict[str, None] = {}  # names of FAMILIES so far

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        zeros = [name for name in self._counted if name not in metrics and _counts(name, metrics)]
        self._counted |= dict.fromkeys(name for name in metrics if name.startswith(tuple(FAMILIES)))
        shown = {**metrics, **dict.fromkeys(zeros, 0.0)}
        values = [self._summary.Value(tag=k, simple_value=v) for k, v in shown.items()]
        self._add(step, values)

    def text(self, step: int, name: str, markdown: str) -> None:
        tensor = self._tensor(dtype=self._string_type, string_val=[markdown.encode()])
        tensor.tensor_shape.dim.add(size=1)
        value = self._summary.Value(tag=name, metadata=self._text_metadata, tensor=tensor)
        self._add(step, [value])

    def forget_after(self, step: int) -> None:
        """Have readers drop later steps of earlier files of this folder."""
        session = self._session(status=self._session.START)
        self._write(step=step + 1, session_log=session)

    def _add(self, step: int, values: list[Any]) -> None:
        self._write(step=step, summary=self._summary(value=values))

    def _write(self, **fields: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), **fields))
        self._writer.flush()

    def close(self, status: str) -> None:
        self._writer.close()


METRICS_AT_ONCE, PARAMS_AT_ONCE, PARAM_CHARS = 1000, 100, 6000
"""MLflow's limits for one request, and for a parameter's value."""

ENDS = {"finished": "FINISHED", "failed": "FAILED"}
"""MLflow's names for the ends of a run; any other end is KILLED."""


class _MetricsOnly:
    """Base of loggers without texts. No package can forget: steps that are done again are there
    twice, the valid ones last."""

    def text(self, step: int, name: str, markdown: str) -> None: ...

    def forget_after(self, step: int) -> None: ...


class WandbLogger(_MetricsOnly):
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


class MlflowLogger(_MetricsOnly):
    """MLflow: a run found again by its tag, the configuration as dotted parameters."""

    def __init__(self, mlflow: Any, run: LoggedRun) -> None:
        self._mlflow = mlflow
        self._client = mlflow.MlflowClient()
        known = self._client.get_experiment_by_name(run.project)
        where = known.experiment_id if known else self._client.create_experiment(run.project)
        self._id = self._earlier_run(where, run.identity) if run.resumed else None
        if self._id is not None:
            return  # what changed since is in the run directory: a parameter is written once
        tags = {"flowright.id": run.identity, "flowright.directory": str(run.path.absolute())}
        self._id = self._client.create_run(where, run_name=run.name, tags=tags).info.run_id
        flat = flatten(run.config)
        params = [mlflow.entities.Param(key, str(value)[:PARAM_CHARS]) for key, value in flat]
        self._log("params", params, PARAMS_AT_ONCE)

    def _earlier_run(self, where: str, identity: str) -> str | None:
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
        self._log("metrics", rows, METRICS_AT_ONCE)

    def _log(self, field: str, rows: Sequence[Any], most: int) -> None:
        for start in range(0, len(rows), most):
            self._client.log_batch(self._id, **{field: rows[start : start + most]})

    def close(self, status: str) -> None:
        self._client.set_terminated(self._id, ENDS.get(status, "KILLED"))


class TrackioLogger(_MetricsOnly):
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


PACKAGES: Mapping[str, Callable[[Any, LoggedRun], Any]] = {
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
    "trackio": TrackioLogger,
}
