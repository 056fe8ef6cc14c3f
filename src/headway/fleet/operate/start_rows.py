"""What the supervisor's status means for whoever watches a fleet start."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headway.core.status import EngineStatus
from headway.fleet.operate import start_progress
from headway.fleet.operate.display import Row
from headway.fleet.operate.logs import Tail
from headway.fleet.operate.start_progress import StartProgress

_SETTLED: Final = frozenset({"ready", "failed", "stopped"})


class Starts:
    """The engines' starts as their logs tell them."""

    def __init__(self) -> None:
        self._tails: dict[str, Tail] = {}
        self._progress: dict[str, StartProgress] = {}

    def rows(self, engines: Sequence[EngineStatus]) -> list[Row]:
        """A row an engine. Reads what was added to the logs since the last time."""
        return [self._row(engine) for engine in engines]

    def close(self) -> None:
        """Let go of the logs."""
        for tail in self._tails.values():
            tail.close()

    def _row(self, engine: EngineStatus) -> Row:
        name, reason = engine.name, engine.reason
        if engine.state != "starting":
            return Row(name, engine.state, None, reason)
        return Row(name, self._doing(name, Path(engine.log)), engine.since_s, reason)

    def _doing(self, name: str, log: Path) -> str:
        tail = self._tails.setdefault(name, Tail(log))
        said = ""
        with contextlib.suppress(OSError):
            said = tail.read()
        before = StartProgress() if tail.restarted else self._progress.get(name, StartProgress())
        now = self._progress[name] = start_progress.after(before, said)
        # Ready is who answers /health, and that is the supervisor's to say.
        return start_progress.PREPARING if now.phase == start_progress.READY else str(now)


def settled(engines: Sequence[EngineStatus]) -> bool:
    """Whether every engine is ready, or won't be without an operator."""
    return all(engine.state in _SETTLED for engine in engines)
