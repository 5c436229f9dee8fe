"""The table of subcommands, and how one is found, parsed and run.

A file of ``scripts/`` runs one of them under the script's own name.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowright import __version__
from flowright.cli import datasets, instructions, judges, runs, serving, training_files
from flowright.core.command_line import (
    check_descriptors,
    run_command,
    signals_as_interrupts,
)
from flowright.core.plugins import guarded_imports, suggest

PROGRAM = "flowright"


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand; the docstring of ``run`` is its help.

    ``signals``: False where the command handles SIGINT and SIGTERM itself; ``stopped`` is then
    printed after Ctrl-C, SIGTERM or SIGHUP. ``opens_runs``: it may get its configuration from a
    run, and has --trust.
    """

    run: Callable[[argparse.Namespace], int]
    add_options: Callable[[argparse.ArgumentParser], None]
    signals: bool = True
    stopped: str = ""
    opens_runs: bool = False

    @property
    def description(self) -> str:
        return inspect.getdoc(self.run) or ""


COMMANDS: Mapping[str, Command] = {
    "train": Command(runs.train, runs.add_train_options, opens_runs=True),
    "evaluate": Command(runs.evaluate, runs.add_evaluate_options, opens_runs=True),
    "warm-start": Command(runs.warm_start, runs.add_warm_start_options, opens_runs=True),
    "export": Command(runs.export, runs.add_export_options),
    "monitor": Command(runs.monitor, runs.add_monitor_options, signals=False),
    "view": Command(runs.view, runs.add_view_options, signals=False),
    "report": Command(runs.report, runs.add_run_options),
    "replay": Command(runs.replay, runs.add_replay_options, opens_runs=True),
    "study": Command(runs.study, runs.add_study_options),
    "ask": Command(serving.ask, serving.add_ask_options, opens_runs=True),
    "serve": Command(serving.serve, serving.add_serve_options, signals=False, opens_runs=True),
    "simulate": Command(serving.simulate, serving.add_simulate_options, signals=False),
    "data download": Command(
        datasets.download,
        datasets.add_download_options,
        signals=False,
        stopped="interrupted; the same command goes on where it stopped",
    ),
    "data mix": Command(datasets.mix, datasets.add_mix_options),
    "data preferences": Command(training_files.preferences, training_files.add_preferences_options),
    "data transcripts": Command(
        training_files.transcripts,
        training_files.add_transcripts_options,
        signals=False,
        stopped="stopped; finished rows are kept, the same command goes on",
    ),
    "data constraints": Command(
        training_files.constraints, training_files.add_constraints_options, signals=False
    ),
    "data rubrics": Command(
        training_files.rubrics,
        training_files.add_rubrics_options,
        signals=False,
        stopped="stopped; replies are kept, the same command goes on",
    ),
    "judge exam": Command(
        judges.exam,
        judges.add_exam_options,
        signals=False,
        stopped="stopped; verdicts.jsonl has the verdicts up to here",
    ),
    "judge benchmark": Command(
        judges.benchmark,
        judges.add_benchmark_options,
        signals=False,
        stopped="stopped; verdicts are kept, the same command goes on",
    ),
    "judge calibrate": Command(judges.calibrate, judges.add_calibrate_options),
    "judge score": Command(judges.score, judges.add_score_options),
    "judge serve": Command(judges.serve, judges.add_serve_options, signals=False),
    "instructions evaluate": Command(
        instructions.evaluate,
        instructions.add_evaluate_options,
        signals=False,
        stopped="stopped; responses are kept, the same command goes on",
    ),
    "instructions generate": Command(
        instructions.generate,
        instructions.add_generate_options,
        signals=False,
        stopped="stopped; responses are kept, the same command goes on",
    ),
    "instructions score": Command(
        instructions.score,
        instructions.add_score_options,
        signals=False,
        stopped="stopped; grades are kept, the same command goes on",
    ),
}


def run(command: str | None = None) -> int:
    """Run ``sys.argv``, as a named command (a script's) or as the one that it begins with; the exit
    status."""
    is_script = command and Path(sys.argv[0]).name != "__main__.py"
    return main([*(command or "").split(), *sys.argv[1:]], None if is_script else PROGRAM)


def main(arguments: Sequence[str], program: str | None = PROGRAM) -> int:
    """Run a command line such as ``["data", "mix", "--offline"]``; the exit status. ``program``
    begins its usage line; without one, the line has the name of the running script alone."""
    name = next((n for n in COMMANDS if list(arguments[: len(n.split())]) == n.split()), None)
    if name is None:
        return _overview(arguments)
    command = COMMANDS[name]
    parser = argparse.ArgumentParser(
        prog=f"{program} {name}" if program else None,
        description=command.description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def work() -> int:
        command.add_options(parser)
        if command.opens_runs:
            parser.add_argument(
                "--trust",
                action="store_true",
                help="import code and read files of models that a run's own config.json names",
            )
        try:
            options = parser.parse_intermixed_args(arguments[len(name.split()) :])
        except SystemExit as end:  # --help, or a usage error that argparse has printed
            return int(end.code or 0)
        check_descriptors()
        trusted = vars(options).pop("trust", False)
        with guarded_imports(trusted):
            if not command.stopped:
                return command.run(options)
            with signals_as_interrupts() as status:
                try:
                    return command.run(options)
                except KeyboardInterrupt:
                    print(command.stopped, file=sys.stderr)
                    return status()

    return run_command(work, signals=command.signals)


def _overview(arguments: Sequence[str]) -> int:
    """Print the commands, or the part of them that a group such as ``data`` has."""
    words = [word for word in arguments if not word.startswith("-")]
    if "--version" in arguments and not words:
        print(f"{PROGRAM} {__version__}")
        return 0
    group = next((f"{word} " for word in words[:1] if _group(f"{word} ")), "")
    unknown = " ".join(words[:2] if group else words[:1]) if words != [group.strip()] else ""
    if unknown:
        hint = suggest(unknown, list(COMMANDS))
        print(f"{PROGRAM} {unknown}: unknown command{hint}", file=sys.stderr)
        return 2
    print(f"usage: {PROGRAM} {group}COMMAND [OPTION ...]; COMMAND --help lists its options\n")
    for name in _group(group):
        print(f"  {name:<22}  {COMMANDS[name].description.splitlines()[0]}")
    return 0 if {"-h", "--help"} & {*arguments} else 2


def _group(prefix: str) -> list[str]:
    return [name for name in COMMANDS if name.startswith(prefix)]
