"""Commands that train, evaluate and export a policy, and those that show run directories, replay
attempts and run studies."""

import argparse
import os
import sys
from pathlib import Path

from flowright.cli.datasets import SUITE_NAMES, enough_for_all, fetch_suite
from flowright.core import arguments as add


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """``--config`` and the overrides behind it."""
    add.path(parser, "--config", "a YAML file, or the name of one in config/, such as quickstart",
             "PATH|NAME", required=True)  # fmt: skip
    add.overrides(parser, "such as grpo.steps=10")


def add_train_options(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    add.flag(parser, "--resume", "continue from the last checkpoint")
    add.flag(parser, "--dry-run", "check everything, train nothing")
    add.flag(parser, "--ray", "on a Ray cluster (section ray)")


def train(options: argparse.Namespace) -> int:
    """Train a policy.

    flowright train --config quickstart
    flowright train --config config/training.yaml grpo.steps=10 --dry-run
    """
    from flowright.environments.registry import load_config

    config = load_config(options.config, options.overrides)
    if config.physical_gpus is not None:  # before torch starts
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the numbers of nvidia-smi
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, config.physical_gpus))
    from flowright.app import launch

    if options.dry_run:
        return launch.dry_run(config, options.resume)
    return (launch.train_on_ray if options.ray else launch.train)(config, options.resume)


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    add.path(parser, "--checkpoint", "a checkpoint, or a run for its best one; may be repeated",
             action="append", default=[])  # fmt: skip
    add.text(parser, "--policy", "a model of llm.file that writes the workflows, too", "NAME")
    add.path(parser, "--data", "a task file to measure on; the best fixed workflow is then chosen "
             "on val_dataset")  # fmt: skip
    add.path(parser, "--out", "a folder; the same command resumes what it holds (default: "
             "%(default)s)", default=Path("outputs/evaluation"))  # fmt: skip
    add.flag(parser, "--overwrite", "replace another evaluation in --out")
    add.choice(parser, "--suite", SUITE_NAMES, "download and measure what a paper measures, all of "
               "it, with --papers")  # fmt: skip
    add.flag(parser, "--papers", "also compare with the tables of AFlow's, ScoreFlow's and "
             "FlowSteer's papers, in papers.md and papers.json of --out; a finished evaluation is "
             "not measured again")  # fmt: skip


def evaluate(options: argparse.Namespace) -> int:
    """Evaluate a policy beside fixed workflows: per dataset and kind, by judge and by gold.

    flowright evaluate --config quickstart --checkpoint RUN/checkpoints/step_000056
    flowright evaluate --config FILE --checkpoint RUN --suite flowsteer12
    flowright evaluate --config FILE --policy gpt-5
    """
    from flowright.app import launch
    from flowright.environments.registry import load_config

    data, papers, overrides = options.data, options.papers, options.overrides
    if options.suite:
        from flowright.core.errors import UserError

        if data:
            raise UserError("--suite: brings its own problems; leave out --data")
        data, papers = fetch_suite(options.suite), True
        overrides = [f"evaluation.final_problems={enough_for_all(data)}", *overrides]
    config = load_config(options.config, overrides)
    out, overwrite, writer = options.out, options.overwrite, options.policy
    return launch.evaluate(config, options.checkpoint, data, out, overwrite, papers, writer)


def add_warm_start_options(parser: argparse.ArgumentParser) -> None:
    add_config_options(parser)
    add.flag(parser, "--overwrite", "replace the contents of policy.warm_start.folder")


def warm_start(options: argparse.Namespace) -> int:
    """Teach a policy its task by supervised training, before GRPO.

    flowright warm-start --config smollm2
    """
    from rich.console import Console

    from flowright.app.launch import prepared
    from flowright.environments.registry import load_config

    config, console = load_config(options.config, options.overrides), Console()
    with prepared(console, "nothing was kept, start again"):
        from flowright.app.warm_start import warm_start

        return warm_start(config, console, options.overwrite)


def add_export_options(parser: argparse.ArgumentParser) -> None:
    add.path(parser, "source", "a run (its best checkpoint, or else its newest), a checkpoint, a "
             "peft adapter, a model's folder, or verl's global_step_N")  # fmt: skip
    add.path(parser, "--out", "the folder to write")
    add.flag(parser, "--id", "print a hash of the weights and settings that it would be made of; "
             "write nothing", dest="identity")  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--merge",
        action="store_const",
        dest="form",
        const="merge",
        help="merge the adapter into its base; the default, except for verl's checkpoints, whose "
        "base and adapter are written side by side",
    )
    form.add_argument(
        "--adapter",
        action="store_const",
        dest="form",
        const="adapter",
        help="the adapter alone, as peft and vLLM load it",
    )
    add.choice(parser, "--dtype", ("bfloat16", "float16", "float32"), "of the weights (default: "
               "the dtype in the model's config)")  # fmt: skip
    add.text(parser, "--base", "the adapter's base, if its files name another")
    add.number(parser, "--lora-alpha", "if verl's files lack it")
    add.text(parser, "--max-shard-size", "of a file (default: 5GB)", "SIZE", dest="most_bytes",
             type=_size, default=5 * 10**9)  # fmt: skip
    add.flag(parser, "--overwrite", "replace a model in --out")
    add.text(parser, "--push-to-hub", "also upload it, with HF_TOKEN", "NAME", dest="hub")


def export(options: argparse.Namespace) -> int:
    """Export a trained model as a Hugging Face folder: merged, or as an adapter.

    flowright export outputs/training --out models/mine
    """
    from rich.console import Console

    from flowright.app.launch import prepared

    console = Console(stderr=options.identity)  # of which stdout has nothing else
    with prepared(console, "nothing was written"):
        from flowright.app.exporting import Request, export_model

        return export_model(Request(**vars(options)), console)


def _size(text: str) -> int:
    """Bytes in 5GB, 500MB or a plain number."""
    units = {"GB": 10**9, "MB": 10**6, "KB": 10**3}
    factor = units.get(text[-2:].upper())
    number = int(text) if factor is None else int(float(text[:-2]) * factor)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1 byte")
    return number


def add_run_options(parser: argparse.ArgumentParser) -> None:
    add.text(parser, "run", "a run directory, or a name under --output-dir; default: the newest",
             nargs="?")  # fmt: skip
    add_reader_options(parser)


def add_reader_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--output-dir``, and ``--environment``: the only one of a run that a reader imports."""
    add.path(parser, "--output-dir", "the folder of run directories (default: %(default)s)", "DIR",
             default=Path("outputs"))  # fmt: skip
    add.text(parser, "--environment", "environment of your own to import, for the display of its "
             "runs", "MODULE:CLASS", type=named_environment)  # fmt: skip


def named_environment(choice: str) -> str:
    from flowright.environments.display import name_environment

    name_environment(choice)
    return choice


def add_monitor_options(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    add.flag(parser, "--once", "print once and exit")
    add.flag(parser, "--json", "print once as JSON and exit", dest="as_json")
    add.each(parser, "--server", "show the load of this vLLM server, from its /metrics; may be "
             "repeated", "URL", dest="servers", type=address)  # fmt: skip
    add.text(parser, "--interval", "seconds between updates", "S", type=seconds, default=1.0)


def monitor(options: argparse.Namespace) -> int:
    """Watch a run in the terminal.

    It only reads the run's files; ending the monitor does not end the run.
    """
    from flowright.viewer.live import monitor

    given = vars(options)
    given.pop("environment")
    return monitor(given.pop("run"), **given)


def address(text: str) -> str:
    """The address of a server, as a type for argparse."""
    from flowright.config.section import check_address

    try:
        return check_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def seconds(text: str) -> float:
    """A pause; argparse reports a ValueError as an "invalid seconds value"."""
    value = float(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError("must be between 0.05 and 3600 seconds")
    return value


def add_view_options(parser: argparse.ArgumentParser) -> None:
    add.text(parser, "run", "a run directory or its name, or a folder of runs; default: all",
             nargs="?")  # fmt: skip
    add_reader_options(parser)
    add.text(parser, "--host", "default: this machine alone", default="127.0.0.1")
    add.whole(parser, "--port", "0 for any free one (default: 8765)", default=8765)
    add.path(parser, "--export", "write pages that need no server into a new folder, and exit",
             "FOLDER")  # fmt: skip
    add.text(parser, "--select", "with --export: which attempts, as in an address: "
             "'outcome=wrong&sort=reward'", "QUERY", default="")  # fmt: skip
    add.whole(parser, "--most", "with --export: attempts of each run, with their groups (default: "
              "200)", "N", default=200)  # fmt: skip


def view(options: argparse.Namespace) -> int:
    """Browse the rollouts of runs, finished or running.

    flowright view                     # all runs in outputs/
    flowright view my-run              # one run, by name or directory
    flowright view outputs/study       # all runs in a folder

    Pages are served on this machine alone; the only file written is an index beside each run, which
    can be deleted at any time. From another machine: ssh -L 8765:localhost:8765 HOST.
    docs/viewing.md shows the pages.
    """
    from flowright.viewer.run_list import find_root

    root = find_root(options.run, options.output_dir)
    if options.export is not None:
        from flowright.viewer.server import export_pages

        pages = export_pages(root, options.export, options.select, options.most)
        print(f"{pages} pages: {options.export / 'index.html'}")
        return 0

    from flowright.viewer.server import serve

    return serve(root, options.host, options.port, lambda line: print(line, flush=True))


def report(options: argparse.Namespace) -> int:
    """Write a run's report.html again, finished or not, and print its path."""
    from flowright.viewer.live import find_run
    from flowright.viewer.run_report import write_report

    print(write_report(find_run(options.run, options.output_dir)))
    return 0


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    add.path(parser, "run", "a run directory")
    add.text(parser, "place", metavar="STEP/GROUP/INDEX")
    ways = parser.add_mutually_exclusive_group()
    add.text(ways, "--program", "run this program; - for standard input", "FILE")
    add.flag(ways, "--edit", "edit the recorded program in $EDITOR")
    add.flag(parser, "--json", "both records, as one JSON object", dest="as_json")
    add.overrides(parser, "of the run's settings")


def replay(options: argparse.Namespace) -> int:
    """Replay one attempt of a run and compare it with the record.

    flowright replay outputs/quickstart 30/2/5              # STEP/GROUP/INDEX, as in the viewer
    flowright replay outputs/quickstart evaluation/44/7/0   # at a held-out problem
    flowright replay outputs/quickstart 30/2/5 --edit       # its program changed in $EDITOR
    flowright replay outputs/quickstart 30/2/5 --program mine.py judge.model=gpt-oss-120b

    The run's own environment replays it: its executor, sandbox, judge and checks, with the
    attempt's own seeds. Nothing is written. Exit status: 0; 1 if a server or the sandbox failed; 2
    if it could not be replayed.
    """
    from flowright.app.replaying import ReplayRequest, replay
    from flowright.core.errors import UserError

    if (name := options.program) is not None:
        try:
            options.program = (
                sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
            )
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{name}: cannot be read ({error})") from None
    return replay(ReplayRequest(**vars(options)))


def add_study_options(parser: argparse.ArgumentParser) -> None:
    add.path(parser, "config", "a YAML file, or the name of one in config/, such as study/quick")
    add.flag(parser, "--dry-run", "print the plan, write nothing")
    add.flag(parser, "--report-only", "start no run")
    add.text(parser, "--at-once", "concurrent runs; default: the cores or GPUs",
             type=add.at_least_one)  # fmt: skip
    add.path(parser, "--out", "default: outputs/studies/NAME")
    add.text(parser, "--limit-runs", "start at most this many runs", dest="limit",
             type=add.at_least_one)  # fmt: skip
    add.flag(parser, "--transfer", "start no run; have the judge of every arm grade the answers of "
             "every policy")  # fmt: skip
    add.flag(parser, "--ray", "runs on a Ray cluster (RAY_ADDRESS)")
    add.each(parser, "--arm", "start runs of this arm alone, such as the one whose judge is up; "
             "may be repeated", "NAME", dest="arms")  # fmt: skip
    add.path(parser, "--keep", "copy claims, tables and plots to DIR/NAME", "DIR")


def study(options: argparse.Namespace) -> int:
    """Run all arms and seeds of a study and write its report.

    flowright study config/study/quick.yaml

    The same command resumes an interrupted study.
    """
    from flowright.study.command import StudyRequest, run_study

    return run_study(StudyRequest(**vars(options)))
