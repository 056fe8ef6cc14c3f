"""Whole lives of handoffs, in whatever order things happen."""

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.core.handoffs import LEASE_S, RETRIES, SAFE_AGE_S, made, made_params

from headway.core.handoff import (
    AbortDecode,
    AbortPrefill,
    Actions,
    Answer,
    Count,
    Drop,
    Event,
    Handoff,
    HandoffError,
    Holder,
    Release,
    Releaser,
    SendDecode,
    SendPrefill,
    SendWhole,
    State,
    valid_params,
)
from headway.core.handoff.states import TRANSITIONS

NO_ANSWER = (0, 502, 504)
STATUSES = (*NO_ANSWER, 200, 400, 404, 429, 500, 503)
ENDS = ("used", "released", "expired", "stranded", "failed", "aborted")


def legal(handoff: Handoff, event: Event) -> bool:
    return event in TRANSITIONS[handoff.state]


class Engines(RuleBasedStateMachine):
    """A host and the engines behind it, which do what the actions say and keep their own books."""

    def __init__(self) -> None:
        super().__init__()
        self.handoff = made()
        self.now_s = 1_000.0
        self.counts: Counter[str] = Counter()
        self.prefill_leg = False
        self.decode_leg = ""
        self.params: dict[str, Any] | None = None
        self.ready_s = 0.0
        self.connecting = False
        self.sent = False
        self.releases = 0
        self.left_until_s = 0.0
        self.output = False
        self.answers = 0
        self.left = False
        self.legs = 0

    def perform(self, actions: Actions) -> None:
        for action in actions:
            getattr(self, f"do_{type(action).__name__}")(action)

    def do_SendPrefill(self, action: SendPrefill) -> None:  # noqa: N802
        self.open_leg()
        self.prefill_leg = True

    def do_SendDecode(self, action: SendDecode) -> None:  # noqa: N802
        assert action.params is self.params
        assert not self.sent
        assert self.now_s < self.ready_s + SAFE_AGE_S
        self.connecting = True

    def do_SendWhole(self, action: SendWhole) -> None:  # noqa: N802
        self.open_leg()
        assert self.params is None
        self.decode_leg = "whole"

    def open_leg(self) -> None:
        self.legs += 1
        assert not any((self.prefill_leg, self.decode_leg, self.connecting))
        assert not any((self.left, self.output, self.answers))

    def do_AbortPrefill(self, action: AbortPrefill) -> None:  # noqa: N802
        self.prefill_leg = False

    def do_AbortDecode(self, action: AbortDecode) -> None:  # noqa: N802
        if self.left and self.sent:
            self.params = None
        self.decode_leg, self.connecting = "", False

    def do_Release(self, action: Release) -> None:  # noqa: N802
        assert action.params is self.params
        assert not self.decode_leg, "released while it may be pulled"
        assert self.now_s < self.ready_s + SAFE_AGE_S
        self.params, self.connecting = None, False
        self.releases += 1

    def do_Drop(self, action: Drop) -> None:  # noqa: N802
        assert action.why

    def do_Answer(self, action: Answer) -> None:  # noqa: N802
        assert not self.left
        assert action.status >= 400
        assert action.in_band == self.output
        self.answers += 1

    def do_Count(self, action: Count) -> None:  # noqa: N802
        self.counts[action.name] += 1
        if action.name == "stranded":
            self.left_until_s = max(self.left_until_s, self.now_s + LEASE_S)
        if action.name == "expired":
            self.left_until_s = max(self.left_until_s, self.ready_s + LEASE_S)
            self.params = None

    def tell(self, event: Event, call: Callable[[], Actions], happened: Callable[[], None]) -> None:
        state = self.handoff.state
        happened()
        self.perform(call())
        assert self.handoff.state in TRANSITIONS[state][event]

    @rule()
    def an_event_that_cannot_happen_raises_and_changes_nothing(self) -> None:
        before = copy.copy(vars(self.handoff))
        for event, call in every_event(self.handoff, self.now_s):
            if not legal(self.handoff, event):
                with pytest.raises(HandoffError, match=event.value):
                    call()
                assert vars(self.handoff) == before

    @rule(seconds=st.sampled_from((0.0, 0.1, 0.1, 5.0, 20.0, 31.0)))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: legal(self.handoff, Event.START))
    @rule()
    def start(self) -> None:
        self.tell(Event.START, lambda: self.handoff.start(self.now_s), lambda: None)

    @precondition(lambda self: legal(self.handoff, Event.PREFILL_ANSWERED))
    @rule(good=st.booleans(), bad=st.sampled_from((None, {}, [], {"remote_port": 1}, "x")))
    def prefill_answered(self, *, good: bool, bad: object) -> None:
        params = made_params() if good else bad

        def happened() -> None:
            assert self.prefill_leg
            self.prefill_leg, self.sent, self.ready_s = False, False, self.now_s
            self.params = made_or_none(params)

        self.tell(
            Event.PREFILL_ANSWERED,
            lambda: self.handoff.prefill_answered(params, self.now_s),
            happened,
        )

    @precondition(lambda self: legal(self.handoff, Event.PREFILL_FAILED))
    @rule(status=st.sampled_from(STATUSES), again=st.booleans(), too_long=st.booleans())
    def prefill_failed(self, *, status: int, again: bool, too_long: bool) -> None:
        def happened() -> None:
            assert self.prefill_leg
            self.prefill_leg = status in NO_ANSWER

        self.tell(
            Event.PREFILL_FAILED,
            lambda: self.handoff.prefill_failed(
                status, self.now_s, again=again, too_long=too_long and status == 400
            ),
            happened,
        )

    @precondition(lambda self: legal(self.handoff, Event.DECODE_SENT))
    @rule()
    def decode_sent(self) -> None:
        def happened() -> None:
            assert self.connecting
            assert not self.sent, "a handoff is sent once"
            self.connecting = False
            if self.now_s < self.ready_s + SAFE_AGE_S:
                self.sent, self.decode_leg = True, "split"

        self.tell(Event.DECODE_SENT, lambda: self.handoff.decode_sent(self.now_s), happened)

    @precondition(lambda self: legal(self.handoff, Event.DECODE_FIRST_BYTE))
    @rule()
    def decode_first_byte(self) -> None:
        def happened() -> None:
            assert self.decode_leg
            self.output, self.params = True, None

        self.tell(
            Event.DECODE_FIRST_BYTE, lambda: self.handoff.decode_first_byte(self.now_s), happened
        )

    @precondition(lambda self: legal(self.handoff, Event.DECODE_FAILED))
    @rule(status=st.sampled_from(STATUSES), again=st.booleans())
    def decode_failed(self, *, status: int, again: bool) -> None:
        def happened() -> None:
            assert self.decode_leg or self.connecting
            self.connecting = False
            if status >= 400 and status not in NO_ANSWER:
                self.decode_leg = ""
            elif self.sent:
                self.params = None

        self.tell(
            Event.DECODE_FAILED,
            lambda: self.handoff.decode_failed(status, self.now_s, again=again),
            happened,
        )

    @precondition(lambda self: legal(self.handoff, Event.DECODE_DONE))
    @rule()
    def decode_done(self) -> None:
        def happened() -> None:
            assert self.output
            self.decode_leg = ""

        self.tell(Event.DECODE_DONE, lambda: self.handoff.decode_done(self.now_s), happened)

    @precondition(lambda self: legal(self.handoff, Event.CLIENT_LEFT))
    @rule(sure=st.integers(0, 5))
    def client_left(self, sure: int) -> None:
        if sure < 5:
            return

        def happened() -> None:
            self.left = True

        self.tell(Event.CLIENT_LEFT, lambda: self.handoff.client_left(self.now_s), happened)

    @precondition(lambda self: self.releases)
    @rule(freed=st.booleans())
    def release_ended(self, *, freed: bool) -> None:
        self.releases -= 1
        self.perform(self.handoff.release_ended(self.now_s, freed=freed))

    @precondition(lambda self: not self.releases)
    @rule()
    def no_release_can_end(self) -> None:
        with pytest.raises(HandoffError, match="release_ended"):
            self.handoff.release_ended(self.now_s, freed=True)

    @invariant()
    def the_machine_knows_who_holds_the_kv(self) -> None:
        lease, released = self.left_until_s > self.now_s, self.releases > 0
        on_prefill = self.prefill_leg or self.params is not None or lease or released
        held = {
            (False, False): Holder.NOBODY,
            (True, False): Holder.PREFILL,
            (True, True): Holder.BOTH,
            (False, True): Holder.DECODE,
        }[on_prefill, bool(self.decode_leg)]
        holder, releasers = self.handoff.custody(self.now_s)
        assert holder is held
        assert (Releaser.LEASE in releasers) == lease
        assert (Releaser.RELEASE in releasers) == released
        assert (Releaser.PREFILL_LEG in releasers) == self.prefill_leg
        assert (Releaser.DECODE_LEG in releasers) == bool(self.decode_leg)
        assert bool(releasers) == (holder is not Holder.NOBODY)

    @invariant()
    def every_prefill_leg_has_one_end(self) -> None:
        pending = self.prefill_leg + (self.params is not None) + self.releases
        assert self.counts["started"] == sum(self.counts[end] for end in ENDS) + pending
        assert self.counts["fallback"] <= 1
        assert self.legs <= 2 + RETRIES

    @invariant()
    def nothing_runs_for_a_request_that_is_over(self) -> None:
        assert self.answers <= 1
        if self.handoff.state in {State.DONE, State.ABORTED}:
            assert not any((self.prefill_leg, self.decode_leg, self.connecting))
            assert self.left + self.answers + (self.handoff.state is State.DONE) == 1
        if self.handoff.over:
            assert self.counts["started"] == sum(self.counts[end] for end in ENDS)

    @invariant()
    def handoff_params_are_kept_no_longer_than_needed(self) -> None:
        assert bool(self.handoff._params) == (self.params is not None)


def made_or_none(params: object) -> Any:
    return params if valid_params(params) is None else None


TestEngines = Engines.TestCase


def walk(engines: Engines, draw: random.Random) -> None:
    """A long life of one request: only what can happen happens, good things more often."""
    happenings: dict[Event, Callable[[], None]] = {
        Event.START: engines.start,
        Event.PREFILL_ANSWERED: lambda: engines.prefill_answered(
            good=draw.random() < 0.8, bad=draw.choice((None, {}, {"remote_port": 1}))
        ),
        Event.PREFILL_FAILED: lambda: engines.prefill_failed(
            status=draw.choice(STATUSES), again=draw.random() < 0.7, too_long=draw.random() < 0.2
        ),
        Event.DECODE_SENT: engines.decode_sent,
        Event.DECODE_FIRST_BYTE: engines.decode_first_byte,
        Event.DECODE_FAILED: lambda: engines.decode_failed(
            status=draw.choice(STATUSES), again=draw.random() < 0.7
        ),
        Event.DECODE_DONE: engines.decode_done,
        Event.CLIENT_LEFT: lambda: engines.client_left(sure=draw.randint(0, 5)),
    }
    while not engines.handoff.over:
        engines.time_passes(seconds=draw.choice((0.0, 0.1, 0.1, 0.1, 20.0)))
        if engines.releases and draw.random() < 0.5:
            engines.release_ended(freed=draw.random() < 0.5)
        if legal_now := list(TRANSITIONS[engines.handoff.state]):
            happenings[draw.choice(legal_now)]()
        engines.the_machine_knows_who_holds_the_kv()
        engines.every_prefill_leg_has_one_end()
        engines.nothing_runs_for_a_request_that_is_over()
        engines.handoff_params_are_kept_no_longer_than_needed()


def test_whole_lives_keep_the_invariants_and_reach_every_end() -> None:
    ended: Counter[str] = Counter()
    for seed in range(1_000):
        engines = Engines()
        walk(engines, random.Random(seed))
        ended += engines.counts
    assert set(ended) == {"started", "fallback", *ENDS}


def every_event(handoff: Handoff, now_s: float) -> Iterator[tuple[Event, Callable[[], Actions]]]:
    yield Event.START, lambda: handoff.start(now_s)
    for params in (made_params(), None, {"x": 1}):
        yield (
            Event.PREFILL_ANSWERED,
            lambda params=params: handoff.prefill_answered(params, now_s),
        )
    for status in (0, 200, 400, 503):
        for again in (True, False):
            yield (
                Event.PREFILL_FAILED,
                lambda s=status, a=again: handoff.prefill_failed(s, now_s, again=a),
            )
            yield (
                Event.DECODE_FAILED,
                lambda s=status, a=again: handoff.decode_failed(s, now_s, again=a),
            )
    yield Event.DECODE_SENT, lambda: handoff.decode_sent(now_s)
    yield Event.DECODE_FIRST_BYTE, lambda: handoff.decode_first_byte(now_s)
    yield Event.DECODE_DONE, lambda: handoff.decode_done(now_s)
    yield Event.CLIENT_LEFT, lambda: handoff.client_left(now_s)


def test_the_table_says_exactly_what_can_happen() -> None:
    seen: set[tuple[State, Event, State]] = set()
    frontier, visited = [made()], set()
    while frontier:
        handoff = frontier.pop()
        for now_s in (0.0, SAFE_AGE_S):
            for index in range(len(list(every_event(handoff, now_s)))):
                other = copy.copy(handoff)
                event, call = list(every_event(other, now_s))[index]
                try:
                    call()
                except HandoffError:
                    assert not legal(handoff, event)
                    continue
                seen.add((handoff.state, event, other.state))
                key = (other.state, other.fallback, other._retries, bool(other._params))
                if key not in visited:
                    visited.add(key)
                    frontier.append(other)
    table = {
        (state, event, after)
        for state, events in TRANSITIONS.items()
        for event, afters in events.items()
        for after in afters
    }
    assert seen == table
