"""The ceiling on concurrent requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.admission import LONGEST_S, SHORTEST_S, Admitted, ByteCeiling, Ceiling, Refused
from headway.core.errors import SettingError

gaps = st.sampled_from((0.0, 1e-6, 0.01, 1.0, 30.0, 1e6)) | st.floats(0, 100)
steps = st.lists(st.tuples(gaps, st.sampled_from(("admit", "release", "resize"))), max_size=80)


@given(st.integers(1, 5), steps, st.data())
def test_no_more_than_the_ceiling_run_and_no_fewer_than_none(
    ceiling_at: int, events: list[tuple[float, str]], data: st.DataObject
) -> None:
    ceiling, now_s, running = Ceiling(ceiling_at), 0.0, 0
    for gap_s, event in events:
        now_s += gap_s
        if event == "admit":
            answer = ceiling.admit(now_s)
            assert isinstance(answer, Admitted) == (running < ceiling_at)
            running += isinstance(answer, Admitted)
            if isinstance(answer, Refused):
                assert SHORTEST_S <= answer.retry_after_s <= LONGEST_S
        elif event == "release":
            ceiling.release(now_s)
            running = max(running - 1, 0)
        else:
            ceiling_at = data.draw(st.integers(1, 5))
            ceiling.resize(ceiling_at)
        assert ceiling.in_flight == running


def full_ceiling(seats: int, ends_per_s: float, seconds: float) -> tuple[Ceiling, float]:
    """A full ceiling whose requests have been ending steadily; and the time."""
    ceiling = Ceiling(seats)
    for _ in range(seats):
        ceiling.admit(0.0)
    now_s = 0.0
    for i in range(1, int(seconds * ends_per_s) + 1):
        now_s = i / ends_per_s
        ceiling.release(now_s)
        ceiling.admit(now_s)
    return ceiling, now_s


def refused_s(ceiling: Ceiling, now_s: float) -> float:
    answer = ceiling.admit(now_s)
    assert isinstance(answer, Refused)
    return answer.retry_after_s


@pytest.mark.parametrize("ends_per_s", [0.2, 0.5, 2.0, 50.0])
def test_the_time_to_come_back_follows_the_rate_of_ends(ends_per_s: float) -> None:
    ceiling, now_s = full_ceiling(4, ends_per_s, 60.0)
    for place in range(1, 20):
        told_s = refused_s(ceiling, now_s)
        expected_s = min(max(place / ends_per_s, SHORTEST_S), LONGEST_S)
        assert expected_s / 1.5 <= told_s <= expected_s * 1.5


def test_those_refused_are_told_later_and_later_times() -> None:
    ceiling, now_s = full_ceiling(4, 2.0, 60.0)
    told = [refused_s(ceiling, now_s) for _ in range(500)]
    assert told == sorted(told)
    assert told[20] > told[0] + 5
    assert told[-1] == LONGEST_S


def test_a_past_crowd_is_forgotten_as_requests_end() -> None:
    ceiling, now_s = full_ceiling(4, 2.0, 60.0)
    for _ in range(10_000):
        refused_s(ceiling, now_s)
    for i in range(1, 2 * int(LONGEST_S) * 2):
        ceiling.release(now_s + i / 2)
        ceiling.admit(now_s + i / 2)
    assert refused_s(ceiling, now_s + 2 * LONGEST_S) <= 2 * SHORTEST_S


def test_before_anything_ended_the_time_is_short() -> None:
    ceiling = Ceiling(2)
    ceiling.admit(0.0)
    ceiling.admit(0.0)
    assert refused_s(ceiling, 0.0) == SHORTEST_S


def test_a_seat_is_free_again_at_once() -> None:
    ceiling = Ceiling(1)
    assert ceiling.admit(0.0) == Admitted()
    assert isinstance(ceiling.admit(0.0), Refused)
    ceiling.release(0.0)
    assert ceiling.admit(0.0) == Admitted()


def test_a_ceiling_of_none_is_an_error() -> None:
    with pytest.raises(SettingError, match="max_concurrent"):
        Ceiling(0)
    with pytest.raises(SettingError, match="max_concurrent"):
        Ceiling(1).resize(-1)


@given(st.integers(1, 100), st.lists(st.integers(0, 60), max_size=60), st.data())
def test_bytes_are_taken_whole_or_not_at_all_and_come_back(
    most: int, sizes: list[int], data: st.DataObject
) -> None:
    ceiling, held = ByteCeiling(most), list[int]()
    for size in sizes:
        fits = sum(held) + size <= most
        assert ceiling.fits(size) == fits
        assert ceiling.take(size) == fits
        if fits:
            held.append(size)
        if held and data.draw(st.booleans()):
            ceiling.give(held.pop())
        assert ceiling.held_bytes == sum(held) <= most
