"""Code answers made whole: what a problem gave and its answer may leave out."""

import ast

from flowright.data.task import Problem
from flowright.sandbox import parse_trusted


def complete_solution(task: Problem, code: str) -> str:
    """``code`` behind what the question gave and it may have left out: imports and helpers.

    HumanEval's problems are programs to be completed; models often answer with the function alone.
    Only what stands in the question word for word is added.
    """
    given = []
    for source in (task.reference, task.test_setup):
        tree = parse_trusted(source)
        for node in tree.body if tree else []:
            text = ast.get_source_segment(source, node) or ""
            helper = isinstance(node, ast.FunctionDef) and node.name != task.entry_point
            wanted = isinstance(node, ast.Import | ast.ImportFrom) or helper
            if wanted and text in task.question and text not in code and text not in given:
                given.append(text)
    return "\n\n".join([*given, code])
