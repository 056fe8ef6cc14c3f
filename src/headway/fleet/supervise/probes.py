"""How the processes of a fleet are: ready, dead, or hung."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from headway.core.engine_metrics import parse_metrics
from headway.fleet.net.http_async import HttpReply, exchange

LOOK_S: Final = 5.0
"""Between two looks at an engine that is ready."""
_QUICK_S: Final = 1.0
_LOOK_TIMEOUT_S: Final = 5.0


class ProcessProbe(Protocol):
    """Asks a process how it is."""

    async def ready(self) -> bool:
        """Whether it answers."""

    async def dead(self) -> bool:
        """Whether it says that it can't go on, or nobody listens. No answer says nothing."""

    async def trouble(self, now_s: float) -> str | None:
        """Why it must be ended, "" if its log will tell, None if it needn't be. Asked regularly."""


@dataclass(frozen=True, slots=True)
class Look:
    """What an engine showed.

    health: the status of /health, None without an answer.
    work: requests it runs or has waiting; None where it didn't say.
    moves: figures of which some change with every step that computes something.
    routed: requests that the router waits for there. patience_s: how long the one among them
        that may take longest may take.
    """

    health: int | None
    work: float | None = None
    moves: tuple[float, ...] = ()
    routed: int = 0
    patience_s: float = 0.0


class WorkProgress:
    """Notices an engine that hangs.

    hang_s: it does if it has work and nothing moves for so long, or /health doesn't answer. If the
        router waits for a request there that may take longer, it has as long as that request:
        what is silent may be computing it (compiling, or one huge prompt in one step).
    doubtful: the router has waited for so long and the engine knows of no work. Either the client
        is slow to take its answer, or the engine core hung before it could tell of the request.
    Times are seconds on one monotonic clock.
    """

    def __init__(self, hang_s: float) -> None:
        self.doubtful = False
        self._hang_s = hang_s
        self._moves: tuple[float, ...] = ()
        self._answered_s: float | None = None
        self._moved_s = 0.0
        """When it last moved or had nothing to do."""

    def observe(self, look: Look, now_s: float) -> str | None:
        """Why the engine counts as hung, None if it doesn't."""
        if self._answered_s is None or look.health is not None:
            self._answered_s = now_s
        if look.work is not None and (look.moves != self._moves or not (look.work or look.routed)):
            self._moves, self._moved_s = look.moves, now_s
        silent_s, still_s = now_s - self._answered_s, now_s - self._moved_s
        limit_s = max(self._hang_s, look.patience_s)
        still = look.work is not None and still_s >= limit_s
        self.doubtful = still and not look.work
        if silent_s >= limit_s:
            return f"hung: /health hasn't answered for {silent_s:.0f} s"
        if still and look.work:
            return f"hung: {look.work:.0f} requests and no progress for {still_s:.0f} s"
        return None


class EngineProbe:
    """`ProcessProbe` of a vLLM server at `url`.

    routed: as `Look` has it, and its patience_s.
    note: told what is to be said of the engine though it runs, at each look; at first nothing.
    """

    def __init__(
        self,
        url: str,
        hang_s: float,
        routed: Callable[[], tuple[int, float]],
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._url = url
        self._note = note
        note("")
        self._hang_s = hang_s
        self._routed = routed
        self._progress = WorkProgress(hang_s)

    async def ready(self) -> bool:
        return await self._status("/health", _QUICK_S) == 200

    async def dead(self) -> bool:
        try:
            reply = await exchange("GET", f"{self._url}/health", _QUICK_S)
        except ConnectionError:
            return True
        return reply is not None and reply.status == 503

    async def trouble(self, now_s: float) -> str | None:
        routed_before = self._routed()
        health = await self._status("/health", _LOOK_TIMEOUT_S)
        if health == 503:
            return ""  # the engine core has died, and its log says why
        why = self._progress.observe(await self._seen(health, routed_before), now_s)
        if why is None and self._progress.doubtful and not await self._computes():
            why = f"hung: a request for one token wasn't answered within {self._hang_s:.0f} s"
        return why

    async def _seen(self, health: int | None, routed_before: tuple[int, float]) -> Look:
        reply = await self._get("/metrics", _LOOK_TIMEOUT_S)
        # A request may end while the engine is asked: it was over that one when it was silent.
        now = self._routed()
        routed, patience_s = max(routed_before[0], now[0]), max(routed_before[1], now[1])
        if reply is None or reply.status != 200:
            return Look(health, routed=routed, patience_s=patience_s)
        metrics = parse_metrics(reply.body)
        self._note(str(metrics.fallback))
        work = metrics.running + metrics.waiting
        return Look(health, work, metrics.moves, routed, patience_s)

    async def _computes(self) -> bool:
        """Whether it answers a request that the engine core must see. What can't be asked, does."""
        models = await self._get("/v1/models", _LOOK_TIMEOUT_S)
        try:
            name = json.loads(models.body if models else b"")["data"][0]["id"]
        except (ValueError, LookupError, TypeError):
            return True
        content = json.dumps({"model": name, "prompt": "1", "max_tokens": 1}).encode()
        url = f"{self._url}/v1/completions"
        with contextlib.suppress(ConnectionError):
            return await exchange("POST", url, self._hang_s, content) is not None
        return False

    async def _status(self, target: str, timeout_s: float) -> int | None:
        reply = await self._get(target, timeout_s)
        return reply.status if reply else None

    async def _get(self, target: str, timeout_s: float) -> HttpReply | None:
        with contextlib.suppress(ConnectionError):
            return await exchange("GET", f"{self._url}{target}", timeout_s)
        return None
