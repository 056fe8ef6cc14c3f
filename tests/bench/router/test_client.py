"""The load generator's counting of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("httptools")

from headway.bench.router.client import EventCounter


@given(st.integers(0, 5), st.data())
def test_events_are_counted_however_the_body_is_cut(tokens: int, data: st.DataObject) -> None:
    body = b'data: {"delta":" data"}\n\n' * tokens + b"data: [DONE]\n\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    counter = EventCounter()
    found = [
        counter.feed(body[start:end])
        for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)
    ]
    assert sum(found) == counter.events == tokens + 1
    assert counter.done
