"""Gold checks: tables of answers with their reasons, and upstream references on themselves."""

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from lost_sandbox import LostSandbox

from flowright.data.sources.registry import find_part, load_dataset, load_part
from flowright.data.task import Problem, complete_solution
from flowright.grading import (
    Gold,
    exact_match,
    extract_answer,
    gold_check,
)
from flowright.grading.choices import chosen_label, same_date
from flowright.grading.numbers import conclusion, lone_number
from flowright.grading.text import same_spans, tokens
from flowright.grading.word_scores import OWN, SCORERS
from flowright.llm.replies import extract_code
from flowright.sandbox import Sandbox


def task(reference: str, kind: str = "math", **fields: object) -> Problem:
    row = {"id": "t", "kind": kind, "source": "s", "question": "q", "reference": reference}
    return Problem.from_row({**row, **fields}, "test")


# --- finding the answer --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, answer",
    [
        ("18", "18"),
        ("  **18**. ", "18"),
        ("So we add.\nThe answer is $18$.", "18"),
        ("The final answer is: **Paris**", "Paris"),
        ("**Answer:** 7", "7"),
        ("Answer:\n\n7", "7"),
        ("9 * 2 = 18\n#### 18", "18"),
        ("We get \\boxed{\\frac{1}{2}} and then \\boxed{\\sqrt{3}}.", "\\sqrt{3}"),
        ("\\boxed{1} \\boxed{unbalanced", "1"),
        ("<answer>4</answer> no wait <answer> 5 </answer>", "5"),
        ("<answer>4</answer> The answer is 6", "4"),
        ("first\n\nlast line\n\n", "last line"),
        ("\\(x^2\\)", "x^2"),
        ("\\text{Evelyn}", "Evelyn"),
        ("`code`", "code"),
        ("'quoted'", "quoted"),
        ("...", "..."),
        ("", ""),
        ("   \n ** \n", ""),
    ],
)
def test_extract_answer(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@given(st.text(st.sampled_from("answer is:*_$\\{}()boxed<>/#. \n12,-")) | st.text())
def test_extraction_and_comparison_take_any_text(text: str) -> None:
    final = extract_answer(text)
    assert exact_match(final, final)
    for scorer in (OWN, *SCORERS.values()):
        assert scorer.scores(final, [final])[0] == 1.0
        assert 0.0 <= scorer.scores(final, ["the reference"])[1] <= 1.0
    choices = (("A", "yes"), ("B", "no"))
    assert chosen_label(text, choices) in (None, "A", "B")
    lone_number(text)
    conclusion(text)
    same_date(text, "12 May 1999")
    same_spans(text, "a and b")
    extract_code(text, "f")


# --- mathematics ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["x + 1", "x +1", "x - 1", "x -1", "n-1", "5 - x", "5 -x", "5 + x", "t − 2", "sum - 5"]
)
def test_an_expression_is_no_lone_number(text: str) -> None:
    assert lone_number(text) is None


@pytest.mark.parametrize(
    "text", ["-5", "- 5", "x = -5", "x = - 5", "The answer: - 5", "it is -5 degrees", "y=-5"]
)
def test_a_sign_is_no_operator(text: str) -> None:
    number = lone_number(text)
    assert number is not None and number.value == -5


@pytest.mark.parametrize(
    "reference, answer, correct, method",
    [
        ("18", "18", True, "identical"),
        ("18", "$18", True, "number"),  # currency
        ("18", "The answer is 18 dollars per day.", True, "number"),  # unit
        ("1080", "1,080", True, "number"),  # thousands
        ("1080", "1{,}080", True, "number"),
        ("-3", "−3", True, "identical"),  # the typographer's minus
        ("0.5", "1/2", True, "number"),
        ("1/2", "\\boxed{\\dfrac{1}{2}}", True, "number"),
        ("3.5", "3 1/2", True, "number"),  # mixed number
        ("50", "50%", False, "percent"),  # the question asks for no percentage
        ("0.5", "50\\%", True, "number"),  # the same share
        ("50", "0.5", False, "number"),  # but not without the sign
        ("1000000", "1 million", True, "number"),
        ("100", "1e2", True, "number"),
        ("5", "x = 5", True, "number"),
        ("8", "5 + 3 = 8", True, "number"),
        ("18", "18 (eighteen)", True, "number"),
        ("2", "2.0000001", True, "number"),  # within 1e-6
        ("2", "2.001", False, "number"),
        ("1000001", "1000000", False, "number"),  # whole numbers are exact
        ("2", "\\frac{1}{2}", False, "number"),  # no digit of a fraction is the answer
        ("18", "17", False, "number"),
        ("15", "The total comes to (5*3) 15 dollars", True, "number"),
        ("8", "It is not 8 but 9", False, "number"),
        ("18", "Thought process:", False, "no_number"),  # a master key
        ("18", "?", False, "several"),
        ("5", "5x", False, "math_verify"),  # a variable, not a unit
        ("x^2+1", "1 + x^2", True, "math_verify"),
        ("\\sqrt{12}", "$2\\sqrt3$", True, "math_verify"),
        ("12\\pi", "12\\pi cm", True, "math_verify"),
        ("(1,2)", "(2,1)", False, "math_verify"),
        ("x^2", "x" * 600, False, "text"),  # no formula
        ("18", "", False, "empty"),
        ("18", " \n ", False, "empty"),
    ],
)
async def test_mathematics(
    sandbox: Sandbox, reference: str, answer: str, correct: bool, method: str
) -> None:
    gold = await gold_check(task(reference), answer, sandbox)
    assert (gold.correct, gold.method) == (correct, method), gold


async def test_an_answer_that_cannot_be_evaluated_is_wrong_and_hangs_nothing(
    sandbox: Sandbox,
) -> None:
    gold = await gold_check(task("x^7"), "9^{9^{9^{9}}}", sandbox)
    assert (gold.correct, gold.method) == (False, "math_verify")


async def test_an_answer_is_never_evaluated_as_python(sandbox: Sandbox, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    for answer in (f"__import__('os').mkdir('{trap}')", f"open('{trap}', 'w')", "exit()"):
        assert (await gold_check(task("x^2"), answer, sandbox)).correct is False
    assert not trap.exists()


async def test_alternatives_count(sandbox: Sandbox) -> None:
    both = task("2", alternatives=["3"])
    assert (await gold_check(both, "3", sandbox)).correct
    assert not (await gold_check(both, "4", sandbox)).correct


# --- questions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reference, alternatives, answer, correct, method",
    [
        ("Paris", [], "paris", True, "exact_match"),
        ("The Eiffel Tower", [], "Eiffel tower.", True, "exact_match"),  # article, full stop
        ("Paris", [], "The answer is Paris.", True, "exact_match"),
        ("Paris", [], "Paris, France", False, "exact_match"),
        ("yes", [], "Yes.", True, "exact_match"),
        ("yes", [], "yes, it is", True, "exact_match"),
        ("Ed Wood", ["Edward Wood"], "edward wood", True, "exact_match"),
        ("3.5", [], "35", False, "number"),  # a point is no punctuation in a number
        ("25", [], "25.0", True, "number"),
        ("1000", [], "1,000", True, "number"),
        ("two", [], "2", True, "exact_match"),
        ("25", [], "25 yards", True, "number"),
        ("25", [], "25 of the 40 yards", False, "several"),
        ("12 May 1999", [], "May 12, 1999", True, "date"),
        ("12 May 1999", [], "May 21, 1999", False, "exact_match"),
        ("Romo and Witten", [], "Witten, Romo", True, "spans"),
        ("Romo and Witten", [], "Romo", False, "exact_match"),
        ("None", [], "none", True, "exact_match"),
        ("!", [], "?", False, "exact_match"),  # nothing is left of either
    ],
)
async def test_questions(
    sandbox: Sandbox,
    reference: str,
    alternatives: list[str],
    answer: str,
    correct: bool,
    method: str,
) -> None:
    gold = await gold_check(task(reference, kind="qa", alternatives=alternatives), answer, sandbox)
    assert (gold.correct, gold.method) == (correct, method), gold
    assert "F1" in gold.detail


def test_our_words_for_datasets_without_a_scorer() -> None:
    assert OWN.scores("the cat sat", ["cat sat down"])[1] == pytest.approx(2 * 2 / (2 + 3))
    assert OWN.scores("no", ["no way"])[1] == 0.0  # closed answers match themselves only
    assert OWN.scores("", [""]) == (1.0, 1.0)
    assert OWN.scores("", ["cat"])[1] == 0.0
    assert OWN.scores("a cat a cat", ["cat"])[1] == pytest.approx(2 / 3)
    assert tokens("The well-known $1,050.00 “Prize”!") == ("well", "known", "1050", "prize")


CHOICES = [["A", "red"], ["B", "a blue one"], ["C", "None"], ["D", "red"]]


@pytest.mark.parametrize(
    "answer, label",
    [
        ("B", "B"),
        ("b", "B"),
        ("(B)", "B"),
        ("B.", "B"),
        ("B)", "B"),
        ("[B]", "B"),
        ("**B**", "B"),
        ("Option B", "B"),
        ("B. a blue one", "B"),
        ("(B) a blue one", "B"),
        ("B: because it is blue", "B"),
        ("The answer is (B).", "B"),
        ("The answer is B: a blue one", "B"),
        ("<answer>B</answer>", "B"),
        ("Blue one", "B"),
        ("none", "C"),
        ("B. None", None),  # the label of one, the text of another
        ("red", None),  # two choices read so
        ("E", None),
        ("A blue", None),  # an article
        ("A or B", None),
        ("", None),
    ],
)
async def test_multiple_choice(sandbox: Sandbox, answer: str, label: str | None) -> None:
    for right in "ABCD":
        asked = task(right, kind="qa", choices=CHOICES)
        gold = await gold_check(asked, answer, sandbox)
        assert gold.correct == (label == right), gold


# --- code ----------------------------------------------------------------------------------------

ADD = task(
    "def add(a, b):\n    return a + b\n",
    kind="code",
    entry_point="add",
    hidden_tests=["assert add(1, 2) == 3", "assert add(2, 2) == 4", "assert add(0, 0) == 0"],
)


async def test_code_by_hidden_tests(sandbox: Sandbox) -> None:
    good = await gold_check(ADD, "Here:\n```python\ndef add(a, b):\n    return b + a\n```", sandbox)
    assert good == Gold(True, "tests", good.detail, "passed 3 of 3 tests")
    bad = await gold_check(ADD, "def add(a, b): return a * b", sandbox)
    assert bad.correct is False
    assert bad.evidence is not None
    assert bad.evidence == "passed 2 of 3 tests"
    assert bad.detail.startswith("passed 2 of 3 tests; first failure: AssertionError")
    assert (await gold_check(ADD, "", sandbox)).correct is False
    assert (await gold_check(ADD, "I cannot do that.", sandbox)).correct is False


async def test_a_lost_sandbox_is_no_verdict() -> None:
    lost = LostSandbox(workers=1)
    for asked, answer in ((ADD, "def add(a, b): return a + b"), (task("x^2"), "x*x")):
        gold = await gold_check(asked, answer, lost)
        assert gold.correct is None and "no memory" in gold.detail


@pytest.mark.parametrize(
    "answer, code",
    [
        ("def f(): pass", "def f(): pass"),
        ("```python\ndef f(): pass\n```", "def f(): pass"),
        ("```\ndef f(): pass\n```\n", "def f(): pass"),
        ("```python\ndef f(): 1\n```\nBetter:\n```py\ndef f(): 2\n```", "def f(): 2"),
        ("```python\ndef f(): 1\n```\nUse:\n```python\nprint(f())\n```", "def f(): 1"),
        ("```bash\nls\n```\n```python\ndef f(): 1\n```", "def f(): 1"),
        ("```python\nx = 1\n```\n```python\ny = 2\n```", "x = 1\n\n\ny = 2"),
        ("```bash\nls\n```", "```bash\nls\n```"),
    ],
)
def test_extract_code(answer: str, code: str) -> None:
    assert extract_code(answer, "f") == code


async def test_programs_in_several_blocks(sandbox: Sandbox) -> None:
    lines = Path(__file__).with_name("replies.jsonl").read_text().splitlines()
    failed = []
    for row in map(json.loads, lines):
        code = extract_code(row["reply"], row["entry"])
        report = await sandbox.check(code, "", row["tests"], row["entry"])
        if not report.passed:
            failed.append((row["reply"], code, report.results[0].message))
    assert failed == []


@pytest.mark.parametrize(
    "blocks, code",
    [
        (("import os", "def f(): return 1"), "def f(): return 1"),
        (("def g(): return 1", "def g(): return 2\n\ndef f(): return g()"), None),
        (("x = f(3)\nprint(x)", "def f(n):\n    return x * n"), "def f(n):\n    return x * n"),
        (("def g(): pass\ng()\nprint(g())\nassert g()", "def f(): return g()"),
         "def g(): pass\n\ndef f(): return g()"),
        (("n = int(input())\nk = 2", "def f(): return n * k"), "k = 2\n\ndef f(): return n * k"),
        (("k = 1", "k = 2", "def f(): return k"), "k = 2\n\ndef f(): return k"),
        (("k = 1", "def f(k): return k"), "def f(k): return k"),
        (("# g is none\ng = 1\nk = 2", "def f(): return 'g' # k"), "def f(): return 'g' # k"),
    ],
)  # fmt: skip
def test_what_a_block_takes_from_others(blocks: tuple[str, ...], code: str | None) -> None:
    reply = "\n".join(f"```python\n{block}\n```" for block in blocks)
    assert extract_code(reply, "f") == (blocks[-1] if code is None else code)


PROMPT = '''from typing import List
import os

def twice(x):
    return 2 * x

def f(xs: List[int]) -> int:
    """Sum of doubles."""
'''


async def test_a_function_alone_is_completed_from_the_question(sandbox: Sandbox) -> None:
    asked = task(
        PROMPT + "    import math\n    return sum(twice(x) for x in xs)\n",
        kind="code",
        question=f"Complete:\n\n{PROMPT}",
        entry_point="f",
        test_setup="def twice(x):\n    return 2 * x",
        hidden_tests=["assert f([1, 2]) == twice(3)"],
    )
    alone = "def f(xs: List[int]) -> int:\n    return sum(map(twice, xs))\n"
    assert (await gold_check(asked, alone, sandbox)).correct
    completed = complete_solution(asked, alone)
    assert completed.startswith("from typing import List\n\nimport os\n\ndef twice")
    whole = PROMPT + "    return 6\n"
    assert complete_solution(asked, whole) == whole


async def test_names_of_a_signature_need_no_import(sandbox: Sandbox) -> None:
    shown = "Add up.\n\ndef f(xs: List[int], top: Optional[int] = K):"
    reference = "from typing import List\nK = 9\ndef f(xs: List[int], top=K): return sum(xs)"
    asked = task(
        reference, kind="code", question=shown, entry_point="f", hidden_tests=["assert f([1]) == 1"]
    )
    alone = "def f(xs: List[int], top: Optional[int] = 9):\n    return sum(xs)\n"
    assert (await gold_check(asked, f"```python\n{alone}```", sandbox)).correct
    future = "from __future__ import annotations\n"
    completed = complete_solution(asked, future + alone)
    assert completed.startswith(f"{future}from typing import List\n\nfrom typing import Optional")
    assert complete_solution(asked, "def f(xs): return 1").startswith("from typing import List")
    method = "class Solution:\n    def f(self, xs: List[int]):"
    row = {"id": "a", "kind": "code", "source": "s", "question": method, "entry_point": "f"}
    bare = Problem.from_row(row | {"hidden_tests": ['{"input": [[1]], "output": 1}']}, "here")
    assert (await gold_check(bare, method + "\n        return sum(xs)", sandbox)).correct


async def test_a_solution_cannot_redefine_a_helper_of_the_tests(sandbox: Sandbox) -> None:
    asked = task(
        "def poly(x): return x * x - 4\ndef root(): return 2\n",
        kind="code",
        entry_point="root",
        hidden_tests=["assert poly(root()) == 0"],
    )
    assert (await gold_check(asked, asked.reference, sandbox)).correct
    forged = "def poly(x): return 0\ndef root(): return 1\n"
    assert (await gold_check(asked, forged, sandbox)).correct is False


# --- verifiers -----------------------------------------------------------------------------------


def verified(dataset: str, answer: str) -> Problem:
    entry = {"answer": answer, "metadata": {}}
    verifier = {"name": "reasoning_gym", "dataset": dataset, "entry": entry}
    return task(answer, verifier=verifier)


@pytest.mark.parametrize(
    "dataset, answer, correct",
    [
        ("chain_sum", "The answer is 12.", True),
        ("chain_sum", "+12.00", True),
        ("chain_sum", "13", False),
        ("lcm", "12", True),  # the family keeps the plain comparison
        ("lcm", "12 or 13", False),  # part of the score is not the answer
        ("n_queens", "12", None),  # its verifier evaluates the answer
        ("countdown", "12", None),
        ("no_such_family", "12", None),
    ],
)
async def test_reasoning_gym(
    sandbox: Sandbox, dataset: str, answer: str, correct: bool | None
) -> None:
    gold = await gold_check(verified(dataset, "12"), answer, sandbox)
    assert gold.correct is correct, gold


async def test_an_unknown_verifier_is_no_verdict(sandbox: Sandbox) -> None:
    asked = task("1", verifier={"name": "oracle"})
    assert (await gold_check(asked, "1", sandbox)).correct is None


# --- upstream data -------------------------------------------------------------------------------


def upstream(dataset: str) -> Iterator[Problem]:
    default = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("FLOWRIGHT_SHARED_DATA", default))
    part = find_part(load_dataset(dataset), "official", "test", folder)
    if part is None:
        pytest.skip(f"no upstream {dataset} in {folder}")
    return load_part(part, folder)


@pytest.mark.parametrize("dataset", ["gsm8k", "hotpotqa", "drop"])
async def test_references_grade_themselves(sandbox: Sandbox, dataset: str) -> None:
    count = 0
    for asked in upstream(dataset):
        for accepted in (asked.reference, *asked.alternatives):
            answers = [accepted, f"Some thought.\nThe answer is {accepted}."]
            for answer in answers:
                assert (await gold_check(asked, answer, sandbox)).correct, (asked.id, answer)
        count += 1
    assert count >= 200


@pytest.mark.parametrize("dataset", ["mmlu", "commonsenseqa"])
async def test_exactly_one_choice_is_right(sandbox: Sandbox, dataset: str) -> None:
    for index, asked in enumerate(upstream(dataset)):
        if index % 10:
            continue
        for label, text in asked.choices:
            for answer in (label, f"({label})", f"{label}. {text}"):
                gold = await gold_check(asked, answer, sandbox)
                assert gold.correct == (label == asked.reference), (asked.id, answer, gold)


async def test_another_problems_answer_is_wrong(sandbox: Sandbox) -> None:
    tasks = list(upstream("gsm8k"))
    for asked, other in pairwise(tasks):
        gold = await gold_check(asked, other.reference, sandbox)
        assert gold.correct == (asked.reference == other.reference)


@pytest.mark.parametrize(("answer", "right"), [("-5", False), ("5", True), ("5.0", True)])
async def test_a_sign_is_part_of_a_short_answer(answer: str, right: bool, sandbox: Sandbox) -> None:
    task = Problem("t", "qa", "drop", "How many points?", "5")
    assert (await gold_check(task, answer, sandbox)).correct is right
