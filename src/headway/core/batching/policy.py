"""A batching policy: caps, an order and a budget make the plan of a step."""

import math
from dataclasses import replace
from typing import Final

from headway.core.batching.backlog import Backlog
from headway.core.batching.budget import (
    LEAST_STEP,
    PACE,
    RESPONSIVE_SHARE,
    STALL_LIMIT,
    Budget,
    DeadlineBudget,
    FixedBudget,
    waiting_limit_s,
)
from headway.core.batching.caps import Caps
from headway.core.batching.clients import Granted, grant
from headway.core.batching.order import ORDER_BY_NAME, PrefillClock
from headway.core.batching.settings import BatchingSettings
from headway.core.batching.shares import Shares
from headway.core.batching.step import ProbeFn, StepPlanner
from headway.core.decisions import StepPlan
from headway.core.latency import StepShape, StepTimeModel
from headway.core.views import Probe, Prompt, Step

MAX_WAITS: Final = 4
"""Steps in a row in which a prompt may be left out for a better chunk later."""
REJUDGE_STEPS: Final = 8
"""How often the long prompt held first is judged again."""
TIGHT_LIMIT_MEMORY_S: Final = 60.0
"""How long a client's own, smaller TTFT limit keeps steps short."""


class Policy:
    """Plans steps. The host adds arrivals, discards what left, and applies each plan."""

    def __init__(
        self,
        settings: BatchingSettings,
        model: StepTimeModel,
        step_tokens: int,
        steps_in_flight: int = 1,
    ) -> None:
        """step_tokens: the engine's token budget for a step.

        steps_in_flight: how many the engine schedules before it has their results, with the one
            that runs.
        """
        self.settings = settings
        self.model = model
        self.caps = Caps(
            settings.max_num_partial_prefills,
            settings.max_long_partial_prefills,
            settings.long_prefill_token_threshold,
        )
        self.clock = PrefillClock(model, settings, step_tokens)
        self.order = ORDER_BY_NAME[settings.order](self.caps, self.clock)
        self.budget: Budget = (
            DeadlineBudget(model, settings, steps_in_flight)
            if settings.budget == "deadline"
            else FixedBudget()
        )
        self.backlog = Backlog(self.order, self.caps.is_long)
        self._shares = Shares()
        self._steps_in_flight = steps_in_flight
        self._steps = 0
        self._waits = 0
        self._tight_limit_s = settings.ttft_slo_s
        self._tight_until_s = -math.inf
        self._arrivals_s = [-math.inf] * 3

    def grant(self, ttft_slo_s: object, tpot_slo_s: object, priority: int, tokens: int) -> Granted:
        """What a client gets that asks for these limits and priority for a prompt of `tokens`."""
        engine_ttft_s = self.clock.engine_ttft_s(tokens)
        return grant(ttft_slo_s, tpot_slo_s, priority, engine_ttft_s, self.settings)

    def least_pace_s(self, decodes: int, context_tokens: int) -> float:
        """Decodes that are to be quicker than this don't count in a step of so many decodes.

        A client's limit that leaves no time for prefill can't be met while others are
        prefilled; it mustn't shorten their steps. The engine's own limit always counts.
        """
        alone = StepShape(decodes=decodes, decode_context_tokens=context_tokens)
        return min(PACE * self.settings.tpot_slo_s, LEAST_STEP * self.model.predict(alone))

    @property
    def most_behind_s(self) -> float:
        """How far a decode may be behind its pace; beyond it, it is paced anew from now."""
        return STALL_LIMIT * self.settings.tpot_slo_s

    def add(self, prompt: Prompt, now_s: float, blocked: str | None = None) -> None:
        """A prompt arrived, or came back after preemption.

        blocked: why it can't start yet whatever the room; None if only its turn is missing.
        """
        limit_s = prompt.ttft_slo_s
        if limit_s is not None and limit_s < self._smallest_ttft_limit_s(now_s):
            self._tight_limit_s = limit_s
            self._tight_until_s = now_s + TIGHT_LIMIT_MEMORY_S
        if prompt.arrival_s > self._arrivals_s[0] and prompt.arrival_s not in self._arrivals_s:
            self._arrivals_s = sorted((*self._arrivals_s[1:], prompt.arrival_s))
        self.backlog.add(prompt, now_s)
        if blocked is not None:
            self.backlog.park(prompt.id, Probe(prompt.tokens, blocked=blocked), now_s)

    def wake(self, prompt_id: str, now_s: float) -> None:
        """What a blocked prompt waited for is there."""
        self.backlog.wake(prompt_id, now_s)

    def discard(self, prompt_id: str) -> None:
        """A waiting prompt left."""
        self.backlog.discard(prompt_id)

    def plan(self, step: Step, now_s: float, probe: ProbeFn) -> StepPlan:
        """The plan of the step that starts at `now_s`.

        Admitted prompts leave the backlog; the host adds back those it could not start.
        """
        self._steps += 1
        ttft_s = self._smallest_ttft_limit_s(now_s)
        allowance = self.budget.allow(step, now_s, ttft_s, self._gap_s(now_s))
        waiting_s = waiting_limit_s(ttft_s, self._steps_in_flight)
        self.clock.new_step(min(allowance.limit_s or 0.0, RESPONSIVE_SHARE * waiting_s))
        if self._waits == MAX_WAITS:
            allowance = replace(allowance, later_s=0.0)
        planner = StepPlanner(
            self.backlog,
            self.order,
            self.caps,
            self.clock,
            step,
            allowance,
            now_s,
            self.settings.max_wait_s,
            probe,
            turns=self._shares.turns(),
        )
        plan = planner.run()
        self._waits = self._waits + 1 if planner.waited else 0
        if self._steps % REJUDGE_STEPS == 0:
            planner.rejudge_long()
        self._shares.account(plan.tokens, planner.turn.present, planner.turn.served)
        return plan

    def _gap_s(self, now_s: float) -> float:
        """Time between two arrivals, from the three latest; the last alone says nothing."""
        third_s, second_s, _ = self._arrivals_s
        return min(now_s - second_s, (now_s - third_s) / 2)

    def _smallest_ttft_limit_s(self, now_s: float) -> float:
        if now_s < self._tight_until_s:
            return min(self._tight_limit_s, self.settings.ttft_slo_s)
        return self.settings.ttft_slo_s
