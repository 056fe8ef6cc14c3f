"""How much prefill a step carries."""

import math
from dataclasses import dataclass
from typing import Final, Protocol

from headway.core.batching.settings import BatchingSettings
from headway.core.latency import StepShape, StepTimeModel
from headway.core.views import Step

RESPONSIVE_SHARE: Final = 0.35
QUIET_RESPONSIVE_SHARE: Final = 0.9
"""No step lasts longer than this share of the smallest TTFT limit in use: whoever
arrives waits for the running step to end. While few arrive and nothing decodes, steps
may be longer, as fewer of them waste less on each step's fixed cost. Where more steps are in
flight, all are shorter (`waiting_s`)."""
LEAST_STEP: Final = 1.5
"""A step may last this many times as long as it would without prefill: where an engine is slow
for its limits, short steps would be all overhead and prefill would hardly move."""
GAP_SHARE: Final = 0.2
"""How long a step may be of the time between two arrivals, within those shares."""
IDLE_GAP_SHARE: Final = 0.05
IDLE_RESPONSIVE_SHARE: Final = 2.0
"""Where hardly anyone arrives, a step may be as long as this share of the gap, up to this many
TTFT limits: one arrival in twenty meets it, and a prompt alone runs nearly as with stock vLLM."""
STALL_LIMIT: Final = 3.0
"""No running decode waits longer for a token than this many TPOT limits, and one that is further
behind its pace (after a pause, a preemption, a slow step) starts anew: its next token is due one
token's time from now. Otherwise no later step would heed it, and it would stay as slow as that."""
PACE: Final = 0.96
"""Decodes are paced to this share of their TPOT limit. Deadlines are absolute, so a step
that takes longer than predicted shortens the next; the rest covers the last token."""
STRETCH: Final = 2.0
"""How far responsiveness yields for a chunk whose context is costly to read."""
CATCH_UP_STEPS: Final = 4
"""A decode that would need more steps without prefill to catch up is given up."""
FLOOR_TOKENS: Final = 8
"""Prefill keeps moving by this many tokens a step when decodes leave it no time."""
COLD_TOKENS: Final = 128
"""Step budget while the step time is unknown."""
UNSETTLED_FLOOR_TOKENS: Final = 64
"""The floor while little is known: a first fit that is too high must not starve prefill,
which would also keep the model from learning better."""


def waiting_limit_s(ttft_limit_s: float, steps_in_flight: int) -> float:
    """What of a TTFT limit the length of one step is measured by.

    An arrival meets a step half done on average, and waits for all others in flight too:
    three halves with asynchronous scheduling's two, so each may be a third as long.
    """
    return ttft_limit_s / (2 * steps_in_flight - 1)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a step may spend on prefill.

    tokens, seconds: both hold; the seconds come on top of what decodes cost.
    stretch_s: what `seconds` may become for a chunk whose context is costly to read.
    later_s: the most that `stretch_s` may be in a later step, once decodes have banked
        slack; 0 if waiting wouldn't help.
    floor_tokens: are spent even if the seconds don't allow it.
    base_s: what the step's decodes take without any prefill.
    limit_s: how long the step may take in all, None if only tokens count.
    """

    tokens: int
    seconds: float = math.inf
    stretch_s: float = math.inf
    later_s: float = 0.0
    floor_tokens: int = 0
    base_s: float = 0.0
    limit_s: float | None = None
    reason: str = "fixed"


class Budget(Protocol):
    """Sizes the prefill part of a step."""

    uses_deadlines: bool

    def allow(self, step: Step, now_s: float, ttft_limit_s: float, gap_s: float) -> Allowance:
        """What the step that starts at `now_s` may spend.

        ttft_limit_s: the smallest TTFT limit in use, seconds.
        gap_s: time between two arrivals of late, seconds.
        """


class FixedBudget:
    """The engine's own token budget."""

    uses_deadlines = False

    def allow(self, step: Step, now_s: float, ttft_limit_s: float, gap_s: float) -> Allowance:
        return Allowance(step.tokens)


class DeadlineBudget:
    """The largest step by which no running decode misses its next token.

    Decodes bank the time by which they are ahead of their pace, and a step may
    spend it (*banked slack*). A decode that is behind further than it can catch
    up in `CATCH_UP_STEPS` steps no longer counts.
    """

    uses_deadlines = True

    def __init__(
        self, model: StepTimeModel, settings: BatchingSettings, steps_in_flight: int
    ) -> None:
        self._model = model
        self._steps_in_flight = steps_in_flight
        self._ttft_s = settings.ttft_slo_s
        self._tpot_s = settings.tpot_slo_s

    def allow(self, step: Step, now_s: float, ttft_limit_s: float, gap_s: float) -> Allowance:
        if not self._model.ready:
            return Allowance(min(step.tokens, COLD_TOKENS), reason="cold")
        alone = StepShape(decodes=step.decodes, decode_context_tokens=step.decode_context_tokens)
        base_s = self._model.predict(alone)
        if RESPONSIVE_SHARE * ttft_limit_s < LEAST_STEP * base_s:
            ttft_limit_s = self._ttft_s  # a client's limit that no step can be short enough for
        waiting_s = waiting_limit_s(ttft_limit_s, self._steps_in_flight)
        shortest_s = max(RESPONSIVE_SHARE * waiting_s, LEAST_STEP * base_s)
        limit_s, reason = shortest_s, "responsive"
        stretched_s, later_s = STRETCH * shortest_s, 0.0
        if not step.decodes:
            quiet_s = max(
                min(GAP_SHARE * gap_s, QUIET_RESPONSIVE_SHARE * waiting_s),
                min(IDLE_GAP_SHARE * gap_s, IDLE_RESPONSIVE_SHARE * waiting_s),
            )
            limit_s = max(shortest_s, quiet_s)
            stretched_s = max(stretched_s, quiet_s)
        else:
            token_s, why = max(STALL_LIMIT * self._tpot_s, LEAST_STEP * base_s), "stall"
            if base_s < PACE * self._tpot_s:
                later_s = max(0.0, min(stretched_s, token_s) - base_s)
            slack_s = self._slack_s(step.next_token_deadlines_s, now_s, base_s)
            if slack_s < token_s:
                token_s, why = slack_s, "slack"
            if token_s < limit_s:
                limit_s, reason = token_s, why
            stretched_s = min(stretched_s, token_s)
        return Allowance(
            step.tokens,
            seconds=max(0.0, limit_s - base_s),
            stretch_s=max(0.0, stretched_s - base_s),
            later_s=later_s,
            floor_tokens=FLOOR_TOKENS if self._model.settled else UNSETTLED_FLOOR_TOKENS,
            base_s=base_s,
            limit_s=limit_s,
            reason=reason,
        )

    def _slack_s(self, deadlines_s: list[float], now_s: float, base_s: float) -> float:
        """Time until the first next-token deadline that can still be saved."""
        catch_up_s = CATCH_UP_STEPS * max(0.0, self._tpot_s - base_s)
        lost_s = now_s + base_s - catch_up_s
        first_s = min(deadlines_s, default=math.inf)
        if first_s < lost_s:
            first_s = min((d for d in deadlines_s if d >= lost_s), default=math.inf)
        return first_s - now_s
