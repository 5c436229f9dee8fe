"""Whether a judge was trained on what it is measured by."""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from flowright.core.errors import DataError
from flowright.data.contamination import (
    TrainedOn,
    beginnings,
    conversation_key,
    folded as normalised,
)
from flowright.data.task import Pair, Rated
from flowright.llm.chat import Message

HELLO, ANSWER, WHY = (
    Message("user", "Hello?"),
    Message("assistant", "Hi."),
    Message("user", "Why?"),
)


def pair(
    id: str, *conversation: Message, source: str = "llmbar", category: str = "natural"
) -> Pair:
    return Pair(id, source, conversation, "a", "b", "first", category)


def test_what_does_not_count_in_a_text() -> None:
    assert normalised("  Straße\tＡＢＣ\n\n１ ") == "strasse abc 1"
    assert normalised("e\u0301t\u00e9") == normalised("\u00c9TE\u0301") == "été"
    assert normalised("3 + 4") != normalised("3 - 4")
    assert normalised("What?") != normalised("What")


@given(st.text())
def test_normalising_again_changes_nothing(text: str) -> None:
    assert normalised(normalised(text)) == normalised(text)
    assert normalised(f" {text}\n") == normalised(text) == normalised(text.replace(" ", "  "))


@given(st.text(max_size=200))
def test_short_texts_have_unicodes_own_form(text: str) -> None:
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    if not any(map(unicodedata.combining, text)):  # a mark after a space would join it
        assert normalised(text) == " ".join(folded.split())


def test_long_runs_of_marks_are_read_in_pieces() -> None:
    """As a whole, this one would take half an hour."""
    assert len(normalised("a" + "\u0301\u0327" * 500_000)) > 500_000


def test_a_conversation_is_its_turns_without_system_messages() -> None:
    assert conversation_key([Message("system", "Be nice."), HELLO]) == conversation_key([HELLO])
    assert conversation_key([HELLO]) == conversation_key([Message("user", " hello? ")])
    assert len(list(beginnings([HELLO, ANSWER, WHY]))) == 3
    assert conversation_key([HELLO, ANSWER]) != conversation_key([HELLO, Message("user", "Hi.")])


@given(st.lists(st.text(max_size=3), min_size=1, max_size=4), st.text(max_size=5))
def test_turns_do_not_run_into_each_other(texts: list[str], text: str) -> None:
    turns = [Message("user", each) for each in texts]
    if len(turns) > 1 or normalised(texts[0]) != normalised(text):
        assert conversation_key(turns) != conversation_key([Message("user", text)])


def test_a_conversation_is_known_by_its_text_whatever_answer_follows() -> None:
    benchmark = {"x": [HELLO], "y": [HELLO, ANSWER, WHY], "z": [WHY]}

    def known(*conversations: list[Message]) -> list[str]:
        keys = TrainedOn.of_conversations(conversations).conversations
        return [name for name, turns in benchmark.items() if conversation_key(turns) in keys]

    assert known([HELLO]) == ["x"]
    assert known([Message("user", "HELLO?  "), Message("assistant", "else")]) == ["x"]
    assert known([Message("system", "s"), HELLO, ANSWER, WHY, ANSWER]) == ["x", "y"]
    assert known() == known([ANSWER, WHY]) == []


def test_a_subset_that_was_trained_on_is_refused_by_name() -> None:
    trained = TrainedOn.of([pair("1", HELLO), Rated("2", "helpsteer2", (WHY,), "a", 3, "train")])
    assert trained.subsets == {"llmbar/natural", "helpsteer2/train"}
    trained.check([pair("9", Message("user", "Else?"), category="manual")])
    with pytest.raises(DataError) as caught:
        trained.check([pair("8", Message("user", "New?")), pair("1", HELLO)])
    assert caught.value.problems[0] == "llmbar/natural: the judge was trained on it (2 pairs)"
    assert len(caught.value.problems) == 2


def test_a_conversation_under_another_name_is_refused_by_its_text() -> None:
    trained = TrainedOn.of_conversations([[HELLO, ANSWER]]) | TrainedOn.of([pair("1", WHY)])
    bench = [pair(str(n), HELLO, source="pandalm", category="") for n in range(4)]
    with pytest.raises(DataError) as caught:
        trained.check([*bench, pair("z", Message("user", "Fresh"), source="hhh", category="other")])
    assert caught.value.problems[0] == (
        "pandalm: the judge was trained on 4 of its conversations (0, 1, 2, ...)"
    )


def test_what_was_trained_on_is_a_file(tmp_path: Path) -> None:
    trained = TrainedOn.of([pair("1", HELLO, ANSWER, WHY)])
    path = trained.write(tmp_path)
    assert path.name == "trained_on.json" and "Hello" not in path.read_text()
    assert TrainedOn.read(tmp_path) == trained
    assert TrainedOn.read(tmp_path / "nowhere") is None
    value = json.loads(path.read_text())
    path.write_text(json.dumps(value | {"normalisation": "none"}))
    with pytest.raises(DataError, match="not of this form"):
        TrainedOn.read(tmp_path)
    path.write_text("[]")
    with pytest.raises(DataError, match="is a JSON object, not list"):
        TrainedOn.read(tmp_path)
