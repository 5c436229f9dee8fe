"""Commands that use a trained policy, and the one that serves the simulated model."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flowright.core import arguments as add
from flowright.core.command_line import settings_of
from flowright.core.errors import UserError
from flowright.core.plugins import suggest

if TYPE_CHECKING:
    from rich.console import Console

    from flowright.app.ask_policy import ServedRun
    from flowright.config.llm import SimulatedSection
    from flowright.data.task import Problem

_OF_RUN = ("source", "config", "overrides", "executor")
"""Options that choose the run and its settings, not those of its server."""


def add_ask_options(parser: argparse.ArgumentParser) -> None:
    add.path(parser, "source", "a run (its best checkpoint, or else its newest), or a checkpoint")
    add.text(parser, "question", "or - to read it from standard input")
    add.choice(parser, "--kind", ("math", "code", "qa"), default="qa")
    add.text(parser, "--executor", "a model of llm.file, or simulated (default: the run's)", "NAME")
    add.text(parser, "--samples", "workflows that are drawn; the first that gives an answer "
             "counts (default: 1)", type=add.at_least_one, default=1)  # fmt: skip
    add.whole(parser, "--seed", "of the draws (default: 0)", default=0)
    add.number(parser, "--temperature", "default: that of the run's evaluations")
    add.flag(parser, "--json", "everything, as one JSON object", dest="as_json")
    add.path(parser, "--config", "instead of the run's config.json")
    add.overrides(parser)


def ask(options: argparse.Namespace) -> int:
    """Answer a question with a trained policy: it writes a workflow, and the workflow runs.

    flowright ask outputs/quickstart "What is 12 * 34?"
    flowright ask outputs/training "Who wrote Emma?" --executor gpt-oss-120b

    Exit status: 0 with an answer, 1 if the policy's workflow failed, 2 for any other failure.
    """
    from rich.console import Console

    if options.question == "-":
        options.question = sys.stdin.read()
    console = Console(stderr=True)
    with _opened(options, console) as run:
        from flowright.app.ask_policy import QuestionRequest, run_workflow

        return run_workflow(run, settings_of(options, QuestionRequest), console)


@contextmanager
def _opened(options: argparse.Namespace, console: "Console") -> "Iterator[ServedRun]":
    """Check the run of the options, with ``--executor`` as the first override, and load the slow
    libraries."""
    from flowright.app.ask_policy import open_run
    from flowright.app.launch import prepared

    executor = options.executor
    named = [f"aflow_executor_model={executor}"] if executor else []
    run = open_run(options.source, options.config, [*named, *options.overrides])
    if executor and run.config.executor.models:
        raise UserError(
            "--executor: the run's programs choose from executor.models; override those"
        )
    with prepared(console):
        yield run


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    add.path(parser, "source", "a run (its best checkpoint, or else its newest), or a checkpoint")
    add.text(parser, "--host", "default: this machine alone", default="127.0.0.1")
    add.whole(parser, "--port", "0 for any free one", default=8010)
    add.text(parser, "--name", "of the model (default: the run's)")
    add.text(parser, "--executor", "a model of llm.file, or simulated (default: the run's)", "NAME")
    add.choice(parser, "--kind", ("math", "code", "qa"), default="qa")
    add.text(parser, "--samples", "workflows drawn for each question (default: 1)",
             type=add.at_least_one)  # fmt: skip
    add.count(parser, "--in-flight", "questions that are answered at once (default: 64)",
              dest="max_in_flight")  # fmt: skip
    add.whole(parser, "--queue", "that wait for their turn (default: 256)", "N", dest="max_queue")
    add.number(parser, "--seconds", "of one answer (default: 600)")
    add.text(parser, "--max-body", "bytes of a request (default: 1 MiB)", "BYTES",
             dest="max_body_bytes", type=add.at_least_one)  # fmt: skip
    add.path(parser, "--config", "instead of the run's config.json")
    add.overrides(parser)


def serve(options: argparse.Namespace) -> int:
    """Serve a trained policy as an OpenAI-compatible endpoint that writes and runs workflows.

    flowright serve outputs/quickstart
    flowright serve outputs/training --executor gpt-oss-120b --samples 4 --port 8010

    If FLOWRIGHT_POLICY_KEY is set, callers must send it as a bearer key. docs/serving.md describes
    requests and responses.
    """
    from rich.console import Console

    given = {key: value for key, value in vars(options).items() if key not in _OF_RUN}
    with _opened(options, Console(stderr=True)) as run:
        from flowright.app.policy_service import serve_policy

        return serve_policy(run, **given, api_key=os.environ.get("FLOWRIGHT_POLICY_KEY"))


def add_simulate_options(parser: argparse.ArgumentParser) -> None:
    from flowright.simulation.assessor import BIASES

    add.path(parser, "--tasks", metavar="FILE", action="append", default=[])
    add.flag(parser, "--offline", "know the offline mixture")
    add.whole(parser, "--data-seed", "of the offline mixture", default=0)
    add.text(parser, "--host", default="127.0.0.1")
    add.whole(parser, "--port", "0 for any free one", default=8002)
    add.whole(parser, "--seed", "of difficulties and mistakes", default=0)
    add.number(parser, "--latency-ms", "mean time added to a reply", default=0.0)
    for flag, names, form in (("--fault", _faults(), "SHARE"), ("--bias", BIASES, "WEIGHT")):
        shown = f"one of {', '.join(names)}"
        add.each(parser, flag, shown, f"NAME={form}")
    add.number(parser, "--true-positive", "of the judge", default=0.97)
    add.number(parser, "--false-positive", "of the judge", default=0.03)
    add.flag(parser, "--allow-weaker-sandbox")


def simulate(options: argparse.Namespace) -> int:
    """Serve the simulated large model on its own, for any OpenAI client.

    flowright simulate --offline
    flowright simulate --tasks data/mixed/val_mixed.jsonl --port 8002

    It knows the given tasks and nothing else; every number that comes from it is simulated.
    """
    from flowright.core.net import check_port
    from flowright.simulation.process import serve

    section = _section(options)
    check_port(options.port)  # before the tasks are made
    tasks = _tasks(options)
    serve(
        tasks,
        section,
        host=options.host,
        port=options.port,
        allow_weaker=options.allow_weaker_sandbox,
        ready=lambda port: _announce(options.host, port, len(tasks)),
    )
    return 0


def _tasks(options: argparse.Namespace) -> list["Problem"]:
    from flowright.data.task import read_tasks

    if not (options.tasks or options.offline):
        raise UserError("no tasks: give --tasks FILE (repeatable) or --offline")
    known: dict[str, Problem] = {}
    for file in options.tasks:
        known.update((task.id, task) for task in read_tasks(file))
    if options.offline:
        from flowright.data.loading import build_offline  # imports reasoning-gym: seconds

        splits = build_offline(options.data_seed)
        for split in (splits.train, splits.val, splits.test):
            known.update((task.id, task) for task in split)
    return list(known.values())


def _faults() -> tuple[str, ...]:
    from flowright.config.llm import FaultSection

    return tuple(name for name in FaultSection.model_fields if name != "roles")


def _section(options: argparse.Namespace) -> "SimulatedSection":
    from pydantic import ValidationError

    from flowright.config.llm import FaultSection, SimulatedSection
    from flowright.simulation.assessor import BIASES

    try:
        return SimulatedSection(
            seed=options.seed,
            latency_ms=options.latency_ms,
            judge_true_positive=options.true_positive,
            judge_false_positive=options.false_positive,
            judge_biases=_pairs("--bias", options.bias, BIASES),
            faults=FaultSection.model_validate(_pairs("--fault", options.fault, _faults())),
        )
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise UserError(*lines) from None


def _pairs(flag: str, given: list[str], known: Sequence[str]) -> dict[str, float]:
    pairs: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in known:
            raise UserError(f"{flag} {text}: one of {', '.join(known)}{suggest(name, known)}")
        try:
            pairs[name] = float(value)
        except ValueError:
            raise UserError(f"{flag} {text}: write it as name=number") from None
    return pairs


def _announce(host: str, port: int, count: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    print(
        f"Simulated model `simulated` at http://{shown}:{port}/v1, {count} tasks known.\n"
        "Its replies do not come from a language model. Ctrl-C ends it.",
        flush=True,
    )
