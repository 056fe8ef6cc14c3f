"""What an engine's metrics tell of faults in headway's scheduler."""

import re
from dataclasses import dataclass
from typing import Final, Self

_SAMPLE: Final = re.compile(
    rb"^headway:(?P<what>fallback_steps_total|stands_aside)(?:\{[^}]*\})? "
    rb"(?P<value>[0-9.eE+-]+)\s*$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Fallback:
    """steps: those that vLLM scheduled by itself because headway's code failed, since its start.

    aside: whether headway leaves all of them to vLLM until a restart.
    """

    steps: int = 0
    aside: bool = False

    @classmethod
    def of(cls, metrics: bytes) -> Self:
        """What the text of an engine's /metrics says, summed over its ranks."""
        told = dict.fromkeys((b"fallback_steps_total", b"stands_aside"), 0.0)
        for sample in _SAMPLE.finditer(metrics):
            told[sample["what"]] += float(sample["value"])
        return cls(int(told[b"fallback_steps_total"]), bool(told[b"stands_aside"]))

    def __str__(self) -> str:
        """For people; empty where there was no fault."""
        if self.aside:
            return (
                "headway's scheduler stands aside until a restart: it failed too often, and vLLM "
                "schedules by itself; the engine's log says why"
            )
        if self.steps:
            return (
                f"headway's scheduler failed: {self.steps} steps were left to vLLM; "
                "the engine's log says why"
            )
        return ""


NO_FAULTS: Final = Fallback()
