"""Who holds the KV of a disaggregated request and who must release it, in any interleaving."""

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.errors import SettingError
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

LEASE_S, SAFE_AGE_S, RETRIES = 30.0, 20.0, 2
NO_ANSWER = (0, 502, 504)
STATUSES = (*NO_ANSWER, 200, 400, 404, 429, 500, 503)
ENDS = ("used", "released", "expired", "stranded", "failed", "aborted")


def made_params(**changes: Any) -> dict[str, Any]:
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[3, 4, 5]],
        "remote_engine_id": "e0",
        "remote_request_id": "cmpl-1",
        "remote_host": "10.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 40,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    } | changes


def made(**changes: Any) -> Handoff:
    return Handoff("r1", LEASE_S, SAFE_AGE_S, **{"retries": RETRIES} | changes)


def ready(at_s: float = 0.0) -> tuple[Handoff, dict[str, Any]]:
    handoff, params = made(), made_params()
    handoff.start(at_s)
    handoff.prefill_answered(params, at_s)
    return handoff, params


def pulling(at_s: float = 0.0) -> tuple[Handoff, dict[str, Any]]:
    handoff, params = ready(at_s)
    assert handoff.decode_sent(at_s) == ()
    return handoff, params


def counts(actions: Actions) -> list[str]:
    return [action.name for action in actions if isinstance(action, Count)]


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


def test_a_request_without_trouble() -> None:
    handoff, params = made(), made_params()
    assert handoff.start(0.0) == (SendPrefill(), Count("started"))
    assert handoff.custody(1.0).holder is Holder.PREFILL
    assert handoff.prefill_answered(params, 2.0) == (SendDecode(params),)
    assert handoff.custody(2.0).releasers == {Releaser.ROUTER}
    assert handoff.decode_sent(2.001) == ()
    assert handoff.custody(2.1).holder is Holder.BOTH
    assert handoff.decode_first_byte(2.5) == (Count("used"),)
    assert handoff.custody(2.5).holder is Holder.DECODE
    assert handoff.decode_done(9.0) == ()
    assert handoff.custody(9.0).holder is Holder.NOBODY
    assert handoff.over


@pytest.mark.parametrize("status", [400, 404, 422, 429])
def test_an_engines_refusal_is_the_clients_answer(status: int) -> None:
    handoff = made()
    handoff.start(0.0)
    failed = handoff.prefill_failed(status, 1.0, again=True)
    assert failed == (Count("failed"), Answer(status, in_band=False))

    handoff, params = pulling()
    failed = handoff.decode_failed(status, 1.0, again=True)
    assert failed == (Release(params), Answer(status, in_band=False))


def test_a_prompt_too_long_for_the_prefill_engine_is_served_whole() -> None:
    handoff = made()
    handoff.start(0.0)
    actions = handoff.prefill_failed(400, 1.0, too_long=True)
    assert actions == (Count("failed"), SendWhole("prefill refused length"), Count("fallback"))


def test_without_a_prefill_engine_the_request_is_served_whole() -> None:
    handoff = made()
    handoff.start(0.0)
    actions = handoff.prefill_failed(503, 1.0)
    assert actions == (Count("failed"), SendWhole("prefill failed"), Count("fallback"))
    assert handoff.fallback == "prefill failed"


@pytest.mark.parametrize("params", [None, {}])
def test_an_answer_without_a_handoff_is_a_counted_fallback(params: object) -> None:
    handoff = made()
    handoff.start(0.0)
    actions = handoff.prefill_answered(params, 1.0)
    assert actions == (Count("failed"), SendWhole("no handoff"), Count("fallback"))


def test_a_mistyped_handoff_is_dropped_and_its_lease_accounted_for() -> None:
    handoff = made()
    handoff.start(0.0)
    actions = handoff.prefill_answered(made_params(remote_port="5600"), 1.0)
    assert isinstance(actions[0], Drop)
    assert "remote_port" in actions[0].why
    assert counts(actions) == ["stranded", "fallback"]
    assert SendWhole("bad handoff") in actions
    assert Releaser.LEASE in handoff.custody(30.9).releasers
    assert Releaser.LEASE not in handoff.custody(31.0).releasers


def test_a_retry_of_decode_means_a_new_prefill() -> None:
    handoff, params = pulling()
    actions = handoff.decode_failed(503, 1.0, again=True)
    assert actions == (Release(params), SendPrefill(), Count("started"))
    fresh = made_params(remote_request_id="cmpl-2")
    handoff.prefill_answered(fresh, 2.0)
    handoff.release_ended(2.0, freed=False)
    assert handoff.decode_failed(0, 2.5, again=True) == (SendDecode(fresh),)


def test_the_longest_of_several_leases_counts() -> None:
    handoff, _ = pulling()
    handoff.decode_failed(503, 1.0, again=True)
    handoff.prefill_answered(made_params(), 2.0)
    handoff.release_ended(10.0, freed=False)
    assert counts(handoff.decode_sent(22.0)) == ["expired", "fallback"]
    assert handoff.custody(39.9).holder is Holder.BOTH
    assert handoff.custody(40.0).holder is Holder.DECODE


def test_an_engine_that_was_never_reached_leaves_the_handoff_usable() -> None:
    handoff, params = ready()
    assert handoff.decode_failed(0, 1.0, again=True) == (SendDecode(params),)
    assert handoff.decode_failed(0, 2.0) == (Release(params), Answer(502, in_band=False))
    assert not handoff.over
    assert handoff.release_ended(3.0, freed=True) == (Count("released"),)
    assert handoff.over


def test_what_a_silent_engine_may_still_pull_is_not_released() -> None:
    handoff, _ = pulling()
    actions = handoff.decode_failed(504, 5.0)
    assert actions[0] == AbortDecode()
    assert counts(actions) == ["stranded"]
    assert actions[-1] == Answer(504, in_band=False)
    assert not any(isinstance(action, Release) for action in actions)
    assert handoff.custody(34.9).holder is Holder.PREFILL
    assert handoff.custody(35.0).holder is Holder.NOBODY


def test_a_handoff_past_its_safe_age_is_never_sent() -> None:
    for late in (SAFE_AGE_S, LEASE_S, 100.0):
        handoff, _ = ready()
        actions = handoff.decode_sent(late)
        assert counts(actions) == ["expired", "fallback"]
        assert SendWhole("handoff too old") in actions

        handoff, _ = ready()
        assert counts(handoff.client_left(late)) == ["expired"]


def test_a_client_that_leaves_frees_what_is_held_for_it() -> None:
    handoff = made()
    assert handoff.client_left(0.0) == ()

    handoff = made()
    handoff.start(0.0)
    assert handoff.client_left(1.0) == (AbortPrefill(), Count("aborted"))

    handoff, params = ready()
    assert handoff.client_left(1.0) == (AbortDecode(), Release(params))

    handoff, _ = pulling()
    assert handoff.client_left(1.0) == (AbortDecode(), Count("released"))

    handoff, _ = pulling()
    handoff.decode_first_byte(1.0)
    assert handoff.client_left(2.0) == (AbortDecode(),)


def test_a_failure_after_output_goes_into_the_stream_and_is_not_retried() -> None:
    handoff, _ = pulling()
    handoff.decode_first_byte(1.0)
    actions = handoff.decode_failed(0, 2.0, again=True)
    assert actions == (AbortDecode(), Answer(502, in_band=True))


def test_retries_are_bounded_however_willing_the_host_is() -> None:
    handoff = made()
    actions = handoff.start(0.0)
    legs = 0
    for _ in range(20):
        if handoff.state is State.ABORTED:
            break
        legs += sum(isinstance(action, SendPrefill | SendWhole) for action in actions)
        if handoff.state is State.PREFILLING:
            actions = handoff.prefill_failed(500, 1.0, again=True)
        else:
            actions = handoff.decode_failed(500, 1.0, again=True)
    assert legs == 2 + RETRIES


def test_a_lease_must_outlast_the_safe_age() -> None:
    for lease_s, safe_age_s in ((30.0, 31.0), (30.0, 0.0), (30.0, -1.0), (30.0, float("nan"))):
        with pytest.raises(SettingError, match="safe_age_s"):
            Handoff("r", lease_s, safe_age_s)


NOT_NAMES = (None, "", 5, ["a"])
NOT_NUMBERS = (None, "1", 1.0, True, 0, -1)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("do_remote_prefill", (None, False, "true", 1)),
        ("do_remote_decode", (True,)),
        ("remote_engine_id", NOT_NAMES),
        ("remote_request_id", NOT_NAMES),
        ("remote_host", NOT_NAMES),
        ("remote_port", (*NOT_NUMBERS, 65_536)),
        ("tp_size", NOT_NUMBERS),
        ("dcp_size", NOT_NUMBERS[1:]),
        ("pp_size", NOT_NUMBERS[1:]),
        ("remote_num_tokens", NOT_NUMBERS[1:]),
        (
            "remote_block_ids",
            (None, [], [[]], [1, 2], "12", [[1], "2"], [[1, "2"]], [[1.0]], [[-1]], [[True]]),
        ),
    ],
)
def test_a_handoff_that_an_engine_would_misread_is_refused(
    key: str, values: tuple[object, ...]
) -> None:
    for value in values:
        why = valid_params(made_params(**{key: value}))
        assert why is not None, value
        assert key in why
    missing = made_params()
    del missing[key]
    optional = key in {"do_remote_decode", "dcp_size", "pp_size", "remote_num_tokens"}
    assert (valid_params(missing) is None) == optional


def test_a_handoff_as_vllm_makes_it_is_accepted() -> None:
    assert valid_params(made_params()) is None
    assert valid_params(made_params(remote_block_ids=[[], [7, 8]], remote_num_tokens=None)) is None
    assert valid_params(made_params(a_field_of_the_next_version={"x": 1})) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 70_000) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(made_params())), json_values) | json_values)
def test_any_json_is_judged_without_an_error(value: object) -> None:
    params = made_params(**value) if isinstance(value, dict) else value
    assert valid_params(params) is None or isinstance(valid_params(params), str)
    assert valid_params(value) is None or isinstance(valid_params(value), str)
