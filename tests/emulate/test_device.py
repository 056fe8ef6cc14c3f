"""A device computes one step after another, and a result is there when it is due, not before."""

from hypothesis import given
from hypothesis import strategies as st

from headway.emulate.device import Device
from headway.emulate.lateness import MOST_LATE, Lateness

durations = st.floats(0.0001, 2.0)


class Clock:
    """Sleeps exactly, or so much longer."""

    def __init__(self):
        self.now_s = 100.0
        self.overslept_s = 0.0

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        assert seconds > 0
        self.now_s += seconds + self.overslept_s


def device():
    clock = Clock()
    return clock, Device(now=clock, sleep=clock.sleep)


@given(st.lists(st.tuples(durations, durations), min_size=1, max_size=20))
def test_steps_follow_one_another_and_start_no_earlier_than_they_are_begun(steps):
    """steps: how long each takes, and when it is begun after the one before."""
    clock, each = device()
    free_s = 0.0
    for step_s, pause_s in steps:
        clock.now_s += pause_s
        due = each.begin(step_s)
        assert due.at_s == max(free_s, clock.now_s) + step_s
        free_s = due.at_s


@given(st.lists(durations, min_size=2, max_size=20))
def test_with_two_in_flight_the_device_is_never_idle(steps):
    clock, each = device()
    start_s = clock.now_s
    dues = [each.begin(steps[0])]
    for step_s in steps[1:]:
        dues.append(each.begin(step_s))
        assert each.wait(dues.pop(0)) < 1e-9
    each.wait(dues.pop())
    assert abs(clock.now_s - start_s - sum(steps)) < 1e-6


def test_what_is_fetched_too_late_is_late_by_that():
    clock, each = device()
    due = each.begin(1.0)
    clock.now_s += 3.0
    assert each.wait(due) == 2.0


def test_so_is_what_the_machine_overslept():
    clock, each = device()
    clock.overslept_s = 0.25
    assert each.wait(each.begin(1.0)) == 0.25


@given(st.lists(st.tuples(st.floats(0, 3), durations), max_size=60))
def test_a_run_is_invalid_when_more_than_a_hundredth_of_its_steps_were_late(steps):
    lateness = Lateness()
    late = sum(lateness.add(late_s, step_s) for late_s, step_s in steps)
    assert lateness.late_steps == late
    assert lateness.invalid == (late > MOST_LATE * len(steps))
    assert ("INVALID" in lateness.said()) == lateness.invalid


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60), st.floats(0.01, 1))
def test_quantiles_are_bounds_of_what_was_counted(lates, share):
    lateness = Lateness()
    for late_s in lates:
        lateness.add(late_s, 1.0)
    bound = lateness.quantile_s(share)
    assert bound <= max(lates)
    assert sum(late_s <= bound for late_s in lates) >= share * len(lates) - 1e-9


def test_a_tenth_of_a_millisecond_is_not_late_and_a_twentieth_of_a_step_neither():
    lateness = Lateness()
    assert not lateness.add(0.0009, 0.005)
    assert not lateness.add(0.009, 0.2)
    assert lateness.add(0.0011, 0.005)
    assert lateness.add(0.011, 0.2)
