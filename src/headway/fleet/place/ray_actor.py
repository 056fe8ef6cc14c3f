"""The actor of an engine in a Ray cluster, without Ray."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from headway.fleet.place.local import LOG_BYTES

_NEWS_S: Final = 0.5
_READ_BYTES: Final = 1 << 20


class Actor:
    """On the engine's node: holds the pipes of its agent (`agent`), reads what the engine writes.

    host: gives the node's address there. `news` is asked for by one at a time.
    """

    def __init__(self, host: Callable[[], str]) -> None:
        self._host = host()
        self._agent = subprocess.Popen(
            [sys.executable, "-m", "headway.fleet.place.ray_agent", self._host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._first = self._events.get()
        self._log = Path(self._first["log"])
        self._seen = 0

    def _listen(self) -> None:
        assert self._agent.stdout  # noqa: S101  for mypy
        for line in self._agent.stdout:
            self._events.put(json.loads(line))
        os._exit(1)  # without its agent it is of no use, and Ray tells the supervisor

    def address(self) -> tuple[str, int, int]:
        """What an `Address` is made of."""
        return self._host, self._first["port"], self._first["side_port"]

    def do(self, request: Mapping[str, Any]) -> None:
        """Ask the agent."""
        assert self._agent.stdin  # noqa: S101  for mypy
        if request["do"] == "start":
            self._seen = 0
        self._agent.stdin.write(json.dumps(request).encode() + b"\n")
        self._agent.stdin.flush()

    def news(self) -> tuple[dict[str, Any], bytes]:
        """The next event, empty if there is none soon; and what the engine has written up to it."""
        event: dict[str, Any] = {}
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=_NEWS_S)
        return event, self._read(None if "exited" in event else _READ_BYTES)

    def _read(self, most: int | None) -> bytes:
        try:
            with self._log.open("rb") as log:
                log.seek(self._seen)
                said = log.read(most)
        except FileNotFoundError:
            return b""
        self._seen += len(said)
        if self._seen > LOG_BYTES:  # the supervisor has it; its writer appends
            os.truncate(self._log, 0)
            self._seen = 0
        return said
