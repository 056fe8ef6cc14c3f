"""What an operator may set about batching, parsed strictly."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from headway.core.errors import SettingError

LONG_PREFILL_TOKENS: Final = 10_000
"""What counts as a long prompt on a model with a context of `FULL_CONTEXT_TOKENS` or more."""
FULL_CONTEXT_TOKENS: Final = 131_072
PRIORITY_LEVELS: Final = 8
"""Client priorities beyond ±this count as this, so that lanes stay few."""
MOST: Final = 1e9
"""The largest number of seconds or factor: products of them are finite."""

ORDERS: Final = ("fcfs", "short-first", "penalised", "feasible-first")
BUDGETS: Final = ("fixed", "deadline")


@dataclass(frozen=True, slots=True)
class Preset:
    """A named combination of caps, order and budget."""

    order: str
    budget: str
    max_num_partial_prefills: int
    max_long_partial_prefills: int


PRESETS: Final[Mapping[str, Preset]] = {
    "sequential": Preset("fcfs", "fixed", 1, 1),
    "parallel": Preset("short-first", "fixed", 4, 1),
    "priority": Preset("penalised", "fixed", 4, 1),
    "slo": Preset("feasible-first", "deadline", 4, 1),
}
DEFAULT_POLICY: Final = "slo"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSettings:
    """A batching policy with its parameters; see `parse` for the defaults.

    policy: the preset the other values started from.
    order: who gets prefill tokens first, one of `ORDERS`.
    budget: how many prefill tokens a step carries, one of `BUDGETS`.
    max_num_partial_prefills: prompts that may be mid-prefill at once.
    max_long_partial_prefills: of these, how many may be long.
    long_prefill_token_threshold: a prompt with more uncached tokens is long.
    ttft_slo_s, ttft_slo_factor: the TTFT limit of a prompt is
        max(ttft_slo_s, ttft_slo_factor * its prefill time alone).
    tpot_slo_s: the TPOT limit, seconds.
    max_wait_s: a prompt that has waited longer is guaranteed a share of prefill.
    min_client_slo_factor, max_client_slo_factor: the range of limits a client may ask for
        itself, as multiples of the engine's for its request.
    min_client_priority: the most urgent priority it may ask for; lower goes first.
    """

    policy: str
    order: str
    budget: str
    max_num_partial_prefills: int
    max_long_partial_prefills: int
    long_prefill_token_threshold: int
    ttft_slo_s: float
    ttft_slo_factor: float
    tpot_slo_s: float
    max_wait_s: float
    min_client_slo_factor: float
    max_client_slo_factor: float
    min_client_priority: int


SETTING_NAMES: Final = tuple(f.name for f in fields(BatchingSettings))


def long_threshold_for(max_model_len: int) -> int:
    """`LONG_PREFILL_TOKENS`, in proportion on a model with a smaller context (tokens)."""
    share = min(1.0, max_model_len / FULL_CONTEXT_TOKENS)
    return max(1, round(LONG_PREFILL_TOKENS * share))


def parse(values: Mapping[str, Any], max_model_len: int, path: str = "headway") -> BatchingSettings:
    """Settings from plain values, each checked.

    values: any of `SETTING_NAMES`; what is absent comes from the preset that
        `policy` names (by default `slo`).
    max_model_len: the model's context, tokens.
    path: prefix of keys in errors.

    Raises SettingError for an unknown key, a wrong type or a value out of range.
    """
    unknown = sorted(set(values) - set(SETTING_NAMES))
    if unknown:
        known = ", ".join(SETTING_NAMES)
        raise SettingError(f"{path}.{unknown[0]}", f"unknown setting; known are: {known}")
    policy = _choice(values, "policy", DEFAULT_POLICY, tuple(PRESETS), path)
    preset = PRESETS[policy]
    partial = _count(values, "max_num_partial_prefills", preset.max_num_partial_prefills, path)
    default_long = min(preset.max_long_partial_prefills, partial)
    long_partial = _count(values, "max_long_partial_prefills", default_long, path)
    if long_partial > partial:
        raise SettingError(
            f"{path}.max_long_partial_prefills",
            f"{long_partial} is more than max_num_partial_prefills ({partial}); "
            f"use at most {partial}",
        )
    least = positive(values, "min_client_slo_factor", 1.0, path)
    most = positive(values, "max_client_slo_factor", max(10.0, least), path)
    if least > most:
        raise SettingError(
            f"{path}.min_client_slo_factor",
            f"{least:g} is more than max_client_slo_factor ({most:g}); use at most {most:g}",
        )
    threshold = long_threshold_for(max_model_len)
    return BatchingSettings(
        policy=policy,
        order=_choice(values, "order", preset.order, ORDERS, path),
        budget=_choice(values, "budget", preset.budget, BUDGETS, path),
        max_num_partial_prefills=partial,
        max_long_partial_prefills=long_partial,
        long_prefill_token_threshold=_count(
            values, "long_prefill_token_threshold", threshold, path
        ),
        ttft_slo_s=positive(values, "ttft_slo_s", 1.0, path),
        ttft_slo_factor=positive(values, "ttft_slo_factor", 4.0, path),
        tpot_slo_s=positive(values, "tpot_slo_s", 0.15, path),
        max_wait_s=positive(values, "max_wait_s", 120.0, path),
        min_client_slo_factor=least,
        max_client_slo_factor=most,
        min_client_priority=_level(values, "min_client_priority", 0, path),
    )


def positive(values: Mapping[str, Any], key: str, default: float, path: str) -> float:
    """A number above 0 and up to `MOST`, or SettingError naming `path.key`."""
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingError(f"{path}.{key}", f"{value!r} is not a number; use seconds such as 1.5")
    if not 0 < value <= MOST:
        problem = f"{value!r} is out of range; use a number above 0, at most {MOST:g}"
        raise SettingError(f"{path}.{key}", problem)
    return float(value)


def _level(values: Mapping[str, Any], key: str, default: int, path: str) -> int:
    value = values.get(key, default)
    right = f"use one from {-PRIORITY_LEVELS} to {PRIORITY_LEVELS}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingError(f"{path}.{key}", f"{value!r} is not a whole number; {right}")
    if abs(value) > PRIORITY_LEVELS:
        raise SettingError(f"{path}.{key}", f"{value} is out of range; {right}")
    return value


def _count(values: Mapping[str, Any], key: str, default: int, path: str) -> int:
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingError(f"{path}.{key}", f"{value!r} is not a whole number; use 1 or more")
    if value < 1:
        raise SettingError(f"{path}.{key}", f"{value} is out of range; use 1 or more")
    return value


def _choice(
    values: Mapping[str, Any], key: str, default: str, allowed: tuple[str, ...], path: str
) -> str:
    value = values.get(key, default)
    if value not in allowed:
        raise SettingError(f"{path}.{key}", f"{value!r} is not one of: {', '.join(allowed)}")
    return str(value)
