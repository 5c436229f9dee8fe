"""The texts of tokens make up the completion, whatever a token is of a character."""

from typing import Any

from hypothesis import given, strategies as st
from tiny_policy import VOCAB_SIZE, tiny_policy

from flowright.policy.sampling import WAITING, TokenTexts

POLICY = tiny_policy()
TEXTS = TokenTexts(POLICY.tokenizer, POLICY.end_ids)
END = 2


def ids_of(text: str) -> list[int]:
    """A token is a byte."""
    return POLICY.tokenizer.encode(text, add_special_tokens=False)


def test_a_character_of_several_tokens_is_the_last_ones() -> None:
    ids = ids_of("aé→🙂")
    assert len(ids) == 1 + 2 + 3 + 4
    assert TEXTS.of(ids, "aé→🙂") == ["a", "", "é", "", "", "→", "", "", "", "🙂"]


def test_what_ends_a_completion_has_no_text() -> None:
    assert TEXTS.of([*ids_of("é"), END], "é") == ["", "é", ""]
    assert TEXTS.of([END], "") == [""]
    assert TEXTS.of([], "") == []


def test_half_a_character_at_the_end_is_there() -> None:
    ids = ids_of("a🙂")[:-1]
    text = POLICY.tokenizer.decode(ids)
    assert isinstance(text, str) and text.endswith("\ufffd")
    assert "".join(TEXTS.of(ids, text) or ()) == text


@given(st.lists(st.integers(3, VOCAB_SIZE - 1), max_size=120))
def test_any_bytes_make_up_what_they_are_decoded_as(ids: list[int]) -> None:
    text = POLICY.tokenizer.decode(ids, skip_special_tokens=False)
    assert isinstance(text, str)
    found = TEXTS.of([*ids, END], text)
    assert found is not None and len(found) == len(ids) + 1
    assert "".join(found) == text


class Words:
    """A tokenizer that drops the space before its first token, as SentencePiece's do, and knows
    half characters. It counts the tokens that it was asked to decode."""

    vocabulary = (" one", " two", ",", "\ufffd")

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, token_ids: Any, **options: Any) -> Any:
        self.decoded += len(token_ids)
        return "".join(self.vocabulary[token] for token in token_ids).removeprefix(" ")

    def encode(self, text: Any, **options: Any) -> Any:
        raise NotImplementedError

    apply_chat_template = encode


def test_a_text_may_depend_on_what_is_before_it() -> None:
    texts = TokenTexts(Words(), ())
    assert texts.of([0, 1, 2, 1], "one two, two") == ["one", " two", ",", " two"]


def test_texts_that_do_not_make_up_the_completion_are_none() -> None:
    assert TokenTexts(Words(), ()).of([0, 1], "one, two") is None


def test_endless_broken_characters_take_no_endless_time() -> None:
    words, count = Words(), 2_000
    found = TokenTexts(words, ()).of([0] + [3] * count + [1], "one" + "\ufffd" * count + " two")
    assert found is not None and len(found) == count + 2
    assert words.decoded < 3 * count * count / WAITING
