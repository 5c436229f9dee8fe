"""Commands that use a trained policy, and the one that serves the simulated model."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flowright.core.command_line import at_least_one, settings_of
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
    parser.add_argument(
        "source", type=Path, help="a run (its best checkpoint, or else its newest), or a checkpoint"
    )
    parser.add_argument("question", help="or - to read it from standard input")
    parser.add_argument("--kind", choices=("math", "code", "qa"), default="qa")
    parser.add_argument(
        "--executor", metavar="NAME", help="a model of llm.file, or simulated (default: the run's)"
    )
    parser.add_argument(
        "--samples",
        type=at_least_one,
        default=1,
        help="workflows that are drawn; the first that gives an answer counts (default: 1)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    parser.add_argument("--temperature", type=float, help="default: that of the run's evaluations")
    parser.add_argument("--json", dest="as_json", action="store_true",
                        help="everything, as one JSON object")  # fmt: skip
    parser.add_argument("--config", type=Path, help="instead of the run's config.json")
    parser.add_argument("overrides", nargs="*", metavar="key=value")


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
    with prepared(console):
        yield run


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", type=Path, help="a run (its best checkpoint, or else its newest), or a checkpoint"
    )
    parser.add_argument("--host", default="127.0.0.1", help="default: this machine alone")
    parser.add_argument("--port", type=int, default=8010, help="0 for any free one")
    parser.add_argument("--name", help="of the model (default: the run's)")
    parser.add_argument(
        "--executor", metavar="NAME", help="a model of llm.file, or simulated (default: the run's)"
    )
    parser.add_argument("--kind", choices=("math", "code", "qa"), default="qa")
    parser.add_argument(
        "--samples", type=at_least_one, help="workflows drawn for each question (default: 1)"
    )
    parser.add_argument(
        "--in-flight", dest="max_in_flight", metavar="N", type=at_least_one,
        help="questions that are answered at once (default: 64)",
    )  # fmt: skip
    parser.add_argument("--queue", dest="max_queue", metavar="N", type=int,
                        help="that wait for their turn (default: 256)")  # fmt: skip
    parser.add_argument("--seconds", type=float, help="of one answer (default: 600)")
    parser.add_argument("--max-body", dest="max_body_bytes", metavar="BYTES", type=at_least_one,
                        help="bytes of a request (default: 1 MiB)")  # fmt: skip
    parser.add_argument("--config", type=Path, help="instead of the run's config.json")
    parser.add_argument("overrides", nargs="*", metavar="key=value")


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

    parser.add_argument("--tasks", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--offline", action="store_true", help="know the offline mixture")
    parser.add_argument("--data-seed", type=int, default=0, help="of the offline mixture")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8002, help="0 for any free one")
    parser.add_argument("--seed", type=int, default=0, help="of difficulties and mistakes")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="mean time added to a reply")
    for flag, names, form in (("--fault", _faults(), "SHARE"), ("--bias", BIASES, "WEIGHT")):
        shown = f"one of {', '.join(names)}"
        parser.add_argument(flag, action="append", default=[], metavar=f"NAME={form}", help=shown)
    parser.add_argument("--true-positive", type=float, default=0.97, help="of the judge")
    parser.add_argument("--false-positive", type=float, default=0.03, help="of the judge")
    parser.add_argument("--allow-weaker-sandbox", action="store_true")


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
