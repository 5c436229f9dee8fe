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
    tests' own instead. ``own``: those of ``solution`` that the reference brings, not the solution.
    ``shared``: classes among these whose objects cross by value. ``classes``: the solution's."""

    solution: tuple[str, ...]
    modules: tuple[str, ...]
    own: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def borrowed(self, entry_point: str | None) -> tuple[str, ...]:
        """Return the names beside the entry point that tests take from the solution, which may
        give them any meaning."""
        return tuple(name for name in self.solution if name not in (*self.own, entry_point))


@lru_cache(_SUITES_KEPT)
def suite_names(
    setup: str, tests: tuple[str, ...], entry_point: str | None, reference: str = ""
) -> SuiteNames:
    """Return the names that ``setup`` and ``tests``, which share one namespace, use and do not
    define.

    What the ``reference`` imports, computes or defines beside its entry point is the tests' own: a
    solution could redefine it. The solution's remain classes whose objects both use, and what is
    computed by the entry point; without an entry point, all but what the reference imports.

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
    names = tuple(sorted(wanted))
    own, shared, classes = _names_of_reference(reference, names, entry_point)
    return SuiteNames(names, tuple(sorted(modules - {entry_point})), own, shared, classes)


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


_Names = tuple[str, ...]
_VALUES = ("Enum", "Flag", "Error", "Exception", "Warning", "NamedTuple")


def _names_of_reference(
    reference: str, asked: _Names, entry_point: str | None
) -> tuple[_Names, _Names, _Names]:
    """Return those of the ``asked`` names that the reference brings, the classes among them whose
    objects cross by value, and the classes that remain the solution's."""
    tree = parse_trusted(reference)
    bound = bound_names(tree) if tree else {}
    own, shared, classes = [], [], []
    for name in asked:
        nodes = bound.get(name, [])
        if not nodes or name == entry_point:
            continue
        if all(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes):
            own.append(name)
        elif entry_point is None:
            continue
        elif isinstance(nodes[-1], ast.ClassDef):
            is_value = _is_value(nodes[-1], bound)
            (own if is_value else classes).append(name)
            shared += [name] * is_value
        elif isinstance(nodes[-1], _FUNCTIONS) or not _needs(entry_point, nodes, bound):
            own.append(name)
    return tuple(own), tuple(shared), tuple(classes)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def bound_names(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    """The names that a module binds, with the statements that do."""
    found: dict[str, list[ast.stmt]] = {}
    waiting = list(reversed(tree.body))
    while waiting:
        node = waiting.pop()
        names: list[str] = []
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names = [node.name]
            case ast.Import() | ast.ImportFrom():
                names = [(a.asname or a.name).partition(".")[0] for a in node.names]
            case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try():
                inner = [child for child in ast.walk(node) if isinstance(child, ast.stmt)]
                waiting += [child for child in reversed(inner) if child is not node]
                continue
            case _:
                stored = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
                names = [n.id for n in stored if isinstance(n.ctx, ast.Store)]
        for name in names:
            found.setdefault(name, []).append(node)
    return found


def _needs(entry_point: str, nodes: list[ast.stmt], bound: dict[str, list[ast.stmt]]) -> bool:
    """Return whether statements call or name the entry point, themselves or by what they use. What
    a lambda does happens later."""
    if all(map(_is_lambda, nodes)):
        return False
    waiting: list[ast.AST] = list(nodes)
    seen: set[int] = set()
    while waiting:
        for part in ast.walk(waiting.pop()):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                if part.id == entry_point:
                    return True
                new = [node for node in bound.get(part.id, []) if id(node) not in seen]
                seen |= set(map(id, new))
                waiting += new
    return False


def _is_lambda(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)


def _is_value(node: ast.ClassDef, bound: dict[str, list[ast.stmt]]) -> bool:
    """Return whether objects of a class are compared by value: a data class, an enumeration, an
    exception, a named tuple, one with ``__eq__``, or one that inherits from such a class."""
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return True
    if any(isinstance(part, ast.FunctionDef) and part.name == "__eq__" for part in node.body):
        return True
    for base in map(ast.unparse, node.bases):
        parents = [p for p in bound.get(base, []) if isinstance(p, ast.ClassDef) and p is not node]
        if base.endswith(_VALUES) or any(_is_value(parent, bound) for parent in parents):
            return True
    return False
