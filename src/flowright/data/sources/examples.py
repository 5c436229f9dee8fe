"""The examples of a docstring as plain asserts. Only literals are understood; nothing is run.

Understood are ``>>> f(1)`` with the value in the next line, and ``f(1) == 2`` in one line with any
of the signs and words that people put between the two. An example that is not certain is left out.
"""

import ast
import re

from flowright.sandbox import parse_trusted

_BETWEEN = re.compile(r"\s*(?:#\s*)?(?:={1,3}>|={1,2}|-+>|➞|→|returns|should\s+return)\s*")
_LOWER = {"true": "True", "false": "False", "none": "None"}


def docstring_examples(prompt: str, entry_point: str) -> list[str]:
    """``assert f(x) == y`` for the examples in the docstring of ``entry_point`` in ``prompt``."""
    found: dict[str, None] = {}
    for docstring in _docstrings(prompt, entry_point):
        lines = docstring.splitlines()
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            example = _example(line, following, entry_point)
            if example is not None:
                found[example] = None
    return list(found)


def _expression(text: str) -> ast.expr | None:
    """The expression that a text is, None if it is anything else."""
    tree = parse_trusted(text.strip())
    match tree.body if tree else []:
        case [ast.Expr(value=value)]:
            return value
    return None


def _docstrings(prompt: str, entry_point: str) -> list[str]:
    """All bare strings in the function: some prompts have an import before the docstring."""
    tree = parse_trusted(prompt)
    body = tree.body if tree else []
    function = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == entry_point]
    values = [n.value for f in function for n in f.body if isinstance(n, ast.Expr)]
    return [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]


def _example(line: str, following: str, entry_point: str) -> str | None:
    start = re.search(rf"(?<![\w.]){re.escape(entry_point)}\(", line)
    if start is None:
        return None
    call = _call(line[start.start() :])
    if call is None:
        return None
    before, rest = line[: start.start()].strip(), line[start.start() + len(call) :]
    between = _BETWEEN.match(rest)
    if between is not None:
        value = _literal(rest[between.end() :])
    elif before == ">>>" and not rest.strip():
        value = _literal(following)
    else:
        value = None
    return None if value is None else f"assert {call} == {value}"


def _call(text: str) -> str | None:
    """The shortest prefix of ``text`` that is a call with literal arguments."""
    for end in (match.end() for match in re.finditer(r"\)", text)):
        match _expression(text[:end]):
            case None:
                continue
            case ast.Call(args=args, keywords=[]) if all(map(_is_literal, args)):
                return text[:end]
            case _:
                return None
    return None


def _literal(text: str) -> str | None:
    """The literal that ``text`` is, apart from a full stop or a remark behind it."""
    for candidate in (re.split(r"\s+(?:#|\()", text, maxsplit=1)[0], text):
        stripped = candidate.strip().rstrip(".,;")
        spelt = _LOWER.get(stripped, stripped)
        value = _expression(spelt)
        if value is not None and _is_literal(value):
            return spelt
    return None


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return False
    return True
