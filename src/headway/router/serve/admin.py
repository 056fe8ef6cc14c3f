"""The admin port: what the router knows, and draining. Loopback only."""

import json
import re
from typing import Final
from urllib.parse import parse_qs

from headway.config import TimeoutSettings
from headway.core.json_shape import to_json
from headway.core.status import (
    ReportedStatus,
    RouteCount,
    RoutedEngine,
    RoutedPool,
    RouterState,
    WorkStatus,
    written,
)
from headway.router.openai import error_body
from headway.router.state.engine import EngineState
from headway.router.state.metrics import METRICS_TYPE
from headway.router.state.service import Service
from headway.router.wire.client_request import ClientRequest
from headway.router.wire.http1 import JSON_TYPE

_SHOWN: Final = 200
"""Characters of an engine's name that an error repeats."""
_LOOPBACK: Final = re.compile(rb"(?:127\.\d+\.\d+\.\d+|\[::1\]|localhost)(?::\d+)?")


class Admin:
    """`GET /state`, `GET /metrics`, `POST /drain?engine=ID`, `POST /undrain?engine=ID`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, request: ClientRequest) -> None:
        """One request."""
        if _from_a_page(request):
            request.respond(403, [JSON_TYPE], error_body(403, "not for web pages; use curl"))
        elif request.path == "/state" and request.method == "GET":
            request.respond(200, [JSON_TYPE], written(self.state(), indent=1).encode())
        elif request.path == "/metrics" and request.method == "GET":
            service = self._service
            request.respond(200, [METRICS_TYPE], service.metrics_text())
        elif request.path in {"/drain", "/undrain"} and request.method == "POST":
            self._drain(request, draining=request.path == "/drain")
        else:
            message = "use GET /state, GET /metrics, POST /drain?engine=ID, POST /undrain?engine=ID"
            request.respond(404, [JSON_TYPE], error_body(404, message))

    def state(self) -> RouterState:
        """Everything a person would ask for."""
        service = self._service
        now_s, limits = service.now(), service.config.router.timeouts
        return RouterState(
            strategy=service.config.router.strategy,
            in_flight=service.ceiling.in_flight,
            pools=tuple(
                RoutedPool(
                    name=pool.name,
                    role=pool.role,
                    max_prompt_tokens=pool.max_prompt_tokens,
                    engines=tuple(_of(engine, now_s, limits) for engine in pool.engines),
                )
                for pool in service.pools
            ),
            routes=tuple(
                RouteCount(**sample.labels, count=int(sample.value))
                for family in service.metrics.routes.collect()
                for sample in family.samples
                if sample.name.endswith("_total")
            ),
        )

    def _drain(self, request: ClientRequest, *, draining: bool) -> None:
        named = parse_qs(request.query.decode("latin-1")).get("engine", [""])
        engine = self._service.engines.get(named[0]) if len(named) == 1 else None
        if engine is None:
            known = ", ".join(self._service.engines)
            said = f"no engine {', '.join(named)[:_SHOWN]!r}; name one of: {known}"
            request.respond(404, [JSON_TYPE], error_body(404, said))
            return
        if draining:
            engine.health.draining = True
        else:
            engine.undrain(self._service.now())
        told = _of(engine, self._service.now(), self._service.config.router.timeouts)
        request.respond(200, [JSON_TYPE], json.dumps(to_json(told)).encode())


def _from_a_page(request: ClientRequest) -> bool:
    """Whether a browser may have been led here by a page from elsewhere."""
    fields = dict(request.headers)
    named = _LOOPBACK.fullmatch(fields.get(b"host", b"localhost"))
    return b"origin" in fields or named is None


def _of(engine: EngineState, now_s: float, limits: TimeoutSettings) -> RoutedEngine:
    health, load, report = engine.health, engine.load, engine.report
    return RoutedEngine(
        id=engine.id,
        ready=engine.ready(now_s),
        reason=health.why(now_s),
        healthy=health.usable,
        health=health.state.value,
        draining=health.draining,
        breaker=health.breaker.state(now_s),
        weight=health.weight(now_s),
        models=engine.model_names(),
        max_model_len=engine.max_model_len,
        prefill_tokens_per_s=round(load.prefill_tokens_per_s, 1),
        patience_s=round(engine.patience_s(limits), 1),
        address=engine.upstream.address(),
        work=WorkStatus(**{name: getattr(load.work, name) for name in load.work.__slots__}),
        reported=ReportedStatus(
            waiting=report.waiting,
            running=report.running,
            kv_capacity_tokens=report.kv_capacity_tokens,
            kv_moved_bytes=report.kv_bytes,
        ),
    )
