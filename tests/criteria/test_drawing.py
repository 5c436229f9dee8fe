"""Prompts to train on: each can be followed, and need not be; no part has another's request."""

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import instructed
import pytest
from command_lines import command

from flowright.core.errors import DataError
from flowright.criteria.constraints.checkers import make, read_prompts
from flowright.criteria.constraints.drawable import IFBENCH, IFEVAL
from flowright.criteria.constraints.drawing import (
    DRAWABLE,
    Drawing,
    chosen_types,
    contradict,
    draw,
    requests,
)
from flowright.criteria.constraints.language import missing
from flowright.criteria.constraints.table import KINDS, Kind
from flowright.data.contamination import SealedConversations, as_conversation

NEEDED = pytest.mark.skipif(bool(missing()), reason="needs requirements-constraints.txt")
REQUEST = "Write a short story about an old bicycle."


def met(names: Sequence[str], arguments: Sequence[Mapping[str, Any]], text: str) -> list[str]:
    """The instructions that an answer does not follow, by kind of checker."""
    return [
        f"{name} {kind}"
        for (name, values), kind in product(zip(names, arguments, strict=True), KINDS)
        if not make(name, values, kind).met(text)
    ]


@NEEDED
def sealed(*texts: str) -> SealedConversations:
    return SealedConversations.of(("a test set", as_conversation(text)) for text in texts)


def test_each_instruction_can_be_followed_and_broken() -> None:
    failures: list[object] = []
    for name in sorted(DRAWABLE.keys() - {"ratio:overlap"}):
        draws = random.Random(0)
        for _ in range(8):
            values = DRAWABLE[name].arguments(draws, REQUEST)
            write = instructed.IFBENCH.get(name)
            text = write(values) if write else instructed.follows([name], [values])
            failures += [(refused, text) for refused in met([name], [values], text)]
            for kind in KINDS:
                checker = make(name, values, kind)
                if all(map(checker.met, instructed.REFUSED)):
                    failures.append((name, kind, values))
    assert failures == []


@NEEDED
def test_what_does_not_contradict_can_be_followed_together() -> None:
    draws = random.Random(0)
    for pair in combinations(IFEVAL, 2):
        if contradict(*pair):
            continue
        for _ in range(2):
            arguments = [IFEVAL[name].arguments(draws, REQUEST) for name in pair]
            text = instructed.follows(pair, arguments)
            assert not met(pair, arguments, text), (arguments, text)


def test_contradictions_hold_both_ways() -> None:
    for one, other in product(DRAWABLE, DRAWABLE):
        assert contradict(one, other) == contradict(other, one)
    upper, lower = "change_case:english_capital", "change_case:english_lowercase"
    assert contradict(upper, lower)
    assert not contradict("punctuation:no_comma", "startend:quotation")


def test_a_seed_draws_the_same_and_parts_share_no_request() -> None:
    sizes = {"train": 300, "val": 60}
    drawn = draw(Drawing(seed=3), sizes)
    assert drawn == draw(Drawing(seed=3), sizes)
    assert drawn.rows["val"] != draw(Drawing(seed=4), sizes).rows["val"]
    found: defaultdict[str, set[str]] = defaultdict(set)
    for part, rows in drawn.rows.items():
        assert len(rows) == sizes[part]
        for row in rows:
            assert 1 <= len(row["instruction_id_list"]) == len(row["kwargs"]) <= 2
            starts = row["prompt"].partition(".")[0].partition("?")[0]
            found[starts].add(part)
    assert {len(parts) for parts in found.values()} == {1}
    prompts = [row["prompt"] for rows in drawn.rows.values() for row in rows]
    assert len(set(prompts)) == len(prompts)


def test_sentences_have_all_arguments_and_every_wording() -> None:
    draws = random.Random(0)
    for name, one in DRAWABLE.items():
        values = one.arguments(draws, REQUEST)
        said = {one.sentence(values, draws) for _ in range(40)}
        assert len(said) == len(one.wordings) >= 2, name
        for text in said:
            assert "{" not in text.replace("or {", ""), text


def test_easy_instructions_are_drawn_as_often_as_is_said() -> None:
    sizes = {"train": 400, "val": 0}
    counts = draw(Drawing(easy=0, most=1), sizes).counts()["train"]
    assert counts and not any(DRAWABLE[name].is_easy for name in counts)
    counts = draw(Drawing(easy=1000, most=1), sizes).counts()["train"]
    assert sum(n for name, n in counts.items() if DRAWABLE[name].is_easy) >= 390


def test_a_prompt_of_a_test_set_is_not_drawn() -> None:
    mine, theirs = "Sing of the sea.", "Sing of  the SKY."
    sizes = {"train": 20, "val": 0}
    drawn = draw(Drawing(), sizes, [mine, theirs.lower()], sealed(theirs))
    assert drawn.sealed == (theirs.lower(),)
    assert not any("sky" in row["prompt"] for row in drawn.rows["train"])
    alone = Drawing(types=["punctuation:no_comma"], most=1)
    forms = {row["prompt"] for row in draw(alone, {"train": 3}, [mine]).rows["train"]}
    drawn = draw(alone, {"train": 2}, [mine], sealed(*sorted(forms)[:1]))
    assert {row["prompt"] for row in drawn.rows["train"]} == set(sorted(forms)[1:])


def test_what_cannot_be_drawn_says_why() -> None:
    with pytest.raises(DataError, match="did you mean"):
        chosen_types("punctuation:no_coma")
    with pytest.raises(DataError, match="3 different prompts"):
        draw(Drawing(types=["punctuation:no_comma"], most=1), {"train": 4}, ["Sing."])
    with pytest.raises(DataError, match="nothing to draw"):
        draw(Drawing(types=["combination:two_responses"], easy=1), {"train": 1}, ["a"],
             sealed("A"))  # fmt: skip
    assert chosen_types("ifbench") == tuple(IFBENCH)
    assert len(IFEVAL) == 25 and len(set(requests())) == 720


@NEEDED
@pytest.mark.parametrize(("kind", "unit"), [("canonical", "{}"), ("fixed", " {}")])
def test_a_share_of_trigrams_can_be_reached(kind: Kind, unit: str) -> None:
    for percentage in range(20, 61, 10):
        values = {"reference_text": REQUEST, "percentage": percentage}
        shared = make("ratio:overlap", values, kind).met
        texts = ["".join(unit.format(chr(0x4E00 + n)) for n in range(many)) for many in range(250)]
        assert any(shared(REQUEST + text) for text in texts)
        assert not shared(REQUEST)


def test_the_command_writes_what_evaluation_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = command("data constraints")
    sealed = tmp_path / "sealed.jsonl"
    sealed.write_text(json.dumps({"prompt": requests()[0].upper()}) + "\n")
    out = tmp_path / "to" / "drawn"
    asked = ["--out", str(out), "--train", "40", "--val", "10", "--sealed", str(sealed)]
    assert main([*asked, "--folder", str(tmp_path)]) == 0
    assert f"left out, as a test set has it: {requests()[0]}" in capsys.readouterr().out
    assert [len(read_prompts(out / f"{part}.jsonl")) for part in ("train", "val")] == [40, 10]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["left_out"] == [requests()[0]]
    assert sum(manifest["drawn"]["train"].values()) >= 40
    for option, value in (("--per-prompt", "2-1"), ("--types", "x"), ("--train", "-1")):
        assert main([*asked, option, value]) == 2
    assert "--per-prompt 2-1" in capsys.readouterr().err
