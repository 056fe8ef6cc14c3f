"""An engine that misbehaves on demand: a file says how, from one step to the next.

`{"slow": 5}` makes steps five times as long; `{"hang": true}` lets no result come until the file
says otherwise; `{"crash": true}` ends the engine's process at its next step. Without the file, or
with `{}`, all is well.
"""

import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

SLOWEST: Final = 1e6


class Fault(NamedTuple):
    """How to misbehave."""

    slow: float = 1.0
    hang: bool = False
    crash: bool = False


WELL: Final = Fault()


class FaultFile:
    """Reads a file of faults again whenever it changes.

    told: what it says, or why that counts for nothing; empty: no fault.
    """

    def __init__(self, path: str) -> None:
        """path: empty for no faults."""
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._fault = WELL
        self.told = ""

    def now(self) -> Fault:
        """What the file says now. What can't be read says nothing."""
        if not self._path:
            return WELL
        try:
            found = os.stat(self._path)  # noqa: PTH116  half as expensive, in every step
        except OSError:
            self._seen, self._fault, self.told = None, WELL, ""
            return WELL
        seen = (found.st_mtime_ns, found.st_size, found.st_ino)
        if seen != self._seen:
            self._seen = seen
            try:
                self._fault = _read(Path(self._path))
                self.told = f"{self._path}: {self._fault}" if self._fault != WELL else ""
            except (OSError, ValueError) as error:
                self._fault, self.told = WELL, f"{self._path} counts for nothing: {error}"
        return self._fault


def _read(path: Path) -> Fault:
    """Raises OSError and ValueError."""
    given: Any = json.loads(path.read_text())
    if not isinstance(given, dict) or not set(given) <= set(Fault._fields):
        raise ValueError(f"use an object with {', '.join(Fault._fields)}")
    slow, hang, crash = (given.get(name, getattr(WELL, name)) for name in Fault._fields)
    if isinstance(slow, bool) or not isinstance(slow, int | float) or not 0 < slow <= SLOWEST:
        raise ValueError(f"slow is {slow!r}; use a factor above 0")
    if not (isinstance(hang, bool) and isinstance(crash, bool)):
        raise ValueError("hang and crash are true or false")  # noqa: TRY004  of a file's content
    return Fault(slow, hang, crash)
