"""Sets that workflow papers measure on beside those of questions.py and programs.py: short answers,
competition mathematics, multiple choices and programs of contests."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from flowright.data.answers import structure
from flowright.data.sources.dataset import UpstreamRow, json_table, read_upstream
from flowright.data.sources.programs import io_tests
from flowright.data.sources.questions import choice_task, hotpotqa
from flowright.data.task import Problem

UNANSWERABLE = "unanswerable"
"""The answer to a question that its passage leaves open; SQuAD's scorer has the empty text."""

OPTION = re.compile(r"(?:^|,)\s*([a-j])\s*\)\s*(.*?)\s*(?=,\s*[a-j]\s*\)|\Z)", re.DOTALL)
"""A choice in one line of choices, ``a ) 12 , b ) 16``."""


def lettered_choices(text: str) -> list[tuple[str, str]]:
    """Return the labels and texts of a line of choices, or of a list of them as Python prints it;
    MathQA has both."""
    lines = structure(text)
    return OPTION.findall(" , ".join(map(str, lines)) if isinstance(lines, list) else text)


def short_answer(source: str, row: UpstreamRow) -> Problem:
    """Convert a question without a passage. Its answers are a text, a list (NQ-open),
    ``golden_answers`` (FlashRAG's copies of TriviaQA and Bamboogle), or TriviaQA's object, of which
    the normalised aliases count, as in its scorer."""
    if "golden_answers" in row:
        answers = row.texts("golden_answers")
    elif isinstance(row.get("answer"), Mapping):
        found = row.inner(row.table("answer"), row.name)
        answers = [found.text("value").strip(), *found.texts("normalized_aliases")]
    elif isinstance(row.get("answer"), str):
        answers = [row.text("answer").strip()]
    else:
        answers = row.texts("answer")
    reference, *others = dict.fromkeys(filter(None, answers)) or [""]
    if not reference:
        raise row.error("the question has no answer")
    id = next((row.text(name) for name in ("question_id", "id") if name in row), row.name)
    question = row.text("question").strip()
    return Problem(f"{source}/{id}", "qa", source, question, reference, alternatives=tuple(others))


def squad_v2(row: UpstreamRow) -> Problem:
    """Convert a question of :func:`squad_questions`, or a row of the hub. The question names the
    answer to one that the passage leaves open."""
    given = row.get("answers")
    texts = given.get("text", []) if isinstance(given, Mapping) else given
    texts = [text["text"] if isinstance(text, Mapping) else text for text in texts]
    reference, *others = dict.fromkeys(map(str.strip, texts)) or [UNANSWERABLE]
    return Problem(
        id=f"squad_v2/{row.text('id')}",
        kind="qa",
        source="squad_v2",
        question=f"{row.text('question').strip()}\n\nIf the passage does not hold the answer, "
        f"answer: {UNANSWERABLE}",
        reference=reference,
        context=row.text("context").strip(),
        alternatives=tuple(others),
    )


def squad_questions(path: Path) -> Iterator[UpstreamRow]:
    """Yield a row for each question of an official SQuAD file, with its passage."""
    document = json_table(path)
    for article in document.items("data"):
        for paragraph in document.inner(article, "data").items("paragraphs"):
            passage = document.inner(paragraph, "paragraphs")
            for question in passage.items("qas"):
                row = passage.inner(question, "qas", context=passage.text("context"))
                yield UpstreamRow(row.values, f"{path}: {row.text('id')}", row.text("id"))


def wikimultihop(row: UpstreamRow) -> Problem:
    """Convert a row of 2WikiMultihopQA; of the hub's the passages are JSON text, and copies for
    open-domain questions have none."""
    if "context" not in row:
        return short_answer("2wikimultihop", row)
    if isinstance(row.get("context"), str):
        row = row.inner(row.values, row.name, context=json.loads(row.text("context")))
    return hotpotqa(row, "2wikimultihop")


def with_aliases(path: Path) -> Iterator[UpstreamRow]:
    """Yield the rows of 2WikiMultihopQA with the aliases that its scorer takes from
    ``id_aliases.json``, a JSON object a line."""
    lines = path.with_name("id_aliases.json").read_text(encoding="utf-8").splitlines()
    known = {one["Q_id"]: one["aliases"] + one["demonyms"] for one in map(json.loads, lines)}
    for row in read_upstream(path):
        aliases = known.get(row.values.get("answer_id"), [])
        yield row.inner(row.values, row.name, aliases=sorted(set(aliases)))


def prm800k_math(row: UpstreamRow) -> Problem:
    """Convert a row of PRM800K's split of MATH, whose test part is MATH-500."""
    id = row.text("unique_id").removesuffix(".json")
    question, reference = row.text("problem").strip(), row.text("answer").strip()
    return Problem(f"math/{id}", "math", "math", question, reference)


_ASKED_FOR_BOX = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def aime(source: str, row: UpstreamRow) -> Problem:
    """Convert a problem of one year, without a prompt's last line. Raises DataError for an answer
    that is no whole number from 0 to 999."""
    text = row.text("problem" if "problem" in row else "prompt").removesuffix(_ASKED_FOR_BOX)
    answer = str(row.get("answer")).strip()
    if not (answer.isdecimal() and int(answer) <= 999):
        raise row.error(f"the answer {answer!r} is no whole number from 0 to 999")
    return Problem(f"{source}/{row.name}", "math", source, text.strip(), str(int(answer)))


def mathqa(row: UpstreamRow) -> Problem:
    """Convert a row of MathQA, whose choices are one line; labels become capitals."""
    pairs = lettered_choices(row.text("options"))
    choices = tuple((label.upper(), text) for label, text in pairs)
    label = row.text("correct").strip().upper()
    return choice_task(row, f"mathqa/{row.name}", row.text("Problem"), choices, label, "math")


_GPQA = ("Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3)))


def gpqa(row: UpstreamRow) -> Problem:
    """Convert a row of GPQA. Its choices are in the order of their hashes, the same everywhere."""
    id, texts = row.text("Record ID"), [row.text(column).strip() for column in _GPQA]
    keys = [hashlib.sha256(f"{id}/{text}".encode()).digest() for text in texts]
    order = sorted(range(len(texts)), key=keys.__getitem__)
    label = "ABCD"[order.index(0)]
    choices = tuple(zip("ABCD", (texts[index] for index in order), strict=True))
    return choice_task(row, f"gpqa/{id}", row.text("Question"), choices, label)


def contest(source: str, row: UpstreamRow) -> Problem:
    """Convert a row of LiveCodeBench (tests in ``public_test_cases`` and, packed, in
    ``private_test_cases``) or of APPS (``input_output``, and ``solutions``, of which the first is
    the reference). Tests are programs' input and output, or a function's. Without hidden tests the
    public ones decide. Raises DataError for a row without tests."""
    public, name = _io_tests(row, "public_test_cases")
    hidden, called = _io_tests(row, "private_test_cases" if public else "input_output")
    tests = [test for test in hidden if test not in public] or public
    if not tests:
        raise row.error("the row has no tests")
    question = row.text("question_content" if "question_content" in row else "question").strip()
    starter = row.text("starter_code").strip() if "starter_code" in row else ""
    solutions = structure(row.text("solutions")) if "solutions" in row else []
    id = row.get(next(name for name in ("question_id", "problem_id", "id") if name in row))
    return Problem(
        id=f"{source}/{f'{row.name}/' if source == 'apps' else ''}{id}",
        kind="code",
        source=source,
        question="\n\n".join(filter(None, [question, starter])),
        reference=str(solutions[0]) if isinstance(solutions, list) and solutions else "",
        entry_point=called or name,
        public_tests=tuple(test for test in public if test not in tests),
        hidden_tests=tuple(tests),
    )


def has_tests(row: UpstreamRow) -> bool:
    """Return whether a row of APPS can be graded: some training rows have no tests."""
    return bool(row.values.get("input_output"))


def _io_tests(row: UpstreamRow, column: str) -> tuple[list[str], str | None]:
    found = io_tests(row, row.get(column)) if column in row else None
    return found or ([], None)
