"""Command lines to print, as they work in the working directory, and the environment in which a
child Python finds the package. Nothing is run here.

The package need not be installed: the entry points put ``src`` on their own path, and what they
start as ``python -m flowright...`` inherits it from :func:`child_environment`.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
"""The folder that has the package: ``src`` of a checkout, or where it is installed."""

CHECKOUT = SOURCE.parent


SCRIPTS = {
    "train.py": "train",
    "scripts/evaluate.py": "evaluate",
    "scripts/warm_start.py": "warm-start",
    "scripts/export_model.py": "export",
    "scripts/view.py": "view",
    "scripts/make_report.py": "report",
    "scripts/replay.py": "replay",
    "scripts/run_workflow.py": "ask",
    "scripts/serve_policy.py": "serve",
    "scripts/serve_simulated_llm.py": "simulate",
    "scripts/download_all_datasets.py": "data download",
    "scripts/create_mixed_dataset.py": "data mix",
    "scripts/judge_training/make_preferences.py": "data preferences",
    "scripts/judge_training/make_rubrics.py": "data rubrics",
    "scripts/judge_training/make_transcripts.py": "data transcripts",
    "scripts/instructions/draw_constraints.py": "data constraints",
    "scripts/examine_judge.py": "judge exam",
    "scripts/evaluate_judge.py": "judge benchmark",
    "scripts/calibrate_judge.py": "judge calibrate",
    "scripts/judge_file.py": "judge score",
    "scripts/serve_judge.py": "judge serve",
    "scripts/evaluate_instructions.py": "instructions evaluate",
    "scripts/generate_responses.py": "instructions generate",
    "scripts/score_responses.py": "instructions score",
    "monitor.sh": "monitor",
}
"""Files of a checkout, and the subcommands of ``flowright`` that they run."""


def here(command: str) -> str:
    """A command line, such as ``python train.py --config config/quickstart.yaml``, as it works in
    the working directory with the running Python. Without a checkout, or if the running program is
    ``flowright``, scripts become its subcommands. Words are a shell's: quote paths with spaces."""
    words = shlex.split(command)
    if Path(sys.argv[0]).name == "flowright" or not (CHECKOUT / "train.py").is_file():
        if words[1] == "-m":
            return shlex.join([*words[2].split("."), *words[3:]])
        if words[1] in SCRIPTS:
            return shlex.join(["flowright", *SCRIPTS[words[1]].split(), *words[2:]])
    return " ".join(_word(word) for word in words)


def child_environment() -> dict[str, str]:
    """This process's environment, in which a new Python finds the package as well."""
    given = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(SOURCE), given] if given else [str(SOURCE)])
    return {**os.environ, "PYTHONPATH": path}


def _word(word: str) -> str:
    if word == "python":
        return shlex.quote(_python())
    if Path(word).exists() or not (CHECKOUT / word).is_file():
        return shlex.quote(word)
    return shlex.quote(_from_here(CHECKOUT / word))


def _python() -> str:
    """By its name, where that name leads to it, else by its path."""
    running = Path(sys.executable)
    for name in ("python", "python3"):
        found = shutil.which(name)
        # Not by what they link to: an environment's Python links to the one it was made with.
        if found and Path(found).parent == running.parent and Path(found).samefile(running):
            return name
    return _from_here(running)


def _from_here(path: Path) -> str:
    folder = Path.cwd()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
