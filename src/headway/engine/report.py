"""What an operator sees of the scheduler: settings at start, a line under load, metrics."""

from collections import Counter as Tally
from functools import cache
from typing import Any, Final, NamedTuple

from prometheus_client import Counter, Gauge
from vllm.logger import init_logger
from vllm.v1.request import Request

from headway.core.batching.policy import Policy
from headway.core.decisions import StepPlan
from headway.core.latency import StepShape
from headway.engine.steps import MeasuredStep

logger = init_logger("vllm.headway")

LINE_PERIOD_S: Final = 10.0
METRICS_PERIOD_S: Final = 1.0


class _Metrics(NamedTuple):
    prefills: Gauge
    held: Gauge
    waiting: Gauge
    steps: Counter
    prefill_tokens: Counter
    predicted_s: Counter
    measured_s: Counter
    limits: Counter
    clamped: Counter


@cache
def _metrics() -> _Metrics:
    """Made once a process. They reach /metrics where PROMETHEUS_MULTIPROC_DIR is set."""
    live: Any = {"multiprocess_mode": "livesum"}
    return _Metrics(
        Gauge("headway:prefills_in_progress", "Prompts mid-prefill.", **live),
        Gauge("headway:long_prompt_held", "1 while a long prompt waits for a cap.", **live),
        Gauge("headway:prompts_waiting", "Prompts that have not started.", **live),
        Counter("headway:steps", "Steps that computed something."),
        Counter("headway:prefill_tokens", "Prompt tokens computed."),
        Counter("headway:step_predicted_seconds", "Predicted duration of steps, summed."),
        Counter("headway:step_measured_seconds", "Measured duration of steps, summed."),
        Counter("headway:step_limit", "Steps with prefill by what sized them.", ["reason"]),
        Counter(
            "headway:client_limits_clamped",
            "Limits and priorities that clients asked for outside the range they may.",
            ["kind"],
        ),
    )


class StepReport:
    """Counts what plans and measured steps say; talks at fixed periods, never per step."""

    def __init__(self, policy: Policy, clamped: Tally[str]) -> None:
        """clamped: counts what clients asked for in vain, by kind; emptied when published."""
        self._policy = policy
        self._clamped = clamped
        self._warned = False
        self._next_line_s = 0.0
        self._next_metrics_s = 0.0
        self._held = False
        self._idle = True
        self._reasons: Tally[str] = Tally()
        self._chunks: list[int] = []
        self._clear_line()
        self._steps = 0
        self._tokens = 0
        self._predicted_s = 0.0
        self._measured_s = 0.0

    def _clear_line(self) -> None:
        self._chunks = []
        self._line_steps = 0
        self._line_predicted_s = 0.0
        self._line_measured_s = 0.0
        self._line_longest_s = 0.0

    def planned(self, plan: StepPlan) -> None:
        """A step was planned."""
        self._held = plan.held_long
        if plan.tokens:
            self._reasons[plan.reason] += 1
            self._chunks.append(plan.tokens)

    def measured(self, step: MeasuredStep) -> None:
        """A step has run."""
        self._steps += 1
        self._tokens += step.shape.prefill_tokens
        self._predicted_s += step.predicted_s
        self._measured_s += step.measured_s
        self._line_steps += 1
        self._line_predicted_s += step.predicted_s
        self._line_measured_s += step.measured_s
        self._line_longest_s = max(self._line_longest_s, step.measured_s)

    def tick(self, now_s: float, waiting: Any, scheduler: Any) -> None:
        """Called after each step; does nothing most of the time.

        When an engine falls idle that is published at once: no step may follow for long.
        """
        running = scheduler.running
        was_idle, self._idle = self._idle, not (running or waiting)
        if now_s >= self._next_metrics_s or (self._idle and not was_idle):
            self._next_metrics_s = now_s + METRICS_PERIOD_S
            self._publish(_mid_prefill(running), len(waiting))
            self._check_tpot()
        if now_s >= self._next_line_s:
            first = self._next_line_s == 0.0
            self._next_line_s = now_s + LINE_PERIOD_S
            if self._chunks and not first:
                logger.info(self._line(running, len(waiting)))
                self._clear_line()

    def _check_tpot(self) -> None:
        """Say once that the TPOT limit is below what the engine can do, when that is known."""
        model, limit_s = self._policy.model, self._policy.settings.tpot_slo_s
        if self._warned or not model.settled:
            return
        alone_s = model.predict(StepShape(decodes=1))
        if alone_s > limit_s:
            self._warned = True
            logger.warning(
                "tpot_slo_s %g can't be met: a step of one decode takes about %.2g s; "
                "it is ignored where it would leave prefill no time",
                limit_s,
                alone_s,
            )

    def _publish(self, prefills: int, waiting: int) -> None:
        m = _metrics()
        m.prefills.set(prefills)
        m.held.set(self._held and waiting > 0)
        m.waiting.set(waiting)
        m.steps.inc(self._steps)
        m.prefill_tokens.inc(self._tokens)
        m.predicted_s.inc(self._predicted_s)
        m.measured_s.inc(self._measured_s)
        for reason, steps in self._reasons.items():
            m.limits.labels(reason).inc(steps)
        self._reasons.clear()
        for kind, times in self._clamped.items():
            m.clamped.labels(kind).inc(times)
        self._clamped.clear()
        self._steps = self._tokens = 0
        self._predicted_s = self._measured_s = 0.0

    def _line(self, running: list[Request], waiting: int) -> str:
        chunks = sorted(self._chunks)
        steps = self._line_steps or 1
        fixed, per_token, *_ = self._policy.model.coefficients
        return (
            f"headway {self._policy.settings.policy}: {len(running)} running, "
            f"{_mid_prefill(running)} mid-prefill, {waiting} waiting"
            f"{' (long prompt held)' if self._held and waiting else ''}; "
            f"prefill tokens a step {chunks[0]}/{chunks[len(chunks) // 2]}/{chunks[-1]} "
            f"(least/median/most); step predicted {self._line_predicted_s / steps * 1e3:.0f} ms, "
            f"measured {self._line_measured_s / steps * 1e3:.0f} ms, "
            f"longest {self._line_longest_s * 1e3:.0f} ms "
            f"({fixed * 1e3:.0f} ms + {per_token * 1e3:.2f} ms a prefill token)"
        )

    def settings_block(self, scheduler: Any) -> str:
        """The settings in force, one a line."""
        s = self._policy.settings
        rows = {
            "policy": f"{s.policy} (order {s.order}, budget {s.budget})",
            "mid-prefill at once": (
                f"{s.max_num_partial_prefills}, of which long: {s.max_long_partial_prefills}"
            ),
            "long": f"more than {s.long_prefill_token_threshold} uncached tokens",
            "TTFT limit": f"max({s.ttft_slo_s:g} s, {s.ttft_slo_factor:g} x prefill time alone)",
            "TPOT limit": f"{s.tpot_slo_s:g} s",
            "longest wait": f"{s.max_wait_s:g} s, then a guaranteed share of prefill",
            "clients may ask for": (
                f"limits {s.min_client_slo_factor:g} to {s.max_client_slo_factor:g} x these, "
                f"priorities from {s.min_client_priority}"
            ),
            "step budget": f"{scheduler.max_num_scheduled_tokens} tokens",
            "stands on": type(scheduler).__mro__[1].__qualname__,
        }
        width = max(map(len, rows))
        lines = [f"  {name:<{width}}  {value}" for name, value in rows.items()]
        return "\n".join(["headway scheduler", *lines])


def _mid_prefill(running: list[Request]) -> int:
    return sum([request.is_prefill_chunk for request in running])
