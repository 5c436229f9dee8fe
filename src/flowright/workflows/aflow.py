"""Translation of programs written for AFlow's operators (arXiv 2410.10762).

AFlow's workflows import operators from their project, are constructed with a name, a model
configuration and a dataset, and return the answer with its cost. Line edits remove the imports;
stand-ins for AFlow's classes, in terms of our operators, are appended to the program.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from itertools import chain

from flowright.core.errors import FailureError, Reason
from flowright.workflows.language import (
    CLASS_NAME,
    Edit,
    binds,
    bound_name,
    is_here,
    keep_imports,
    nodes,
    replace,
)

NAME = "aflow_translated"
EARLY_CLASS_NAME = "SolveGraph"  # what AFlow's first releases called the class
_PREFIX = "AFlow"

_ENSEMBLE = """\
    async def __call__(self, solutions, problem="", _mode=None):
        chosen = await ensemble(str(problem), [str(solution) for solution in solutions])
        return {"response": chosen, "solution": chosen}"""

# What stands in for AFlow's operators. Signatures and keys of the results: scripts/operators.py of
# github.com/FoundationAgents/AFlow.
_OPERATORS: Mapping[str, str] = {
    "Custom": """\
    async def __call__(self, input, instruction=""):
        reply = await generate(str(instruction) or str(input), str(input) if instruction else "")
        return {"response": reply}""",
    "Generate": """\
    async def __call__(self, problem):
        return {"response": await generate(str(problem))}""",
    "AnswerGenerate": """\
    async def __call__(self, input):
        reply = await answer(str(input))
        return {"thought": reply, "answer": reply}""",
    "CustomCodeGenerate": """\
    async def __call__(self, problem, entry_point=None, instruction=""):
        asked = str(instruction) + "\\n\\n" + str(problem) if instruction else str(problem)
        code = await write_code(asked)
        return {"response": code, "code": code}""",
    "ScEnsemble": _ENSEMBLE,
    "MdEnsemble": _ENSEMBLE,
    "Programmer": """\
    async def __call__(self, problem, analysis="None"):
        hint = "" if analysis in (None, "", "None") else "\\n\\nAnalysis:\\n" + str(analysis)
        return {"code": "", "output": await programmer(str(problem) + hint)}""",
    "Test": """\
    async def __call__(self, problem, solution, entry_point=None, test_loop=3, benchmark=None):
        solution = str(solution)
        for _ in range(test_loop):
            outcome = await test(solution)
            if outcome["passed"]:
                return {"result": True, "solution": solution}
            solution = await revise(str(problem), solution, outcome["feedback"])
        outcome = await test(solution)
        return {"result": outcome["passed"], "solution": solution}""",
    "Review": """\
    async def __call__(self, problem, solution, _mode=None):
        feedback = await review(str(problem), str(solution))
        said = re.search(r"(?i)\\b(incorrect|not correct|wrong|correct|right)\\b", feedback)
        good = said is None or said.group(1).lower() in ("correct", "right")
        return {"review_result": good, "feedback": feedback}""",
    "Revise": """\
    async def __call__(self, problem, solution, feedback, _mode=None):
        return {"solution": await revise(str(problem), str(solution), str(feedback))}""",
    "Format": """\
    async def __call__(self, problem, solution, _mode=None):
        reply = await format(str(problem), str(solution))
        return {"response": reply, "solution": reply}""",
}

# What else such programs take from their project. Costs are counted by the host, not in here.
_SUPPORT = """\
import re

class CostManager:
    def __init__(self):
        self.total_cost = 0.0

class AFlowModel:
    def __init__(self):
        self.cost_manager = CostManager()

    async def __call__(self, prompt):
        return await generate(str(prompt))

    def get_usage_summary(self):
        return {"total_cost": 0.0, "total_tokens": 0}

def create_llm_instance(llm_config=None):
    return AFlowModel()

class AFlowLogger:
    def debug(self, message):
        print(message)

    def info(self, message):
        print(message)

    def warning(self, message):
        print(message)

    def error(self, message):
        print(message)

logger = AFlowLogger()

def aflow_answer(returned):
    if isinstance(returned, tuple) and returned:
        returned = returned[0]
    if isinstance(returned, dict):
        return returned.get("response", returned.get("solution"))
    return returned
"""
_PROVIDED = frozenset({"CostManager", "create_llm_instance", "logger"})
_DATASET_TYPE = "DatasetType"  # a hint that such programs use and often fail to import
INIT_PARAMETERS = {
    "name": f'"{CLASS_NAME}"',
    "llm_config": "None",
    "dataset": '""',
    "benchmark": "None",
}


def translate(tree: ast.Module) -> Iterator[Edit]:
    """The edits that take a program out of AFlow's project; none for a program that was not
    written for it. Raises FailureError(UNSUPPORTED) for what stands in a file of that project that
    is not here."""
    own = _own_names(tree)
    if not _is_aflow(tree, own):
        return
    absent = _absent_names(tree)
    hints: set[int] = set()
    owners: dict[int, ast.Attribute] = {}
    for node in nodes(tree):  # from the outside in
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from _import(node)
            case ast.ClassDef(name=name) if name == EARLY_CLASS_NAME:
                start = (node.lineno, node.col_offset + len("class "))
                end = (node.lineno, start[1] + len(name))
                yield Edit(start, end, CLASS_NAME, expect=name)
            case ast.arg(annotation=ast.expr() as hint):
                names = [n for n in ast.walk(hint) if isinstance(n, ast.Name)]
                if any(n.id in absent or n.id == _DATASET_TYPE for n in names if n.id not in own):
                    hints.update(map(id, names))
                    yield replace(node, node.arg)
            case ast.Attribute(value=value):
                owners[id(value)] = node
            case ast.Name(ctx=ast.Load()) if id(node) not in hints:
                yield from _name(node, owners.get(id(node)), own, absent)


def _name(
    node: ast.Name, owner: ast.Attribute | None, own: set[str], absent: set[str]
) -> Iterator[Edit]:
    """Translate a name that is read; ``owner`` is the attribute that is taken of it, if any."""
    if node.id in own or node.id in _PROVIDED:
        return
    if owner is not None and (owner.attr in _OPERATORS or node.id in absent):
        if owner.attr not in _OPERATORS and owner.attr not in own:
            raise _missing(f"{node.id}.{owner.attr}", owner.lineno)
        text = _PREFIX + owner.attr if owner.attr in _OPERATORS else owner.attr
        yield replace(owner, text, expect=f"{node.id}.{owner.attr}")
    elif node.id in _OPERATORS:
        yield replace(node, _PREFIX + node.id, expect=node.id)
    elif node.id in absent:
        raise _missing(node.id, node.lineno)


def _missing(name: str, line: int) -> FailureError:
    return FailureError(
        Reason.UNSUPPORTED,
        f"{name} stands in another file, and the workflow language has only this one: put what is "
        "needed of the other in front of it",
        line,
    )


def start(tree: ast.Module, call: str) -> str:
    """Return the code appended to a translated program: the stand-ins it needs, and its start by
    ``call``."""
    classes = [
        f"class {_PREFIX}{name}:\n    def __init__(self, llm=None, *settings, **more):\n"
        f"        self.llm = llm\n\n{_OPERATORS[name]}\n"
        for name in dict.fromkeys(_used(tree))
    ]
    return "\n".join([_SUPPORT, *classes, f"aflow_answer({call})"])


def operator_calls(tree: ast.Module) -> tuple[str, ...]:
    """The operators that the stand-ins call, in the order in which the program makes these."""
    calls = (dict.fromkeys(re.findall(r"await (\w+)", _OPERATORS[name])) for name in _used(tree))
    return tuple(chain.from_iterable(calls))


def _used(tree: ast.Module) -> list[str]:
    found = [
        (node.lineno, node.col_offset, node.id.removeprefix(_PREFIX))
        for node in nodes(tree)
        if isinstance(node, ast.Name) and node.id.startswith(_PREFIX)
    ]
    return [name for _, _, name in sorted(found) if name in _OPERATORS]


def _is_aflow(tree: ast.Module, own: set[str]) -> bool:
    """Return whether a program constructs an AFlow operator or calls a model in AFlow's way."""
    for node in nodes(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=attribute)):
                if attribute in _OPERATORS and module not in own and module != "self":
                    return True
            case ast.Call(func=ast.Name(id=name)):
                if name in (*_OPERATORS, "create_llm_instance") and name not in own:
                    return True
    return False


def _absent_names(tree: ast.Module) -> set[str]:
    """The names that are bound by imports of modules which are not here."""
    return {
        bound_name(alias)
        for node in nodes(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if not is_here(node, alias)
    }


def _import(node: ast.Import | ast.ImportFrom) -> Iterator[Edit]:
    """Leave of an import what is here: of `from a import b, c`, all or nothing."""
    kept = [alias for alias in node.names if is_here(node, alias)]
    if len(kept) == len(node.names):
        return
    yield keep_imports(node, kept) if isinstance(node, ast.Import) else replace(node, "pass")


def _own_names(tree: ast.Module) -> set[str]:
    """The names that the program itself binds, whatever the scope; of imports, those that work."""
    names: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {bound_name(alias) for alias in node.names if is_here(node, alias)}
        else:
            names |= binds(node)
    return names
