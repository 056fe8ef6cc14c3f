"""A device that computes steps one after another, as a stream of a GPU does."""

import time
from collections.abc import Callable
from typing import NamedTuple


class Due(NamedTuple):
    """When a step's result is there, on the device's clock, and how long the step takes."""

    at_s: float
    step_s: float


class Device:
    """Keeps when the device is free; waits for results as a thread waits for an event."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """now: a clock, seconds. sleep: waits so many."""
        self._now, self._sleep = now, sleep
        self._free_at_s = 0.0

    def begin(self, step_s: float) -> Due:
        """Start a step of `step_s`, as soon as those before it are done."""
        self._free_at_s = max(self._now(), self._free_at_s) + step_s
        return Due(self._free_at_s, step_s)

    def wait(self, due: Due) -> float:
        """Wait for a step's result; how late it is, seconds."""
        left_s = due.at_s - self._now()
        if left_s > 0:
            self._sleep(left_s)
        return max(0.0, self._now() - due.at_s)

    def pause(self, seconds: float) -> None:
        """Do nothing for so long."""
        self._sleep(seconds)
