"""Questions and answers of a user's own: every shape of row and file that is understood, what is
assumed of it, and what is told of those that are not."""

import csv
import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from command_lines import command
from hypothesis import given, strategies as st

from flowright.core.errors import DataError
from flowright.data.answers import NAMES, ROWS, UnreadableAnswer, is_formula, read_answer
from flowright.data.build import check_disjoint, hold_out
from flowright.data.loading import load_problems
from flowright.data.own import Conversion
from flowright.data.sources.dataset import UpstreamRow, read_table
from flowright.data.task import LINES, Problem, read_tasks

ROOT = Path(__file__).parents[2]
Main = Callable[[Sequence[str]], int]
CHOICES = {"question": "Which is red?", "choices": ["grass", "blood", "sky"]}
PAIRS = [["A", "grass"], ["B", "blood"]]
DOUBLE = {"solution": "def double(x):\n    return 2 * x"}


@pytest.fixture(scope="module")
def create() -> Main:
    return command("data mix")


def converted(*rows: dict[str, Any], **given: Any) -> tuple[list[Problem], Conversion]:
    conversion = Conversion(**given)
    numbered = (UpstreamRow(row, f"f:{n}", str(n)) for n, row in enumerate(rows, start=1))
    return [own.problem for own in conversion.problems(numbered, "mine")], conversion


def one(**row: Any) -> Problem:
    return converted(row)[0][0]


@pytest.mark.parametrize(
    ("row", "reference", "kind"),
    [
        ({"question": "6 * 7?", "answer": 42}, "42", "math"),
        ({"problem": "6 * 7?", "ground_truth": "42"}, "42", "math"),
        ({"prompt": "6 * 7?", "label": 42.0}, "42", "math"),
        ({"question": "6 * 7?", "answer": "6 * 7 is\n#### 1,042"}, "1042", "math"),
        ({"problem": "x?", "solution": r"\boxed{1}, \boxed{\frac{1}{2}}"}, r"\frac{1}{2}", "math"),
        ({"problem": "x?", "solution": "long", "answer": "x = 3"}, "x = 3", "math"),
        ({"question": "Peru?", "answer": "Lima"}, "Lima", "qa"),
        ({"instruction": "Capital?", "input": "Peru", "output": "Lima"}, "Lima", "qa"),
        ({"question": "Is it?", "answer": True}, "true", "qa"),
        ({"prompt": [{"role": "user", "content": "Peru?"}], "completion": "Lima"}, "Lima", "qa"),
        ({"prompt": "Peru?", "reward_model": {"ground_truth": "Lima"}}, "Lima", "qa"),
        ({"question": "Peru?", "answers": {"text": ["Lima", "Lima city"]}}, "Lima", "qa"),
        ({"question": "Peru?", "answer": ["Lima", "Lima city"]}, "Lima", "qa"),
        ({"question": "?", "answer": {"value": "Lima", "aliases": ["Lima city"]}}, "Lima", "qa"),
    ],
)  # fmt: skip
def test_questions_and_answers(row: dict[str, Any], reference: str, kind: str) -> None:
    problem = one(**row)
    assert (problem.reference, problem.kind) == (reference, kind)
    assert problem.id == "own/mine/1" and problem.source == "own/mine"
    if "aliases" in str(row) or isinstance(row.get("answer"), list) or "answers" in row:
        assert problem.alternatives == ("Lima city",)
    if "instruction" in row:
        assert (problem.question, problem.context) == ("Capital?", "Peru")


ANSWERS: list[tuple[Any, tuple[str, ...]]] = [
    (12, ("12",)),
    (42.0, ("42",)),
    ([3, 4], ("3", "4")),
    (["Lima", "Lima city"], ("Lima", "Lima city")),
    ({"value": 1908, "aliases": ["MCMVIII"]}, ("1908", "MCMVIII")),
    ({"target": ["Town", "The town"]}, ("Town", "The town")),
    ({"style": "rule", "ground_truth": {"target": ["Town", "The town"]}}, ("Town", "The town")),
    ('{"style": "rule", "ground_truth": "7"}', ("7",)),
    ("{'target': ['Town', 'The town']}", ("Town", "The town")),
    ({"text": ["Lima"], "answer_start": [3]}, ("Lima",)),
    ({"value": '{"a": 1}'}, ('{"a": 1}',)),
    ([{"text": "Lima", "answer_start": 3}, {"text": "Lima city"}], ("Lima", "Lima city")),
    ({"target": ["Lima"], "numbers": None}, ("Lima",)),
    ([{"role": "assistant", "content": "8"}], ("8",)),
    ([{"role": "assistant", "content": [{"type": "text", "text": "8"}]}], ("8",)),
    (True, ("true", "yes")),
    ("So it lies there.\n#### (3, 7)", ("(3, 7)",)),
    ("They are\n#### 2, 7", ("2, 7",)),
    ("#### 1,450,000", ("1450000",)),
    ("#### Explanation\nIt is 5.", ("#### Explanation\nIt is 5.",)),
    ("We get $x=\\boxed 7$. So that is it.", ("7",)),
    ("We get $x=\\fbox{7}$. So that is it.", ("7",)),
    ("$x = \\boxed \\frac{1}{2}$", ("\\frac{1}{2}",)),
    ("<think>6, no</think>It is <answer> 7 </answer>", ("7",)),
    ("So it is\n#### 7\n\nThat is all.", ("7",)),
    ('[{"role": "user", "content": "?"}, {"role": "assistant", "content": "8"}]', ("8",)),
    ([{"from": "gpt", "value": "8"}], ("8",)),
    ({"ground_truth": '["7"]', "style": "rule"}, ("7",)),
    (0, ("0",)),
    (False, ("false", "no")),
    (Decimal("1.50"), ("1.50",)),
    (date(1908, 5, 1), ("1908-05-01",)),
    ("[7, 40]", ("[7, 40]",)),
    ("['a', 'b']", ("['a', 'b']",)),
    ("{1, 2}", ("{1, 2}",)),
    ("\\boxed {7} or \\boxed\n{8}", ("8",)),
    ({"role": "assistant", "content": "8"}, ("8",)),
]
REFUSED: list[tuple[Any, str]] = [
    (None, "is null"),
    ("  ", "is empty"),
    ([None, "x"], "is null"),
    ([[1, 2]], "is a list of lists"),
    ([{"text": "Lima"}, "Lima"], "is a list of lists or of texts and objects"),
    ({"target": 44, "numbers": [1, 2]}, "with numbers beside target"),
    ('{"a": 1}', "is an object without any of"),
    ({"text": [], "answer_start": []}, "is an object without any of"),
    ("['a' 'b']", "is a list as numpy prints it"),
    ("array(['a', 'b'], dtype=object)", "is a list as numpy prints it"),
    ("So \\boxed{}.", "marks nothing"),
    ("So it is\n####", "with nothing behind it"),
    (b"7", "is bytes, not a text or a number"),
    ('[{"a": 1}]', "is an object without any of"),
    ([{"role": "user", "content": "8"}], "does not end with a text of the assistant"),
]


def test_an_answer_cell_is_read_whole_or_refused() -> None:
    for cell, texts in ANSWERS:
        answer = read_answer(cell)
        assert (answer.reference, *answer.alternatives) == texts, cell
    for cell, why in REFUSED:
        with pytest.raises(UnreadableAnswer, match=re.escape(why)):
            read_answer(cell)
    assert one(question="?", answer=12, alternatives=["a dozen"]).alternatives == ("a dozen",)


def test_formulas_are_told_from_text() -> None:
    for text in ("(3, 7)", "2, 7", "[7, 40]", "(-∞, 3]", "1,450,000", "p - q", "52_8", "x = 3"):
        assert is_formula(text), text
    for text in (
        "Lima",
        "1914-1918",
        "12-05-1908",
        "F-16",
        "4th",
        "10:30",
        "so this is why we know that $x = 3$",
    ):
        assert not is_formula(text), text


BODY = "    return 2 * x"
PROMPT = 'def double(x: int) -> int:\n    """Twice x.\n    >>> double(2)\n    4\n    """'
CHECK = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-3) == -6\n"
ASSERTS = "assert double(2) == 4\nassert double(-3) == -6"
IO_TESTS = {"inputs": ["2 3\n", "4 5\n"], "outputs": ["6\n", "20\n"]}
USER = {"role": "user", "content": "What is 3 + 4?"}
SYSTEM = {"role": "system", "content": "Think first."}
MIXED = {"problem_type": "code", "source": "humaneval", "entry_point": "double"}

# The forms of other projects, by the first words of their row in docs/datasets.md; their texts are
# our own. Each with fields of the problem.
FORMS: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "mixed files of workflow trainers": [
        (
            {**MIXED, "problem": PROMPT, "ground_truth": BODY, "test": CHECK, "task_id": "H/1"},
            {"kind": "code", "id": "H/1", "reference": f"{PROMPT}\n{BODY}"},
        ),
        (
            {**MIXED, "problem": PROMPT, "ground_truth": BODY.strip(), "test": CHECK},
            {"kind": "code", "reference": f"{PROMPT}\n{BODY}"},
        ),
        (
            {**MIXED, "problem": "Twice x.", "ground_truth": f"{PROMPT}\n{BODY}", "test": CHECK},
            {"question": "Twice x.\n\ndef double(x: int):", "entry_point": "double"},
        ),
        (
            {"problem": "Cost?", "problem_type": "math", "source": "gsm8k"}
            | {"ground_truth": "1,450", "solution": "So\n#### 1,450"},
            {"kind": "math", "source": "gsm8k", "reference": "1,450"},
        ),
        (
            {"problem": "Red? Choices: A. grass B. blood", "problem_type": "mixed"}
            | {"ground_truth": "B", "choices": ["grass", "blood"], "source": "mmlu"},
            {"kind": "qa", "reference": "B", "source": "mmlu", "question": "Red?"},
        ),
    ],
    "their balanced files": [
        (
            {"id": "m_1", "dataset": "mbpp", "domain": "code", "question": "Twice x."}
            | {"reference_answer": f"{PROMPT}\n{BODY}", "answer_type": "code", "test": CHECK}
            | {"entry_point": "double", "metadata": {"source": "mbpp"}},
            {"kind": "code", "source": "mbpp", "id": "m_1", "entry_point": "double"},
        ),
    ],
    "FlowSteer": [
        (
            {"problem": PROMPT, "problem_type": "code", "ground_truth": BODY, "source": "humaneval"}
            | {"meta": {"test_cases": CHECK, "entry_point": "double"}},
            {"kind": "code", "reference": f"{PROMPT}\n{BODY}"},
        ),
        (
            {"problem": "Twice x.", "problem_type": "code", "ground_truth": f"{PROMPT}\n{BODY}"}
            | {"source": "mbpp", "meta": {"test": ASSERTS, "test_setup_code": "import math"}},
            {"kind": "code", "test_setup": "import math", "entry_point": "double"},
        ),
        (
            {"problem": "x?", "problem_type": "math", "source": "math", "meta": {}}
            | {"ground_truth": "Thus there are $\\boxed{200000}$ combinations."},
            {"kind": "math", "reference": "200000"},
        ),
    ],
    "AFlow, ScoreFlow": [
        (
            {"context": "Passage: Ann is 3.\nQuestion: How old?\nAnswer:", "completion": ""}
            | {"ref_text": "3|three", "id": 7},
            {"source": "drop", "reference": "3", "alternatives": ("three",)},
        ),
        (
            {"_id": "5a", "question": "Who?", "answer": "Ann", "supporting_facts": [["T", 0]]}
            | {"context": [["T", ["Ann did."]]]},
            {"source": "hotpotqa", "context": "[T]\nAnn did."},
        ),
        (
            {"question": "Who?", "answer": "Ann", "context": "Ann did.", "supporting_facts": []},
            {"source": "own/mine", "context": "Ann did."},
        ),
        (
            {"question": "Who?", "answer": "Ann", "context": ["Ann did.", "Bo did not."]},
            {"source": "own/mine", "context": "Ann did.\n\nBo did not."},
        ),
        (
            {"text": "Twice x.", "code": f"{PROMPT}\n{BODY}", "task_id": 2, "test_setup_code": ""}
            | {"test_list": ASSERTS.split("\n"), "challenge_test_list": []},
            {"source": "mbpp", "kind": "code"},
        ),
    ],
    "verl": [
        (
            {"data_source": "openai/gsm8k", "prompt": [SYSTEM, USER], "ability": "math"}
            | {"reward_model": {"style": "rule", "ground_truth": "7"}, "extra_info": {"index": 0}},
            {"kind": "math", "reference": "7", "question": USER["content"]},
        ),
    ],
    "Search-R1": [
        (
            {"question": "Town?", "golden_answers": ["Town", "The town"], "prompt": [USER]}
            | {"ability": "fact-reasoning", "data_source": "nq"},
            {"kind": "qa", "reference": "Town", "alternatives": ("The town",), "source": "nq"},
        ),
        (
            {"prompt": [USER], "reward_model": {"ground_truth": {"target": ["Town", "The town"]}}},
            {"reference": "Town", "alternatives": ("The town",)},
        ),
    ],
    "PRIME": [
        (
            {"data_source": "apps", "ability": "code", "prompt": [SYSTEM, USER]}
            | {"reward_model": {"style": "rule", "ground_truth": json.dumps(IO_TESTS)}},
            {"kind": "code", "reference": "", "is_program": True, "source": "apps"},
        ),
    ],
    "TRL": [
        (
            {"prompt": [USER], "completion": [{"role": "assistant", "content": "7"}]},
            {"reference": "7", "question": USER["content"]},
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": "It is $\\boxed{7}$."}]},
            {"reference": "7", "question": USER["content"]},
        ),
        ({"prompt": "x?", "solution": "So $\\boxed{7}$."}, {"reference": "7", "kind": "math"}),
        (
            {"problem": "Product?", "gold_standard_solution": "```python\nprint(6)\n```"}
            | {
                "verification_info": {
                    "language": "python",
                    "test_cases": [{"input": "2 3"} | {"output": "6", "type": "stdin_stdout"}],
                }
            },
            {"kind": "code", "reference": "print(6)", "is_program": True},
        ),
        (
            {"conversations": [{"from": "human", "value": "x?"}, {"from": "gpt", "value": "7"}]},
            {"question": "x?", "reference": "7"},
        ),
    ],
    "APPS, LiveCodeBench": [
        (
            {"question": "Product?", "input_output": json.dumps(IO_TESTS), "starter_code": ""}
            | {"solutions": json.dumps(["a, b = map(int, input().split())\nprint(a * b)"])},
            {"kind": "code", "reference": "a, b = map(int, input().split())\nprint(a * b)"},
        ),
        (
            {"question_content": "Twice?", "starter_code": "class Solution:\n    def f(self, x):"}
            | {"public_test_cases": '[{"input": "2", "output": "4", "testtype": "functional"}]'}
            | {"metadata": '{"func_name": "f"}'},
            {"entry_point": "f", "question": "Twice?\n\nclass Solution:\n    def f(self, x):"},
        ),
    ],
    "TriviaQA, SQuAD, MathQA, MMLU": [
        (
            {"Problem": "x?", "options": "a ) 12 , b ) 16 , c ) 1 , 8", "correct": "c"},
            {"reference": "c", "choices": (("a", "12"), ("b", "16"), ("c", "1 , 8"))},
        ),
        ({**CHOICES, "answer": "1"}, {"reference": "B"}),
    ],
}


def test_tests_are_called_whatever_runs_them() -> None:
    cases = "import unittest\nclass TestCases(unittest.TestCase):\n    def test_two(self):\n"
    cases += "        self.assertEqual(double(2), 4)"
    assert one(question="Twice x.", tests=cases, **DOUBLE).hidden_tests[0].endswith("_outcome")
    functions = "from solution import double\n\ndef test_two():\n    assert double(2) == 4"
    assert one(question="Twice x.", tests=functions, **DOUBLE).hidden_tests == (
        "\n\ndef test_two():\n    assert double(2) == 4\n\ntest_two()",
    )
    stack = "class Stack:\n    def push(self, x): ..."
    problem = one(question="A stack.", solution=stack, tests=["Stack().push(1)"])
    assert (problem.entry_point, problem.question.split("\n\n")[1]) == (
        "Stack",
        "class Stack:\n    def push(self, x):",
    )
    problem = one(question="Wait.", solution="async def f(x): ...", tests=["assert f(1)"])
    assert problem.question == "Wait.\n\nasync def f(x):"
    given = {"ability": "code", "reward_model": {"ground_truth": json.dumps(ASSERTS.split("\n"))}}
    problem = one(question="Write double(x).", **given)
    assert (problem.entry_point, problem.reference) == ("double", "")
    assert one(question="Twice.", **given).question == "Twice.\n\nName the function double."
    assert len(problem.tests) == 2


def test_rows_of_other_projects_are_read_as_the_page_says() -> None:
    page = (ROOT / "docs/datasets.md").read_text(encoding="utf-8")
    table = page.partition("| form | columns | read as |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (\w[^|]*) \|", table, re.MULTILINE) == [*FORMS]
    for form, rows in FORMS.items():
        for row, wanted in rows:
            problem = one(**row)
            assert {name: getattr(problem, name) for name in wanted} == wanted, form


OWN_FILES = Path("../shared/data/twelve_sets")


@pytest.mark.skipif(not (ROOT / OWN_FILES).is_dir(), reason="the rows are not here")
def test_published_rows_are_read() -> None:
    counts = {"aime/aime24": 30, "bamboogle/rows": 125, "livecodebench/rows": 60}
    counts |= {"math500/rows": 500, "mathqa/rows": 200, "nq_open/rows": 3610, "triviaqa/rows": 200}
    for name, count in counts.items():
        rows = read_table(ROOT / OWN_FILES / f"{name}.jsonl")
        assert len(Conversion().problems(rows, "x")) == count, name


@pytest.mark.parametrize(
    "given",
    [
        {**CHOICES, "answer": "B"},
        {**CHOICES, "answer": "(b)"},
        {**CHOICES, "answer": "B) blood"},
        {**CHOICES, "answer": "So \\boxed{B}."},
        {**CHOICES, "answer": ["B", "blood"]},
        {**CHOICES, "choices": '["grass", "blood"]', "answer": "1"},
        {**CHOICES, "answer": "Blood"},
        {**CHOICES, "answer": 1},
        {**CHOICES, "choices": {"A": "grass", "B": "blood"}, "answerKey": "B"},
        {**CHOICES, "choices": {"label": ["A", "B"], "text": ["grass", "blood"]}, "answer": "B"},
        {**CHOICES, "choices": PAIRS, "answer": "B"},
        {**CHOICES, "choices": [{"label": a, "text": b} for a, b in PAIRS], "answer": "B"},
        {"question": "Which is red?", "A": "grass", "B": "blood", "C": "sky", "answer": "B"},
        {"question": "Which is red?", "option_a": "grass", "option_b": "blood", "label": "B"},
    ],
)  # fmt: skip
def test_choices(given: dict[str, Any]) -> None:
    problem = one(**given)
    assert (problem.kind, problem.reference) == ("qa", "B")
    assert dict(problem.choices)["B"] == "blood"


def test_yes_and_no_are_choices_of_true_and_false() -> None:
    given = {"question": "Is it?", "choices": ["Yes", "No"]}
    assert [one(**given, answer=value).reference for value in (True, False)] == ["A", "B"]


def test_a_chat_of_several_turns_names_its_speakers() -> None:
    chat = [SYSTEM, {"role": "user", "content": "2?"}, {"role": "assistant", "content": "4"}, USER]
    assert (
        one(prompt=chat, answer="7").question
        == f"user: 2?\n\nassistant: 4\n\nuser: {USER['content']}"
    )


def test_numbers_of_choices_are_counted_from_where_all_rows_say() -> None:
    first, conversion = converted(*({**CHOICES, "answer": n} for n in (1, 3)))
    assert [problem.reference for problem in first] == ["A", "C"]
    assert any("counted from 1" in told for told in conversion.assumed)
    zero, _ = converted(*({**CHOICES, "answer": n} for n in (0, 2)))
    assert [problem.reference for problem in zero] == ["A", "C"]
    digits = {"question": "How many?", "choices": ["1", "2", "3"], "answer": "2"}
    assert one(**digits).reference == "B"  # the text, not a number of a choice


@pytest.mark.parametrize(
    "tests",
    [
        ["assert double(2) == 4", "assert double(0) == 0"],
        "assert double(2) == 4\nassert double(0) == 0",
    ],
)
def test_programs(tests: Any) -> None:
    problem = one(question="Twice x.", tests=tests, **DOUBLE)
    assert problem.kind == "code" and problem.entry_point == "double"
    assert problem.question == "Twice x.\n\ndef double(x):"
    assert problem.public_tests == ("assert double(2) == 4",)
    assert problem.hidden_tests == ("assert double(0) == 0",)
    only = one(question="Write double(x).", tests="assert double(2) == 4", **DOUBLE)
    assert only.public_tests == () and only.hidden_tests == ("assert double(2) == 4",)


def test_a_row_of_humaneval() -> None:
    problem = one(
        task_id="mine/7",
        prompt='def double(x):\n    """Twice x."""\n',
        canonical_solution="    return 2 * x\n",
        test="def check(candidate):\n    assert candidate(2) == 4\n",
        entry_point="double",
    )
    assert problem.id == "mine/7" and problem.hidden_tests[0].endswith("check(double)")


@pytest.mark.parametrize("kind", ["math", "code", "qa"])
def test_the_rows_to_copy_can_be_used(kind: Any, tmp_path: Path) -> None:
    assert one(**json.loads(ROWS[kind])).kind == kind
    whole = Problem.from_row(json.loads(LINES[kind]), "x")
    assert whole.kind == kind
    again = one(**json.loads(LINES[kind]))  # a task file is a file of one's own, too
    assert again == whole


def test_the_rows_of_the_page_can_be_used(tmp_path: Path) -> None:
    page = (ROOT / "docs/datasets.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [a-z ]+ \| `(\{.*\})` \|", page, re.MULTILINE)
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(rows))
    made = [own.problem for own in Conversion().problems(read_table(file), "mine")]
    assert [problem.kind for problem in made] == ["math", "qa", "qa", "code"]
    assert made[2].reference == "B" and made[3].entry_point == "double"
    for names in NAMES.values():
        assert all(f"`{name}`" in page for name in names)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": "x?"}, "f:1: no answer: one of the columns reference, answer, ground_truth"),
        ({"answer": "x"}, "f:1: no question: one of the columns question, problem, prompt"),
        ({"question": "x?", "tests": ["assert f(1) == g(1)"]}, "f:1: no solution: "),
        ({**CHOICES, "answer": "none"}, "the answer 'none' is none of the choices A. grass; B."),
        ({**CHOICES, "answer": 7}, "the answer '7' is none of the choices"),
        (
            {"question": "x?", "answer": "y", "tests": [{"input": "1"}]},
            "objects with input and output",
        ),
        ({"question": "x?", "answer": "y", "kind": "chess"}, "kind is 'chess', not one of"),
        ({"question": "x?", "answer": "y", "split": "third"}, "split is 'third', not train"),
        ({"question": ["x?"], "answer": "y"}, "the question is a list, but not one of messages"),
        ({"question": "x?", "answer": {"a": 1}}, "the answer is an object without any of"),
        ({"question": "x?", "answer": "", "reference": None}, "f:1: no answer"),
        ({"question": "x?", "answer": math.nan}, "f:1: no answer"),
        ({"question": "x?", "answer": None}, "f:1: no answer: answer is null"),
        ({"question": "x?", "ground_truth": " "}, "f:1: no answer: ground_truth is empty"),
        ({**CHOICES, "answer": ["A", "C"]}, "several answers to one choice: A, C"),
        ({"question": "x?", "ability": "code", "answer": "7"}, "f:1: no tests: "),
        (
            {
                "question": "x?",
                "entry_point": "f",
                "tests": ["assert g()"],
                "solution": "def g(): 0",
            },
            "the reference does not define f",
        ),
    ],
)
def test_what_cannot_be_used_is_told(row: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError) as caught:
        one(**row)
    (line,) = caught.value.problems
    assert told in line and "\n" not in line
    if ": no " in told and not line.endswith(("null", "empty")):
        assert any(shown in line for shown in ROWS.values())


def test_columns_are_named_and_what_is_left_aside_is_told() -> None:
    (problem,), conversion = converted(
        {"frage": "Peru?", "antwort": "Lima", "level": 3},
        columns={"question": "frage", "reference": "antwort"},
        kind="qa",
    )
    assert (problem.question, problem.reference) == ("Peru?", "Lima")
    assert conversion.assumed["left aside: level"] == 1
    assert conversion.assumed["question from frage"] == 1


ROWS_OF_FILE = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(30)]


def write(path: Path, form: str) -> Path:
    file = path / f"mine.{form}"
    if form == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in ROWS_OF_FILE))
    elif form == "json":
        file.write_text(json.dumps(ROWS_OF_FILE, indent=1))
    elif form == "parquet":
        pytest.importorskip("pyarrow")
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(ROWS_OF_FILE), file)
    else:
        with file.open("w", newline="") as out:
            mark = {"csv": ",", "semicolons.csv": ";", "tsv": "\t"}[form]
            writer = csv.DictWriter(out, ["question", "answer"], delimiter=mark)
            writer.writeheader()
            writer.writerows(ROWS_OF_FILE)
    return file


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "semicolons.csv", "tsv", "parquet"])
def test_a_file_becomes_what_a_run_reads(
    create: Main, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "own"
    assert create(["--own", str(write(tmp_path, form)), "--out", str(out)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "assumed: id and source filled in (30 rows)" in told
    assert "assumed: kind math for rows whose answer is a number or a formula (30 rows)" in told
    train = load_problems(str(out / "train_mixed.jsonl"), "train")
    val = load_problems(str(out / "val_mixed.jsonl"), "val")
    assert (len(train), len(val)) == (27, 3)
    assert f"train_dataset={out}/train_mixed.jsonl val_dataset={out}/val_mixed.jsonl" in told
    assert not (out / "test_mixed.jsonl").exists()
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["split"] == "own" and [*manifest["inputs_sha256"]] == [f"mine.{form}"]
    assert {problem.question for problem in (*train, *val)} == {r["question"] for r in ROWS_OF_FILE}


def test_a_file_to_validate_on_and_repetitions(
    create: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write(tmp_path, "jsonl")
    val = tmp_path / "val.jsonl"
    val.write_text(json.dumps(ROWS_OF_FILE[0]) + "\n")
    out = tmp_path / "own"
    assert create(["--own", str(train), "--own-val", str(val), "--out", str(out)]) == 0
    assert "left out: 1 repetitions" in capsys.readouterr().out
    assert [p.id for p in read_tasks(out / "val_mixed.jsonl")] == ["own/val/1"]
    assert len(read_tasks(out / "train_mixed.jsonl")) == 29


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.jsonl", "{'question'}\n", "a.jsonl:1: not JSON"),
        ("a.jsonl", '{"question": "x?", "answer": "y"}\n', "1 rows, 1 of them different, leave"),
        ("a.json", '{"a": 1}', "neither a list of rows nor an object that holds one"),
        ("a.txt", "x", "a.txt: not one of .jsonl, .json, .csv, .tsv, .parquet"),
        ("a.csv", "question,answer\nx,y,z\n", "a.csv:2: more cells than columns"),
        ("a.parquet", "x", "a.parquet: not a parquet file"),
        ("a.jsonl", "", "a.jsonl: the file is empty"),
        ("a.csv", "question,answer\n", "a.csv: no rows in it"),
        ("a.json", "[]", "a.json: no rows in it"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_told(
    create: Main,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    told: str,
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_text(text)
    assert create(["--own", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line and not (tmp_path / "out").exists()


def test_arguments_that_do_not_go_together(
    create: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert create(["--field", "question=x", "--kind", "qa"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "--field: goes with --own FILE",
        "--kind: goes with --own FILE",
    ]
    (tmp_path / "a.csv").write_text("frage,antwort\nPeru?,Lima\n")
    given = ["--own", str(tmp_path / "a.csv"), "--field", "question=frge"]
    assert create([*given, "--field", "reference=antwort"]) == 2
    told = capsys.readouterr().err
    assert told == (
        f"--field question=frge: {tmp_path}/a.csv has no column frge; did you mean frage? "
        "(frage, antwort)\n"
    )
    assert create(["--own", "none.jsonl", "--field", "questoin=x"]) == 2
    assert "did you mean question?" in capsys.readouterr().err


def test_an_id_that_is_there_twice_is_numbered_on() -> None:
    problems, _ = converted(
        {"id": 1, "question": "a?", "answer": "x"},
        {"id": 1, "question": "b?", "answer": "x"},
        {"id": 1, "question": "a?", "answer": "x"},
    )
    splits, dropped = hold_out([(problem, None) for problem in problems], {}, 0)
    assert sorted(p.id for p in (*splits.train, *splits.val)) == ["1", "1-2"] and dropped == 1


def test_an_object_that_holds_the_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"version": 1, "data": [{"question": "x?"}]}))
    assert [row.values for row in read_table(file)] == [{"question": "x?"}]


_KEYS = st.sampled_from(["label", "text", "value", "content", "A", "x"])
_SCALARS = (st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
_VALUES = st.recursive(
    st.one_of(*_SCALARS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=6,
)
_COLUMNS = st.sampled_from(
    [
        *("question", "prompt", "answer", "answers", "choices", "tests", "solution", "id", "kind"),
        *("A", "B", "context", "split", "test", "entry_point", "public_tests", "alternatives"),
    ]
)


@given(st.lists(st.dictionaries(_COLUMNS, _VALUES, max_size=6), min_size=2, max_size=4))
def test_whatever_a_row_holds_becomes_problems_or_one_line(rows: list[dict[str, Any]]) -> None:
    try:
        problems, _ = converted(*rows)
        splits, dropped = hold_out([(problem, None) for problem in problems], {}, 0)
    except DataError as error:
        assert all(line and "\n" not in line for line in error.problems)
        return
    check_disjoint(splits)
    assert len(splits.train) + len(splits.val) + dropped == len(rows)
