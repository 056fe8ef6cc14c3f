"""Active health checks, and what engines report on /metrics."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Final

from headway.config import Health
from headway.core.engine_metrics import parse_metrics
from headway.core.reliability.engine_health import HealthCheck, HealthState
from headway.router.state.engine import EngineState
from headway.router.wire.engines.pool import (
    ConnectTimeout,
    FirstByteTimeout,
    IdleTimeout,
    NoRoom,
    Timeouts,
    TotalTimeout,
    UpstreamError,
)
from headway.router.wire.pieces import joined

STARTING_S: Final = 1.0
"""Between checks of an engine that hasn't been up yet."""
_UNHEARD: Final = (ConnectTimeout, FirstByteTimeout, IdleTimeout, TotalTimeout, NoRoom)
_BUSY: Final = frozenset({408, 429, 504})
"""What a proxy before the engine says that waited for it in vain, or a server with too much."""
METRICS_LIMIT_BYTES: Final = 4 << 20


class Checker:
    """Asks one engine again and again how it is; `core.reliability.engine_health` judges.

    An engine that was ejected comes back slowly: its share of requests grows (`Breaker.weight`).
    """

    def __init__(
        self,
        engine: EngineState,
        settings: Callable[[], Health],
        *,
        now: Callable[[], float],
        say: Callable[[str], None],
        lines: Callable[[], bytes],
        ejected: Callable[[], None],
    ) -> None:
        """settings, lines (of a request's head): asked at each check; a reload may change them.

        ejected: called when the engine is.
        """
        self._engine = engine
        self._settings = settings
        self._now = now
        self._say = say
        self._lines = lines
        self._ejected = ejected

    async def run(self) -> None:
        """Check for ever."""
        while True:
            await self.check()
            interval_s = self._settings().interval_s
            starting = self._engine.health.state is HealthState.STARTING
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(STARTING_S, interval_s) if starting else interval_s):
                    await self._engine.expected.wait()
            self._engine.expected.clear()

    async def check(self) -> None:
        """One look: health, and on a healthy engine its models and figures."""
        engine = self._engine
        health = await self._get(b"/health")
        moved = False
        if isinstance(health, bytes) or engine.health.usable:
            metrics = await self._get(b"/metrics")
            if isinstance(metrics, bytes):
                report = parse_metrics(metrics)
                moved = report.progress > engine.report.progress
                engine.report, engine.reported_s = report, self._now()
        found = HealthCheck.PASSED if isinstance(health, bytes) else health
        if found is HealthCheck.PASSED:
            # Adapters come and go, and the engine may be another one than a check ago.
            learned = await self._learn_models()
            found = found if engine.models else learned
        if found is not HealthCheck.PASSED and (
            moved or self._now() - engine.heard_s() < self._settings().interval_s
        ):
            found = HealthCheck.PROGRESS
        self._take(found)

    def _take(self, found: HealthCheck) -> None:
        """What a check found, and what follows from it."""
        engine, settings = self._engine, self._settings()
        health = engine.health
        if not health.checked(found, self._now(), fails=settings.fails, passes=settings.passes):
            return
        failed = health.checks.failed
        if health.state is HealthState.EJECTED:
            engine.models = ()
            self._ejected()
            self._say(f"{engine.id} is ejected: {failed} health checks failed")
        elif health.state is HealthState.DEGRADED:
            self._say(
                f"{engine.id} is degraded: {failed} health checks unanswered; it gets the "
                "requests that no other engine can serve"
            )
        else:
            self._say(f"{engine.id} is ready")

    async def _learn_models(self) -> HealthCheck:
        body = await self._get(b"/v1/models")
        if not isinstance(body, bytes):
            return body
        try:
            said = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            return HealthCheck.DEAD
        data = said.get("data") if isinstance(said, dict) else None
        models = [m for m in data if isinstance(m, dict)] if isinstance(data, list) else []
        self._engine.learn_models(tuple(models))
        return HealthCheck.PASSED if models else HealthCheck.DEAD

    async def _get(self, target: bytes) -> bytes | HealthCheck:
        """The body of a 200 answer; else whether the engine is silent or dead."""
        upstream, limit_s = self._engine.upstream, self._settings().timeout_s
        timeouts = Timeouts(limit_s, limit_s, limit_s, 2 * limit_s)
        try:
            call = await upstream.send("GET", target, self._lines(), b"", timeouts)
            body = joined(await call.read(METRICS_LIMIT_BYTES))
        except _UNHEARD:
            return HealthCheck.SILENT
        except UpstreamError:
            return HealthCheck.DEAD
        if call.status == 200:
            return body
        return HealthCheck.SILENT if call.status in _BUSY else HealthCheck.DEAD
