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
    """Reads a file of faults again whenever it changes."""

    def __init__(self, path: str) -> None:
        """path: empty for no faults."""
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._fault = WELL
        self.problem = ""
        """Why the file's content counts for nothing; empty: it counts."""

    def now(self) -> Fault:
        """What the file says now; what can't be read says nothing, and `problem` why."""
        if not self._path:
            return WELL
        try:
            found = os.stat(self._path)  # noqa: PTH116  half as expensive, in every step
        except OSError:
            self._seen, self._fault, self.problem = None, WELL, ""
            return WELL
        seen = (found.st_mtime_ns, found.st_size, found.st_ino)
        if seen != self._seen:
            self._seen = seen
            self._fault, self.problem = _read(Path(self._path))
        return self._fault


def _read(path: Path) -> tuple[Fault, str]:
    try:
        given: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        return WELL, f"{path} can't be read: {error}"
    if not isinstance(given, dict) or not set(given) <= set(Fault._fields):
        return WELL, f"{path} is not an object with {', '.join(Fault._fields)}"
    slow, hang, crash = (given.get(name, getattr(WELL, name)) for name in Fault._fields)
    if isinstance(slow, bool) or not isinstance(slow, int | float) or not 0 < slow <= SLOWEST:
        return WELL, f"{path}: slow is {slow!r}; use a factor above 0"
    if not (isinstance(hang, bool) and isinstance(crash, bool)):
        return WELL, f"{path}: hang and crash are true or false"
    return Fault(slow, hang, crash), ""
