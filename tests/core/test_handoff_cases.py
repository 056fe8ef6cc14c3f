"""One handoff at a time, case by case."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.handoffs import LEASE_S, RETRIES, SAFE_AGE_S, made, made_params

from headway.core.errors import SettingError
from headway.core.handoff import (
    AbortDecode,
    AbortPrefill,
    Actions,
    Answer,
    Count,
    Drop,
    Handoff,
    Holder,
    Release,
    Releaser,
    SendDecode,
    SendPrefill,
    SendWhole,
    State,
    valid_params,
)


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
