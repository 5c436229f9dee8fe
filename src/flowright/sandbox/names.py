"""Names that a test suite takes from the solution: found by reading source, never by running it."""

import ast
import builtins
import symtable
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_SUITES_KEPT = 1024  # a task's tests are read once, not for each attempt at it


@dataclass(frozen=True, slots=True)
class SuiteNames:
    """``solution``: names to ask the solution for. ``modules``: standard modules that the tests use
    without importing them (as MBPP 596 does), counting on the solution's import; they are the
    tests' own instead."""

    solution: tuple[str, ...]
    modules: tuple[str, ...]


@lru_cache(_SUITES_KEPT)
def suite_names(setup: str, tests: tuple[str, ...], entry_point: str | None) -> SuiteNames:
    """Return the names that ``setup`` and ``tests``, which share one namespace, use and do not
    define.

    Built-in names, and that of the tests' own comparison, are never the solution's, whatever it
    defines, but for the entry point. Source that does not parse has no names: it will fail when it
    runs.
    """
    used, defined, bare = set[str](), set[str](), set[str]()
    for source in (setup, *tests):
        tree = parse_trusted(source)
        if tree is None:
            continue
        with warnings.catch_warnings(action="ignore"):
            table = symtable.symtable(source, "tests", "exec")
        used |= set(_global_uses(table))
        defined |= {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
        bare |= set(_bare_uses(tree))
    free = used - defined - set(dir(builtins)) - {"_same_value"}
    modules = {name for name in free - bare if name in sys.stdlib_module_names}
    wanted = (free - modules) | ({entry_point} if entry_point else set())
    return SuiteNames(tuple(sorted(wanted)), tuple(sorted(modules - {entry_point})))


def parse_trusted(source: str) -> ast.Module | None:
    """The syntax tree of source that a dataset brought, None if it is not Python; warnings about
    its style are not ours. What a policy wrote is never parsed in this process: a parser can be
    crashed."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _global_uses(table: symtable.SymbolTable) -> Iterator[str]:
    module = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (module or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _global_uses(child)


def _bare_uses(tree: ast.AST) -> Iterator[str]:
    """Names used other than as ``name.attribute``."""
    owners = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in owners:
            yield node.id


@lru_cache(_SUITES_KEPT)
def trusted_definitions(
    reference: str, setup: str, tests: tuple[str, ...], entry_point: str | None
) -> str:
    """Source of the functions that setup and tests take from the solution beside its entry point,
    as the ``reference`` defines them, with what they need of it; empty where there are none.

    HumanEval's tests call helpers from the prompt (``poly``, ``encode_cyclic``): put before the
    setup, they are not the solution's to redefine. Classes are left out: an object of the tests'
    own class means nothing to the solution.
    """
    tree = parse_trusted(reference)
    body = tree.body if tree else []
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    values = {
        target.id: node
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    asked = suite_names(setup, tests, entry_point).solution
    waiting = [name for name in asked if name in functions and name != entry_point]
    needed: list[ast.stmt] = []
    while waiting:
        name = waiting.pop()
        node = functions.get(name) or values.get(name)
        if node is not None and node not in needed:
            needed.append(node)
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            waiting += names - {entry_point}
    if not needed:
        return ""
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    kept = [node for node in body if node in imports or node in needed]
    return "\n\n".join(ast.unparse(node) for node in kept) + "\n"
