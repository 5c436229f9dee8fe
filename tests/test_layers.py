"""The floors of the house, read from its imports: strictly downward, torch only where it trains."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src/flowright"

# From the ground up, within a floor from left to right: a room may import what stands before it.
# Where this differs from the order of the plan: docs/architecture.md.
FLOORS = (
    ("core", "config"),
    ("llm", "sandbox", "data", "grading", "criteria", "runs"),
    ("workflows", "policy", "simulation", "judging"),
    ("environments", "grpo", "evaluation"),
    ("viewer", "app", "study", "cli"),
)
ROOMS = tuple(room for floor in FLOORS for room in floor)

TORCH = {"policy", "grpo", "evaluation", "environments", "app"}
# Runs in the isolated processes around code that may raise anything; see its __init__.
FOREIGN = SOURCE / "sandbox/inside"

FILES = sorted(SOURCE.rglob("*.py"))
_DOTTED = re.compile(r"flowright(?:\.[a-z_]\w*)+(?::\w+)?")


def room_of(path: Path) -> str:
    """The room of a file: the first name below flowright."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports: at any depth, for types only or not, and by
    an import path in a string."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            assert node.module is not None
            if node.module == "flowright":
                yield from (f"flowright.{alias.name}" for alias in node.names)
            else:
                yield node.module
        elif isinstance(node, ast.Constant) and names_a_room(node.value):
            yield str(node.value).partition(":")[0]


def names_a_room(value: object) -> bool:
    return bool(_DOTTED.fullmatch(str(value))) and str(value).split(".")[1] in ROOMS


def test_every_room_stands_on_a_floor() -> None:
    assert {room_of(path) for path in FILES} - {"__init__", "__main__"} <= {*ROOMS}


def test_imports_go_strictly_downward() -> None:
    upward = set()
    for path in FILES:
        room = room_of(path)
        if room == "__init__" or path.name == "__main__.py":
            continue  # names for checkers alone: tests/test_public.py; and calls of the cli
        for name in imported(path):
            words = name.split(".")
            if words[0] != "flowright" or words[1:] in ([], ["__version__"]):
                continue
            other = words[1]
            if ROOMS.index(other) > ROOMS.index(room):
                upward.add(f"{path.relative_to(SOURCE)} imports {name}")
    assert sorted(upward) == []


def test_torch_is_imported_only_where_models_are() -> None:
    users = {
        room_of(path)
        for path in FILES
        for name in imported(path)
        if name.split(".")[0] in ("torch", "transformers", "peft", "accelerate")
    }
    assert "policy" in users
    assert users <= TORCH


def test_the_viewer_reads_files_and_never_trainer_objects() -> None:
    rooms = {"core", "config", "runs", "viewer", "__version__"}
    wrong = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in (SOURCE / "viewer").rglob("*.py")
        for name in imported(path)
        if name.startswith("flowright.") and name.split(".")[1] not in rooms
        if name != "flowright.environments.display"
    ]
    assert wrong == []


def test_only_the_boundary_swallows_every_exception() -> None:
    """Elsewhere a broad handler ends in `raise`: it tidies up and lets the failure go on."""
    swallowing = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in FILES
        if FOREIGN not in path.parents
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ExceptHandler)
        if node.type is None or {"Exception", "BaseException"} & names(node.type)
        if not isinstance(node.body[-1], ast.Raise)
    ]
    assert [place.partition(":")[0] for place in swallowing] == ["core/errors.py"]


def names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert not [path for path in FILES if drawers & {*path.with_suffix("").parts}]


def test_every_module_has_a_docstring() -> None:
    assert [path for path in FILES if not ast.get_docstring(tree_of(path))] == []
