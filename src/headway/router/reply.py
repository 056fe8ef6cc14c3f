"""The client's side of a generating request: what it is answered, and what that looked like."""

import re
from collections.abc import Callable
from typing import Final, cast

from headway.core.routing.strategy import Reason, Route
from headway.core.routing.views import RequestView
from headway.router.answers import AnswerError
from headway.router.http1 import JSON_TYPE, Headers
from headway.router.leg import Leg, LegFailed
from headway.router.openai import Parsed, answer_lines, error_body, stream_error, strip_answer
from headway.router.receipt import Receipt, log_line
from headway.router.request import ClientRequest
from headway.router.service import Service
from headway.router.sse import StreamCleaner, StreamTap, error_at_start
from headway.router.upstream import Call, Sink, UpstreamError

ANSWER_LIMIT_BYTES: Final = 1 << 28
_PROMPT_TOKENS: Final = re.compile(rb'"(?:prompt|input)_tokens":\s*(\d+)')
_USAGE_BYTES: Final = 4_096
"""Where to look for an answer's usage: at its end."""


class Reply:
    """One request's answer.

    status: what the client was told, 499 if it left before, 0 while it is told nothing.
    in_band_error: the answer broke off after its first byte.
    """

    def __init__(
        self,
        service: Service,
        request: ClientRequest,
        parsed: Parsed,
        view: RequestView,
        receipt: Receipt,
    ) -> None:
        self._service = service
        self._request = request
        self._parsed = parsed
        self._view = view
        self._receipt = receipt
        self._tap: StreamTap | None = None  # of a stream
        self.status = 0
        self.in_band_error = False

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
        if self._parsed.stream:
            # Of all streams only that of /v1/responses may carry handoff parameters.
            clean = clean and self._parsed.kind == "responses"
            cleaner = StreamCleaner(cached_tokens=cached_tokens) if clean else None
            await self._stream(leg, call, on_first, cleaner)
            return
        body = await leg.read(call, ANSWER_LIMIT_BYTES)
        if on_first is not None:
            on_first()
        if clean:
            try:
                body = strip_answer(body, cached_tokens=cached_tokens)
            except AnswerError as error:
                raise leg.broke(error, call.status) from error
        self._mark_first(leg)
        self.status = call.status
        lines = answer_lines(call.headers, rewritten=clean) + self._own_lines()
        self._request.respond(call.status, (), body, lines=lines)
        counts = _PROMPT_TOKENS.findall(body[-_USAGE_BYTES:])
        if counts:
            self.learn_length(int(counts[-1]))

    async def _stream(
        self,
        leg: Leg,
        call: Call,
        on_first: Callable[[], None] | None,
        cleaner: StreamCleaner | None,
    ) -> None:
        """The head leaves with the first bytes of the body: until then another engine may try.

        vLLM sends its head before it has a token. An engine that fails in between, as all do
        that die, says so in the first event, and that is an answer to nobody.
        """
        request = self._request
        self._tap = tap = StreamTap(self._parsed.kind)

        def begin(first: bytes) -> None:
            failed = error_at_start(first)
            if failed is not None:
                status, body = failed
                raise leg.refused(status, [JSON_TYPE], body)
            self._begin(leg, call, on_first, rewritten=cleaner is not None)

        try:
            sink = request if cleaner is None else cast("Sink", Cleaned(request, cleaner))
            await call.pump(sink, tap, begin)
        except (UpstreamError, AnswerError) as error:
            failed = leg.broke(error, call.status)
            if not request.started:
                raise failed from error
            self._break_off(f"the engine failed while answering ({failed.cause})", tap)
            return
        if not request.started:
            begin(b"")
        request.finish()
        usage = tap.usage
        if usage is not None:
            self.learn_length(usage.prompt_tokens)

    def _begin(
        self, leg: Leg, call: Call, on_first: Callable[[], None] | None, *, rewritten: bool
    ) -> None:
        if on_first is not None:
            on_first()
        self._mark_first(leg)
        self.status = call.status
        lines = answer_lines(call.headers, rewritten=rewritten) + self._own_lines()
        self._request.start(call.status, lines=lines)

    def _mark_first(self, leg: Leg) -> None:
        """The first bytes of the answer came from `leg`."""
        leg.succeeded()
        waited_s = self._service.now() - leg.sent_s
        self._receipt.first_decode_s = waited_s
        if self._parsed.stream:
            leg.engine.learn_rate(leg.claim.ahead_tokens, waited_s)
        leg.claim.prefilled(self._view.prompt_tokens)

    def _break_off(self, why: str, tap: StreamTap) -> None:
        """The answer can't be completed: say so in the stream, or cut it visibly."""
        request = self._request
        self.in_band_error = True
        self._service.metrics.truncated.add()
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
        self.status = failure.status
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
        self.status = status
        code = "context_length_exceeded" if status == 400 else None
        body = error_body(status, message, code=code, kind=self._parsed.kind)
        self._request.respond(status, [JSON_TYPE, *headers], body, lines=self._own_lines())

    def _own_lines(self) -> bytes:
        return self._service.answer_lines(self._request, self._receipt)

    def learn_length(self, prompt_tokens: int) -> None:
        """An engine said how many tokens the prompt has."""
        parsed = self._parsed
        if parsed.prompt_token_ids is None and parsed.n == 1:
            self._service.lengths.observe(
                parsed.model, parsed.kind, parsed.prompt_bytes, prompt_tokens
            )

    def account(self) -> None:
        """Metrics and the log line, once, when all is over."""
        service, receipt, tap = self._service, self._receipt, self._tap
        metrics, size = service.metrics, receipt.length_class
        metrics.requests.add(self._parsed.kind, size, str(self.status))
        ttft_s = tpot_s = None
        if tap is not None and tap.first_s is not None:
            ttft_s = tap.first_s - self._view.arrival_s
            metrics.ttft_s.add(ttft_s, size)
            if tap.events > 2:
                tpot_s = (tap.passing.last_s - tap.first_s) / (tap.events - 2)
                metrics.tpot_s.add(tpot_s, size)
        if self.status != 499:
            metrics.slo.add(size, "true" if self._met(ttft_s, tpot_s) else "false")
        if receipt.queue_s is not None:
            metrics.added_s.add(receipt.queue_s, "before first leg")
        if receipt.handoff_s is not None:
            metrics.added_s.add(receipt.handoff_s, "between legs")
        if service.log is not None:
            service.log(
                log_line(
                    receipt,
                    endpoint=self._parsed.kind,
                    status=self.status,
                    stream=self._parsed.stream,
                    prompt_tokens=self._view.prompt_tokens,
                    ttft_s=ttft_s,
                    tpot_s=tpot_s,
                    broke_off=self.in_band_error or None,
                )
            )

    def _met(self, ttft_s: float | None, tpot_s: float | None) -> bool:
        """Whether it met its limits; what isn't streamed only has to succeed."""
        if not 200 <= self.status < 300 or self.in_band_error:
            return False
        limit_s = self._parsed.tpot_slo_s or self._service.config.router.slo.tpot_s
        return (ttft_s is None or ttft_s <= self._view.ttft_limit_s) and (
            tpot_s is None or tpot_s <= limit_s
        )


class Cleaned:
    """A client to which a stream goes through a cleaner: a `Sink`."""

    def __init__(self, request: ClientRequest, cleaner: StreamCleaner) -> None:
        self._request = request
        self._cleaner = cleaner
        self.write_chunk = None
        self.on_gone = request.on_gone
        self.on_flow = request.on_flow

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
