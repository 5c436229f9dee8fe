"""Shares, batches, and what keeps train and evaluation apart."""

import random
import unicodedata
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st

from flowright.core.errors import DataError
from flowright.data.build import Pool, Splits, check_disjoint, mix, normalise, problem_key
from flowright.data.mixture import Mixture, apportion, interleave
from flowright.data.task import KINDS, Kind, Problem


def make(kind: Kind, number: int, source: str = "made", **values: str) -> Problem:
    question = values.pop("question", f"{kind} problem {number}")
    hidden = ("assert True",) if kind == "code" else ()
    return Problem(
        id=f"{source}/{kind}/{number}",
        kind=kind,
        source=source,
        question=question,
        reference="1",
        hidden_tests=hidden,
        **values,
    )


def tasks_of(counts: Mapping[Kind, int]) -> list[Problem]:
    return [make(kind, number) for kind in counts for number in range(counts[kind])]


# The training mixture.

kind_counts = st.dictionaries(st.sampled_from(KINDS), st.integers(1, 17), min_size=1)


@given(kind_counts, st.integers(0, 3), st.integers(1, 12), st.integers(0, 40))
def test_kinds_keep_equal_shares_in_every_batch(
    counts: dict[Kind, int], seed: int, size: int, step: int
) -> None:
    batch = Mixture(tasks_of(counts), seed).batch(step, size)
    assert len(batch) == size
    met = Counter(task.kind for task in batch)
    assert max(met.values()) - min(met[kind] for kind in counts) <= 1


@given(kind_counts, st.integers(0, 3), st.integers(1, 9))
def test_every_task_once_per_epoch_of_its_kind(
    counts: dict[Kind, int], seed: int, size: int
) -> None:
    tasks = tasks_of(counts)
    mixture = Mixture(tasks, seed)
    steps = 3 * len(counts) * max(counts.values()) // size + 1
    drawn = [task for step in range(steps) for task in mixture.batch(step, size)]
    for kind, number in counts.items():
        sequence = [task for task in drawn if task.kind == kind]
        for first in range(0, len(sequence) - number + 1, number):
            assert len(set(sequence[first : first + number])) == number


@given(kind_counts, st.integers(0, 9), st.permutations(range(8)))
def test_a_batch_depends_on_seed_and_step_only(
    counts: dict[Kind, int], seed: int, order: list[int]
) -> None:
    tasks = tasks_of(counts)
    straight = Mixture(tasks, seed)
    expected = [straight.batch(step, 5) for step in range(8)]
    resumed = Mixture(tasks, seed)
    for step in order:
        assert resumed.batch(step, 5) == expected[step]


@given(kind_counts, st.integers(1, 60))
def test_distinct_tasks_for_evaluation(counts: dict[Kind, int], size: int) -> None:
    tasks = tasks_of(counts)
    mixture = Mixture(tasks, 0)
    chosen = mixture.distinct(size)
    quota = Counter(task.kind for task in mixture.batch(0, size))
    met = Counter(task.kind for task in chosen)
    assert len(chosen) == len(set(chosen))
    assert met == {kind: min(quota[kind], counts[kind]) for kind in quota}
    assert set(mixture.distinct(len(counts) * max(counts.values()))) == set(tasks)


def test_another_seed_is_another_order() -> None:
    tasks = tasks_of({"math": 50})
    assert Mixture(tasks, 0).batch(0, 50) != Mixture(tasks, 1).batch(0, 50)
    assert Mixture(tasks, 0).batch(0, 50) != Mixture(tasks, 0).batch(1, 50)


@given(st.dictionaries(st.sampled_from(KINDS), st.floats(0.05, 1), min_size=1), st.integers(0, 50))
def test_given_shares_are_kept(shares: dict[Kind, float], step: int) -> None:
    mixture = Mixture(tasks_of({"math": 3, "code": 4, "qa": 5}), 0, shares)
    size = 40
    met = Counter(task.kind for task in mixture.batch(step, size))
    for kind, share in shares.items():
        assert abs(met[kind] - size * share / sum(shares.values())) < 2.1
    assert set(met) <= set(shares)


def test_a_mixture_without_tasks_is_refused() -> None:
    with pytest.raises(DataError, match="no task to train on"):
        Mixture([], 0)
    with pytest.raises(DataError, match="a share is given for code, but there is no such task"):
        Mixture(tasks_of({"math": 2}), 0, {"code": 1.0})
    with pytest.raises(DataError, match="no kind has a share above 0"):
        Mixture(tasks_of({"math": 2}), 0, {"math": 0.0})


# Apportionment.

names = st.sampled_from("abcde")


@given(
    st.integers(0, 200),
    st.dictionaries(names, st.tuples(st.floats(0, 1), st.integers(0, 60)), min_size=1),
)
def test_apportioned_places(total: int, given_: dict[str, tuple[float, int]]) -> None:
    weights = {name: weight for name, (weight, _) in given_.items()}
    capacity = {name: room for name, (_, room) in given_.items()}
    places = apportion(total, weights, capacity)
    room = sum(capacity[name] for name in weights if weights[name] > 0)
    assert sum(places.values()) == min(total, room)
    assert all(0 <= places[name] <= capacity[name] for name in places)
    scale = total / (sum(weights.values()) or 1)
    if all(weights[name] * scale < capacity[name] for name in weights if weights[name]):
        assert all(abs(places[name] - weights[name] * scale) <= 1 for name in places)


def test_apportioned_by_hand() -> None:
    enough = {"a": 99, "b": 99, "c": 99}
    assert apportion(10, {"a": 1, "b": 1, "c": 1}, enough) == {"a": 4, "b": 3, "c": 3}
    assert apportion(10, {"a": 0.5, "b": 0.3, "c": 0.2}, enough) == {"a": 5, "b": 3, "c": 2}
    # b has room for one: its other two go to a and c at 5 : 2.
    short = {"a": 99, "b": 1, "c": 99}
    assert apportion(10, {"a": 0.5, "b": 0.3, "c": 0.2}, short) == {"a": 6, "b": 1, "c": 3}


@given(kind_counts, st.integers(0, 30))
def test_every_prefix_of_interleaved_tasks_has_the_shares(
    counts: dict[Kind, int], length: int
) -> None:
    tasks = tasks_of(counts)
    random.Random(0).shuffle(tasks)
    mixed = interleave(tasks)
    assert sorted(task.id for task in mixed) == sorted(task.id for task in tasks)
    prefix = Counter(task.kind for task in mixed[:length])
    for kind, number in counts.items():
        assert abs(prefix[kind] - number * min(length, len(tasks)) / len(tasks)) < 1.5


# Normalisation and overlap.


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(st.text())
def test_normalising_ignores_case_space_and_form(text: str) -> None:
    spread = "  " + "\n".join(text.split(" ")) + "\t"
    assert normalise(spread) == normalise(text)
    assert normalise(unicodedata.normalize("NFD", text)) == normalise(text)
    assert normalise(normalise(text).upper()) == normalise(normalise(text).upper().lower())


def test_normalising_keeps_what_makes_problems_different() -> None:
    assert normalise("What is  3 + 4?") == normalise("what is 3 + 4 ?") == "what is 3 + 4"
    assert normalise("Janet’s “ducks”") == normalise('Janet\'s "ducks"')
    assert normalise("What is 3 + 4?") != normalise("What is 3 - 4?")
    assert normalise("12 1") != normalise("1 21")


def test_the_key_of_a_problem() -> None:
    question = "How many points were scored?"
    first = make("qa", 1, "drop", question=question, context="One.")
    second = make("qa", 2, "drop", question=question, context="Two.")
    assert problem_key(first) != problem_key(second)
    hotpot = make("qa", 1, "hotpotqa", question=question, context="One.")
    assert problem_key(hotpot) == problem_key(
        make("qa", 2, "hotpotqa", question=question, context="Two.")
    )
    described = [
        make("code", number, "mbpp", question=f"Write a function.\n\ndef {name}(x):")
        for number, name in enumerate(("f", "g"))
    ]
    assert problem_key(described[0]) == problem_key(described[1])
    choices = (("A", "x"), ("B", "y")), (("A", "y"), ("B", "x")), (("A", "x"), ("B", "z"))
    one, swapped, other = (
        Problem("c", "qa", "mmlu", question, "A", choices=choice) for choice in choices
    )
    assert problem_key(one) == problem_key(swapped) != problem_key(other)


def test_overlap_is_an_error() -> None:
    train = (make("math", 1), make("math", 2))
    again = make("math", 9, "other", question="MATH problem 2.")
    check_disjoint(Splits(train, (make("math", 3),), (make("math", 4),)))
    with pytest.raises(DataError) as caught:
        check_disjoint(Splits(train, (again,), (train[0], again)))
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "train and val share 1 problems (made/math/2 = other/math/9)",
        "train and test share 2 problems (made/math/1 = made/math/1, made/math/2 = other/math/9)",
        "val and test share 1 problems (other/math/9 = other/math/9)",
    ]


# Mixing.


SIZES = {"train": 20, "val": 6, "test": 8}


def pools() -> list[Pool]:
    maths = [make("math", number, "sums") for number in range(100)]
    code = [make("code", number, "programs") for number in range(30)]
    return [
        # 7 of the test problems are in train as well, 3 train problems are repetitions.
        Pool("sums", "math", maths[:60] + maths[:3], [], maths[53:]),
        Pool("programs", "code", code[:20], code[20:24], code[24:]),
    ]


def test_train_gives_way_to_evaluation() -> None:
    given_pools = pools()
    splits = mix(given_pools, {}, seed=0)
    assert len(splits.test) == 47 + 6
    assert Counter(task.source for task in splits.val) == {"sums": 10, "programs": 4}
    assert Counter(task.source for task in splits.train) == {"sums": 43, "programs": 20}
    assert {pool.name: pool.dropped for pool in given_pools} == {"sums": 10, "programs": 0}
    check_disjoint(splits)


def test_a_mixture_is_the_same_for_the_same_seed() -> None:
    assert mix(pools(), SIZES, 3) == mix(pools(), SIZES, 3)
    assert mix(pools(), SIZES, 3) != mix(pools(), SIZES, 4)


def test_sizes_and_shares() -> None:
    equal = mix(pools(), SIZES, 0)
    assert Counter(task.source for task in equal.train) == {"sums": 10, "programs": 10}
    assert (len(equal.val), len(equal.test)) == (6, 8)
    shares = mix(pools(), SIZES, 0, {"sums": 3, "programs": 1})
    assert Counter(task.source for task in shares.train) == {"sums": 15, "programs": 5}
    # 43 sums after 10 were held out would want 14 programs; 20 are there.
    most = mix(pools(), {}, 0, {"sums": 3, "programs": 1})
    counted = Counter(task.source for task in most.train)
    assert counted["programs"] == pytest.approx(counted["sums"] / 3, abs=1)
    only = mix(pools(), {}, 0, {"programs": 1})
    assert {task.source for task in (*only.train, *only.val, *only.test)} == {"programs"}
