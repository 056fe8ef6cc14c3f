"""Counters and histograms are told as prometheus_client's own would be."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from headway.router.state.metrics import Counts, Times

BOUNDS = (0.005, 0.5, 1, 30)


def told(*collectors):
    """The text of /metrics, without the time at which each series began."""
    registry = CollectorRegistry()
    for each in collectors:
        registry.register(each)
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if "_created" not in line)


@given(labels=st.lists(st.sampled_from("abc")))
def test_counts_are_told_as_by_a_counter(labels):
    ours = Counts("x:y", "what", "one", "two")
    theirs = Counter("x:y", "what", ("one", "two"), registry=None)
    for label in labels:
        ours.add(label, "z")
        theirs.labels(label, "z").inc()
    assert told(ours) == told(theirs)


def test_a_counter_without_labels_is_told_from_the_start():
    ours, theirs = Counts("x", "what"), Counter("x", "what", registry=None)
    assert told(ours) == told(theirs)
    ours.add()
    theirs.inc()
    assert told(ours) == told(theirs)


@given(seen=st.lists(st.tuples(st.sampled_from([*BOUNDS, 0, 0.7, 31]), st.sampled_from("ab"))))
def test_times_are_told_as_by_a_histogram(seen):
    ours = Times("x", "what", BOUNDS, "one")
    theirs = Histogram("x", "what", ("one",), buckets=BOUNDS, registry=None)
    for value, label in seen:
        ours.add(value, label)
        theirs.labels(label).observe(value)
    assert told(ours) == told(theirs)
