"""Definite assignment: which local variables of a function may be read before they are bound.

The usual forward analysis over the syntax tree (Java Language Specification, chapter 16), on the
safe side: a name that is listed may be unbound on a path that is never taken; one that is not
listed is bound wherever it is read. Nested functions and classes are not looked into.
"""

import ast
from collections.abc import Iterable

from flowright.workflows.language import Function, binds

_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def maybe_unbound(function: Function) -> list[str]:
    """Names of locals that some path through ``function`` may read unbound, sorted."""
    flow = _Flow(_locals(function))
    flow.block(function.body, set(_parameters(function)))
    return sorted(flow.unbound)


def _parameters(function: Function) -> Iterable[str]:
    a = function.args
    for argument in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg):
        if argument is not None:
            yield argument.arg


def _locals(function: Function) -> set[str]:
    names: set[str] = set()
    outer: set[str] = set()
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        names |= binds(node)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                stack += node.decorator_list
                continue
            case ast.Lambda():
                continue
            case ast.Global() | ast.Nonlocal():
                outer.update(node.names)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                # Targets are the comprehension's own; only := binds in the function.
                names.update(n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
                continue
        stack += ast.iter_child_nodes(node)
    return names - outer


State = set[str] | None
"""The names that are surely bound; None where control cannot be."""


def _join(*states: State) -> State:
    reachable = [state for state in states if state is not None]
    return set.intersection(*reachable) if reachable else None


class _Flow:
    def __init__(self, local_names: set[str]) -> None:
        self.locals = local_names
        self.unbound: set[str] = set()
        self._loops: list[tuple[list[State], list[State]]] = []  # states at break, at continue

    def block(self, body: Iterable[ast.stmt], state: State) -> State:
        for statement in body:
            if state is None:
                return None
            state = self._statement(statement, set(state))
        return state

    def _statement(self, node: ast.stmt, state: set[str]) -> State:
        match node:
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                return self._assignment(node, state)
            case ast.If():
                self._read(node.test, state)
                yes = self.block(node.body, set(state))
                return _join(yes, self.block(node.orelse, set(state)))
            case ast.While() | ast.For() | ast.AsyncFor():
                return self._loop(node, state)
            case ast.Try() | ast.TryStar():
                return self._try(node, state)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._read(item.context_expr, state)
                    self._bind(item.optional_vars, state)
                return self.block(node.body, state)
            case ast.Match():
                return self._match(node, state)
            case ast.Return() | ast.Raise():
                self._read(node, state)
                return None
            case ast.Break():
                self._loops[-1][0].append(state)
                return None
            case ast.Continue():
                self._loops[-1][1].append(state)
                return None
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for expression in _evaluated_at_definition(node):
                    self._read(expression, state)
                return state | {node.name}
            case ast.Import() | ast.ImportFrom():
                return state | binds(node)
            case ast.Delete():
                self._read(node, state)
                return state - {t.id for t in node.targets if isinstance(t, ast.Name)}
            case _:
                self._read(node, state)
                return state

    def _assignment(
        self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, state: set[str]
    ) -> State:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._use(node.target.id, state)
        if node.value is None:
            return state
        self._read(node.value, state)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self._bind(target, state)
        return state

    def _loop(self, node: ast.While | ast.For | ast.AsyncFor, state: set[str]) -> State:
        breaks: list[State] = []
        continues: list[State] = []
        lost = _unbound_by(node.body)  # by an earlier round
        if isinstance(node, ast.While):
            self._read(node.test, state - lost)
            inside = state - lost
            endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
            surely = endless
        else:
            self._read(node.iter, state)
            inside = state - lost
            self._bind(node.target, inside)
            endless = False
            surely = _runs_at_least_once(node.iter)
        self._loops.append((breaks, continues))
        end = self.block(node.body, inside)
        self._loops.pop()
        ran_out: State = None
        if not endless:
            # A body that may not run at all binds nothing for what follows.
            ran_out = _join(end, *continues) if surely else set(state)
            ran_out = self.block(node.orelse, ran_out - lost if ran_out is not None else None)
        after = _join(ran_out, *breaks)
        return None if after is None else after - lost

    def _try(self, node: ast.Try | ast.TryStar, state: set[str]) -> State:
        ends = [self.block(node.orelse, self.block(node.body, set(state)))]
        # The body may have failed at its first step, or after it has unbound a name.
        failed = state - _unbound_by(node.body)
        for handler in node.handlers:
            caught = set(failed)
            if handler.type is not None:
                self._read(handler.type, caught)
            end = self.block(handler.body, caught | ({handler.name} if handler.name else set()))
            ends.append(end - {handler.name or ""} if end is not None else None)
        after = _join(*ends)
        if not node.finalbody:
            return after
        # The last block also runs on the way out of a failed body; it is read in that state, and
        # what it binds is added to the state in which control goes on.
        before = [*node.body, *node.handlers, *node.orelse]
        final = self.block(node.finalbody, state - _unbound_by(before))
        if after is None or final is None:
            return None
        return after - _unbound_by(node.finalbody) | final

    def _match(self, node: ast.Match, state: set[str]) -> State:
        self._read(node.subject, state)
        ends: list[State] = []
        exhaustive = False
        for case in node.cases:
            inside = set(state)
            for part in ast.walk(case.pattern):
                inside |= binds(part)
                if isinstance(part, ast.MatchValue):
                    self._read(part.value, state)
            if case.guard is not None:
                self._read(case.guard, inside)
            elif isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None:
                exhaustive = True
            ends.append(self.block(case.body, inside))
        return _join(*ends, *([] if exhaustive else [state]))

    def _bind(self, target: ast.expr | None, state: set[str]) -> None:
        """Bind the names of an assignment target; read what it is made of otherwise."""
        match target:
            case None:
                return
            case ast.Name():
                state.add(target.id)
            case ast.Tuple() | ast.List():
                for element in target.elts:
                    self._bind(element, state)
            case ast.Starred():
                self._bind(target.value, state)
            case _:
                self._read(target, state)

    def _use(self, name: str, state: set[str]) -> None:
        if name in self.locals and name not in state:
            self.unbound.add(name)

    def _read(self, node: ast.AST, state: set[str]) -> None:
        """Visit an expression in order of evaluation; ``state`` gains what ``:=`` surely binds."""
        match node:
            case ast.Name():
                if isinstance(node.ctx, ast.Load | ast.Del):
                    self._use(node.id, state)
            case ast.NamedExpr():
                self._read(node.value, state)
                self._bind(node.target, state)
            case ast.BoolOp():
                self._read(node.values[0], state)
                sometimes = set(state)
                for value in node.values[1:]:
                    self._read(value, sometimes)
            case ast.IfExp():
                self._read(node.test, state)
                self._read(node.body, set(state))
                self._read(node.orelse, set(state))
            case ast.Lambda():
                for default in (*node.args.defaults, *node.args.kw_defaults):
                    if default is not None:
                        self._read(default, state)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(node, state)
            case _:
                for child in ast.iter_child_nodes(node):
                    self._read(child, state)

    def _comprehension(self, node: _Comprehension, state: set[str]) -> None:
        self._read(node.generators[0].iter, state)
        inside = set(state)
        for index, generator in enumerate(node.generators):
            if index:
                self._read(generator.iter, inside)
            self._bind(generator.target, inside)
            for condition in generator.ifs:
                self._read(condition, inside)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self._read(part, inside)


def _unbound_by(body: Iterable[ast.AST]) -> set[str]:
    """The names that some path through ``body`` leaves unbound: deleted ones, and those of
    exceptions that were caught."""
    nodes = [node for part in body for node in ast.walk(part)]
    names = {n.name for n in nodes if isinstance(n, ast.ExceptHandler) and n.name}
    return names | {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Del)}


def _runs_at_least_once(iterable: ast.expr) -> bool:
    """Return whether a loop surely has a first round: ``range(3)``, ``range(1, 4)``, a display."""
    match iterable:
        case ast.Tuple() | ast.List() | ast.Set():
            return any(not isinstance(element, ast.Starred) for element in iterable.elts)
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(stop))]):
            return stop > 0
        case ast.Call(
            func=ast.Name(id="range"),
            args=[ast.Constant(value=int(start)), ast.Constant(value=int(stop))],
        ):
            return start < stop
    return False


def _evaluated_at_definition(node: Function | ast.ClassDef) -> Iterable[ast.expr]:
    yield from node.decorator_list
    if isinstance(node, ast.ClassDef):
        yield from node.bases
        return
    yield from node.args.defaults
    yield from (default for default in node.args.kw_defaults if default is not None)
