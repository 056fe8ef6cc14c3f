"""Settings: defaults, presets, and errors that name the key."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batching.settings import (
    BUDGETS,
    DEFAULT_POLICY,
    FULL_CONTEXT_TOKENS,
    LONG_PREFILL_TOKENS,
    ORDERS,
    PRESETS,
    PRIORITY_LEVELS,
    SETTINGS,
    long_threshold_for,
    parse,
)
from headway.core.errors import SettingError

COUNTS = ("max_num_partial_prefills", "max_long_partial_prefills", "long_prefill_token_threshold")
SECONDS = ("ttft_slo_s", "ttft_slo_factor", "tpot_slo_s", "max_wait_s")
FACTORS = ("min_client_slo_factor", "max_client_slo_factor")
LEVELS = ("min_client_priority",)
CHOICES = ("policy", "order", "budget")


def test_every_setting_is_of_one_kind_known_to_these_tests():
    assert set(SETTINGS) == {*COUNTS, *SECONDS, *FACTORS, *LEVELS, *CHOICES}


def test_nothing_set_means_the_default_preset():
    settings = parse({}, FULL_CONTEXT_TOKENS)
    assert settings.policy == DEFAULT_POLICY
    assert settings.long_prefill_token_threshold == LONG_PREFILL_TOKENS


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_gives_all_of_its_values(name):
    settings, preset = parse({"policy": name}, FULL_CONTEXT_TOKENS), PRESETS[name]
    assert preset.meaning
    for field in dataclasses.fields(preset)[1:]:
        assert getattr(settings, field.name) == getattr(preset, field.name)


@given(
    st.sampled_from(sorted(PRESETS)),
    st.sampled_from(ORDERS),
    st.sampled_from(BUDGETS),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 1_000_000),
    st.floats(1e-6, 1e6),
    st.integers(-PRIORITY_LEVELS, PRIORITY_LEVELS),
)
def test_any_combination_is_free(
    policy, order, budget, partial, long_partial, threshold, seconds, level
):
    """A preset is a start, not a cage."""
    values = {
        "policy": policy,
        "order": order,
        "budget": budget,
        "max_num_partial_prefills": max(partial, long_partial),
        "max_long_partial_prefills": min(partial, long_partial),
        "long_prefill_token_threshold": threshold,
        **dict.fromkeys((*SECONDS, *FACTORS), seconds),
        "min_client_priority": level,
    }
    assert dataclasses.asdict(parse(values, 4_096)) == values


@given(st.integers(1, 10 * FULL_CONTEXT_TOKENS))
def test_the_long_threshold_shrinks_with_a_small_context(max_model_len):
    threshold = long_threshold_for(max_model_len)
    assert 1 <= threshold <= LONG_PREFILL_TOKENS
    if max_model_len >= FULL_CONTEXT_TOKENS:
        assert threshold == LONG_PREFILL_TOKENS
    share = max_model_len / FULL_CONTEXT_TOKENS
    assert threshold <= max(1.0, LONG_PREFILL_TOKENS * share + 1)


def test_one_partial_prefill_implies_one_long_one():
    settings = parse({"policy": "parallel", "max_num_partial_prefills": 1}, 4_096)
    assert settings.max_long_partial_prefills == 1


@given(st.sampled_from(COUNTS), st.sampled_from((0, -1, 1.0, 2.5, True, "3", None, [1])))
def test_a_bad_count_is_named(key, value):
    with pytest.raises(SettingError, match=rf"^headway\.{key}: ") as caught:
        parse({key: value}, 4_096)
    assert caught.value.key == f"headway.{key}"


bad_seconds = st.sampled_from((0, -1.0, float("nan"), float("inf"), 1e308, 10**400, True, "1s"))


@given(st.sampled_from((*SECONDS, *FACTORS)), bad_seconds)
def test_a_bad_duration_is_named(key, value):
    with pytest.raises(SettingError, match=rf"^here\.{key}: "):
        parse({key: value}, 4_096, path="here")


@given(st.sampled_from((9, -9, 1.0, True, "0", None)))
def test_a_bad_priority_is_named(value):
    with pytest.raises(SettingError, match=r"^headway\.min_client_priority: .*from -8 to 8"):
        parse({"min_client_priority": value}, 4_096)


def test_a_range_of_client_limits_that_is_empty_is_an_error():
    with pytest.raises(SettingError, match="min_client_slo_factor: 2 is more than"):
        parse({"min_client_slo_factor": 2, "max_client_slo_factor": 1}, 4_096)


@given(st.sampled_from(CHOICES), st.sampled_from(("", "SLO", "none", 3, None)))
def test_a_bad_choice_is_named_with_the_right_ones(key, value):
    with pytest.raises(SettingError, match=rf"^headway\.{key}: .* is not one of: .*, "):
        parse({key: value}, 4_096)


@given(st.text(max_size=20).filter(lambda key: key not in SETTINGS))
def test_an_unknown_key_is_an_error(key):
    with pytest.raises(SettingError) as caught:
        parse({key: 1}, 4_096)
    assert caught.value.key == f"headway.{key}"
    assert "order" in caught.value.problem


def test_more_long_than_all_partial_prefills_is_an_error():
    with pytest.raises(SettingError, match="max_long_partial_prefills: 3 is more than"):
        parse({"max_num_partial_prefills": 2, "max_long_partial_prefills": 3}, 4_096)


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse({}, 4_096).order = "fcfs"
