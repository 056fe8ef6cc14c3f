"""What the router answers on which path."""

import asyncio
import json
import math
from typing import Final
from urllib.parse import unquote

from headway.config import EVERYONE
from headway.core.admission import Refused
from headway.core.routing.route import RETRY_AFTER_S
from headway.router.openai import ENDPOINTS, BodyError, error_body
from headway.router.serve.browsers import admit
from headway.router.serve.dispatch import Dispatch
from headway.router.serve.generation import generate
from headway.router.serve.passthrough import forward, passes
from headway.router.serve.record import Record
from headway.router.state.metrics import METRICS_TYPE
from headway.router.state.service import Service
from headway.router.wire.client_request import ClientRequest
from headway.router.wire.coding import whole_body
from headway.router.wire.failures import ClientGone
from headway.router.wire.http1 import JSON_TYPE

_OPEN: Final = frozenset({"/health", "/ready", "/metrics"})
"""Paths outside requests' accounts: whether the router is well, and what it has counted."""
_NO_KEY: Final = "the API key is missing or unknown; send Authorization: Bearer KEY"
_NO_KEY_CODE: Final = "invalid_api_key"
_CHALLENGE: Final = (b"www-authenticate", b"Bearer")


class App:
    """Answers clients."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, request: ClientRequest) -> None:
        """One request, from its head to the end of its answer.

        If the client leaves, the task is cancelled, and with it every leg.
        """
        task = asyncio.current_task()
        if task is not None:
            request.on_gone(task.cancel)
        # Engines decode paths, so what a path means is judged decoded.
        path = unquote(request.path)
        origins = self._service.config.router.allowed_origins
        if origins and not admit(request, origins):
            return
        if path in _OPEN:
            self._open(request, path)
            return
        kind = ENDPOINTS.get(path) if request.method == "POST" else None
        record = Record(self._service, request, kind)
        try:
            if self._seated(record, path):
                try:
                    await self._serve(record, path)
                finally:
                    self._service.ceiling.release(self._service.now())
        except (asyncio.CancelledError, ClientGone):
            record.left = request.is_gone
            if not record.left:
                record.failed()
                raise
        except BaseException:
            record.failed()
            raise
        finally:
            record.close()  # the one place where a request ends, however it does

    def _seated(self, record: Record, path: str) -> bool:
        """Whether the request got a seat; else it is answered: refused, or by the router itself."""
        service, request, kind = self._service, record.request, record.kind
        client = _client(service, request) if service.config.keys else EVERYONE
        if client is None:
            record.refuse(401, _NO_KEY, "no key", headers=[_CHALLENGE], code=_NO_KEY_CODE)
        elif kind is None and path == "/v1/models" and request.method in {"GET", "HEAD"}:
            _answer_models(record)
        elif kind is None and not passes(path):
            record.refuse(404, "the router serves no such path", "no such path")
        else:
            record.allowed = service.allowed(client)
            seat = service.ceiling.admit(service.now())
            if not isinstance(seat, Refused):
                return True
            after = [(b"retry-after", b"%d" % math.ceil(seat.retry_after_s))]
            message = "the router serves as many requests as it may"
            record.refuse(429, message, "ceiling", headers=after)
        return False

    async def _serve(self, record: Record, path: str) -> None:
        if record.kind is None:
            await forward(record)
            return
        try:
            await generate(await self._dispatch(record, path))
        except BodyError as error:  # nothing has left: all of them are known before
            record.refuse_body(error)

    async def _dispatch(self, record: Record, path: str) -> Dispatch:
        """The request, read: nothing but this holds its body then. Raises BodyError."""
        service, request = self._service, record.request
        body = await whole_body(request, service.config.router.max_body_bytes, service.bodies)
        splits = service.may_split
        parsed = await service.reader.request(path, body, record.terms, splits=splits)
        record.clamped(parsed.settled.clamped)
        if service.tokens is not None:
            parsed = await service.tokens.measured(parsed)
        service.retries.earn()
        return Dispatch(record, parsed)

    def _open(self, request: ClientRequest, path: str) -> None:
        """Probes have no keys and learn nothing. What is counted says who uses which models how
        much: it takes a key where clients need one, or the admin port, which is of this machine.
        """
        service = self._service
        if request.method not in {"GET", "HEAD"}:
            body = error_body(405, f"{path} answers GET")
            request.respond(405, [JSON_TYPE, (b"allow", b"GET, HEAD")], body)
        elif path == "/metrics" and service.config.keys and _client(service, request) is None:
            body = error_body(401, _NO_KEY, code=_NO_KEY_CODE)
            request.respond(401, [JSON_TYPE, _CHALLENGE], body)
        elif path == "/metrics":
            request.respond(200, [METRICS_TYPE], service.metrics_text())
        elif path == "/health" or service.ready():
            request.respond(200, [], b"")
        else:
            request.respond(503, [JSON_TYPE], error_body(503, "no engine is ready"))


def _client(service: Service, request: ClientRequest) -> str | None:
    """Whose key came with it; None without one that is known."""
    for name, value in request.headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            key = value[7:].strip()
        elif name == b"x-api-key":
            key = value
        else:
            continue
        client = service.config.keys.check(key.decode("latin-1"))
        if client is not None:
            return client
    return None


def _answer_models(record: Record) -> None:
    """An empty list would say that nothing will ever be served."""
    service = record.service
    if any(engine.ready(service.now()) for engine in service.engines.values()):
        record.respond(200, "router", [JSON_TYPE], _models(service))
    else:
        after = [(b"retry-after", b"%d" % RETRY_AFTER_S)]
        record.refuse(503, "no engine is ready", "no engine ready", headers=after)


def _models(service: Service) -> bytes:
    """The union over engines that are ready; the first to serve a model describes it."""
    now_s = service.now()
    found: dict[str, dict[str, object]] = {}
    for engine in service.engines.values():
        if engine.ready(now_s):
            for model in engine.models:
                found.setdefault(str(model.get("id")), model)
    return json.dumps({"object": "list", "data": list(found.values())}).encode()
