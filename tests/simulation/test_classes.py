"""Classes of problems: read from the text, with a way of asking that is best in each."""

import re
from collections import Counter

import pytest

from flowright.config.llm import SimulatedSection
from flowright.data.loading import build_offline
from flowright.data.task import Problem
from flowright.environments.registry import make_config
from flowright.environments.workflow.environment import WorkflowEnvironment
from flowright.sandbox import Sandbox
from flowright.simulation.classes import ProblemClass, Subject, problem_class, resize
from flowright.simulation.draws import Draws, normal
from flowright.simulation.solver import Solver
from flowright.simulation.table import CLASSES, TABLE, Way
from flowright.simulation.values import WrongSolutions
from flowright.workflows.source import read_workflow

QUESTIONS: dict[tuple[Subject, bool], tuple[str, str]] = {
    ("sums", False): ("math", "What is 3 * 4?"),
    ("sums", True): ("math", "What is 417 * 669?"),
    ("story", False): (
        "math",
        "If David eats 3 eggs a day for 40 days and then 4 eggs a day for 54 days, how many dozens "
        "of eggs will David need in all for 94 days?",
    ),
    ("letters", False): ("qa", "Spell this word backward: needle"),
    ("letters", True): ("qa", "Reverse this list of words: work, do, this, Wilkins, his"),
    ("facts", False): ("qa", "Which river flows through Vienna?"),
}


def problem(kind: str, question: str) -> Problem:
    return Problem("t", kind, "s", question, "7")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("found", QUESTIONS)
def test_a_class_is_read_from_the_question(found: tuple[Subject, bool]):
    task = problem(*QUESTIONS[found])
    assert problem_class(task) == ProblemClass(*found)
    assert str(ProblemClass(*found)).split() == ["large" if found[1] else "small", found[0]]


def test_the_offline_mixture_has_every_class_and_most_of_it_has_a_twin():
    val = build_offline(0).val
    names = {str(problem_class(task)) for task in val}
    assert names == {str(ProblemClass(*found)) for found in CLASSES}
    twins = [(task, twin) for task in val if (twin := resize(task))]
    # Stories, facts and programs are not cut, and a few sums are of more numbers than digits allow.
    kept = [task for task in val if not resize(task)]
    assert {problem_class(task).subject for task in kept} <= {"story", "facts", "program", "sums"}
    assert all(problem_class(task).is_large for task in kept)
    assert len(twins) > 0.5 * len(val)


def test_a_twin_differs_in_size_alone():
    for task in build_offline(0).val:
        if (twin := resize(task)) is None:
            continue
        before, after = problem_class(task), problem_class(twin)
        assert (before.subject, before.is_large) == (after.subject, not after.is_large)
        if before.subject == "sums":
            assert re.sub(r"\d+", "", twin.question) == re.sub(r"\d+", "", task.question)
        elif before.subject != "letters":
            added = len(twin.question) - len(task.question)  # in one piece
            pieces = (
                twin.question[:n] + twin.question[n + added :] for n in range(len(task.question))
            )
            assert added > 0 and task.question in pieces


def test_no_way_of_asking_is_best_in_every_class():
    ways = (Way.DIRECT, Way.STEPS, Way.PROGRAM)
    best = {
        found: max(ways, key=lambda way: table.ways[way].accuracy)
        for found, table in CLASSES.items()
        if found[0] != "program"
    }
    assert best["sums", True] == best["letters", True] == Way.PROGRAM
    assert best["story", True] == best["facts", True] == Way.STEPS
    # Where problems are small a direct answer loses little, and costs the least.
    for subject in ("sums", "facts"):
        table = CLASSES[subject, False]
        assert table.ways[best[subject, False]].accuracy - table.ways[Way.DIRECT].accuracy < 0.06
    for (subject, is_large), table in CLASSES.items():
        if is_large:
            small = CLASSES[subject, False]
            assert table.ways[Way.STEPS].accuracy < small.ways[Way.STEPS].accuracy
        assert set(table.ways) == set(TABLE["math"].ways)


@pytest.mark.parametrize("world", ["kinds", "classes"])
def test_accuracy_is_that_of_the_kind_or_of_the_class(world: str):
    section = SimulatedSection.model_validate({"world": world})
    task = problem(*QUESTIONS["sums", True])
    wrong = WrongSolutions(Sandbox(workers=1), 0, 4)
    table = Solver((task,), 0, wrong, section.world).table(task)
    expected = CLASSES["sums", True] if world == "classes" else TABLE["math"]
    assert table is expected
    drawn = [
        Draws(n).chance("right", table.probability(Way.PROGRAM, normal(n) * table.spread))
        for n in range(3000)
    ]
    assert sum(drawn) / 3000 == pytest.approx(expected.ways[Way.PROGRAM].accuracy, abs=0.025)


def test_the_cold_start_names_classes_and_has_a_taste_for_each():
    made = WorkflowEnvironment(make_config({"simulated": {"world": "classes"}}))
    train = build_offline(0).train
    shown = made.demonstrations(train, 600, 2, 0)
    assert shown == made.demonstrations(train, 600, 2, 0)
    programs = [program for one in shown for program in one.completions]
    heads = Counter(program.partition("\n")[0] for program in programs)
    assert heads.keys() == {f"# {ProblemClass(*found)}" for found in CLASSES}
    assert min(heads.values()) > 60  # of 1,200, by three kinds and then by their classes
    share = {
        head: sum("programmer(" in p for p in programs if p.startswith(head)) / count
        for head, count in heads.items()
        if not head.endswith("program")
    }
    assert max(share.values()) - min(share.values()) > 0.1
    assert all(read_workflow(program) for program in programs[:20])
