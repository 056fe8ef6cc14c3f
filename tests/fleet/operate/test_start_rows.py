"""What is shown of a fleet that starts."""

import pytest

from headway.core.status import EngineStatus
from headway.fleet.operate.start_rows import Starts, settled


@pytest.fixture
def starts():
    made = Starts()
    yield made
    made.close()


def engine(log, state="starting", reason=""):
    return EngineStatus(
        name="a-0",
        pool="a",
        role="both",
        state=state,
        router_id="",
        url="",
        log=str(log),
        reason=reason,
        since_s=3.0,
    )


def test_a_start_is_followed_in_its_log(starts, tmp_path):
    log = tmp_path / "a-0.log"
    said = [
        (None, "starting"),
        ("INFO [x] Starting to load model m...\n", "loading"),
        ("Loading safetensors checkpoint shards:  50% Completed\n", "loading 50%"),
        ("INFO:     Application startup complete.\n", "preparing to serve"),
    ]
    for text, doing in said:
        if text:
            with log.open("a") as file:
                file.write(text)
        [row] = starts.rows([engine(log)])
        assert (row.name, row.doing, row.since_s) == ("a-0", doing, 3.0)


def test_another_start_begins_at_its_beginning(starts, tmp_path):
    log = tmp_path / "a-0.log"
    log.write_text("Starting to load model m...\n")
    assert starts.rows([engine(log)])[0].doing == "loading"
    log.rename(tmp_path / "a-0.log.1")
    log.write_text("hello\n")
    assert starts.rows([engine(log)])[0].doing == "starting"


def test_an_engine_that_does_not_start_shows_its_state_and_why(starts, tmp_path):
    [row] = starts.rows([engine(tmp_path / "x", "backoff", reason="memory ran out")])
    assert (row.doing, row.since_s, row.note) == ("backoff", None, "memory ran out")


def test_a_fleet_is_settled_when_nothing_more_happens_by_itself():
    assert settled([engine("x", "ready"), engine("y", "failed")])
    assert not settled([engine("x", "ready"), engine("y", "backoff")])
    assert not settled([engine("x", "starting")])
