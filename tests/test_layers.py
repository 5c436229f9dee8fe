"""The layers of the house, read from its imports: strictly downward, torch only where it trains."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src/flowright"

# From the ground up. A part may import what is below its row.
LAYERS = (
    ("errors", "memo", "off_loop", "checkout", "command_line"),
    ("plugins", "rendering", "statistics"),
    ("config", "runs", "sandbox"),
    ("llm", "data"),
    ("simulation", "grading", "constraints", "workflows", "policy"),
    ("judge",),
    ("judge_reward",),
    ("judge_service",),
    ("judge_exam",),
    ("judge_benchmarks",),
    ("rubrics",),
    ("answers",),
    ("environments",),
    ("judge_training",),
    ("instructions", "presentation"),
    ("grpo",),
    ("evaluation",),
    ("monitoring",),
    ("viewing",),
    ("app",),
    ("study",),
)
# Within a row, these and no others, so that there is no way round in a circle.
SIDEWAYS = {
    ("runs", "config"),
    ("command_line", "errors"),
    ("llm", "data"),
    ("workflows", "grading"),
}

TORCH = {"policy", "grpo", "evaluation", "app"}
# Runs in the isolated processes around code that may raise anything; see its __init__.
FOREIGN = SOURCE / "sandbox/inside"

FILES = sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The part of the house that a file belongs to: the first name below flowright."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports, at any depth, for types only or not."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            assert node.module is not None
            if node.module == "flowright":
                yield from (f"flowright.{alias.name}" for alias in node.names)
            else:
                yield node.module


def row(part: str) -> int:
    return next(i for i, parts in enumerate(LAYERS) if part in parts)


def test_every_part_has_its_place() -> None:
    parts = {part_of(path) for path in FILES} - {"__init__"}
    assert parts <= {part for parts in LAYERS for part in parts}
    assert len(parts) > 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_strictly_downward(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return  # names for checkers alone: tests/test_public.py
    for name in imported(path):
        words = name.split(".")
        if words[0] != "flowright" or words[1:] in ([], ["__version__"]):
            continue
        other = words[1]
        if other != part and (part, other) not in SIDEWAYS:
            assert row(other) < row(part), f"{path}: {part} must not import {name}"


def test_torch_is_imported_only_where_models_are() -> None:
    users = {
        part_of(path)
        for path in FILES
        for name in imported(path)
        if name.split(".")[0] in ("torch", "transformers", "peft", "accelerate")
    }
    assert "policy" in users
    assert users <= TORCH
    torch = {part_of(p) for p in FILES for name in imported(p) if name.split(".")[0] == "torch"}
    assert torch <= TORCH


def test_monitoring_reads_files_and_never_trainer_objects() -> None:
    below = {"checkout", "config", "errors", "runs", "rendering", "monitoring"}
    for path in (SOURCE / "monitoring").rglob("*.py"):
        for name in imported(path):
            if name.startswith("flowright.") and name != "flowright.environments.display":
                assert name.split(".")[1] in below, f"{path}: {name}"


def test_only_the_boundary_swallows_every_exception() -> None:
    """Elsewhere a broad handler ends in `raise`: it tidies up and lets the failure go on."""
    swallowing = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in FILES
        if FOREIGN not in path.parents
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler)
        if node.type is None or {"Exception", "BaseException"} & names(node.type)
        if not isinstance(node.body[-1], ast.Raise)
    ]
    assert [place.partition(":")[0] for place in swallowing] == ["errors.py"]


def names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert not [path for path in FILES if drawers & {*path.with_suffix("").parts}]


def test_every_module_says_what_it_is() -> None:
    silent = [
        path for path in FILES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []
