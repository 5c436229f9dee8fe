"""The path of docs/architecture.md from a batch to the loss, against the calls in the source."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
BESIDE = {"flowright/grpo/step_record.py", "flowright/grpo/__init__.py"}
"""Files that read values of the path and hand none on."""


@dataclass(frozen=True)
class Stay:
    """One row of the table."""

    file: str
    function: str
    caller: str
    called_as: str


def path() -> list[Stay]:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.split("### From a batch to the loss\n", 1)[1].split("\n#", 1)[0]
    stays = []
    for line in section.splitlines():
        if re.match(r"\| `\w", line):
            file, function, calling = (re.findall(r"`([^`]+)`", c) for c in line.split("|")[1:4])
            caller, called_as = (*calling, "", "")[:2]
            stays.append(Stay(file[0], function[0], caller, called_as or function[0]))
    return stays


def functions(file: str) -> dict[str, ast.AST]:
    """The functions of a file by name, methods included."""
    tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node for node in ast.walk(tree) if isinstance(node, kinds)}


def names(node: ast.AST) -> set[str]:
    """Names and attributes that a function uses: calls, and functions that it passes on."""
    found = [use for use in ast.walk(node) if isinstance(use, ast.Name | ast.Attribute)]
    return {use.id if isinstance(use, ast.Name) else use.attr for use in found}


def imported_from(file: str) -> Iterator[tuple[str, str]]:
    """Names that a file imports from this package, each with its file."""
    for node in ast.parse((SOURCE / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flowright."):
            target = str(node.module).replace(".", "/") + ".py"
            yield from ((alias.asname or alias.name, target) for alias in node.names)


def test_a_value_visits_at_most_eight_files_in_four_rooms() -> None:
    files = {stay.file for stay in path()}
    assert len(files) <= 8 and len({file.split("/")[1] for file in files}) <= 4
    assert path()[0] == Stay("flowright/grpo/trainer.py", "_step", "", "_step")


def test_each_function_of_the_path_exists_and_is_called_where_the_table_says() -> None:
    known = dict[str, ast.AST]()
    for stay in path():
        here = functions(stay.file)
        assert stay.function in here, stay
        if stay.caller:
            assert stay.caller in known, f"{stay}: its caller is not on the path before it"
            assert stay.called_as in names(known[stay.caller]), stay
        known |= here
        # From a function of the path to the caller, inside its file.
        if stay.caller.startswith("_") and stay.caller not in {s.function for s in path()}:
            before = {s.function for s in path()} & known.keys()
            assert any(stay.caller in names(known[name]) for name in before), stay


def test_the_loss_is_made_of_what_the_objective_is_given_as_terms() -> None:
    tree = ast.parse((SOURCE / "flowright/grpo/objectives.py").read_text(encoding="utf-8"))
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    objectives = [call for call in made if getattr(call.func, "id", "") == "Objective"]
    terms = {getattr(call.args[1], "id", "") for call in objectives}
    assert path()[-1].function in terms and path()[-1].called_as == "terms"


def test_the_table_leaves_out_no_file_between_batch_and_loss() -> None:
    """What functions of the path call in other files of the loop is on the path or beside it."""
    files = {stay.file for stay in path()}
    for stay in path():
        used = names(functions(stay.file)[stay.function])
        called = {file for name, file in imported_from(stay.file) if name in used}
        missing = {file for file in called if file.startswith("flowright/grpo/")} - files - BESIDE
        assert not missing, f"{stay}: {missing}"
