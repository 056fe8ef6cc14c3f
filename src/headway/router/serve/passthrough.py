"""Whatever vLLM serves beside generation, passed on to one engine as it is."""

import re
from collections.abc import AsyncIterator
from typing import Final

from headway.core.admission import ByteCeiling
from headway.core.reliability.retry import Attempts
from headway.core.routing.fallback import passed_on
from headway.core.routing.route import RETRY_AFTER_S
from headway.router.openai import BodyError, Settled, Terms, settle_passed
from headway.router.openai.beside import BodyReader
from headway.router.openai.forms import FormWatch
from headway.router.serve.attempt import Leg, LegFailed
from headway.router.serve.record import Record
from headway.router.state.engine import EngineState
from headway.router.wire.client_request import ClientRequest
from headway.router.wire.coding import whole_body
from headway.router.wire.engines.pool import Call, UpstreamError
from headway.router.wire.errors import BodyTooLarge
from headway.router.wire.headers import answer_lines
from headway.router.wire.pieces import Body, parts_of

_PATHS: Final = re.compile(
    r"/(?:v[12]|cohere/v2)/.+|/(?:de)?tokenize|/tokenizer_info|/pooling|/classify|/score|/rerank"
    r"|/generative_scoring|/inference/v1/generate|/invocations|/ping|/version|/docs|/openapi\.json"
)
_KEPT: Final = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
_ODD: Final = re.compile(r"/\.{0,2}(?:/|$)|[^!-\[\]-~]")


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


class _Sent:
    """What goes to an engine, and to another one if that fails.

    whole: None for a body that passes as it comes, and once an answer has begun.
    """

    def __init__(
        self, request: ClientRequest, limit: int, ceiling: ByteCeiling, reader: BodyReader
    ) -> None:
        self._request = request
        self._limit = limit
        self._ceiling = ceiling
        self._reader = reader
        self._watch = FormWatch(b"")
        self.whole: Body | None = None

    async def read(self, terms: Terms) -> Settled:
        """Read it if it may be JSON, without what clients may not say, or is compressed.

        Raises BodyError.
        """
        request = self._request
        settled = settle_passed(None, terms)
        if request.length == 0:
            self.whole = b""
            return settled
        if request.length is not None and request.length > self._limit:
            raise BodyTooLarge(self._limit)
        types = [value.lower() for name, value in request.headers if name == b"content-type"]
        as_json = not types or any(b"json" in value for value in types)
        if not as_json:
            self._watch = FormWatch(b";".join(types))
        if as_json or request.codings:
            whole = await whole_body(request, self._limit, self._ceiling)
            if as_json:
                whole, settled = await self._reader.passed(whole, terms)
            else:
                for part in parts_of(whole):
                    self._watch.look(part)
            self.whole = whole
        return settled

    def body(self) -> Body | AsyncIterator[bytes]:
        """All of it, or it as it comes, which can be had once."""
        return self._stream() if self.whole is None else self.whole

    async def _stream(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._request.stream_body(self._ceiling):
            size += len(part)
            if size > self._limit:
                raise BodyTooLarge(self._limit)
            self._watch.look(part)
            yield part


async def _forward(record: Record) -> None:
    service, request = record.service, record.request
    limit = service.config.router.max_body_bytes
    sent = _Sent(request, limit, service.bodies, service.reader)
    settled = await sent.read(record.terms)
    record.clamped(settled.clamped)
    attempts: Attempts[LegFailed] = Attempts(service.retries)
    tried: list[str] = []
    service.retries.earn()
    while found := passed_on(
        service.views(), excluded=attempts.excluded, draw=service.random.random()
    ):
        engine = service.engines[found]
        tried.append(engine.id)
        record.served("passed through", *tried)
        try:
            await _on(engine, record, sent, settled.priority)
        except LegFailed as failure:
            # A body that went out as it came is gone, unless nothing was sent.
            if not attempts.may_follow(
                failure,
                now_s=service.now(),
                left_s=service.config.router.timeouts.total_s - record.spent_s,
                repeatable=failure.unsent or sent.whole is not None,
            ):
                break
            service.metrics.retries.add(failure.cause)
        else:
            return
    told = attempts.told
    if told is None:
        after = [(b"retry-after", b"%d" % RETRY_AFTER_S)]
        record.refuse(503, "no engine is ready", "no engine ready", headers=after)
    else:
        message = f"the engine gave no answer ({told.cause})"
        record.refuse(told.client_status, message, "passed through")


async def _on(engine: EngineState, record: Record, sent: _Sent, priority: int | None) -> None:
    """One attempt. Raises LegFailed while nothing has reached the client."""
    service, request = record.service, record.request
    target = request.path.encode("latin-1")
    if request.query:
        target += b"?" + request.query
    lines = service.upstream_lines(request.headers, priority)
    timeouts = service.timeouts(0, streams=False, spent_s=record.spent_s)
    with Leg(engine, service.now, prefill_tokens=0, kv_tokens=0) as leg:
        body = sent.body()
        call = await leg.send(request.method, target, lines, body, timeouts, length=request.length)
        del body  # no other engine may try any more
        sent.whole = None
        if call.status != 501:  # what an engine doesn't offer says nothing about its health
            leg.judge(call.status)
        service.metrics.routes.add(service.config.router.strategy, "passed through")
        await _answer(record, call)


async def _answer(record: Record, call: Call) -> None:
    request = record.request
    record.status, record.by_engine = call.status, True
    request.start(
        call.status, length=call.length, lines=answer_lines(call.headers) + record.lines()
    )
    request.flush()
    try:
        await call.pump(request)
    except UpstreamError:
        request.abort()
        record.broke_off = True
        return
    request.finish()
