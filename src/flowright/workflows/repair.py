"""Repairs of a program before it is judged: small edits of its text that keep its lines.

Each repair is a function of the syntax tree that returns edits; what it cannot do safely it leaves.
The meaning of a program that would have run is never changed.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flowright.workflows import aflow
from flowright.workflows.assignment import maybe_unbound
from flowright.workflows.language import (
    FORGOTTEN,
    PREDEFINED,
    Edit,
    Function,
    apply,
    binds,
    bound_name,
    is_here,
    keep_imports,
    nodes,
    parse,
    replace,
)
from flowright.workflows.operators import OPERATORS
from flowright.workflows.registry import Operators


@dataclass(frozen=True, slots=True)
class Repaired:
    """A program with the names of the repairs made and the lines that they added."""

    text: str
    repairs: tuple[str, ...]
    inserted: tuple[int, ...]


def repair(text: str, operators: Operators = OPERATORS) -> Repaired:
    """Apply every repair that the program needs; ``text`` must parse. Names of ``operators`` mean
    these."""
    repairs: list[str] = []
    tree = parse(text)
    for name, find in _IN_PLACE:
        edited = apply(text, list(find(tree, operators)))
        if edited != text and (edited_tree := _try_parse(edited)) is not None:
            repairs.append(name)
            text, tree = edited, edited_tree
    edits, inserted = _initialisations(text, tree)
    if edits:
        edited = apply(text, edits)
        if _try_parse(edited) is not None:
            repairs.append("unbound_initialised")
            text = edited
        else:
            inserted = []
    imports, forgotten = _missing_imports(tree)
    if imports:
        text = "; ".join(imports) + "\n" + text
        inserted = [1, *(line + 1 for line in inserted)]
        repairs += ["imports_added"] if forgotten else []
    return Repaired(text, tuple(repairs), tuple(inserted))


def _try_parse(text: str) -> ast.Module | None:
    try:
        return parse(text)
    except SyntaxError:
        return None


def _imports(tree: ast.Module, operators: Operators) -> Iterator[Edit]:
    """Imports that cannot work and that nothing needs: of modules that are not there, with names
    that are never used or that are operators; ``from __future__``."""
    used = _read_names(tree)
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            kept = [a for a in node.names if is_here(node, a) or bound_name(a) in used]
            if len(kept) < len(node.names):
                yield keep_imports(node, kept)
        elif isinstance(node, ast.ImportFrom):
            here = is_here(node, node.names[0])
            needed = any(bound_name(a) in used and a.name not in operators for a in node.names)
            if node.module == "__future__" or not (here or needed):
                yield replace(node, "pass")


def _read_names(tree: ast.Module) -> set[str]:
    return {n.id for n in nodes(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _main_block(tree: ast.Module, _: Operators) -> Iterator[Edit]:
    """``if __name__ == "__main__":`` blocks: the host starts the program."""
    for node in tree.body:
        match node:
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                yield replace(node, "pass")


def _literal_hints(tree: ast.Module, _: Operators) -> Iterator[Edit]:
    """``Literal["a", "b"]`` in annotations, which the interpreter lacks, become the plain type."""
    for node in nodes(tree):
        if isinstance(node, ast.Subscript) and _name(node.value).endswith("Literal"):
            values = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            types = {type(v.value).__name__ for v in values if isinstance(v, ast.Constant)}
            yield replace(node, types.pop() if types in ({"str"}, {"int"}, {"bool"}) else "object")


def _name(node: ast.expr) -> str:
    """The last part of a dotted name, or an empty string."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _object_bases(tree: ast.Module, _: Operators) -> Iterator[Edit]:
    """``class Workflow(object)``: the one inheritance that means nothing."""
    for node in nodes(tree):
        match node:
            case ast.ClassDef(bases=[ast.Name(id="object") as base], keywords=[]):
                start, end = (base.lineno, base.col_offset - 1), (base.lineno, base.col_offset + 7)
                yield Edit(start, end, "", expect="(object)")


def _self_operators(tree: ast.Module, operators: Operators) -> Iterator[Edit]:
    """``self.answer(...)`` where the class has no such attribute means the operator (AFlow)."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        attributes = [
            n for n in ast.walk(node)
            if isinstance(n, ast.Attribute) and _name(n.value) == "self" and n.attr in operators
        ]  # fmt: skip
        own = {n.attr for n in attributes if not isinstance(n.ctx, ast.Load)}
        for part in node.body:
            own |= binds(part)
            if isinstance(part, ast.Assign | ast.AnnAssign):
                own |= set().union(*map(binds, ast.iter_child_nodes(part)))
        for attribute in attributes:
            if attribute.attr not in own:
                yield replace(attribute, attribute.attr, expect=f"self.{attribute.attr}")


def _shadowed_operators(tree: ast.Module, operators: Operators) -> Iterator[Edit]:
    """``answer = await answer(problem)`` makes ``answer`` a local variable that is unbound when it
    is called: the variable gets a trailing underscore, the calls keep the operator's name."""
    for function in _outermost_functions(tree):
        inside = list(ast.walk(function))
        names = [n for n in inside if isinstance(n, ast.Name)]
        everything = {n.id for n in names}
        stored = {n.id for n in names if isinstance(n.ctx, ast.Store)} & operators.keys()
        taken = set[str]()
        for node in inside:
            if isinstance(node, ast.Global | ast.Nonlocal):
                taken.update(node.names)
            elif not isinstance(node, ast.Name | ast.Import | ast.ImportFrom):
                taken |= binds(node)
        called = {id(n.func) for n in inside if isinstance(n, ast.Call)}
        both = stored.intersection(n.id for n in names if id(n) in called) - taken
        for node in names:
            fresh = node.id + "_"
            if node.id in both and fresh not in everything and id(node) not in called:
                yield replace(node, fresh, expect=node.id)


def _outermost_functions(tree: ast.Module) -> Iterator[Function]:
    for node in tree.body:
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, Function):
                yield inner


_IN_PLACE: tuple[tuple[str, Callable[[ast.Module, Operators], Iterator[Edit]]], ...] = (
    (aflow.NAME, lambda tree, _: aflow.translate(tree)),
    ("imports_removed", _imports),
    ("main_block_removed", _main_block),
    ("literal_hints_removed", _literal_hints),
    ("object_base_removed", _object_bases),
    ("self_removed_from_operators", _self_operators),
    ("operator_shadowed", _shadowed_operators),
)


def _initialisations(text: str, tree: ast.Module) -> tuple[list[Edit], list[int]]:
    """``name = None`` at the top of each function that may read ``name`` before it is bound, and
    the lines that this adds."""
    edits: list[Edit] = []
    lines = text.split("\n")
    added: list[int] = []
    functions = [n for n in nodes(tree) if isinstance(n, Function)]
    for function in sorted(functions, key=lambda n: n.lineno):
        names = maybe_unbound(function)
        if not names:
            continue
        first = _first_statement(function)
        line, column = _start_of(first)
        before = lines[line - 1].encode()[:column].decode()
        assignment = f"{' = '.join(names)} = None"
        if before.strip():  # on the line of the def
            edits.append(Edit((line, column), (line, column), f"{assignment}; "))
        else:
            edits.append(Edit((line, column), (line, column), f"{assignment}\n{before}"))
            added.append(line)
    return edits, [line + index for index, line in enumerate(sorted(added))]


def _first_statement(function: Function) -> ast.stmt:
    """The first statement behind the docstring and declarations of global names."""
    for statement in function.body:
        docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not docstring and not isinstance(statement, ast.Global | ast.Nonlocal):
            return statement
    return function.body[-1]


def _start_of(statement: ast.stmt) -> tuple[int, int]:
    """Return the first line of a statement, its decorators included."""
    decorators = getattr(statement, "decorator_list", [])
    if decorators:
        return decorators[0].lineno, decorators[0].col_offset - 1
    return statement.lineno, statement.col_offset


def _missing_imports(tree: ast.Module) -> tuple[list[str], bool]:
    """The imports that a program needs and does not make, and whether some were forgotten rather
    than predefined."""
    bound = set().union(*map(binds, nodes(tree)))
    needed = sorted((_read_names(tree) - bound) & (PREDEFINED.keys() | FORGOTTEN.keys()))
    imports = [PREDEFINED.get(n) or FORGOTTEN[n] for n in needed]
    return imports, not PREDEFINED.keys() >= set(needed)
