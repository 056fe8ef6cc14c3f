"""`python -m headway.fleet.place.ray_agent HOST` runs an engine here for whoever holds its pipes.

It leaves the process that started it at once: that one may be killed, and its children with it,
while an engine's processes must be ended in order. When its input closes it ends the engine by
force, and itself.

Input and output are JSON objects, one a line. The first that it says is where the engine may
listen and what it writes to: `port`, `side_port`, `log`. Asked for:

- `{"do": "start", "argv": …, "env": …, "drain_s": …}`: argv[0] is this Python, whatever it says;
  env comes on top of what is here. Answered with `started`, or `failed` and why.
- `{"do": "stop", "force": …}`: may come before `start`, for it.
- `{"do": "watch"}`, of an engine that has been ready: answered with `part` once one of its
  processes has ended: whether the engine is over without it.

Told in any case: `exited`, all of it has ended, and its status.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headway.engine.start.command import EngineCommand
from headway.fleet.place import ports
from headway.fleet.place.local import Family, LocalEngine

LOST: Final = 128 + signal.SIGKILL
"""Exit status of an engine whose end nobody saw."""
_LINE_BYTES: Final = 1 << 20


class Desk:
    """Does what is asked, for one engine at a time. Needs a running event loop."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self._folder = folder
        self._family = Family()
        self._engine = self._anew()
        self._run: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    def _anew(self) -> LocalEngine:
        return LocalEngine(self._family, self._folder)

    def do(self, request: Mapping[str, Any]) -> None:
        """A request; see above."""
        loop = asyncio.get_running_loop()
        if request["do"] == "stop":
            self._engine.stop(force=request["force"])
        elif request["do"] == "start":
            self._run = loop.create_task(self._start(request))
        elif self._engine.pid is not None and (self._watch is None or self._watch.done()):
            self._watch = loop.create_task(_tell_ended_part(self._engine))

    async def _start(self, request: Mapping[str, Any]) -> None:
        engine = self._engine
        command = EngineCommand(
            argv=(sys.executable, *request["argv"][1:]),
            env={**_environment(), **request["env"]},
            url=None,
            served_name="",
            settings=None,
            drain_s=request["drain_s"],
        )
        try:
            await engine.start(command, self.log)
        except OSError as error:
            self._engine = self._anew()
            tell({"failed": str(error)})
            return
        tell({"started": engine.pid})
        status = await engine.wait()
        if self._watch is not None:
            self._watch.cancel()
        self._engine = self._anew()
        tell({"exited": status})

    async def end(self) -> None:
        """End the engine by force; returns when nothing of it is left."""
        self._engine.stop(force=True)
        if self._run is not None:
            await self._run
        await self._family.end_strays()


def _environment() -> dict[str, str]:
    """What is here. Ray's own idea of threads isn't meant for engines."""
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


async def _tell_ended_part(engine: LocalEngine) -> None:
    tell({"part": await engine.part_ended()})


def tell(event: Mapping[str, Any]) -> None:
    """Say it. Without anybody to hear it the end of the input follows."""
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(event), flush=True)  # noqa: T201  what its holder reads


async def serve(host: str) -> None:
    """Until the input closes or it is told to end."""
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader(limit=_LINE_BYTES)
    protocol = asyncio.StreamReaderProtocol(requests)
    await loop.connect_read_pipe(lambda: protocol, sys.stdin)
    loop.add_signal_handler(signal.SIGTERM, requests.feed_eof)
    with (
        tempfile.TemporaryDirectory(prefix="headway-") as folder,
        ports.reserve(host) as port,
        ports.reserve(host) as side_port,
    ):
        desk = Desk(Path(folder))
        tell({"port": port.number, "side_port": side_port.number, "log": str(desk.log)})
        while line := await requests.readline():
            desk.do(json.loads(line))
        await desk.end()


def main(argv: Sequence[str]) -> int:
    """Leave, then serve."""
    if os.fork():
        return 0
    os.setsid()
    asyncio.run(serve(argv[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
