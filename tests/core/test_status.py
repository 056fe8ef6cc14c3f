"""The contract of what router and supervisor tell about themselves."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core import status
from headway.core.json_shape import ShapeError
from headway.core.status import (
    VERSION,
    EngineStatus,
    FleetStatus,
    RoutedEngine,
    RoutedPool,
    RouterState,
    RouterStatus,
    StatusReport,
    read,
    written,
)

STORED = Path(status.__file__).with_name("status.schema.json")

names = st.text(max_size=6)
engines = st.builds(EngineStatus, **dict.fromkeys(["name", "pool", "role", "state"], names))
fleets = st.builds(
    FleetStatus,
    name=names,
    router=st.builds(RouterStatus, state=names),
    engines=st.lists(engines, max_size=3).map(tuple),
    version=st.just(VERSION),
)
routed = st.builds(RoutedEngine, id=names, ready=st.booleans(), weight=st.floats(0, 1))
pools = st.builds(
    RoutedPool, name=names, role=names, engines=st.lists(routed, max_size=3).map(tuple)
)
states = st.builds(
    RouterState, pools=st.lists(pools, max_size=3).map(tuple), version=st.just(VERSION)
)
reports = st.builds(StatusReport, fleet=fleets, router=st.none() | states, version=st.just(VERSION))


@given(reports)
def test_a_report_comes_back_as_it_was_written(report):
    assert read(StatusReport, written(report)) == report


@given(reports)
def test_the_published_schema_takes_every_report(report):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(written(report)), json.loads(STORED.read_text()))


def test_what_a_newer_headway_says_is_not_guessed_at():
    with pytest.raises(ShapeError, match="version is 2; this headway reads up to 1: update it"):
        read(RouterState, '{"version": 2}')


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "NaN", "7", "null", '"x"'])
def test_what_is_no_status_is_said_to_be_none(text):
    with pytest.raises(ShapeError, match=r"RouterState should be JSON|the whole is"):
        read(RouterState, text)


@given(states, names)
def test_an_engine_is_found_by_its_id(state, engine_id):
    found = state.engine(engine_id)
    assert (found is None) == (engine_id not in {engine.id for engine in state.engines})
    assert found is None or found.id == engine_id
