"""What a client may ask for itself: limits and a priority, within the operator's range."""

from dataclasses import dataclass

from headway.core.batching.settings import PRIORITY_LEVELS, BatchingSettings
from headway.core.slo import asked_s, granted_s


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
    factors = {"least": settings.min_client_slo_factor, "most": settings.max_client_slo_factor}
    asked = asked_s(ttft_slo_s)
    ttft_s = None if asked is None else granted_s(asked, engine_ttft_s, **factors)
    if ttft_s != asked:
        clamped.append("ttft")
    asked = asked_s(tpot_slo_s)
    tpot_s = settings.tpot_slo_s
    if asked is not None:
        tpot_s = granted_s(asked, settings.tpot_slo_s, **factors)
        if tpot_s != asked:
            clamped.append("tpot")
    level = max(settings.min_client_priority, min(PRIORITY_LEVELS, priority))
    if level != priority:
        clamped.append("priority")
    return Granted(ttft_s, tpot_s, level, tuple(clamped))
