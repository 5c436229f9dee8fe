"""Schemas that the embedded server has never seen: who wrote them takes what it makes."""

import json
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

from flowright.simulation.protocol import formed
from flowright.simulation.requested_format import Unfillable, filled


def nothing(key: str, rule: Any) -> None:
    return None


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Node(BaseModel):
    value: int
    next: "Node | None"
    children: list["Node"]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class Everything(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, StringConstraints(min_length=3, max_length=8)]
    share: Annotated[float, Field(gt=0, lt=1)]
    even: Annotated[int, Field(ge=3, multiple_of=2)]
    low: Annotated[float, Field(le=-2.5)]
    colour: Colour
    maybe: int | None
    either: list[int] | str
    pair: tuple[int, str]
    distinct: set[Colour]
    many: Annotated[list[float], Field(min_length=3, max_length=4)]
    table: dict[str, int]
    born: date
    id: UUID
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    tree: Node
    fixed: Literal[7]
    any: Any


def test_a_schema_with_everything_in_it() -> None:
    made = filled(Everything.model_json_schema(), nothing)
    found = Everything.model_validate_json(json.dumps(made))
    assert found.distinct == {Colour.RED}
    assert len(made["many"]) == 3


def test_what_is_offered_is_taken_where_it_fits() -> None:
    def offer(key: str, rule: Any) -> Any:
        return {"name": "a very long name", "share": 0.25, "even": 5, "maybe": 12}.get(key)

    made = filled(Everything.model_json_schema(), offer)
    assert (made["name"], made["share"], made["maybe"]) == ("a very l", 0.25, 12)
    assert made["even"] in (4, 6), "the nearest that fits"


TYPES = st.recursive(
    st.sampled_from([int, float, str, bool, None, date, Colour, Literal["a", 3], Node,
                     Annotated[int, Field(ge=4, lt=9)], Annotated[str, Field(max_length=2)]]),
    lambda inner: st.one_of(
        inner.map(lambda t: list[t]), inner.map(lambda t: dict[str, t]),
        st.tuples(inner, inner).map(lambda two: tuple[two]),
        inner.map(lambda t: Optional[t]),  # noqa: UP045
    ),
    max_leaves=3,
)  # fmt: skip


@settings(max_examples=25)
@given(st.lists(TYPES, max_size=3), st.sampled_from([None, "4", 3.5, True]))
def test_whatever_pydantic_writes_pydantic_reads(types: list[Any], offered: Any) -> None:
    fields: dict[str, Any] = {f"f{place}": (kind, ...) for place, kind in enumerate(types)}
    model = create_model("Model", **fields)
    made = filled(model.model_json_schema(), lambda key, rule: offered)
    model.model_validate_json(json.dumps(made))


SCHEMAS: list[tuple[Any, Any]] = [
    (True, ""),
    ({}, ""),
    ({"const": {"a": [1]}}, {"a": [1]}),
    ({"enum": [None, 1]}, None),
    ({"type": ["null", "integer"]}, 0),
    ({"required": ["a"]}, {"a": ""}),
    ({"type": "array", "items": False}, []),
    ({"type": "array", "maxItems": 0}, []),
    ({"allOf": [{"properties": {"a": {"type": "integer", "minimum": 3}}}, {"required": ["a"]}]},
     {"a": 3}),
    ({"type": "number", "anyOf": [{"minimum": 0.5}, {"type": "null"}]}, 0.5),
    ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"const": 1}}}, 1),
    ({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 2, "multipleOf": 0.5}, 1.5),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "expected"), SCHEMAS)
def test_the_words_of_json_schema(schema: Any, expected: Any) -> None:
    made = filled(schema, nothing)
    assert made == expected and type(made) is type(expected)


@pytest.mark.parametrize(
    ("pattern", "said", "made"),
    [(r"^\d{4}$", "It was in 1066 or 1067.", "1067"), (r"^It .* 1067", "It was in 1067.", None),
     (r"^(yes|no)$", "So: yes!", "yes")],
)  # fmt: skip
def test_a_pattern_gets_the_last_word_that_matches_or_all(
    pattern: str, said: str, made: str | None
) -> None:
    assert filled({"type": "string", "pattern": pattern}, lambda *_: said) == (made or said)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (False, "nothing fits false"),
        ({"$ref": "#/$defs/none"}, "there is no such part"),
        ({"$ref": "http://x/y"}, "only within the schema"),
        ({"$ref": "#"}, "points to itself"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "without end"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "no number"),
        ({"type": "text"}, "no such type"),
        ({"if": {}, "then": {}}, "if: this simulated server does not know it"),
        ({"type": "string", "pattern": "("}, "pattern"),
        ({"type": "string", "pattern": r"^\d+$"}, "no word of the reply matches it"),
        ({"type": "array", "minItems": 2, "uniqueItems": True}, "no two values that differ"),
        ({"type": "integer", "minimum": 1, "allOf": [{"minimum": 2}]}, "minimum: given twice"),
        ({"type": "array", "minItems": "many"}, "no JSON Schema"),
    ],
)
def test_what_cannot_be_filled_is_told(schema: Any, why: str) -> None:
    with pytest.raises(Unfillable, match=why):
        filled(schema, nothing)


def test_the_large_model_s_answer_is_in_the_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "steps": {"type": "array", "items": {"type": "string", "maxLength": 9}},
            "answer": {"type": "integer"},
        },
        "required": ["steps", "answer"],
    }
    wrapper = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert formed("So it is.\nAnswer: 42", wrapper) == '{"steps": ["So it is."], "answer": 42}'
