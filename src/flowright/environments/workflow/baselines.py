"""Fixed workflows that policies are compared with: the grammar's, and a user's own files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flowright.core.errors import ConfigError, Failure, FailureError
from flowright.environments.base import Baseline
from flowright.llm.control_tokens import fenced
from flowright.workflows.checker import ProgramChecker
from flowright.workflows.grammar import (
    branches,
    branching_workflows,
    cascade,
    fixed_workflows,
    name_models,
)
from flowright.workflows.registry import Operators
from flowright.workflows.source import Workflow, read_workflow

_SHOWN = ("direct", "step_by_step")  # those that answer once


def built_in_baselines(labels: Sequence[str] = ()) -> list[Baseline]:
    """Return the grammar's workflows, the branching ones last; each with each model of ``labels``,
    where programs choose."""
    programs = {**fixed_workflows(), **branching_workflows()}
    return [
        Baseline(
            f"fixed: {name}{f', {label}' * bool(label)}",
            name_models(program, lambda label=label: label) if label else program,
            name in _SHOWN,
            branches(program),
        )
        for name, program in programs.items()
        for label in labels or ("",)
    ]


def cascade_baselines(labels: Sequence[str]) -> list[Baseline]:
    """Return the cascade from the first of the models to the last; none for fewer than two."""
    if len(labels) < 2:
        return []
    return [Baseline("fixed: cascade", cascade(labels), shown=True, branches=True)]


def read_workflow_files(paths: Sequence[Path], operators: Operators) -> list[Baseline]:
    """Return the workflows of ``.py`` files and folders, named by their files' stems. Raises
    ConfigError with a line, as ``file:line: message``, for each that cannot be used."""
    problems: list[str] = []
    found = _load(paths, operators, problems)
    _refuse(problems)
    return [baseline for baseline, _ in found.values()]


async def check_workflow_files(paths: Sequence[Path], operators: Operators) -> str:
    """Check the workflows in files, their types included, and return their names. Raises
    ConfigError as :func:`read_workflow_files`."""
    problems: list[str] = []
    found = _load(paths, operators, problems)
    async with ProgramChecker(operators) as checker:
        for path, (_, workflow) in found.items():
            if failure := await checker.check(workflow.program):
                line = workflow.source_line(failure.line)
                skipped = _empty_lines(path.read_text(encoding="utf-8"))
                problems.append(_line(path, replace(failure, line=line), skipped))
    _refuse(problems)
    return ", ".join(baseline.name for baseline, _ in found.values())


def _load(
    paths: Sequence[Path], operators: Operators, problems: list[str]
) -> dict[Path, tuple[Baseline, Workflow]]:
    """Read files; add a line to ``problems`` for each that is no workflow."""
    found: dict[Path, tuple[Baseline, Workflow]] = {}
    names: dict[str, Path] = {}
    for path in _files(paths, problems):
        program = ""
        try:
            program = path.read_text(encoding="utf-8")
            # As a policy would write it, whatever fences the program's strings hold.
            completion = fenced(program.strip("\n").rstrip(), "python")
            workflow = read_workflow(completion, operators=operators)
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
        except UnicodeDecodeError:
            problems.append(f"{path}: not UTF-8 text")
        except FailureError as error:
            problems.append(_line(path, error.failure, _empty_lines(program)))
        else:
            if (earlier := names.setdefault(path.stem, path)) != path:
                problems.append(f"{path}: {earlier} has the same name; rename one")
            baseline = Baseline(path.stem, completion, True, branches(workflow.source))
            found[path] = (baseline, workflow)
    return found


def _files(paths: Sequence[Path], problems: list[str]) -> list[Path]:
    """Return the files of ``paths``, each once; add a line to ``problems`` for a path without."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("*.py"))
            if not inside:
                problems.append(f"{path}: no .py file in this folder")
            files += inside
        elif path.is_file() and path.suffix == ".py":
            files.append(path)
        else:
            problems.append(f"{path}: no .py file or folder")
    return list(dict.fromkeys(files))


def _empty_lines(program: str) -> int:
    """Return the number of empty lines before a program."""
    return len(program) - len(program.lstrip("\n"))


def _line(path: Path, failure: Failure, skipped: int) -> str:
    where = path if failure.line is None else f"{path}:{failure.line + skipped}"
    return f"{where}: {failure.message}"


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise ConfigError(*(f"evaluation.baselines: {problem}" for problem in problems))
