"""How far an engine's start has come, from what vLLM writes to its log."""

import re
from dataclasses import dataclass
from typing import Final

from headway.fleet.operate import logs

STARTING: Final = "starting"
DOWNLOADING: Final = "downloading"
LOADING: Final = "loading"
COMPILING: Final = "compiling"
CAPTURING: Final = "capturing graphs"
PREPARING: Final = "preparing to serve"
READY: Final = "ready"
PHASES: Final = (STARTING, DOWNLOADING, LOADING, COMPILING, CAPTURING, PREPARING, READY)
"""In the order of a start. Not every start has all of them."""

_SIGNS: Final = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (r"Application startup complete", READY),
        (r"Graph capturing finished|init engine \(profile, create kv cache", PREPARING),
        (r"Capturing CUDA graphs.*?:\s+(?P<percent>\d+)%", CAPTURING),
        (r"Starting torch\.compile|Compiling a graph|Warming up model for the comp", COMPILING),
        (r"Compile and warming up model|Dynamo bytecode transform", COMPILING),
        (r"Loading .*checkpoint shards:\s+(?P<percent>\d+)%", LOADING),
        (r"Starting to load model|Loading weights took", LOADING),
        (r"(?:Fetching \d+ files|\.(?:safetensors|bin|gguf)):\s+(?P<percent>\d+)%", DOWNLOADING),
    )
)


@dataclass(frozen=True, slots=True)
class StartProgress:
    """phase: one of `PHASES`. percent: of the phase, None where vLLM doesn't say."""

    phase: str = STARTING
    percent: int | None = None

    def __str__(self) -> str:
        return self.phase if self.percent is None else f"{self.phase} {self.percent}%"


def after(progress: StartProgress, text: str) -> StartProgress:
    """How far it is when `text` was added to the log. A start never goes back: several processes
    write, and one may still load while another compiles.
    """
    for line in logs.lines(text):
        for pattern, phase in _SIGNS:
            found = pattern.search(line)
            if found:
                progress = _later(progress, _progress_of(phase, found))
                break
    return progress


def _progress_of(phase: str, found: re.Match[str]) -> StartProgress:
    percent = found.groupdict().get("percent")
    return StartProgress(phase, None if percent is None else int(percent))


def _later(one: StartProgress, other: StartProgress) -> StartProgress:
    """The one that is further. In the same phase a new percentage counts: vLLM captures graphs,
    and loads drafts, in several passes.
    """
    rank, other_rank = PHASES.index(one.phase), PHASES.index(other.phase)
    if other_rank > rank or (other_rank == rank and other.percent is not None):
        return other
    return one
