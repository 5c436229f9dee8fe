"""Plain English: how docstrings open, and words that STYLE forbids, over src, scripts and docs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")])
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])

# A docstring says in the imperative what a function does, and in a noun phrase what a thing is.
OPENINGS = {
    "As", "How", "Its", "Of", "So", "Such", "That", "Those", "What", "When", "Where", "Whether",
    "Which", "Who", "Whose", "Why",
}  # fmt: skip
# Programs do not speak, and nobody stands beside them.
WORDS = re.compile(
    r"(?<![\w`])(told|tells|telling|said|says|saying|lessons|doubts|warmth|settling|nobody|somebody|"
    r"whoever)(?![\w`])",
    re.IGNORECASE,
)
NAMES = re.compile(r"(^|_)(told|said|says|lessons?|doubts?|warmth|settling|nobody|somebody)(_|$)")
# Texts of prompts, of data and of the simulated world, and keys of files: figures depend on them.
TEXTS = {
    "docs/workflows.md",  # has the docstrings of operators
    "src/flowright/criteria/constraints/drawable.py",
    "src/flowright/criteria/constraints/drawing.py",
    "src/flowright/criteria/constraints/ifbench_counts.py",
    "src/flowright/criteria/rubrics/checkers.py",
    "src/flowright/environments/instructions/grader.py",
    "src/flowright/environments/judging/display.py",
    "src/flowright/environments/presentation/operators.py",
    "src/flowright/judging/llm_judge.py",
    "src/flowright/judging/measuring/benchmark_rows.py",
    "src/flowright/judging/measuring/exam_probes.py",
    "src/flowright/judging/prompts.py",
    "src/flowright/judging/rules.py",
    "src/flowright/workflows/aflow.py",
    "src/flowright/workflows/operators.py",
    "src/flowright/workflows/prompt.py",
}


def documented(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The docstrings of modules, classes, functions, fields and constants, with their lines."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            value = child.value if isinstance(child, ast.Expr) else None
            text = value.value if isinstance(value, ast.Constant) else None
            if isinstance(text, str) and text.strip():
                yield child.lineno, text


def test_docstrings_open_with_a_verb_or_a_noun() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text.split()[0]}"
        for path in FILES
        for line, text in documented(ast.parse(path.read_text(encoding="utf-8")))
        if text.split()[0].strip(",.:;") in OPENINGS
    ]
    assert wrong == []


def test_no_program_speaks() -> None:
    wrong = []
    for path in FILES:
        name = str(path.relative_to(ROOT))
        if name in TEXTS:
            continue
        source = path.read_text(encoding="utf-8")
        for number, line in enumerate(source.splitlines(), start=1):
            wrong += [f"{name}:{number}: {word[0]}" for word in WORDS.finditer(line)]
        for node in ast.walk(ast.parse(source)):
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if named and NAMES.search(node.name):
                wrong.append(f"{name}:{node.lineno}: {node.name}")
    for path in (path for path in PAGES if str(path.relative_to(ROOT)) not in TEXTS):
        is_code = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            is_code ^= line.lstrip().startswith("```")
            if not is_code:
                prose = re.sub(r"`[^`]*`", "", line)
                name = path.relative_to(ROOT)
                wrong += [f"{name}:{number}: {word[0]}" for word in WORDS.finditer(prose)]
    assert wrong == []


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
