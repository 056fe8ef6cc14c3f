"""Dataclasses come back from JSON as they went in, and what doesn't fit is said."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.json_shape import ShapeError, from_json, schema, to_json


@dataclass(frozen=True)
class Inner:
    """An inner one."""

    name: str
    number: int = 3


@dataclass(frozen=True)
class Outer:
    """An outer one."""

    inner: Inner
    many: tuple[Inner, ...] = ()
    by_name: Mapping[str, float] = field(default_factory=dict)
    perhaps: int | None = None
    sure: bool = False
    kind: Literal["a", "b"] = "a"


inners = st.builds(Inner, st.text(max_size=9), st.integers())
outers = st.builds(
    Outer,
    inners,
    st.lists(inners, max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=9), st.floats(allow_nan=False), max_size=3),
    st.none() | st.integers(),
    st.booleans(),
    st.sampled_from(["a", "b"]),
)


@given(outers)
def test_what_goes_out_comes_back(value):
    assert from_json(Outer, json.loads(json.dumps(to_json(value)))) == value


@given(outers)
def test_what_a_newer_writer_adds_is_left_alone(value):
    told = to_json(value) | {"new": [1, {"x": None}]}
    told["inner"]["newer"] = 1
    assert from_json(Outer, told) == value


@given(outers)
def test_the_schema_takes_what_is_written(value):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(json.dumps(to_json(value))), schema(Outer))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "the whole is []; it should be an object with inner, many"),
        ({}, "inner is missing"),
        ({"inner": {}}, "inner.name is missing"),
        ({"inner": {"name": 1}}, "inner.name is 1; it should be of type string"),
        ({"inner": {"name": "a", "number": True}}, "inner.number is True; it should be of type"),
        ({"inner": {"name": "a"}, "many": "ab"}, "many is 'ab'; it should be a list"),
        ({"inner": {"name": "a"}, "many": [{"name": "a"}, 7]}, "many[1] is 7; it should be an"),
        ({"inner": {"name": "a"}, "by_name": {"x": "1"}}, "by_name.x is '1'; it should be of type"),
        ({"inner": {"name": "a"}, "by_name": 1}, "by_name is 1; it should be an object"),
        ({"inner": {"name": "a"}, "sure": 1}, "sure is 1; it should be of type boolean"),
        ({"inner": {"name": "a"}, "kind": "c"}, "kind is 'c'; it should be one of a, b"),
        ({"inner": "x" * 99}, "…; it should be an object with name, number"),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(value, said):
    with pytest.raises(ShapeError) as error:
        from_json(Outer, value)
    assert said in str(error.value)


def test_whole_numbers_are_numbers():
    read = from_json(Outer, {"inner": {"name": "a"}, "by_name": {"x": 1}})
    assert isinstance(read.by_name["x"], float)


def test_a_schema_describes_each_part_once():
    described = schema(Outer)
    assert described["$defs"]["Inner"]["description"] == "An inner one."
    assert described["$defs"]["Outer"]["properties"]["many"]["items"] == {"$ref": "#/$defs/Inner"}
    assert described["$ref"] == "#/$defs/Outer"
