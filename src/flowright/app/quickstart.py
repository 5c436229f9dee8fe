"""Checks of ``scripts/quickstart.sh``: the names of keys before anything is installed, with the
standard library alone; the run directory after.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from flowright.config.suggestions import unknown
from flowright.core.errors import UserError


def main(root: Path, arguments: Sequence[str]) -> int:
    """``check key=value ...``, or ``directory CONFIG key=value ...``, which prints it. Raises
    UserError with one line per mistake."""
    action, *words = arguments
    if action == "check":
        check_keys(root, words)
    else:
        print(run_directory(Path(words[0]), words[1:]))
    return 0


def check_keys(root: Path, overrides: Sequence[str]) -> None:
    """Compare keys with those of docs/configuration.md. Values are checked before training."""
    page = (root / "docs/configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^- `([\w.]+)` \((\w*)", page.partition("## The file of")[0], re.MULTILINE)
    mappings = [key for key, kind in rows if kind == "mapping"]
    problems: list[str] = []
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not (key and equals):
            problems.append(f"{override!r}: write key=value, such as grpo.steps=10")
        elif wrong := unknown(key, [known for known, _ in rows], mappings):
            problems.append(wrong)
    if problems:
        raise UserError(*(f"command line: {problem}" for problem in problems))


def run_directory(config: Path, overrides: Sequence[str]) -> Path:
    """The directory named by ``run.name=...``, else the first free one."""
    from flowright.environments.registry import load_config
    from flowright.runs.run_files import free_run_name

    run = load_config(config, overrides).run
    named = any(override.startswith("run.name=") for override in overrides)
    return run.output_dir / (run.name if named else free_run_name(run.output_dir, run.name))
