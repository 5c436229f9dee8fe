"""Preferences from upstream files: the true bytes where they are at hand, and hand-written rows."""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import true_preferences
from hypothesis import given, strategies as st

from flowright.core.errors import DataError
from flowright.data.sources.comparisons import (
    autoj,
    evalbiasbench,
    helpsteer2_pair,
    helpsteer2_rated,
    hhh,
    judgebench,
    llmbar,
    majority,
    pandalm,
)
from flowright.data.sources.dataset import UpstreamRow, sha256_of
from flowright.data.sources.registry import (
    PREFERENCES,
    preference_source,
    read_pairs,
    read_preferences,
)
from flowright.data.task import PREFERRED, Pair, Rated
from flowright.llm.chat import Message


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return true_preferences.link(tmp_path_factory.mktemp("raw"))


def row(**values: object) -> UpstreamRow:
    return UpstreamRow(values, "file: row 7", "7")


# The true bytes.


@pytest.mark.parametrize(
    ("name", "labels", "categories"),
    [
        ("llmbar", {"first": 206, "second": 213}, 5),
        ("pandalm", {"first": 422, "second": 472, "tie": 105}, 1),
        ("autoj", {"first": 520, "second": 499, "tie": 373}, 58),
        ("hhh", {"first": 221}, 4),
        ("evalbiasbench", {"first": 80}, 6),
    ],
)
def test_every_row_of_the_true_files_is_a_pair(
    raw: Path, name: str, labels: dict[str, int], categories: int
) -> None:
    pairs = read_pairs(name, raw)
    assert Counter(pair.label for pair in pairs) == labels
    assert len({pair.category for pair in pairs}) == categories
    assert len({pair.id for pair in pairs}) == len(pairs) == sum(labels.values())
    assert {pair.source for pair in pairs} == {name}
    assert all(pair.conversation[-1].role == "user" for pair in pairs)


def test_the_subsets_of_the_true_files(raw: Path) -> None:
    def subsets(name: str) -> dict[str, int]:
        return dict(Counter(pair.category for pair in read_pairs(name, raw)))

    adversarial = {"gptinst": 92, "gptout": 47, "manual": 46, "neighbor": 134}
    assert subsets("llmbar") == {"natural": 100, **adversarial}
    assert subsets("hhh") == {"harmless": 58, "helpful": 59, "honest": 61, "other": 43}
    assert subsets("evalbiasbench") == {
        "length": 17,
        "concreteness": 14,
        "empty_reference": 13,
        "content_continuation": 12,
        "nested_instruction": 12,
        "familiar_knowledge": 12,
    }


def test_the_conversations_of_hhh_have_their_turns(raw: Path) -> None:
    pairs = read_pairs("hhh", raw)
    assert Counter(len(pair.conversation) for pair in pairs) == {1: 180, 3: 40, 5: 1}
    texts = [
        t for p in pairs for t in (p.first, p.second, *(turn.content for turn in p.conversation))
    ]
    assert not any(mark in text for text in texts for mark in ("Human:", "Assistant:", "###"))


def test_quirks_of_the_true_files(raw: Path) -> None:
    pandas = read_pairs("pandalm", raw)
    assert Counter(len(set(pair.votes)) for pair in pandas) == {1: 879, 2: 120}
    assert sum(not pair.first or not pair.second for pair in pandas) == 54
    assert sum("True" in (pair.first, pair.second) for pair in pandas) == 6
    assert pandas[466].question == "Truthfulness", "its instruction is a space"
    same = [pair for pair in read_pairs("autoj", raw) if pair.first == pair.second]
    assert Counter(pair.label for pair in same) == {"tie": 8, "second": 1}


def test_the_known_hashes_are_those_of_the_true_files(raw: Path) -> None:
    known = {file.path: file.sha256 for source in PREFERENCES.values() for file in source.files}
    for path in true_preferences.PATHS:
        assert sha256_of(raw / path) == known[path], path


# Rows.


def test_llmbar() -> None:
    made = llmbar("manual")(row(input="Say hi.", output_1="hi", output_2="ho", label=2))
    assert made == Pair(
        id="manual/7",
        source="llmbar",
        conversation=(Message("user", "Say hi."),),
        first="hi",
        second="ho",
        label="second",
        category="manual",
    )


PANDALM = {
    "idx": 3,
    "instruction": "Shorten.",
    "input": "A long text.",
    "response1": "Text.",
    "response2": "",
    "annotator1": 0,
    "annotator2": 1,
    "annotator3": 1,
}


def test_pandalm() -> None:
    made = pandalm(row(**PANDALM))
    assert made.question == "### Instruction:\nShorten.\n\n### Input:\nA long text."
    assert (made.id, made.first, made.second) == ("3", "Text.", "")
    assert made.votes == ("tie", "first", "first") and made.label == "first"
    assert made.swapped().votes == ("tie", "second", "second")
    other = pandalm(row(**PANDALM | {"input": float("nan"), "response2": True}))
    assert (other.question, other.second) == ("Shorten.", "True")
    assert pandalm(row(**PANDALM | {"response2": float("nan")})) == made


def test_three_different_votes_are_a_tie() -> None:
    assert majority(("first", "tie", "second")) == "tie"
    assert majority(("second", "tie", "second")) == "second"


@given(st.lists(st.sampled_from(PREFERRED), min_size=1, max_size=5))
def test_a_majority_does_not_depend_on_the_order(votes: list) -> None:
    found = majority(votes)
    assert found == majority(votes[::-1])
    assert found == "tie" or votes.count(found) * 2 > len(votes)


AUTOJ = {"prompt": "Plan a trip.", "response 1": "a", "response 2": "b", "scenario": "planning"}


@pytest.mark.parametrize(("label", "meant"), [(0, "first"), (1, "second"), (2, "tie")])
def test_autoj(label: int, meant: str) -> None:
    made = autoj(row(**AUTOJ, label=label))
    assert (made.label, made.category, made.id) == (meant, "planning", "7")


def test_a_bias_is_a_category() -> None:
    values = {"instruction": "Why?", "response1": "a", "response2": "b", "label": 1}
    made = evalbiasbench(row(**values, bias="familiar knowledge preference bias"))
    assert (made.category, made.id) == ("familiar_knowledge", "familiar_knowledge/7")


JUDGEBENCH = {"pair_id": "a-b", "question": "2+2?", "response_A": "4", "response_B": "5"}


@pytest.mark.parametrize(
    ("source", "category"),
    [
        ("mmlu-pro-law", "knowledge"),
        ("mmlu-pro-computer science", "knowledge"),
        ("livebench-reasoning", "reasoning"),
        ("livebench-math", "math"),
        ("livecodebench", "coding"),
    ],
)
def test_judgebench(source: str, category: str) -> None:
    made = judgebench("gpt")(row(**JUDGEBENCH, source=source, label="B>A"))
    assert (made.id, made.category, made.label) == ("gpt/a-b", f"gpt/{category}", "second")


def prompt(conversation: str, answer: str) -> str:
    """As Prometheus has it around a conversation."""
    return (
        f"###Task Description:\nRate it.\n\n###The instruction to evaluate:\n{conversation}\n\n"
        f"###Response to evaluate:\n{answer}\n\n###Score Rubrics:\n[Is it?]\n\n###Feedback: "
    )


def test_hhh() -> None:
    asked = "Hello?\n\nAssistant:  Hi.\nWhat is it?\n\nHuman:  Nothing."
    made = hhh(
        row(
            source="honest",
            chosen_instruction=prompt(asked, "Fine. "),
            rejected_instruction=prompt(asked, "Tell me!"),
        )
    )
    assert made.conversation == (
        Message("user", "Hello?"),
        Message("assistant", "Hi.\nWhat is it?"),
        Message("user", "Nothing."),
    )
    assert (made.first, made.second, made.label) == ("Fine.", "Tell me!", "first")
    assert (made.category, made.id) == ("honest", "7")


HELPSTEER2 = {"response_1": "a", "response_2": "b", "split": "train"}


@pytest.mark.parametrize(
    ("given_strength", "label", "strength"),
    [(-3, "first", 3.0), (0, "tie", 0.0), (1, "second", 1.0)],
)
def test_helpsteer2(given_strength: int, label: str, strength: float) -> None:
    text = "hi\n<extra_id_1>Assistant\nhello\n<extra_id_1>User\nwhy?"
    made = helpsteer2_pair(row(**HELPSTEER2, prompt=text, preference_strength=given_strength))
    assert (made.label, made.strength, made.category) == (label, strength, "train")
    assert [turn.role for turn in made.conversation] == ["user", "assistant", "user"]
    assert [turn.content for turn in made.conversation] == ["hi", "hello", "why?"]


def test_a_rated_answer_of_helpsteer2() -> None:
    made = helpsteer2_rated("val")(row(prompt="hi", response="hello", helpfulness=0))
    assert made == Rated("val/7", "helpsteer2", (Message("user", "hi"),), "hello", 0, "val")


TWO = {"response_1": "a", "response_2": "b"}


@pytest.mark.parametrize(
    ("convert", "values", "why"),
    [
        (autoj, AUTOJ, "the row lacks 'label'"),
        (autoj, AUTOJ | {"label": 3}, "label is 3, not one of 0, 1, 2"),
        (autoj, AUTOJ | {"label": True}, "label is True, not one of 0, 1, 2"),
        (autoj, AUTOJ | {"label": "1"}, "label is '1', not one of 0, 1, 2"),
        (autoj, AUTOJ | {"label": 1, "prompt": " "}, "a turn of the user is empty"),
        (autoj, AUTOJ | {"label": 1, "response 1": ["a"]}, "response 1 is list, not a string"),
        (autoj, AUTOJ | {"label": 1, "response 2": None}, "the row lacks 'response 2'"),
        (autoj, AUTOJ | {"label": 1, "prompt": "a\ud800"}, "prompt has half a character at 1"),
        (llmbar("natural"), {"input": "a", "output_1": "b", "output_2": "c", "label": 0},
         "label is 0, not one of 1, 2"),
        (pandalm, PANDALM | {"annotator2": 4}, "annotator2 is 4, not one of 0, 1, 2"),
        (pandalm, PANDALM | {"response1": 5}, "response1 is int, not a string"),
        (pandalm, PANDALM | {"instruction": "", "input": ""}, "a turn of the user is empty"),
        (judgebench("gpt"), JUDGEBENCH | {"source": "arena", "label": "A>B"}, "source is 'arena'"),
        (judgebench("gpt"), JUDGEBENCH | {"source": "livecodebench", "label": "A=B"},
         "label is 'A=B', neither A>B nor B>A"),
        (hhh, {"chosen_instruction": "hi", "rejected_instruction": "hi", "source": "other"},
         "chosen_instruction is not Prometheus' prompt"),
        (hhh, {"chosen_instruction": prompt("a", "b"), "rejected_instruction": prompt("c", "b"),
               "source": "other"}, "to different conversations"),
        (hhh, {"chosen_instruction": prompt("a\n\nHuman: b", "c"), "source": "other",
               "rejected_instruction": prompt("a\n\nHuman: b", "d")}, "do not go from user"),
        (helpsteer2_pair, HELPSTEER2 | {"prompt": "a", "preference_strength": -100},
         "preference_strength is -100"),
        (helpsteer2_pair, HELPSTEER2 | {"preference_strength": 1,
                                        "prompt": "a\n<extra_id_1>Assistant\nb"}, "with the user"),
        (helpsteer2_rated("train"), {"prompt": "a", "response": "b", "helpfulness": 5},
         "helpfulness is 5"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_used_says_where_and_why(
    convert: Callable[[UpstreamRow], object], values: dict[str, object], why: str
) -> None:
    with pytest.raises(DataError) as caught:
        convert(row(**values))
    (line,) = caught.value.problems
    assert line.startswith("file: row 7: ") and why in line


@given(st.text())
def test_any_conversation_is_read_or_refused(text: str) -> None:
    values = {"chosen_instruction": prompt(text, "a"), "rejected_instruction": prompt(text, "b")}
    for convert, fields in (
        (hhh, {**values, "source": "other"}),
        (helpsteer2_pair, {**HELPSTEER2, "prompt": text, "preference_strength": 1}),
    ):
        try:
            made = convert(row(**fields))
        except DataError:
            continue
        assert all(turn.content.strip() for turn in made.conversation)
        assert len(made.conversation) % 2 == 1


# Files.


def write(folder: Path, path: str, text: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def test_rows_that_cannot_be_used_are_named_and_a_benchmark_is_refused(tmp_path: Path) -> None:
    rows = [AUTOJ | {"label": 2}, AUTOJ | {"label": 9}, AUTOJ | {"label": 0}]
    write(tmp_path, "autoj/autoj_pairwise.json", "\n".join(map(json.dumps, rows)))
    found = read_preferences("autoj", tmp_path)
    assert [pair.label for pair in found.pairs] == ["tie", "first"]
    line = f"{tmp_path}/autoj/autoj_pairwise.json:2: label is 9, not one of 0, 1, 2"
    assert found.unusable == (line,)
    assert found.paths == ("autoj/autoj_pairwise.json",)
    with pytest.raises(DataError) as caught:
        read_pairs("autoj", tmp_path)
    assert caught.value.problems == ("autoj: 1 rows cannot be used; fetch the files again", line)


def test_a_bias_benchmark_says_where_its_rows_are(tmp_path: Path) -> None:
    good = {
        "bias": "length bias",
        "instruction": "a",
        "response1": "b",
        "response2": "c",
        "label": 1,
    }
    table = {"length bias": [good, good | {"label": 7}], "concreteness": [good | {"label": None}]}
    write(tmp_path, "evalbiasbench/biasbench.json", json.dumps(table))
    path = tmp_path / "evalbiasbench/biasbench.json"
    found = read_preferences("evalbiasbench", tmp_path)
    assert len(found.pairs) == 1
    assert found.unusable[0] == f"{path}: length bias, row 1: label is 7, not one of 1, 2"
    assert found.unusable[1].startswith(f"{path}: concreteness, row 0: the row lacks 'label'")


def test_helpsteer2_has_pairs_and_rated_answers(tmp_path: Path) -> None:
    files = {
        "preference/preference": HELPSTEER2 | {"prompt": "a", "preference_strength": 2},
        "train": {"prompt": "a", "response": "b", "helpfulness": 4},
        "validation": {"prompt": "c", "response": "d", "helpfulness": 1},
    }
    for name, values in files.items():
        path = tmp_path / f"helpsteer2/{name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(json.dumps(values).encode()))
    found = read_preferences("helpsteer2", tmp_path)
    assert [pair.id for pair in found.pairs] == ["preference/0"]
    assert [(rated.id, rated.label) for rated in found.rated] == [("train/0", 4), ("val/0", 1)]


def test_two_rows_with_one_id_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "pandalm/testset-v1.json", json.dumps([PANDALM, PANDALM]))
    with pytest.raises(DataError, match="json:2: a second row with the id 3"):
        read_pairs("pandalm", tmp_path)


def test_what_is_not_there_names_the_command_that_brings_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file; fetch it: .*download_all_datasets.py hhh"):
        read_pairs("hhh", tmp_path)
    with pytest.raises(DataError, match="hhj: no such preferences; did you mean hhh"):
        read_pairs("hhj", tmp_path)
    with pytest.raises(DataError, match="rewardbench2: its rows are no pairs"):
        read_pairs("rewardbench2", tmp_path)


def test_every_file_has_an_address_and_what_is_read_is_fetched() -> None:
    unknown = {"judgebench", "rewardbench2"}
    for name in PREFERENCES:
        source = preference_source(name)
        assert {part.path for part in source.parts} <= {file.path for file in source.files}
        for file in source.files:
            assert file.path.startswith(f"{name}/")
            assert file.url or file.hub or file.parquet
            assert (file.sha256 is None) == (name in unknown)
    assert [name for name, source in PREFERENCES.items() if not source.open] == ["judgebench"]
