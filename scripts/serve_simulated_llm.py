#!/usr/bin/env python3
"""Serve the simulated large model on its own, for any OpenAI client.

    python scripts/serve_simulated_llm.py --offline
    python scripts/serve_simulated_llm.py --tasks data/mixed/val_mixed.jsonl --port 8002

It knows the tasks that it is given and nothing else; every number that comes from it is simulated.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # need not be installed

from flowright.config.llm import FaultSection, SimulatedSection
from flowright.core.errors import UserError
from flowright.core.plugins import suggest
from flowright.data.task import Problem, read_tasks
from flowright.simulation.assessor import BIASES
from flowright.simulation.process import check_port, serve

FAULTS = tuple(name for name in FaultSection.model_fields if name != "roles")


def main() -> int:
    options = _parser().parse_args()
    try:
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
    except UserError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--offline", action="store_true", help="know the offline mixture")
    parser.add_argument("--data-seed", type=int, default=0, help="of the offline mixture")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8002, help="0 for any free one")
    parser.add_argument("--seed", type=int, default=0, help="of difficulties and mistakes")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="mean time added to a reply")
    for flag, names, form in (("--fault", FAULTS, "SHARE"), ("--bias", BIASES, "WEIGHT")):
        shown = f"one of {', '.join(names)}"
        parser.add_argument(flag, action="append", default=[], metavar=f"NAME={form}", help=shown)
    parser.add_argument("--true-positive", type=float, default=0.97, help="of the judge")
    parser.add_argument("--false-positive", type=float, default=0.03, help="of the judge")
    parser.add_argument("--allow-weaker-sandbox", action="store_true")
    return parser


def _tasks(options: argparse.Namespace) -> list[Problem]:
    if not (options.tasks or options.offline):
        raise UserError("no tasks: give --tasks FILE (repeatable) or --offline")
    known: dict[str, Problem] = {}
    for file in options.tasks:
        known.update((task.id, task) for task in read_tasks(file))
    if options.offline:
        from flowright.data.offline import build_offline  # imports reasoning-gym: seconds

        splits = build_offline(options.data_seed)
        for split in (splits.train, splits.val, splits.test):
            known.update((task.id, task) for task in split)
    return list(known.values())


def _section(options: argparse.Namespace) -> SimulatedSection:
    try:
        return SimulatedSection(
            seed=options.seed,
            latency_ms=options.latency_ms,
            judge_true_positive=options.true_positive,
            judge_false_positive=options.false_positive,
            judge_biases=_pairs("--bias", options.bias, BIASES),
            faults=FaultSection.model_validate(_pairs("--fault", options.fault, FAULTS)),
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
        "Nothing that it says comes from a language model. Ctrl-C ends it.",
        flush=True,
    )


if __name__ == "__main__":
    from flowright.core.command_line import run_command

    sys.exit(run_command(main, signals=False))
