"""Whatever vLLM serves beside generation, passed on to one engine as it is."""

import json
import re
from collections.abc import AsyncIterator, Collection
from typing import Final

from headway.core.admission import ByteCeiling
from headway.core.routing.strategy import RETRY_AFTER_S
from headway.router.bodies import TRANSFER_FIELDS, dump
from headway.router.headers import answer_lines
from headway.router.leg import Leg, LegFailed
from headway.router.openai import BodyError
from headway.router.record import Record
from headway.router.request import BodyTooLarge, ClientRequest
from headway.router.state import Engine
from headway.router.upstream import Call, UpstreamError

ATTEMPTS: Final = 3

_PATHS: Final = re.compile(
    r"/(?:v[12]|cohere/v2)/.+|/(?:de)?tokenize|/tokenizer_info|/pooling|/classify|/score|/rerank"
    r"|/generative_scoring|/inference/v1/generate|/invocations|/ping|/version|/docs|/openapi\.json"
)
_KEPT: Final = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
_ODD: Final = re.compile(r"/\.{0,2}(?:/|$)|[^!-\[\]-~]")
_MARKS: Final = (*(name.encode() for name in TRANSFER_FIELDS), b"\\u", b"\0")
"""Without these bytes a body can't name a transfer field: \\u escapes, NUL stands for UTF-16."""


def passes(path: str) -> bool:
    """Whether clients may have this path (decoded).

    What vLLM serves for those who run an engine (sleep, weights, adapters, ...) isn't for those
    who use it. A path that a server might read as another one isn't passed on either.
    """
    return path not in _KEPT and not _ODD.search(path) and _PATHS.fullmatch(path) is not None


async def forward(record: Record) -> None:
    """Pass a request on and answer it."""
    try:
        await _forward(record)
    except BodyError as error:
        if record.request.started:
            record.request.abort()
            record.broke_off = True
            return
        record.refuse_body(error)


async def _forward(record: Record) -> None:
    service, request = record.service, record.request
    limit = service.config.router.max_body_bytes
    whole = await _read(request, limit, service.bodies)
    first: LegFailed | None = None
    tried: list[str] = []
    service.retries.earn()
    while engine := _least_busy(record, tried):
        tried.append(engine.id)
        record.served("passed through", *tried)
        body = _stream(request, limit, service.bodies) if whole is None else whole
        try:
            await _on(engine, record, body)
        except LegFailed as failure:
            first = first or failure
            # A body that went out as it came is gone, unless nothing was sent.
            again = failure.cause == "connect" or whole is not None
            if not again or len(tried) == ATTEMPTS or not service.retries.spend(service.now()):
                break
            service.metrics.retries.add(failure.cause)
        else:
            return
    if first is None:
        after = [(b"retry-after", b"%d" % RETRY_AFTER_S)]
        record.refuse(503, "no engine is ready", "no engine ready", headers=after)
    else:
        status = 504 if first.cause == "timeout" else 502
        record.refuse(status, f"the engine gave no answer ({first.cause})", "passed through")


async def _on(engine: Engine, record: Record, body: bytes | AsyncIterator[bytes]) -> None:
    """One attempt. Raises LegFailed while nothing has reached the client."""
    service, request = record.service, record.request
    target = request.path.encode("latin-1")
    if request.query:
        target += b"?" + request.query
    lines = service.upstream_lines(request.headers)
    timeouts = service.timeouts(0, streams=False)
    with Leg(engine, service.now, prefill_tokens=0, kv_tokens=0) as leg:
        call = await leg.send(request.method, target, lines, body, timeouts, length=request.length)
        if call.status != 501:  # what an engine doesn't offer says nothing about its health
            leg.judge(call.status)
        service.metrics.routes.add(service.config.router.strategy, "passed through")
        await _answer(record, call)


async def _answer(record: Record, call: Call) -> None:
    request = record.request
    # A redirect would send the client to the engine itself.
    headers = [field for field in call.headers if field[0] != b"location"]
    record.status, record.by_engine = call.status, True
    request.start(call.status, length=call.length, lines=answer_lines(headers) + record.lines())
    request.flush()
    try:
        await call.pump(request)
    except UpstreamError:
        request.abort()
        record.broke_off = True
        return
    request.finish()


async def _read(request: ClientRequest, limit: int, ceiling: ByteCeiling) -> bytes | None:
    """The body if it may be JSON, without what clients may not say; None for one to stream.

    Raises BodyError.
    """
    if request.length == 0:
        return b""
    if request.length is not None and request.length > limit:
        raise BodyTooLarge(limit)
    types = [value.lower() for name, value in request.headers if name == b"content-type"]
    if types and not any(b"json" in value for value in types):
        return None
    return _without_handoff(await request.body(limit, ceiling))


def _without_handoff(body: bytes) -> bytes:
    """The same bytes, unless they name a field that makes engines connect elsewhere.

    Some of these paths generate too, with fields in other places. Raises BodyError.
    """
    if not any(mark in body for mark in _MARKS):
        return body
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise BodyError(400, "The body must be JSON.", code="invalid_json") from None
    return dump(value) if _strip(value) else body


def _strip(value: object) -> bool:
    """Take the fields out at any depth; whether there was anything."""
    found = False
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            named = [name for name in TRANSFER_FIELDS if name in each]
            for name in named:
                del each[name]
            found = found or bool(named)
            todo += each.values()
        elif isinstance(each, list):
            todo += each
    return found


async def _stream(request: ClientRequest, limit: int, ceiling: ByteCeiling) -> AsyncIterator[bytes]:
    """The body as it comes. Raises BodyError."""
    size = 0
    async for part in request.stream_body(ceiling):
        size += len(part)
        if size > limit:
            raise BodyTooLarge(limit)
        yield part


def _least_busy(record: Record, tried: Collection[str]) -> Engine | None:
    service = record.service
    now_s = service.now()
    ready = [
        e
        for e in service.engines.values()
        if e.ready(now_s) and e.pool.role != "prefill" and e.id not in tried
    ]
    draw = service.random.random
    return min(ready, key=lambda e: (e.degraded, e.work.requests, draw()), default=None)
