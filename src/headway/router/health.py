"""Active health checks, and what engines report on /metrics."""

import asyncio
import contextlib
import json
import math
import re
from collections.abc import Callable
from typing import Final

from headway.config import Health
from headway.router.state import Engine, Report
from headway.router.upstream import Timeouts, UpstreamError

STARTING_S: Final = 1.0
"""Between checks of an engine that hasn't been up yet."""
METRICS_LIMIT_BYTES: Final = 4 << 20
_SAMPLE: Final = re.compile(rb"^(vllm:[a-z_]+)(?:\{([^}]*)\})? ([0-9.eE+-]+)$", re.MULTILINE)
_LABEL: Final = re.compile(rb'([a-z_]+)="([^"]*)"')
_PROGRESS: Final = (b"vllm:generation_tokens_total", b"vllm:prompt_tokens_total")
_KV_BYTES: Final = b"vllm:nixl_bytes_transferred_sum"


def parse_report(text: bytes, now_s: float) -> Report:
    """What vLLM's /metrics says; sums over the engine's ranks. Unknown lines are ignored."""
    found = Report(at_s=now_s)
    for name, labels, number in _SAMPLE.findall(text):
        try:
            value = float(number)
        except ValueError:
            continue
        if not math.isfinite(value):
            continue
        if name == b"vllm:num_requests_waiting":
            found.waiting += int(value)
        elif name == b"vllm:num_requests_running":
            found.running += int(value)
        elif name in _PROGRESS:
            found.progress += value
        elif name == _KV_BYTES:
            found.kv_bytes += value
        elif name == b"vllm:cache_config_info":
            found.kv_capacity_tokens = _capacity(dict(_LABEL.findall(labels)))
    return found


def _capacity(labels: dict[bytes, bytes]) -> int | None:
    blocks, tokens = labels.get(b"num_gpu_blocks", b""), labels.get(b"block_size", b"")
    return int(blocks) * int(tokens) if blocks.isdigit() and tokens.isdigit() else None


class Checker:
    """Asks one engine again and again how it is.

    An engine is ejected after `fails` failed checks in a row, and not while it visibly makes
    progress: a slow /health under load isn't death. `passes` good checks bring it back, and then
    its share of requests grows slowly (`Breaker.weight`).
    """

    def __init__(
        self,
        engine: Engine,
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
            starting = not (self._engine.healthy or self._engine.ejected)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(STARTING_S, interval_s) if starting else interval_s):
                    await self._engine.expected.wait()
            self._engine.expected.clear()

    async def check(self) -> None:
        """One look: health, and on a healthy engine its models and figures."""
        engine = self._engine
        alive = await self._get(b"/health") is not None
        metrics = await self._get(b"/metrics") if alive or engine.healthy else None
        moved = False
        if metrics is not None:
            report = parse_report(metrics, self._now())
            moved = report.progress > engine.report.progress
            engine.report = report
        if alive and not engine.models:
            alive = await self._learn_models()
        if alive:
            self._passed()
        elif not (moved or self._now() - engine.heard_s() < self._settings().interval_s):
            self._failed()

    def _passed(self) -> None:
        engine = self._engine
        engine.failed_checks = 0
        engine.passed_checks += 1
        back = engine.passed_checks >= self._settings().passes or not engine.ejected
        if not engine.healthy and back:
            if engine.ejected:
                engine.breaker.readmitted(self._now())
            engine.healthy, engine.ejected = True, False
            self._say(f"{engine.id} is ready")

    def _failed(self) -> None:
        engine = self._engine
        engine.passed_checks = 0
        engine.failed_checks += 1
        if engine.healthy and engine.failed_checks >= self._settings().fails:
            engine.healthy, engine.ejected, engine.models = False, True, ()
            self._ejected()
            self._say(f"{engine.id} is ejected: {engine.failed_checks} health checks failed")

    async def _learn_models(self) -> bool:
        body = await self._get(b"/v1/models")
        try:
            said = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            return False
        data = said.get("data") if isinstance(said, dict) else None
        models = [m for m in data if isinstance(m, dict)] if isinstance(data, list) else []
        self._engine.learn_models(tuple(models))
        return bool(models)

    async def _get(self, target: bytes) -> bytes | None:
        """The body of a 200 answer, None for anything else."""
        upstream, limit_s = self._engine.upstream, self._settings().timeout_s
        timeouts = Timeouts(limit_s, limit_s, limit_s, 2 * limit_s)
        try:
            call = await upstream.send("GET", target, self._lines(), b"", timeouts)
            body = await call.read(METRICS_LIMIT_BYTES)
        except UpstreamError:
            return None
        return body if call.status == 200 else None
