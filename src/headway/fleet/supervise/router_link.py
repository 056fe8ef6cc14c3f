"""The router as the supervisor knows it: its process, and what it is told on its admin port."""

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from headway.core.status import RouterState, read
from headway.engine.start.command import EngineCommand
from headway.fleet.net.http_async import exchange

_TELL_TIMEOUT_S: Final = 2.0
_STATE_TIMEOUT_S: Final = 5.0
_AGAIN_S: Final = 0.1


def command(file: Path, url: str, environ: Mapping[str, str], drain_s: float) -> EngineCommand:
    """What to run. file: its settings. drain_s: how long its answers may take to end."""
    return EngineCommand(
        argv=(sys.executable, "-m", "headway", "route", "--config", str(file)),
        env=environ,
        url=url,
        served_name="router",
        settings=None,
        drain_s=drain_s,
    )


class RouterLink:
    """Keeps the router told which engines may get requests, also after it was restarted.

    A router that has just started believes that all may. Engines go by the router's ids.
    state: what it last said of itself, empty while it isn't known.
    """

    def __init__(self, admin_url: str) -> None:
        self.state = RouterState()
        self._url = admin_url
        self._open: dict[str, bool] = {}
        self._known_open: dict[str, bool] = {}
        self._run = 0
        """Which router process: what one was told, the next doesn't know."""
        self._up = False
        self._news = asyncio.Event()
        self._heard_news = asyncio.Event()

    def started(self) -> None:
        """A new router process starts."""
        self._begin(up=True)

    def ended(self) -> None:
        """It has ended."""
        self._begin(up=False)

    def _begin(self, *, up: bool) -> None:
        self._run += 1
        self._up = up
        self._known_open.clear()
        self.state = RouterState()
        self._wake()

    def set_open(self, engine: str, *, is_open: bool) -> None:
        """Whether requests may go there. The router is told at once, and until it has heard."""
        self._open[engine] = is_open
        self._wake()

    def forget(self, engine: str) -> None:
        """The engine has left the router's file."""
        self._open.pop(engine, None)
        self._known_open.pop(engine, None)

    async def run(self) -> None:
        """Tell the router, for ever."""
        while True:
            self._news.clear()
            late = self._untold()
            if not late:
                await self._news.wait()
                continue
            await asyncio.gather(*map(self._send, late))
            if self._untold():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), _AGAIN_S)

    def _untold(self) -> list[str]:
        if not self._up:
            return []
        return [
            name for name, is_open in self._open.items() if self._believes_open(name) is not is_open
        ]

    def _believes_open(self, engine: str) -> bool:
        return self._known_open.get(engine, True)

    async def _send(self, engine: str) -> None:
        run, is_open = self._run, self._open[engine]
        verb = "undrain" if is_open else "drain"
        url = f"{self._url}/{verb}?engine={quote(engine, safe='')}"
        with contextlib.suppress(ConnectionError):
            reply = await exchange("POST", url, _TELL_TIMEOUT_S)
            if reply is not None and reply.status == 200 and run == self._run:
                self._known_open[engine] = is_open
                self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._heard_news.set()
        self._heard_news = asyncio.Event()

    async def refresh(self) -> bool:
        """Ask for its state; whether it answered."""
        with contextlib.suppress(ConnectionError, ValueError):
            run = self._run
            reply = await exchange("GET", f"{self._url}/state", _STATE_TIMEOUT_S)
            if reply is not None and reply.status == 200 and run == self._run:
                self.state = read(RouterState, reply.body)
                return True
        return False

    @property
    def up(self) -> bool:
        """Whether there is a router process."""
        return self._up

    def told_closed(self, engine: str) -> bool:
        """Whether the router sends no new requests there, as far as is known."""
        return not self._up or not self._believes_open(engine)

    async def until_closed(self, engine: str) -> None:
        """Wait until the router sends no new requests there."""
        while not self.told_closed(engine):
            await self._heard_news.wait()

    def requests(self, engine: str) -> int:
        """How many it waits for there, as of the last `refresh`."""
        return self.routed(engine)[0]

    def routed(self, engine: str) -> tuple[int, float]:
        """As `requests`, and how long the one that may take longest may take, seconds."""
        found = self.state.engine(engine)
        return (found.work.requests, found.patience_s) if found else (0, 0.0)

    def serves(self, engine: str) -> bool:
        """Whether it sends requests there, as of the last `refresh` and what it was told since."""
        found = self.state.engine(engine)
        return found is not None and found.ready and self._believes_open(engine)


class RouterProbe:
    """`Probe` of the router. hang_s: it is hung if it hasn't answered for so long."""

    def __init__(self, link: RouterLink, hang_s: float) -> None:
        self._link = link
        self._hang_s = hang_s
        self._answered_s: float | None = None

    async def ready(self) -> bool:
        return await self._link.refresh()

    async def dead(self) -> bool:
        return False  # it is one process

    async def trouble(self, now_s: float) -> str | None:
        if await self._link.refresh() or self._answered_s is None:
            self._answered_s = now_s
        silent_s = now_s - self._answered_s
        return f"hung: no answer for {silent_s:.0f} s" if silent_s >= self._hang_s else None
