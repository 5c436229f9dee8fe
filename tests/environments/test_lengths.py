"""What is too long is dropped or cut by rule, and counted; no conversation is on both sides of a
split."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from flowright.core.errors import DataError
from flowright.data.row_files import Fault
from flowright.data.task import Pair
from flowright.environments.judging.frames import frame, reply_text, wording_of
from flowright.environments.judging.rows import (
    AnyRow,
    PointwiseRow,
    SftRow,
    conversation_key,
    prompt_of,
)
from flowright.environments.judging.synthetic import in_drawn_order
from flowright.environments.judging.tasks import CUT, SHORTEST, cut_row
from flowright.environments.judging.transcripts import transcript
from flowright.environments.row_tasks import (
    Fitted,
    RowSets,
    fit as fit_rows,
    hold_out,
    keep_apart,
    lengths_of,
)
from flowright.llm.chat import Message


def row(*texts: str, answer: str = "Lima.", id: str = "f:1") -> PointwiseRow:
    roles = ("user", "assistant") * len(texts)
    turns = tuple(Message(role, text) for role, text in zip(roles, texts, strict=False))  # pyright: ignore
    return PointwiseRow(turns, answer, 3, "s", id)


def fit(
    rows: Sequence[AnyRow], tokens: Callable[[AnyRow], int], limit: int, overlong: str
) -> Fitted[AnyRow]:
    return fit_rows(
        rows, tokens, limit, overlong, lambda row, count: cut_row(row, count, tokens, limit)
    )


def split_by_prompt(rows: Sequence[PointwiseRow], share: float, seed: int) -> RowSets[PointwiseRow]:
    return hold_out(rows, conversation_key, lambda n: round(share * n), f"{seed}/split")


def kept_apart(train: Sequence[PointwiseRow], held_out: Sequence[PointwiseRow]):
    return keep_apart(train, held_out, conversation_key)


def characters(row: PointwiseRow) -> int:
    return sum(len(turn.content) for turn in row.conversation) + len(row.answer)


def test_lengths_by_nearest_rank() -> None:
    lengths = lengths_of(range(1, 21), limit=18)
    assert (lengths.least, lengths.median, lengths.p95, lengths.most) == (1, 10, 19, 20)
    assert str(lengths) == (
        "tokens a row after the chat template: min 1, median 10, p95 19, max 20; 2 of 20 rows "
        "over 18"
    )
    with pytest.raises(ValueError, match="no rows"):
        lengths_of([], 1)


def test_overlong_rows_are_dropped_by_name() -> None:
    rows = [row("a" * 10), row("b" * 3000, id="f:2")]
    fitted = fit(rows, characters, 2000, "drop")
    assert fitted.rows == (rows[0],) and fitted.cut == 0
    assert [str(out) for out in fitted.left_out] == [
        "f:2: 3,005 tokens after the chat template, more than 2,000"
    ]
    assert fitted.left_out[0].fault is Fault.OVERLONG


def test_overlong_rows_are_an_error_where_they_shall_be() -> None:
    with pytest.raises(DataError, match=r"1 of 2 rows have more than 20 tokens \(f:2\)"):
        fit([row("a"), row("b" * 99, id="f:2")], characters, 20, "error")


def test_the_longest_turn_is_cut_in_its_middle_and_counted() -> None:
    long = "b" * 2500 + "m" * 1000 + "e" * 2500
    given = row("Hello?", "Hello.", long, answer="c" * 500)
    fitted = fit([given], characters, 4000, "truncate")
    (cut,) = fitted.rows
    assert characters(cut) <= 4000 and cut.answer == given.answer and cut.label == 3
    assert cut.conversation[:2] == given.conversation[:2]
    begin, end = cut.conversation[2].content.split(CUT)
    assert long.startswith(begin) and long.endswith(end) and abs(len(begin) - len(end)) <= 1
    assert fitted.cut_ids == (given.id,)
    assert fitted.cut == 1 and fitted.cut_characters == len(long) - len(begin) - len(end)
    assert characters(cut) > 3000  # and no more than needed


def test_several_turns_are_cut_where_one_does_not_do() -> None:
    (cut,) = fit([row("a" * 3000, "b" * 3000, "c" * 3000)], characters, 3500, "truncate").rows
    assert all(CUT in turn.content for turn in cut.conversation)


def test_an_answer_is_never_cut() -> None:
    fitted = fit([row("a" * 3000, answer="b" * 3000)], characters, 2000, "truncate")
    assert fitted.rows == () and "without its conversation it is still longer" in str(
        fitted.left_out[0]
    )


def test_what_the_chat_template_refuses_is_left_out_by_name() -> None:
    rows = [replace(row(text), id=f"f:{n}") for n, text in enumerate(("good", "bad", "g" * 30))]

    def tokens(row: PointwiseRow) -> int:
        if row.conversation[0].content == "bad":
            raise DataError("the chat template refuses turns of user: no")
        return characters(row)

    fitted = fit(rows, tokens, 20, "drop")
    assert fitted.rows == (rows[0],) and fitted.lengths.rows == 2
    assert [each.fault for each in fitted.left_out] == [Fault.TEMPLATE, Fault.OVERLONG]
    assert str(fitted.left_out[0]) == "f:1: the chat template refuses turns of user: no"
    assert str(fitted).endswith("1 dropped, 1 refused by the chat template")
    with pytest.raises(DataError, match="refuses all 1 rows"):
        fit(rows[1:2], tokens, 20, "truncate")


@pytest.mark.parametrize("words", ["standard", "short"])
@pytest.mark.parametrize("confidence", [None, 0.5])
def test_a_transcript_keeps_its_request_and_its_verdict(
    words: str, confidence: float | None
) -> None:
    wording = wording_of(words)
    given = transcript(row("a" * 9000), "It is.", wording, confidence)
    request = frame(row("a"), wording, confidence is not None)[0].content.rpartition("~~~~~")[2]
    assert len(request) < SHORTEST / 2

    def tokens(row: SftRow) -> int:
        return sum(len(turn.content) for turn in row.messages)

    (cut,) = fit([given], tokens, 3000, "truncate").rows
    assert cut.messages[0].content.endswith(request)
    assert cut.messages[1].content == reply_text("It is.", 3, confidence)


def conversations(rows: Sequence[PointwiseRow]) -> set[str]:
    return {turn.content.casefold().rstrip("?") for row in rows for turn in prompt_of(row)}


def test_a_split_is_by_conversation_and_repeats_itself() -> None:
    rows = [row(f"{name}{n}{end}") for n in range(50) for name, end in (("q", ""), ("Q", "?"))]
    split = split_by_prompt(rows, 0.2, seed=1)
    assert (len(split.train), len(split.held_out)) == (80, 20)
    assert not conversations(split.train) & conversations(split.held_out)
    assert split_by_prompt(rows, 0.2, seed=1) == split
    assert split_by_prompt(rows[::-1], 0.2, seed=1).digest == split.digest
    assert split_by_prompt(rows, 0.2, seed=2).digest != split.digest
    assert len(split.digest) == 64
    with pytest.raises(DataError, match="nothing can be held out"):
        split_by_prompt(rows[:2], 0.5, seed=0)


def test_train_gives_way_to_what_is_held_out() -> None:
    train = [row("Peru?", id="f:1"), row("Chile?", id="f:2")]
    split = kept_apart(train, [row("chile")])
    assert [each.id for each in split.train] == ["f:1"]
    assert [str(out) for out in split.left_out] == ["f:2: its conversation is held out, too"]
    with pytest.raises(DataError, match="all conversations of the 1 rows"):
        kept_apart(train[:1], [row("PERU")])


def test_the_split_knows_every_form() -> None:
    turns = (Message("user", "Peru?"),)
    rows = [
        SftRow((*turns, Message("assistant", "Lima."))),
        Pair("0", "s", turns, "a", "b", "tie"),
        Pair("1", "s", turns, "a", "b", "first"),
        row("peru"),
        row("Chile"),
    ]
    split = split_by_prompt(rows, 0.5, seed=0)
    assert {len(split.train), len(split.held_out)} == {1, 4}


def test_places_are_drawn_and_balanced() -> None:
    asked = (Message("user", "?"),)
    pairs = [Pair(str(n), "s", asked, f"a {n}", f"b {n}", "first") for n in range(1000)]
    drawn = [in_drawn_order(pair, seed=3) for pair in pairs]
    assert 450 < sum(pair.label == "first" for pair in drawn) < 550
    # By the texts alone: neither the name of a row nor the way round that it came matters.
    assert drawn == [in_drawn_order(pair.swapped(), seed=3) for pair in pairs]
    renamed = in_drawn_order(replace(pairs[0], id="moved:1", source="t"), seed=3)
    assert renamed.first == drawn[0].first
