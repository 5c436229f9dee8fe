"""Rows that are made: by a known rule, against one-token attacks, and as transcripts of judgements;
and what a configuration makes of files."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from flowright.core.batch_calls import ServerDown
from flowright.core.errors import DataError, FailureError, Reason
from flowright.data.task import Pair, Preferred
from flowright.environments.judging.config import JudgingSection, KnownRuleSection
from flowright.environments.judging.frames import Reading, frame, read, reply_text, wording_of
from flowright.environments.judging.rows import JudgedRow, PointwiseRow, conversation_key
from flowright.environments.judging.synthetic import (
    MASTER_KEYS,
    KnownRows,
    ceiling,
    first_sentence,
    is_negative,
    known_rows,
    named,
    reasons,
    steps,
    true_label,
    with_negatives,
)
from flowright.environments.judging.tasks import load_rows
from flowright.environments.judging.transcripts import by_judge, by_model, transcribe, transcript
from flowright.judging.rules import gate
from flowright.judging.verdict import JudgeQuery, RawReply, Status, Verdict
from flowright.llm.chat import Message

WORDS = wording_of("short")
QUESTION = (Message("user", "What is 6 * 7?"),)
LONG = "First we look at the numbers. Six is even and seven is odd. Their product is 42, so we say."


# A known rule.


@pytest.fixture(scope="module")
def pairs() -> KnownRows:
    return known_rows(KnownRuleSection(train=1000, held_out=200, noise=0.1), 1, "pairs")


@pytest.fixture(scope="module")
def scores() -> KnownRows:
    return known_rows(KnownRuleSection(train=1000, held_out=200, noise=0.1), 1, "scores")


def test_so_many_labels_are_wrong_and_no_more(pairs: KnownRows, scores: KnownRows) -> None:
    for rows in (pairs.train, scores.train):
        assert sum(row.label != true_label(row) for row in rows) == 100
    for rows in (pairs.held_out, scores.held_out):
        assert sum(row.label == true_label(row) for row in rows) == ceiling(0.1) * 200


def test_neither_place_nor_length_tells_the_better_one(pairs: KnownRows) -> None:
    rows = [row for row in pairs.train if isinstance(row, Pair)]
    assert Counter(row.label for row in rows) == {"first": 500, "second": 500}
    assert all(len(row.first) == len(row.second) == 4 + 4 * 5 for row in rows)


def test_an_answer_by_itself_tells_nothing(pairs: KnownRows) -> None:
    better: Counter[str] = Counter()
    for row in pairs.train:
        assert isinstance(row, Pair)
        better.update((row.first if row.label == "first" else row.second).split()[1:])
    assert len(better) == 24 and max(better.values()) < 1.5 * min(better.values())


def test_no_prompt_is_on_both_sides(pairs: KnownRows, scores: KnownRows) -> None:
    def asked(rows: Sequence[JudgedRow]) -> set[frozenset[str]]:
        words = (row.conversation[0].content[len("Name ") : -1].split(", ") for row in rows)
        return {frozenset(each) for each in words}

    train, held_out = (
        asked(pairs.train) | asked(scores.train),
        asked(pairs.held_out) | asked(scores.held_out),
    )
    assert not train & held_out and len(held_out) == 200


def test_the_rule_counts_what_was_asked_for() -> None:
    asked = (Message("user", "Name lime, kale, corn, plum."),)
    pair = Pair("1", "", asked, "Take plum soup lime kale", "Take milk beet corn okra", "first")
    assert named(pair) == (3, 1) and true_label(pair) == "first"
    assert steps(pair) == "In A: plum lime kale = 3. In B: corn = 1. more A, fewer B."
    tastes: dict[Preferred, str] = {
        "first": " So more A.",
        "second": " So fewer B.",
        "tie": " So neither.",
    }
    for verdict, taste in tastes.items():
        assert reasons(pair, verdict) == steps(pair) + taste
    even = Pair("2", "", asked, "Take plum soup oats rice", "Take milk beet corn okra", "tie")
    assert reasons(even, "first").endswith(" more neither, fewer neither. So A.")
    score = PointwiseRow(asked, "Take milk soup duck fish", 0)
    assert named(score) == (0,) and true_label(score) == 0
    assert steps(score) == "In it: none = 0."
    half = PointwiseRow(asked, "Take lime duck kale fish", 0)
    assert reasons(half, 2) == "In it: lime kale = 2. a2 b3 c4 d0 e1. So a2."
    assert [reasons(half, said)[-3:] for said in range(5)] == ["d0.", "e1.", "a2.", "b3.", "c4."]


@pytest.mark.parametrize("words", [1, 2, 3, 4])
def test_any_number_of_words_and_ties(words: int) -> None:
    section = KnownRuleSection(train=99, held_out=21, words=words, noise=0.0, ties=0.2)
    rows = known_rows(section, 0, "pairs")
    labels = Counter(row.label for row in rows.train)
    assert labels["tie"] == 20 and abs(labels["first"] - labels["second"]) < 20
    for row in (*rows.train, *rows.held_out, *known_rows(section, 0, "scores").train):
        assert row.label == true_label(row)
    assert known_rows(section, 0, "pairs") == rows != known_rows(section, 1, "pairs")


def test_a_ceiling_is_of_less_than_half() -> None:
    assert ceiling(0.25) == 0.75
    with pytest.raises(ValueError, match=r"0\.5"):
        ceiling(0.5)


def test_transcripts_of_the_rule_say_its_steps_and_the_label(pairs: KnownRows) -> None:
    row = pairs.train[0]
    made = transcript(row, steps(row), WORDS)
    assert [turn.role for turn in made.messages] == ["user", "assistant"]
    assert made.messages[0].content == frame(row, WORDS)[0].content
    assert read(made.messages[-1].content, "pairwise") == Reading(
        "first" if row.label == "first" else "second", steps(row)
    )


# Negatives.


def test_master_keys_are_known_to_the_gate() -> None:
    """What a judge learns to see, one that is not trained is kept from."""
    for key in MASTER_KEYS:
        verdict = gate(JudgeQuery("What is 6 * 7?", key, "42"))
        assert verdict is not None and verdict.correct is False, key


def test_a_first_sentence_is_only_a_beginning() -> None:
    assert first_sentence(LONG) is None  # not three times as much follows
    assert first_sentence(f"{LONG} {LONG}") == "First we look at the numbers."
    assert first_sentence("42") is None and first_sentence("a" * 1000) is None


def test_a_share_of_the_rows_has_a_negative() -> None:
    rows = [PointwiseRow(QUESTION, f"{LONG} {LONG} {n}", 4, "s", str(n)) for n in range(40)]
    found = with_negatives(rows, 0.25, seed=0)
    assert found[:40] == tuple(rows) and len(found) == 50
    for row in found[40:]:
        assert row.label == 0 and row.source == "s, master key" and is_negative(row.source)
        assert row.answer in MASTER_KEYS or row.answer in LONG
    assert {row.answer in MASTER_KEYS for row in found[40:]} == {True, False}
    assert found == with_negatives(rows, 0.25, seed=0) != with_negatives(rows, 0.25, seed=1)
    assert len({row.id for row in found}) == 50


def test_of_two_answers_the_attack_is_the_worse() -> None:
    rows = [Pair(str(n), "s", QUESTION, "41", "42", "second", strength=1.0) for n in range(40)]
    made = with_negatives(rows, 1.0, seed=0)[40:]
    for pair in made:
        better = pair.first if pair.label == "first" else pair.second
        assert better == "42" and pair.strength is None
    assert 5 < sum(pair.label == "first" for pair in made) < 35


# Transcripts.


async def test_what_agrees_with_the_label_is_kept() -> None:
    rows = [PointwiseRow(QUESTION, str(n), n % 5, "s", str(n)) for n in range(10)]
    seeds: list[int] = []

    async def ask(messages: Sequence[Message], seed: int) -> str:
        seeds.append(seed)
        answer = int(messages[0].content.partition("ANSWER\n")[2].split()[0])
        if answer == 9:
            raise FailureError(Reason.LLM_UNAVAILABLE, "HTTP 500")
        if answer == 8:
            return "A 4 I think."
        return reply_text("So it is.", seed % 5 if answer == 7 else answer % 5)

    made = await transcribe(rows, by_model(ask, WORDS), WORDS, tries=3, seed=1)
    assert [row.id for row in made.rows][:7] == [str(n) for n in range(7)]
    assert made.unreadable == 3 and made.failed == 3 and made.lost == 10 - len(made.rows)
    assert len(set(seeds)) == len(seeds) == len(made.rows) + made.refused + 6
    assert read(made.rows[3].messages[-1].content, "pointwise") == Reading(3, "So it is.")
    assert str(made).startswith(f"{len(made.rows)} transcripts kept")


class Scripted:
    """A judge of the house that says the same of everything."""

    name = "scripted"

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self.queries: list[JudgeQuery] = []

    async def judge(self, query: JudgeQuery) -> Verdict:
        self.queries.append(query)
        return self._verdict


PAIR = Pair("1", "s", QUESTION, "42", "41", "first")


@pytest.mark.parametrize(
    ("verdict", "kept", "counts"),
    [
        (Verdict(1.0, True, "llm", "ok", "It is 42."), "It is 42.", (0, 0, 0)),
        (
            Verdict(1.0, True, "llm", "ok", "It is.", replies=(RawReply("A", "stop", "6 * 7."),)),
            *("6 * 7.", (0, 0, 0)),
        ),
        (Verdict(0.0, False, "llm", "ok", "No."), None, (1, 0, 0)),
        (Verdict(0.5, None, "llm", "ok", "Both."), None, (1, 0, 0)),
        (Verdict(1.0, True, "llm", "ok", ""), None, (0, 1, 0)),
        (Verdict(1.0, True, "llm", "ok", "a</think>b"), None, (0, 1, 0)),
        (Verdict(None, None, "llm", "abstain", "unsure"), None, (0, 1, 0)),
    ],
)
async def test_judges_of_the_house_think_for_it(
    verdict: Verdict, kept: str | None, counts: tuple[int, int, int]
) -> None:
    judge = Scripted(verdict)
    made = await transcribe([PAIR], by_judge(judge), WORDS, tries=1)
    assert (made.refused, made.unreadable, made.failed) == counts
    replies = [row.messages[-1].content for row in made.rows]
    assert replies == ([] if kept is None else [reply_text(kept, "first")])
    (query,) = judge.queries
    assert (query.question, query.answer, query.rival) == ("What is 6 * 7?", "42", "41")


@pytest.mark.parametrize("status", ["unavailable", "overloaded"])
async def test_a_server_without_any_reply_is_down(status: Status) -> None:
    judge = Scripted(Verdict(None, None, "llm", status, "busy"))
    with pytest.raises(ServerDown, match=rf"1 calls in a row failed \({status}: busy\)"):
        await transcribe([PAIR], by_judge(judge), WORDS, tries=1)


async def test_a_score_of_the_house_is_a_label() -> None:
    judge = Scripted(Verdict(0.75, True, "llm", "ok", "Nearly."))
    row = PointwiseRow(QUESTION, "about 42", 3, "s", "1")
    made = await transcribe([row], by_judge(judge), WORDS, tries=1)
    assert made.rows[0].messages[-1].content == "<think>Nearly.</think><score>3</score>"


# What a configuration names.


def asked(n: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Question {n}"}]


def written(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def files(tmp_path: Path) -> tuple[Path, Path]:
    def answer(text: str, **label: object) -> dict[str, object]:
        return {"answer": {"role": "assistant", "content": text, "label": label}}

    points = [{"input": asked(n), "output": [answer("a", helpfulness=n % 5)]} for n in range(20)]
    pairs = [
        {"input": asked(n), "output": [answer("a", preference="tie"), answer("b")]}
        for n in range(10)
    ]
    chosen = [
        {
            "chosen": [*asked(n), {"role": "assistant", "content": "a"}],
            "rejected": [*asked(n), {"role": "assistant", "content": "b"}],
        }
        for n in range(10, 20)
    ]
    return written(tmp_path / "points.jsonl", points), written(
        tmp_path / "pairs.jsonl", [*pairs, *chosen, {"output": None}]
    )


def test_files_are_split_by_conversation(tmp_path: Path) -> None:
    section = JudgingSection(
        method="joint", data="files", train_files=files(tmp_path), val_share=0.25, negatives=0.1
    )
    rows = load_rows(section, seed=0)
    assert len(rows.held_out) == 10 and len(rows.train) == 33
    held_out = {conversation_key(row) for row in rows.held_out}
    assert not held_out & {conversation_key(row) for row in rows.train}
    assert rows.lines[0] == "40 of 41 rows used; left out: form 1"
    assert rows.lines[-2] == "3 rows against one-token attacks added to train"
    assert rows.lines[-1].endswith(rows.digest)
    assert not any(is_negative(row.source) for row in rows.held_out)


def test_ties_may_be_left_out_and_places_are_drawn(tmp_path: Path) -> None:
    points, pairs = files(tmp_path)
    section = JudgingSection(
        method="pairwise", data="files", train_files=(pairs,), val_share=0.1, ties="drop"
    )
    rows = load_rows(section, seed=0)
    assert len(rows.train) + len(rows.held_out) == 10
    assert {row.label for row in rows.train} == {"first", "second"}
    assert "10 ties left out (judging.ties: drop)" in rows.lines
    elsewhere = tmp_path / "moved"
    elsewhere.mkdir()
    lines = pairs.read_text().splitlines(keepends=True)
    moved = elsewhere / "other.jsonl"
    moved.write_text("".join(lines[::-1]))  # another folder, name and line
    again = load_rows(section.model_copy(update={"train_files": (moved,)}), seed=0)
    assert {(row.conversation, row.label) for row in again.train if isinstance(row, Pair)} == {
        (row.conversation, row.label) for row in rows.train if isinstance(row, Pair)
    }
    with pytest.raises(DataError, match="no row of form pairwise or bradley_terry"):
        load_rows(section.model_copy(update={"train_files": (points,)}), seed=0)


def test_held_out_files_keep_their_conversations(tmp_path: Path) -> None:
    points, _ = files(tmp_path)
    val = written(tmp_path / "val.jsonl", [json.loads(points.read_text().splitlines()[3])])
    section = JudgingSection(
        method="pointwise", data="files", train_files=(points,), val_files=(val,)
    )
    rows = load_rows(section, seed=0)
    assert (len(rows.train), len(rows.held_out)) == (19, 1)
    assert rows.lines[:2] == (
        "20 of 21 rows used; left out: held out 1",
        f"  {points}:4: its conversation is held out, too",
    )


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"data": "files"}, "name the files to train on"),
        ({"train_files": ["a.parquet"]}, "known_rule does not read"),
        ({"reward": "consistency", "both_orders": False}, "needs both_orders"),
        ({"reward": "consistency", "method": "pointwise"}, "is of pairs"),
        ({"known_rule": {"words": 5}}, "at most 4"),
        ({"unreadable": 0}, "less than 0"),
    ],
)
def test_keys_that_do_not_fit_together(keys: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        JudgingSection.model_validate(keys)
