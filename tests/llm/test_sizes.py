"""Bounds on tokens: that they bound, and that cuts keep to them."""

import pytest
from hypothesis import given, strategies as st

from flowright.llm.context import first_tokens, last_tokens, most_tokens


def test_a_character_may_be_several_tokens() -> None:
    assert [most_tokens(text) for text in ("", "a", "é", "ﷺ", "𓀀")] == [0, 1, 2, 3, 4]


@given(st.text(), st.integers(min_value=1, max_value=30))
def test_a_cut_is_the_longest_that_fits(text: str, most: int) -> None:
    for cut, more in (
        (first_tokens(text, most), lambda n: text[:n]),
        (last_tokens(text, most), lambda n: text[len(text) - n :]),
    ):
        assert most_tokens(cut) <= most
        assert cut == more(len(cut))
        assert cut == text or most_tokens(more(len(cut) + 1)) > most


@pytest.mark.parametrize("cut", [first_tokens, last_tokens])
def test_half_a_surrogate_pair_is_cut_like_any_other(cut) -> None:
    assert most_tokens(cut("\ud800" * 9, 3)) <= 3
