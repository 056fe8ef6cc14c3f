"""What is said of an emulation: that it is one, and whether this machine kept up with it."""

import time
from functools import cache
from typing import Any, Final, NamedTuple

from prometheus_client import Counter, Gauge, Histogram
from vllm.logger import init_logger

from headway.core.hardware.emulation import Emulation
from headway.emulate.lateness import BOUNDS_S, Lateness
from headway.gpus import trust

logger = init_logger("vllm.headway")

LINE_PERIOD_S: Final = 10.0


class _EmulationMetrics(NamedTuple):
    info: Gauge
    late_s: Histogram
    step_s: Counter
    late_steps: Counter


@cache
def _metrics() -> _EmulationMetrics:
    """Made once a process. They reach /metrics where PROMETHEUS_MULTIPROC_DIR is set."""
    mode: Any = {"multiprocess_mode": "livemax"}
    return _EmulationMetrics(
        Gauge("headway:emulated", "1: no GPU computes here.", ["gpu", "gpus", "slow"], **mode),
        Histogram(
            "headway:emulated_lateness_seconds",
            "How much later than modelled the results of steps came.",
            buckets=BOUNDS_S,
        ),
        Counter("headway:emulated_step_seconds", "How long steps should have taken, summed."),
        Counter("headway:emulated_late_steps", "Steps whose results came too late to count."),
    )


class EmulationReport:
    """Counts results by how late they came; talks every ten seconds, and at the end."""

    def __init__(self, emulation: Emulation, gpus: int) -> None:
        self._said = emulation.said(gpus)
        self._all, self._latest = Lateness(), Lateness()
        self._next_line_s = time.monotonic() + LINE_PERIOD_S
        _metrics().info.labels(emulation.gpu, str(gpus), f"{emulation.slow:g}").set(1)
        logger.warning("%s: no GPU computes here; %s", self._said, trust(emulation.gpu))

    def delivered(self, late_s: float, step_s: float) -> None:
        """A step of `step_s` came so much later than it was due."""
        metrics = _metrics()
        metrics.late_s.observe(late_s)
        metrics.step_s.inc(step_s)
        self._latest.add(late_s, step_s)
        if self._all.add(late_s, step_s):
            metrics.late_steps.inc()
        if time.monotonic() >= self._next_line_s:
            self._line("", self._latest)
            self._latest = Lateness()

    def idle(self) -> None:
        """No request is left: nothing may follow for long."""
        if self._latest.steps:
            self._line("", self._latest)
            self._latest = Lateness()

    def ended(self) -> None:
        """The engine ends."""
        if self._all.steps:
            self._line(", in all", self._all)

    def failing(self, how: str) -> None:
        """A fault is acted out."""
        logger.error("%s: %s", self._said, how)

    def _line(self, of: str, lateness: Lateness) -> None:
        self._next_line_s = time.monotonic() + LINE_PERIOD_S
        say = logger.warning if lateness.invalid else logger.info
        say("%s%s: %s", self._said, of, lateness.said())
