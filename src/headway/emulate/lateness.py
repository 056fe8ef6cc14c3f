"""How late results came: what says whether an emulation was one."""

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0)
TOLERATED_S: Final = 0.001
TOLERATED_SHARE: Final = 0.05
"""Of a step's time. A step is late when its result came by more than both of these too late."""
MOST_LATE: Final = 0.01
"""Share of late steps beyond which a run isn't what the GPU would have done."""


class Lateness:
    """Counts results by how late they came.

    steps, late_steps: numbers. longest_s: the latest. modelled_s: what all steps should have taken.
    """

    def __init__(self) -> None:
        self.steps = self.late_steps = 0
        self.longest_s = self.modelled_s = 0.0
        self._counts = [0] * (len(BOUNDS_S) + 1)

    def add(self, late_s: float, step_s: float) -> bool:
        """A step that should have taken `step_s` came `late_s` too late; whether that is late."""
        late = late_s > max(TOLERATED_S, TOLERATED_SHARE * step_s)
        self.steps += 1
        self.late_steps += late
        self.modelled_s += step_s
        self.longest_s = max(self.longest_s, late_s)
        self._counts[bisect_left(BOUNDS_S, late_s)] += 1
        return late

    @property
    def invalid(self) -> bool:
        """Whether too many steps were late."""
        return self.late_steps > MOST_LATE * self.steps

    def quantile_s(self, share: float) -> float:
        """What so many of the results were no later than: a bound, at most the latest."""
        reached = 0
        for bound, count in zip(BOUNDS_S, self._counts, strict=False):
            reached += count
            if reached >= share * self.steps:
                return min(bound, self.longest_s)
        return self.longest_s

    def said(self) -> str:
        """In words, with the verdict first where it is bad."""
        if not self.steps:
            return "no steps"
        figures = (
            f"{self.steps} steps of {self.modelled_s / self.steps * 1e3:.1f} ms; results late by "
            f"{self.quantile_s(0.5) * 1e3:.1f} ms (p50), {self.quantile_s(0.99) * 1e3:.1f} ms "
            f"(p99), {self.longest_s * 1e3:.1f} ms (longest)"
        )
        if not self.invalid:
            return figures
        return (
            f"INVALID, this machine can't keep up: {self.late_steps / self.steps:.0%} of the steps "
            f"were late; emulate fewer engines, or slow them down (slow = 2). {figures}"
        )
