"""What a client may ask for itself: limits and a priority, within the operator's range."""

import math
from dataclasses import dataclass

from headway.core.batching.settings import PRIORITY_LEVELS, BatchingSettings


@dataclass(frozen=True, slots=True)
class Granted:
    """What a client gets of what it asked for.

    ttft_slo_s: its own TTFT limit, None for the engine's.
    tpot_slo_s: its TPOT limit or the engine's.
    priority: between `min_client_priority` and `PRIORITY_LEVELS`.
    clamped: the kinds (`ttft`, `tpot`, `priority`) of which it asked for more, or less, than
        the range allows.
    """

    ttft_slo_s: float | None
    tpot_slo_s: float
    priority: int
    clamped: tuple[str, ...]


def grant(
    ttft_slo_s: object,
    tpot_slo_s: object,
    priority: int,
    engine_ttft_s: float,
    settings: BatchingSettings,
) -> Granted:
    """What a client gets that asks for these limits (seconds, anything else is ignored).

    engine_ttft_s: the TTFT limit its prompt would have otherwise.
    """
    clamped = []
    asked_s = _seconds(ttft_slo_s)
    ttft_s = None if asked_s is None else _within(asked_s, engine_ttft_s, settings)
    if ttft_s != asked_s:
        clamped.append("ttft")
    asked_s = _seconds(tpot_slo_s)
    tpot_s = settings.tpot_slo_s
    if asked_s is not None:
        tpot_s = _within(asked_s, settings.tpot_slo_s, settings)
        if tpot_s != asked_s:
            clamped.append("tpot")
    level = max(settings.min_client_priority, min(PRIORITY_LEVELS, priority))
    if level != priority:
        clamped.append("priority")
    return Granted(ttft_s, tpot_s, level, tuple(clamped))


def _within(asked_s: float, engine_s: float, settings: BatchingSettings) -> float:
    least_s = settings.min_client_slo_factor * engine_s
    return max(least_s, min(settings.max_client_slo_factor * engine_s, asked_s))


def _seconds(value: object) -> float | None:
    """A limit in seconds; None for anything but a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None
