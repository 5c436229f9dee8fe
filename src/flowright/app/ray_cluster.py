"""A Ray cluster, and the processes of a run on it. The only file that imports Ray.

Ray Train places the workers, starts them as ranks of torch.distributed, and each then does what it
would do under torchrun (:mod:`flowright.grpo.ranks`). Checkpoints are the run's own, so that a run
may go on with another number of workers, or without Ray.
"""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flowright.config.root import Config
from flowright.core.checkout import child_environment
from flowright.core.errors import ConfigError, PeerLost, RunError, UserError
from flowright.core.network_faults import network_fault
from flowright.environments.worker import RolloutWorker, RolloutWorkerLost, WorkerReply

HEAD_SECONDS = 5.0
"""Limit for the first contact with a cluster's head."""

OBJECT_STORE_BYTES = 100 << 20
"""Object store of Ray, close to its minimum: no data of a run goes through it."""


@contextmanager
def joined(address: str | None) -> Iterator[Any]:
    """Join a cluster and yield Ray's module: the cluster of ``address``, else of the variable
    RAY_ADDRESS, else a new one of this machine, which ends with this. Raises ConfigError if there
    is none."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise _not_installed(error) from error
    cluster = cluster_of(address, os.environ.pop("RAY_ADDRESS", ""), os.environ.get("RAY_PORT", ""))
    check_head(cluster)
    where = _where(cluster)
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.WARNING)
    except Exception as error:
        raise ConfigError(
            f"--ray: {_first_line(error)}; start the cluster (ray start --head), or leave "
            "ray.address and RAY_ADDRESS out for one of this run's own"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_head(cluster: str | None) -> None:
    """Raise ConfigError if nothing listens at a cluster's ``host:port``, for which Ray would wait
    minutes in silence."""
    host, _, port = (cluster or "").rpartition(":")
    if not host or not port.isdigit() or "://" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), HEAD_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        why = network_fault(error, f"tcp://{cluster}", None) or error
        raise ConfigError(
            f"--ray: {cluster}: {why}; start the cluster (ray start --head --port {port}), or "
            "change ray.address (RAY_ADDRESS)"
        ) from None


def shortage(
    nodes: Sequence[Mapping[str, float]], wanted: Mapping[str, float], workers: int
) -> str | None:
    """Return what a cluster of these nodes lacks for the workers, each of which needs its resources
    on one node; None if they fit."""
    places = sum(
        int(min(node.get(name, 0.0) / amount for name, amount in wanted.items())) for node in nodes
    )
    if places >= workers:
        return None
    has = ", ".join(f"{sum(node.get(name, 0.0) for node in nodes):g} {name}s" for name in wanted)
    each = ", ".join(f"{amount:g} {name}s" for name, amount in wanted.items())
    return (
        f"--ray: {workers} workers of {each} each are asked for, and {places} fit into the cluster "
        f"({has} on {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}); add nodes, or lower "
        "ray.workers, ray.gpus_per_worker (0: on CPUs) or ray.cpus_per_worker"
    )


def _check_room(ray: Any, config: Config) -> None:
    """Raise ConfigError if the cluster can never place ranks and rollout workers, and print a line
    if they wait for others to end."""
    wanted, workers = _resources(config), config.ray.workers
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if lacks := shortage(nodes, wanted, workers):
        raise ConfigError(lacks)
    rollout, cpus = config.rollout, sum(node.get("CPU", 0.0) for node in nodes)
    left, count = cpus - workers * wanted["CPU"], workers * rollout.workers
    if left < count * rollout.worker_cpus:
        raise ConfigError(
            f"--ray: {count} rollout workers of {rollout.worker_cpus} CPUs each are asked for, and "
            f"the ranks leave {left:g} CPUs; add nodes, or lower rollout.workers or "
            "rollout.worker_cpus"
        )
    free = ray.available_resources()
    if short := [name for name, n in wanted.items() if free.get(name, 0.0) < n * workers]:
        left = (f"{free.get(n, 0.0):g} of {wanted[n] * workers:g} {n}s" for n in short)
        print(f"ray       waiting: {', '.join(left)} are free", flush=True)


class _Actor(RolloutWorker):
    """A rollout worker in the folder of the run."""

    def __init__(self, folder: str) -> None:
        os.chdir(folder)
        super().__init__()


class RayWorker:
    """A :class:`flowright.environments.remote.WorkerProcess` on a node of the cluster."""

    def __init__(self, ray: Any, cpus: int) -> None:
        self._ray = ray
        self._why = ""
        options = {"num_cpus": cpus, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        self._actor = ray.remote(_Actor).options(**options).remote(str(Path.cwd()))

    async def ask(self, method: str, *arguments: Any) -> WorkerReply:
        try:
            return await self._actor.ask.remote(method, *arguments)
        except self._ray.exceptions.RayActorError as error:
            raise RolloutWorkerLost(self._why or _first_line(error)) from None

    def kill(self, why: str) -> None:
        self._why = self._why or why
        self._ray.kill(self._actor)

    async def close(self) -> None:
        self.kill("closed")


def starter_on_ray(config: Config) -> Callable[[], Awaitable[RayWorker]] | None:
    """Return the start of rollout workers in the cluster that this process is a part of; None where
    it is of none."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None

    async def start() -> RayWorker:
        return RayWorker(ray, config.rollout.worker_cpus)

    return start


def _not_installed(error: ImportError) -> ConfigError:
    return ConfigError(f"--ray: {error}; install it: pip install -r requirements-ray.txt")


def run_on_ray(
    worker: Callable[[dict[str, Any]], None], fields: dict[str, Any], config: Config
) -> None:
    """Call ``worker(fields)`` on every rank of a cluster, and wait for all. ``fields["log"]`` is a
    file in which the first rank writes what is to be shown here: Ray's own lines, dozens about
    nothing, stay in its logs.

    Raises UserError with what the worker that failed first has to say, without Ray's own traces.
    """
    section, records = config.ray, (config.run.output_dir / ".ray").absolute()
    # A name that was used before would go on with Ray's own record of that run.
    name = f"{config.run.name}-{time.time_ns()}"
    records.mkdir(parents=True, exist_ok=True)
    fields = {**fields, "log": str(records / f"{name}.log")}
    with joined(section.address) as ray:
        _check_room(ray, config)
        try:
            from ray.train import (  # pyright: ignore[reportMissingImports]
                FailureConfig,
                RunConfig,
                ScalingConfig,
                TrainingFailedError,
            )
            from ray.train.torch import TorchTrainer  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise _not_installed(error) from error
        trainer = TorchTrainer(
            worker,
            train_loop_config=fields,
            scaling_config=ScalingConfig(
                num_workers=section.workers,
                use_gpu=section.gpus_per_worker > 0,
                resources_per_worker=_resources(config),
            ),
            run_config=RunConfig(
                name=name,
                storage_path=str(records),
                failure_config=FailureConfig(max_failures=section.max_failures),
            ),
        )
        try:
            with _echo(Path(fields["log"])):
                trainer.fit()
        except TrainingFailedError as error:
            raise in_words(getattr(error, "worker_failures", {}), error) from None


@contextmanager
def _echo(path: Path) -> Iterator[None]:
    """Print the lines that are appended to a file."""
    path.touch()
    done = threading.Event()

    def follow() -> None:
        with path.open(encoding="utf-8") as file:
            while True:
                ended = done.wait(0.2)
                text = file.read()  # whatever came before the end was seen
                print(text, end="", flush=True)
                if ended:
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def cluster_of(address: str | None, ray_address: str, port: str = "") -> str | None:
    """The cluster to join, as ray.init has it: of the configuration, else that of the variable
    RAY_ADDRESS; None for a new one. Of a dashboard's address the host is taken, which is the
    head's, with the ``port`` of RAY_PORT or Ray's own. (The variable is not
    left to ray.init: it would outdo ``auto``.)"""
    address = address or ray_address or None
    if address is None or not address.startswith(("http://", "https://")):
        return address
    host = urlsplit(address).hostname
    if host in ("localhost", "127.0.0.1", None):
        return f"127.0.0.1:{port}" if port else "auto"
    return f"{host}:{port or 6379}"


def _where(address: str | None) -> dict[str, Any]:
    """Arguments of ray.init; workers import this package from where this process has it."""
    found = {"runtime_env": {"env_vars": {"PYTHONPATH": child_environment()["PYTHONPATH"]}}}
    if address is not None:
        return {"address": address, **found}
    return {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES, **found}


def _resources(config: Config) -> dict[str, float]:
    wanted: dict[str, float] = {"CPU": config.ray.cpus_per_worker}
    if config.ray.gpus_per_worker:
        wanted["GPU"] = config.ray.gpus_per_worker
    return wanted


def in_words(failures: Mapping[int, Exception], error: Exception) -> UserError:
    """Summarise a failed run from each rank's failure and Ray's own error.

    The rank that failed first explains it: the others report a lost peer, and a killed rank reports
    nothing, so that Ray's error stands for it.
    """
    ranks = sorted(failures.items())
    for _, failure in ranks:
        if isinstance(failure, UserError) and not isinstance(failure, PeerLost):
            return failure
    lost = [
        f"rank {rank} of the run was lost: {_first_line(failure)}"
        for rank, failure in ranks
        if not isinstance(failure, PeerLost)
    ]
    return RunError(
        *(lost or [_first_line(error)]),
        "start again with --resume: the run goes on from its last checkpoint",
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"
