"""The client's side of a generating request: what it is answered, and what that looked like."""

import asyncio
import re
from collections.abc import Callable
from typing import Final, cast

from headway.core.routing.route import Reason, Route
from headway.core.routing.views import RequestView
from headway.router.openai import (
    Parsed,
    answer_lines,
    error_body,
    stream_error,
    streams_events,
)
from headway.router.openai.answers import AnswerError
from headway.router.openai.stream import Opening, StreamCleaner, StreamTap
from headway.router.serve.attempt import Leg, LegFailed
from headway.router.serve.record import Record
from headway.router.wire.client_request import ClientRequest
from headway.router.wire.engines.pool import BadUpstream, Call, CutShort, Sink, UpstreamError
from headway.router.wire.http1 import JSON_TYPE, Headers

ANSWER_LIMIT_BYTES: Final = 1 << 28
_USAGE: Final = re.compile(rb'"(prompt|input|completion|output)_tokens":\s*(\d{1,12})\b')
_USAGE_BYTES: Final = 4_096
"""Where to look for an answer's usage: at its end."""


class Reply:
    """One request's answer."""

    def __init__(self, record: Record, parsed: Parsed, view: RequestView) -> None:
        self._record = record
        self._service = record.service
        self._request = record.request
        self._parsed = parsed
        self._view = view

    @property
    def parsed(self) -> Parsed:
        """The request; without its body once a stream has begun."""
        return self._parsed

    @property
    def started(self) -> bool:
        """Some of it has left: no other engine may answer now."""
        return self._request.started

    async def pass_on(
        self,
        leg: Leg,
        call: Call,
        on_first: Callable[[], None] | None = None,
        *,
        cached_tokens: int | None = None,
        clean: bool = False,
    ) -> None:
        """Pass an engine's answer on. Raises LegFailed while nothing of it has left.

        on_first: called when the first bytes of its body have come.
        clean: handoff parameters are taken out. cached_tokens: see `strip_answer`.
        """
        if self._parsed.stream and streams_events(call.headers):
            if call.codings:
                raise leg.broke(BadUpstream("a compressed stream, which wasn't asked for"))
            cleaner = StreamCleaner(cached_tokens=cached_tokens) if clean else None
            await self._stream(leg, call, on_first, cleaner)
            return
        body = await leg.read(call, ANSWER_LIMIT_BYTES)
        reader = self._service.reader
        if not await reader.is_whole(body, framed=call.framed):
            raise leg.broke(CutShort("half an answer"), call.status)
        if on_first is not None:
            on_first()
        if clean:
            try:
                body = await reader.clean_answer(body, cached_tokens=cached_tokens)
            except AnswerError as error:
                raise leg.broke(error, call.status) from error
        self._mark_first(leg)
        self._record.status = call.status
        lines = answer_lines(call.headers, rewritten=clean) + self._own_lines()
        if isinstance(body, bytes):
            self._request.respond(call.status, (), body, lines=lines)
            self._learn_usage(body)
            return
        self._request.start(call.status, length=len(body), lines=lines)
        for part in body.parts:
            self._request.write(part)
            await asyncio.sleep(0)  # others have their turn
        self._request.finish()
        self._learn_usage(body.end(_USAGE_BYTES))

    async def _stream(
        self,
        leg: Leg,
        call: Call,
        on_first: Callable[[], None] | None,
        cleaner: StreamCleaner | None,
    ) -> None:
        """The head leaves with the first bytes of the body: until then another engine may try.

        vLLM sends its head before it has a token. An engine that fails in between, as all do
        that die, says so in the first event, and that is an answer to nobody. Nor is a stream
        that ends before it says that it is complete: what its connection or its chunks say of
        its end is true of a part of an answer too.
        """
        request = self._request
        self._record.tap = tap = StreamTap(self._parsed.kind)
        opening = Opening()

        def begin(data: bytes) -> bytes:
            first = opening.feed(data)
            if opening.error is not None:
                status, body = opening.error
                raise leg.refused(status, [JSON_TYPE], body)
            if first:
                self._begin(leg, call, on_first, rewritten=cleaner is not None)
            return first

        failure: UpstreamError | AnswerError = CutShort("it ended before it was complete")
        try:
            sink = request if cleaner is None else cast("Sink", Cleaned(request, cleaner))
            await call.pump(sink, tap, begin)
        except (UpstreamError, AnswerError) as error:
            failure = error
        if not (tap.done or tap.failed) or isinstance(failure, AnswerError):
            failed = leg.broke(failure, call.status)
            if not request.started:
                raise failed from failure
            self._break_off(f"the engine failed while answering ({failed.cause})", tap)
            return
        if cleaner is not None:
            request.write(cleaner.rest())
        if tap.failed:
            self._record.broke_off = True
        request.finish()
        self._learn_counts(tap)

    def _learn_counts(self, tap: StreamTap) -> None:
        """Of tokens, as a complete stream says them."""
        if tap.usage is not None:
            self.learn_length(tap.usage.prompt_tokens)
            self._record.answer_tokens = tap.usage.answer_tokens or None  # 0: not said yet

    def _begin(
        self, leg: Leg, call: Call, on_first: Callable[[], None] | None, *, rewritten: bool
    ) -> None:
        if on_first is not None:
            on_first()
        self._mark_first(leg)
        self._parsed = self._record.parsed = self._parsed.without_body()
        self._record.status = call.status
        lines = answer_lines(call.headers, rewritten=rewritten) + self._own_lines()
        self._request.start(call.status, lines=lines)

    def _mark_first(self, leg: Leg) -> None:
        """The first bytes of the answer came from `leg`."""
        leg.succeeded()
        waited_s = self._service.now() - leg.sent_s
        self._record.receipt.first_decode_s = waited_s
        if self._parsed.stream:
            leg.engine.load.learn_rate(leg.claim.ahead_tokens, waited_s)
        leg.claim.prefilled(self._view.prompt_tokens)

    def _break_off(self, why: str, tap: StreamTap) -> None:
        """The answer can't be completed: say so in the stream, or cut it visibly."""
        request = self._request
        self._record.broke_off = True
        if request.is_gone:
            request.abort()
            return
        event = stream_error(
            why, self._parsed.kind, sequence_number=tap.events, mid_event=not tap.at_boundary
        )
        request.write(event)
        request.finish()

    def fail(self, failure: LegFailed) -> None:
        """No engine gave a good answer: the client gets what this one said, as it said it."""
        if failure.body is None or failure.status < 400:
            self.refuse(failure.client_status, f"the engine gave no answer ({failure.cause})")
            return
        self._record.status, self._record.by_engine = failure.status, True
        lines = answer_lines(failure.headers) + self._own_lines()
        self._request.respond(failure.status, (), failure.body, lines=lines)

    def refuse_route(self, route: Route) -> None:
        """The strategy found no engine."""
        if route.reason == Reason.TOO_LONG:
            self.refuse(400, "the prompt and max_tokens exceed the context of every engine")
        else:
            seconds = b"%d" % max(1, round(route.retry_after_s or 1))
            self.refuse(route.status, str(route.reason), [(b"retry-after", seconds)])

    def refuse(self, status: int, message: str, headers: Headers = ()) -> None:
        """An error of the router's own."""
        self._record.status = status
        code = "context_length_exceeded" if status == 400 else None
        body = error_body(status, message, code=code, kind=self._parsed.kind)
        self._request.respond(status, [JSON_TYPE, *headers], body, lines=self._own_lines())

    def _own_lines(self) -> bytes:
        return self._record.lines()

    def _learn_usage(self, body: bytes) -> None:
        """The usage of an answer that isn't streamed."""
        start = body.rfind(b'"usage"', -_USAGE_BYTES)
        if start < 0:
            return
        usage = dict(_USAGE.findall(body, start))
        prompt = usage.get(b"prompt") or usage.get(b"input")
        if prompt is not None:
            self.learn_length(int(prompt))
        answer = usage.get(b"completion") or usage.get(b"output")
        if answer is not None:
            self._record.answer_tokens = int(answer)

    def learn_length(self, prompt_tokens: int) -> None:
        """An engine said how many tokens the prompt has."""
        parsed = self._parsed
        if parsed.prompt_token_ids is None and parsed.n == 1:
            self._service.lengths.observe(
                parsed.model, parsed.kind, parsed.prompt_bytes, prompt_tokens
            )


class Cleaned:
    """A client to which a stream goes through a cleaner: a `Sink`.

    Events that pass unread have nothing to be cleaned, and come only between two whole ones.
    """

    def __init__(self, request: ClientRequest, cleaner: StreamCleaner) -> None:
        self._request = request
        self._cleaner = cleaner
        self.write_chunk = None
        self.on_gone = request.on_gone
        self.on_flow = request.on_flow

    @property
    def write_passing(self) -> Callable[[bytes], object] | None:
        """The client's own."""
        return self._request.write_chunk

    @property
    def is_gone(self) -> bool:
        """The client left."""
        return self._request.is_gone

    @property
    def writable(self) -> bool:
        """The client keeps up."""
        return self._request.writable

    def write(self, data: bytes) -> None:
        """Cleaned, as far as events are whole. Raises AnswerError."""
        self._request.write(self._cleaner.feed(data))
