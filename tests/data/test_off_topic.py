from collections import Counter

from flowright.data.contamination import conversation_key
from flowright.data.preference_files import OFF_TOPIC, off_topic_pairs
from flowright.data.task import Pair, Preferred, Rated
from flowright.llm.chat import Message


def pair(id: str, question: str, first: str, second: str, label: Preferred = "first") -> Pair:
    return Pair(id, "own", (Message("user", question),), first, second, label, strength=2.0)


FRUIT = [
    pair("0", "Name a fruit that is yellow", "A banana.", "The sun is yellow."),
    pair("1", "Name a fruit for a pie", "Nothing.", "An apple, say, or a pear.", "second"),
    pair("2", "Write about a rainy evening", "Drops.", "It rains."),
    pair("3", "Write an evening prayer", "Good night, all of you.", "No."),
    pair("4", "Name a fruit that is yellow", "A lemon, which is sour.", "A plum."),
]


def test_the_worse_answer_is_the_better_one_to_a_near_question() -> None:
    made = off_topic_pairs(FRUIT, 1.0, seed=0)

    right = {"A banana.", "An apple, say, or a pear.", "Drops.", "Good night, all of you."}
    assert [one.id for one in made] == [f"{row.id}{OFF_TOPIC} 1" for row in FRUIT]
    for row, one in zip(FRUIT, made, strict=True):
        better = row.first if row.label == "first" else row.second
        assert (one.first, one.label, one.strength) == (better, "first", None)
        assert one.second in right | {"A lemon, which is sour."} and one.second != better
        assert one.conversation == row.conversation and one.source == f"own{OFF_TOPIC}"
    by_id = {one.id[0]: one.second for one in made}
    assert by_id["0"] == by_id["4"] == "An apple, say, or a pear."  # never of the same question
    assert by_id["2"] == "Good night, all of you." and by_id["3"] == "Drops."


def test_a_tie_a_rated_answer_and_a_question_apart_make_none() -> None:
    rows = [
        pair("0", "Name a fruit", "A pear.", "A plum.", "tie"),
        Rated("1", "own", (Message("user", "Name a fruit"),), "A pear.", 4),
        pair("2", "Why?", "So.", "No."),
        pair("3", "Tell me more", "Later.", "No."),
    ]

    assert off_topic_pairs(rows, 1.0, seed=0) == []
    assert off_topic_pairs(FRUIT, 0.0, seed=0) == []


def test_a_row_makes_several_with_different_answers() -> None:
    rows = [pair(f"{n}", f"Say {n}a, {n}b for g{n // 4}", f"So: {n}", "No") for n in range(80)]

    made = off_topic_pairs(rows, 2.5, seed=0)

    by_row = Counter(one.id.split(",")[0] for one in made)
    assert Counter(by_row.values()) == {2: 40, 3: 40}
    assert len({(one.question, one.second) for one in made}) == len({one.id for one in made}) == 200


def test_a_share_is_drawn_by_the_seed() -> None:
    one, again, other = (off_topic_pairs(FRUIT, 0.4, seed) for seed in (1, 1, 3))

    assert len(one) == 2 and one == again and one != other


def test_neither_length_tells() -> None:
    words = [f"topic{n // 4}" for n in range(400)]
    rows = [
        pair(str(n), f"Say {n} of {word}: {n}a, {n}b", f"{word} {n} " + "x" * (n % 50), "No.")
        for n, word in enumerate(words)
    ]

    made = off_topic_pairs(rows, 1.0, seed=0)

    longer = Counter(len(one.second) > len(one.first) for one in made)
    assert len(made) == 400 and 160 < longer[True] < 240
    keys = {row.first: conversation_key(row.conversation) for row in rows}
    assert all(keys[one.second] != conversation_key(one.conversation) for one in made)
