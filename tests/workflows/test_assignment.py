"""Definite assignment: by table, and against what Python does with random programs of ours."""

import ast
import textwrap

import pytest
from examples import up_to
from hypothesis import given, strategies as st

from flowright.workflows.assignment import maybe_unbound


def unbound(body: str, header: str = "def f(p):") -> list[str]:
    tree = ast.parse(f"{header}\n{textwrap.indent(textwrap.dedent(body), '    ')}")
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    return maybe_unbound(function)


CASES = {
    "if without else": ("if p:\n    x = 1\nreturn x", ["x"]),
    "both branches": ("if p:\n    x = 1\nelse:\n    x = 2\nreturn x", []),
    "a branch that leaves": ("if p:\n    return 0\nelse:\n    x = 2\nreturn x", []),
    "for over anything": ("for i in p:\n    x = i\nreturn x", ["x"]),
    "the loop variable": ("for i in p:\n    pass\nreturn i", ["i"]),
    "for over range(3)": ("for i in range(3):\n    x = i\nreturn x, i", []),
    "for over range(0)": ("for i in range(0):\n    x = i\nreturn x", ["x"]),
    "range(3) with continue": (
        "for i in range(3):\n    if p:\n        continue\n    x = i\nreturn x",
        ["x"],
    ),
    "range(3) with an early break": (
        "for i in range(3):\n    if p:\n        break\n    x = i\nreturn x",
        ["x"],
    ),
    "for else": ("for i in p:\n    pass\nelse:\n    x = 1\nreturn x", []),
    "while true": ("while True:\n    x = 1\n    break\nreturn x", []),
    "while": ("while p:\n    x = 1\nreturn x", ["x"]),
    "try": ("try:\n    x = 1\nexcept ValueError:\n    pass\nreturn x", ["x"]),
    "try, handler binds": ("try:\n    x = 1\nexcept ValueError:\n    x = 2\nreturn x", []),
    "try, handler leaves": ("try:\n    x = 1\nexcept ValueError:\n    return 0\nreturn x", []),
    "read in the handler": ("try:\n    x = 1\nexcept ValueError:\n    return x\nreturn 0", ["x"]),
    "read in finally": ("try:\n    x = p\nfinally:\n    print(x)", ["x"]),
    "bound in finally": ("try:\n    pass\nfinally:\n    x = 1\nreturn x", []),
    "the exception's name is gone": (
        "try:\n    p()\nexcept ValueError as e:\n    pass\nreturn e",
        ["e"],
    ),
    "short circuit": ("p and (x := 1)\nreturn x", ["x"]),
    "walrus in the test": ("if (x := p):\n    pass\nreturn x", []),
    "augmented": ("x += 1", ["x"]),
    "comprehension variables are its own": ("return [x for x in p]", []),
    "comprehension reads": ("y = [x for _ in p]\nx = 1\nreturn y", ["x"]),
    "walrus in a comprehension": ("[(x := i) for i in p]\nreturn x", ["x"]),
    "match without a wildcard": ("match p:\n    case 1:\n        x = 1\nreturn x", ["x"]),
    "match with a wildcard": (
        "match p:\n    case 1:\n        x = 1\n    case _:\n        x = 2\nreturn x",
        [],
    ),
    "match captures": ("match p:\n    case [a, *b]:\n        return a, b\nreturn a", ["a"]),
    "with": ("with p as x:\n    y = 1\nreturn x, y", []),
    "a nested function is not looked into": ("def g():\n    return x\nx = 1\nreturn g()", []),
    "a name that is global": ("global x\nif p:\n    x = 1\nreturn x", []),
    "an import": ("if p:\n    import json\nreturn json", ["json"]),
    "after del": ("x = 1\ndel x\nreturn x", ["x"]),
    "parameters are bound": ("p += 1\nreturn p", []),
    "annotation without a value": ("x: int\nreturn x", ["x"]),
    "several, sorted": ("if p:\n    b = a = 1\nreturn b + a", ["a", "b"]),
}


@pytest.mark.parametrize(("body", "names"), CASES.values(), ids=CASES.keys())
def test_cases(body: str, names: list[str]) -> None:
    assert unbound(body) == names


NAMES = ("a", "b", "c")


def indented(block: str) -> str:
    return textwrap.indent(block, "    ")


def blocks(depth: int, in_loop: bool) -> st.SearchStrategy[str]:
    names = st.sampled_from(NAMES)
    simple = [
        names.map(lambda n: f"{n} = 1"),
        names.map(lambda n: f"use({n})"),
        names.map(lambda n: f"coin() and ({n} := 1)"),
        names.map(lambda n: f"{n} += 1"),
        st.just("fail()"),
        st.just("return"),
    ]
    if in_loop:
        simple += [st.just("break"), st.just("continue")]
    statement: st.SearchStrategy[str] = st.one_of(simple)
    if depth > 0:
        inner, looped = blocks(depth - 1, in_loop), blocks(depth - 1, True)
        statement = st.one_of(
            statement,
            st.builds(
                lambda x, y: f"if coin():\n{indented(x)}\nelse:\n{indented(y)}", inner, inner
            ),
            st.builds(lambda x: f"if coin():\n{indented(x)}", inner),
            st.builds(
                lambda n, head, x, y: f"for {n} in {head}:\n{indented(x)}\nelse:\n{indented(y)}",
                names,
                st.sampled_from(("range(2)", "few()", "(1,)")),
                looped,
                inner,
            ),
            st.builds(lambda x: f"while coin():\n{indented(x)}", looped),
            st.builds(
                lambda x, n, y, z, w: (
                    f"try:\n{indented(x)}\nexcept KeyError as {n}:\n{indented(y)}\n"
                    f"else:\n{indented(z)}\nfinally:\n{indented(w)}"
                ),
                inner,
                names,
                inner,
                inner,
                inner,
            ),
        )
    return st.lists(statement, min_size=1, max_size=4).map("\n".join)


@up_to(150)
@given(blocks(2, in_loop=False), st.randoms(use_true_random=False))
def test_whatever_python_finds_unbound_was_listed(body: str, random) -> None:
    source = f"def f(coin, few, use, fail):\n{indented(body)}"
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    listed = maybe_unbound(function)
    tosses = 0

    def coin() -> bool:
        nonlocal tosses
        tosses += 1
        return tosses < 50 and random.random() < 0.5

    def fail() -> None:
        if coin():
            raise KeyError

    space: dict = {}
    exec(compile(source, "drawn", "exec"), space)
    for _ in range(10):
        tosses = 0
        try:
            space["f"](coin, lambda: range(random.randrange(2)), lambda x: None, fail)
        except UnboundLocalError as error:
            assert error.args[0].split("'")[1] in listed
        except (KeyError, TypeError, NameError):  # e + 1, or a name that is bound nowhere
            pass
