"""Goodput now: requests a second that met all their limits, from the router's counters.

The supervisor's process samples them for as long as it runs and keeps the last minute in a file
of the fleet's state directory, so that whoever asks once sees that minute too.
"""

import asyncio
import contextlib
import json
import re
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from headway.core.status import GoodputStatus
from headway.fleet.net.http_async import exchange

FILE: Final = "goodput.json"
WINDOW_S: Final = 60.0
_SAMPLE_S: Final = 5.0
_AGAIN_S: Final = 1.0
_TIMEOUT_S: Final = 2.0
_SAMPLE: Final = re.compile(
    r'^headway:router_slo_total\{length="(?P<length>[^"]*)",met="(?P<met>true|false)"'
    r',verdict="(?P<verdict>[^"]*)"\} (?P<count>\S+)',
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Tally:
    """Requests that count, since the router's start.

    met, sent: by length class, those that met all limits, and all. missed: the others, by why.
    """

    met: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Of one length class, or of all: over the last `over_s` seconds. Rates are a second.

    missed: of all, by why (`core.slo.Verdict`).
    """

    over_s: float
    met: int
    sent: int
    missed: Mapping[str, int] = field(default_factory=dict)

    @property
    def met_per_s(self) -> float:
        """Those that met all limits."""
        return self.met / self.over_s

    @property
    def sent_per_s(self) -> float:
        """All."""
        return self.sent / self.over_s

    @property
    def attainment(self) -> float | None:
        """The share of requests that met their limits, None where there were none."""
        return self.met / self.sent if self.sent else None

    def status(self) -> GoodputStatus:
        """For programs."""
        return GoodputStatus(
            over_s=round(self.over_s, 1),
            met_per_s=self.met_per_s,
            sent_per_s=self.sent_per_s,
            attainment=self.attainment,
            missed=self.missed,
        )


def tally(metrics: str) -> Tally:
    """What the text of the router's /metrics has counted."""
    met: dict[str, int] = {}
    sent: dict[str, int] = {}
    missed: dict[str, int] = {}
    for sample in _SAMPLE.finditer(metrics):
        length, count = sample["length"], int(float(sample["count"]))
        sent[length] = sent.get(length, 0) + count
        met[length] = met.get(length, 0) + (count if sample["met"] == "true" else 0)
        if sample["met"] == "false":
            missed[sample["verdict"]] = missed.get(sample["verdict"], 0) + count
    return Tally(met, sent, missed)


class Recent:
    """Samples of the counters over the last minute. Times are the system's monotonic clock."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Tally]] = deque()

    @classmethod
    def read(cls, path: Path, now_s: float) -> Self:
        """Those in a file, if they are of the last minute; none where it can't be read."""
        recent = cls()
        with contextlib.suppress(OSError, ValueError, TypeError):
            for at_s, *counted in json.loads(path.read_text()):
                # After a reboot the clock begins anew: what is ahead of it is of another run.
                if now_s - 2 * WINDOW_S < at_s <= now_s:
                    recent.add(at_s, Tally(*counted))
        return recent

    def write(self, path: Path) -> None:
        """Replace the file as a whole."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps([[at_s, c.met, c.sent, c.missed] for at_s, c in self._samples]))
        new.replace(path)

    def add(self, now_s: float, counted: Tally) -> None:
        """What is counted by now. A router that began anew counts from nothing."""
        samples = self._samples
        if samples and _fell(samples[-1][1], counted):
            samples.clear()
            samples.append((now_s, Tally()))
        samples.append((now_s, counted))
        while len(samples) > 2 and samples[1][0] <= now_s - WINDOW_S:
            samples.popleft()

    def now(self) -> dict[str, Goodput]:
        """By length class, and of all under ""; empty before there are two samples."""
        if len(self._samples) < 2:
            return {}
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        if last_s <= first_s:
            return {}
        by_length = {
            length: Goodput(
                last_s - first_s,
                last.met[length] - first.met.get(length, 0),
                last.sent[length] - first.sent.get(length, 0),
            )
            for length in sorted(last.sent)
        }
        each = by_length.values()
        met, sent = sum(g.met for g in each), sum(g.sent for g in each)
        missed = {
            why: count - first.missed.get(why, 0)
            for why, count in sorted(last.missed.items())
            if count > first.missed.get(why, 0)
        }
        return {"": Goodput(last_s - first_s, met, sent, missed), **by_length}


async def sample(admin: str, path: Path) -> None:
    """Sample the counters of the router with this admin URL into a file, for ever."""
    recent = Recent()
    while True:
        wait_s = _AGAIN_S
        with contextlib.suppress(OSError):  # the router is restarting, or the disk full
            reply = await exchange("GET", f"{admin}/metrics", _TIMEOUT_S)
            if reply is not None and reply.status == 200:
                recent.add(time.monotonic(), tally(reply.body.decode("utf-8", "replace")))
                recent.write(path)
                wait_s = _SAMPLE_S
        await asyncio.sleep(wait_s)


def _fell(before: Tally, after: Tally) -> bool:
    return any(after.sent.get(length, 0) < count for length, count in before.sent.items())
