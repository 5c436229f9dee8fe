"""Converters of the sets that are fetched by name, on rows made by hand and, where the upstream
files are at hand, on all of their rows."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from flowright.cli.commands import main
from flowright.cli.datasets import SUITE_NAMES, enough_for_all
from flowright.core.errors import DataError, Failure, Reason
from flowright.data.build import Pool, mix
from flowright.data.mixture import Mixture
from flowright.data.sources.benchmarks import (
    UNANSWERABLE,
    aime,
    contest,
    gpqa,
    lettered_choices,
    mathqa,
    prm800k_math,
    short_answer,
    squad_questions,
    squad_v2,
    wikimultihop,
    with_aliases,
)
from flowright.data.sources.dataset import UpstreamRow
from flowright.data.sources.registry import (
    DATASETS,
    DEFAULT_DATASETS,
    find_part,
    load_dataset,
    load_part,
)
from flowright.data.suites import SUITES, build_suite
from flowright.data.task import Kind, Problem, read_tasks, write_tasks
from flowright.environments.rollout import UNSCORED, Rollout, to_record
from flowright.grading import Gold, gold_check
from flowright.policy.sampling import Sample
from flowright.sandbox import Limits, Sandbox

SHARED = Path(__file__).parents[3] / "shared" / "data" / "twelve_sets"


def row(**values: object) -> UpstreamRow:
    return UpstreamRow(values, "file:1", "test/0")


@pytest.mark.parametrize(
    ("upstream", "name", "target", "count"),
    [
        ("nq_open/rows.jsonl", "nq_open", "nq_open/NQ-open.dev.jsonl", 3610),
        ("triviaqa/rows.jsonl", "triviaqa", "triviaqa/validation.jsonl", 200),
        ("squad_v2/rows.jsonl", "squad_v2", "squad_v2/dev-v2.0.hub.jsonl", 200),
        ("2wikimultihop/rows.jsonl", "2wikimultihop", "2wikimultihop/dev.hub.jsonl", 200),
        ("bamboogle/rows.jsonl", "bamboogle", "bamboogle/test.jsonl", 125),
        ("math500/rows.jsonl", "math", "math/test.jsonl", 500),
        ("aime/aime24.jsonl", "aime24", "aime24/aime24.jsonl", 30),
        ("aime/aime25.jsonl", "aime25", "aime25/aime25.jsonl", 30),
        ("aime/aime26.jsonl", "aime26", "aime26/aime26.jsonl", 30),
        ("mathqa/rows.jsonl", "mathqa", "mathqa/test.hub.jsonl", 200),
        ("livecodebench/rows.jsonl", "livecodebench", "livecodebench/test6.jsonl", 60),
    ],
)
def test_all_rows_convert_and_survive_the_task_file(
    upstream: str, name: str, target: str, count: int, tmp_path: Path
) -> None:
    if not (SHARED / upstream).is_file():
        pytest.skip(f"the upstream files are not at {SHARED}")
    (tmp_path / target).parent.mkdir()
    shutil.copy(SHARED / upstream, tmp_path / target)
    part = find_part(load_dataset(name), "official", "test", tmp_path)
    assert part is not None
    tasks = list(load_part(part, tmp_path))
    assert len({task.id for task in tasks}) == len(tasks) == count
    assert {(task.kind, task.source) for task in tasks} == {(load_dataset(name).kind, name)}
    for task in tasks:
        assert Problem.from_row(json.loads(task.to_json()), "here") == task
    if name == "squad_v2":
        assert sum(task.reference == UNANSWERABLE for task in tasks) == 100


def test_they_are_no_part_of_the_default_mixture() -> None:
    assert set(DEFAULT_DATASETS) < set(DATASETS)
    assert not {"nq_open", "gpqa", "aime25"} & set(DEFAULT_DATASETS)


def test_short_answers_in_every_form() -> None:
    listed = short_answer("nq_open", row(question="who?", answer=["Ada", "Ada L."]))
    assert (listed.id, listed.reference, listed.alternatives) == (
        "nq_open/test/0", "Ada", ("Ada L.",)
    )  # fmt: skip
    aliases = {"value": "Ada", "aliases": ["Ada (L.)"], "normalized_aliases": ["ada l", "ada"]}
    trivia = short_answer("triviaqa", row(question_id="tc_1", question="who?", answer=aliases))
    assert (trivia.id, trivia.alternatives) == ("triviaqa/tc_1", ("ada l", "ada"))
    assert short_answer("bamboogle", row(question="q", golden_answers=["x"])).reference == "x"
    with pytest.raises(DataError, match="file:1: the question has no answer"):
        short_answer("nq_open", row(question="who?", answer=[]))


def test_squad_names_the_answer_to_an_open_question(tmp_path: Path) -> None:
    questions = [
        {"id": "a", "question": "Where?", "answers": [{"text": "Rome"}, {"text": "Rome"}]},
        {"id": "b", "question": "When?", "answers": [], "plausible_answers": [{"text": "1970"}]},
    ]
    paragraphs = [{"context": "It is in Rome.", "qas": questions}]
    (tmp_path / "dev.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    closed, left_open = map(squad_v2, squad_questions(tmp_path / "dev.json"))
    assert (closed.reference, closed.alternatives, closed.context) == ("Rome", (), "It is in Rome.")
    assert (left_open.id, left_open.reference) == ("squad_v2/b", UNANSWERABLE)
    assert all(f"answer: {UNANSWERABLE}" in task.question for task in (closed, left_open))
    hub = row(id="b", question="When?", context="c", answers={"text": [], "answer_start": []})
    assert squad_v2(hub).reference == UNANSWERABLE


def test_wikimultihop_takes_the_aliases_of_its_scorer(tmp_path: Path) -> None:
    one = {"_id": "a", "question": "q", "answer": "UK", "answer_id": "Q1"}
    one["context"] = json.dumps([["Title", ["A.", " B."]]])
    (tmp_path / "dev.json").write_text(json.dumps([one, {**one, "answer_id": None}]))
    line = {"Q_id": "Q1", "aliases": ["Britain"], "demonyms": ["British"]}
    (tmp_path / "id_aliases.json").write_text(json.dumps(line) + "\n")
    known, unknown = map(wikimultihop, with_aliases(tmp_path / "dev.json"))
    assert (known.id, known.alternatives) == ("2wikimultihop/a", ("Britain", "British"))
    assert (unknown.alternatives, known.context) == ((), "[Title]\nA. B.")


def test_mathematics() -> None:
    problem = prm800k_math(row(problem="p", answer="\\frac12", unique_id="test/algebra/1.json"))
    assert (problem.id, problem.reference) == ("math/test/algebra/1", "\\frac12")
    asked = "p\nPlease reason step by step, and put your final answer within \\boxed{}."
    assert aime("aime24", row(prompt=asked, answer="025")).question == "p"
    assert aime("aime24", row(problem="p", answer=25)).reference == "25"
    with pytest.raises(DataError, match="no whole number from 0 to 999"):
        aime("aime24", row(problem="p", answer=1000))


def test_choices() -> None:
    one = mathqa(row(Problem="p", options="a ) 1 , 2 , b ) 2 : 3", correct="b"))
    assert (one.choices, one.reference) == ((("A", "1 , 2"), ("B", "2 : 3")), "B")
    assert lettered_choices("['a ) 4', 'b ) 4 π']") == [("a", "4"), ("b", "4 π")]
    with pytest.raises(DataError, match="'C' is not one of the labels"):
        mathqa(row(Problem="p", options="a ) 1 , b ) 2", correct="c"))


def test_programs_of_contests() -> None:
    cases = [{"input": "2\n", "output": "4\n"}, {"input": "3\n", "output": "9\n"}]
    public, private = json.dumps(cases[:1]), json.dumps(cases)
    text = {"question_content": "Square it.", "question_id": "abc", "starter_code": ""}
    one = contest(
        "livecodebench", row(**text, public_test_cases=public, private_test_cases=private)
    )
    assert (one.id, one.is_program, one.entry_point) == ("livecodebench/abc", True, None)
    assert (len(one.public_tests), len(one.hidden_tests)) == (1, 1)
    alone = contest("livecodebench", row(**text, public_test_cases=public))
    assert (alone.public_tests, alone.hidden_tests) == ((), one.public_tests)
    called = {"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "add"}
    text = {"question": "Add.", "problem_id": 7, "starter_code": "def add(a, b):"}
    solutions = json.dumps(["def add(a, b):\n    return a + b"])
    apps = contest("apps", row(**text, input_output=json.dumps(called), solutions=solutions))
    assert (apps.entry_point, apps.question) == ("add", "Add.\n\ndef add(a, b):")
    assert apps.reference.startswith("def add") and apps.id == "apps/test/0/7"
    with pytest.raises(DataError, match="the row has no tests"):
        contest("apps", row(**text, input_output="", solutions=""))


async def test_a_contest_s_time_limit_is_its_own() -> None:
    test = json.dumps({"input": "2\n", "output": "4\n"})
    slow = "import time\nt = time.process_time()\nwhile time.process_time() - t < 0.6: pass\n"
    task = Problem("x", "code", "apps", "q", "", hidden_tests=(test,))
    async with Sandbox(Limits(cpu_seconds=0.3)) as sandbox:
        answer = slow + "print(int(input()) ** 2)"
        assert (await gold_check(task, answer, sandbox)).correct
        assert not (await gold_check(replace(task, source="own"), answer, sandbox)).correct


def test_gpqa_s_choices_have_an_order_that_is_everywhere_the_same() -> None:
    texts = {"Correct Answer": "right"} | {f"Incorrect Answer {n}": f"w{n}" for n in (1, 2, 3)}
    made = [gpqa(row(**{"Record ID": f"rec{n}", "Question": "q", **texts})) for n in range(40)]
    assert all(dict(one.choices)[one.reference] == "right" for one in made)
    assert {one.reference for one in made} == {*"ABCD"}
    again = {name: texts[name] for name in reversed(texts)}
    assert gpqa(row(**{"Record ID": "rec7", "Question": "q", **again})) == made[7]


def test_a_training_question_of_another_set_gives_way_to_the_evaluation() -> None:
    def problem(source: str, question: str, **more: str) -> Problem:
        return Problem(f"{source}/{question}", "qa", source, question, "x", **more)

    train = [
        problem("hotpotqa", "Who wrote Emma?", context="passage"),
        *(problem("hotpotqa", f"q{number}") for number in range(9)),
    ]
    pools = [
        Pool("hotpotqa", "qa", train, [], []),
        Pool("nq_open", "qa", [], [], [problem("nq_open", "who wrote  emma")]),
        Pool("2wikimultihop", "qa", [], [], [problem("2wikimultihop", "Q1?", context="c")]),
    ]
    splits = mix(pools, {}, 0)
    assert not {task.question for task in splits.train} & {"Who wrote Emma?", "q1"}
    assert pools[0].dropped == 2


def test_no_text_of_gpqa_is_kept_in_a_record() -> None:
    texts = {"Correct Answer": "blue"} | {f"Incorrect Answer {n}": f"hue {n}" for n in (1, 2, 3)}
    task = gpqa(row(**{"Record ID": "rec1", "Question": "Which hue is secret?", **texts}))
    sample = Sample((1,), (0.0,), "ask about the secret hue", "stop", 3)
    own = {"execution": {"answer": "blue", "calls": [{"prompt": "Which hue?", "tokens": 5}]}}
    failure = Failure(Reason.SYNTAX, "near secret")
    gold = Gold(False, "choice", "'hue 1' against 'blue'")
    rollout = Rollout(task, sample, UNSCORED, failure, gold=gold)
    record = to_record(rollout, own, 1, 0, 0, None)
    assert not {"hue", "blue", "secret"} & {*re.findall(r"\w+", json.dumps(record))}
    assert record["task"]["reference"] == task.reference and record["task"]["id"] == "gpqa/rec1"
    assert record["execution"]["calls"] == [{"prompt": "", "tokens": 5}]
    assert (record["gold"]["correct"], record["failure"]["reason"]) == (False, "syntax")
    other = to_record(replace(rollout, task=replace(task, source="own")), own, 1, 0, 0, None)
    assert other["completion"] == sample.text and other["execution"] == own["execution"]


def test_a_suite_takes_its_numbers_of_what_is_there(tmp_path: Path) -> None:
    assert tuple(SUITES) == SUITE_NAMES
    for suite in SUITES.values():
        assert set(suite.names) <= set(DATASETS) and suite.sources
        assert all(suite.mode in load_dataset(name).splits for name in suite.names)
    folder = tmp_path / "raw" / "gsm8k"
    folder.mkdir(parents=True)
    for split, first, count in (("train", 0, 60), ("test", 40, 150)):
        lines = [
            json.dumps({"question": f"What is {n} + 1?", "answer": f"Add.\n#### {n + 1}"})
            for n in range(first, first + count)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    mixed, warnings = build_suite("flowsteer12", tmp_path / "raw", 0)
    assert (len(mixed.splits.test), len(mixed.splits.train), len(mixed.splits.val)) == (128, 32, 8)
    assert mixed.facts["suite"] == "flowsteer12"
    assert "flowsteer12: 32 of 2000 train problems of gsm8k" in warnings
    assert "flowsteer12: 0 of 30 test problems of aime25" in warnings
    command = ["data", "mix", "--suite", "flowsteer12", "--from", str(tmp_path / "raw")]
    assert main([*command, "--out", str(tmp_path / "mixed")]) == 0
    assert len(read_tasks(tmp_path / "mixed" / "test_mixed.jsonl")) == 128


def test_a_suite_is_measured_whole_whatever_the_shares_of_kinds(tmp_path: Path) -> None:
    kinds: list[Kind] = ["math"] * 3 + ["qa"] * 11
    tasks = [Problem(f"own/{n}", kind, "own", f"q{n}", "1") for n, kind in enumerate(kinds)]
    write_tasks(tmp_path / "test.jsonl", tasks)
    size = enough_for_all(tmp_path / "test.jsonl")
    assert len(Mixture(tasks, 0).distinct(size)) == 14 > len(Mixture(tasks, 0).distinct(14))
