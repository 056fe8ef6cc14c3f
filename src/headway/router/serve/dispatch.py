"""A generating request on its way to engines: routed, sent, tried again, given up."""

from collections.abc import AsyncIterator, Callable
from typing import Final

from headway.core.reliability.retry import Attempts
from headway.core.routing.classify import length_class
from headway.core.routing.pick import kv_need_tokens
from headway.core.routing.route import RETRY_AFTER_S, Route
from headway.core.routing.views import RequestView
from headway.router.openai import Parsed
from headway.router.serve.attempt import Leg, LegFailed
from headway.router.serve.record import Record
from headway.router.serve.reply import Reply
from headway.router.state.engine import EngineState
from headway.router.wire.engines.pool import Call
from headway.router.wire.pieces import Body, joined

ERROR_LIMIT_BYTES: Final = 1 << 20
_NOT_FOUND: Final = 404
"""What vLLM answers of a model that it doesn't have."""


class Dispatch:
    """One request, and what its legs share.

    The task that serves it is cancelled when the client leaves; every leg then cuts its
    connection and gives its work back.

    view: the request as strategies see it now. reply: its client's side.
    """

    def __init__(self, record: Record, parsed: Parsed) -> None:
        self.service = service = record.service
        self._record = record
        self._request = request = record.request
        self._attempts: Attempts[LegFailed] = Attempts(service.retries)
        known = parsed.prompt_token_ids
        tokens = known
        if tokens is None:
            tokens = service.lengths.estimate(parsed.model, parsed.kind, parsed.prompt_bytes)
        limits = service.limits(tokens, parsed.ttft_slo_s, parsed.tpot_slo_s)
        large = parsed.large
        self._chain = large.chain if large else service.prefixes.chain(parsed.prefix)
        prefix_bytes = large.prefix_bytes if large else len(parsed.prefix)
        self.view = RequestView(
            id=record.receipt.request_id,
            prompt_tokens=tokens,
            max_tokens=parsed.max_tokens,
            arrival_s=request.created_s,
            ttft_limit_s=limits.ttft_s,
            splittable=parsed.splittable,
            cached_tokens=service.cached_tokens(self._chain, prefix_bytes, tokens),
            exact=parsed.exact,
            kept_tokens=service.kept_tokens(tokens),
        )
        self.receipt = record.receipt
        long_tokens = service.config.router.long_prompt_tokens
        self.receipt.length_class = length_class(tokens, long_tokens)
        record.parsed, record.limits, record.prompt_tokens = parsed, limits, tokens
        self.reply = Reply(record, parsed, self.view)

    @property
    def parsed(self) -> Parsed:
        """The request; without its body once its answer has begun."""
        return self.reply.parsed

    @property
    def kv_tokens(self) -> int:
        """KV the request takes on an engine, tokens."""
        return kv_need_tokens(self.view)

    def route(self, why: str | None = None) -> Route:
        """Ask the strategy; the receipt says what it answered, or `why` where that says more."""
        service = self.service
        route = service.route(self.view)
        reason = why or str(route.reason)
        self.receipt.reason = reason
        service.metrics.routes.add(self.receipt.strategy, reason)
        return route

    def may_follow(self, failure: LegFailed) -> bool:
        """Whether another leg may follow; the next route avoids the engine or pool that failed."""
        attempts, service = self._attempts, self.service
        again = attempts.may_follow(
            failure,
            now_s=service.now(),
            left_s=service.config.router.timeouts.total_s - self._spent_s,
            repeatable=not self.reply.started,
        )
        self.view = self.view._replace(
            excluded=attempts.excluded, too_long_for=attempts.too_long_for
        )
        if again and not failure.too_long:
            service.metrics.retries.add(failure.cause)
        return again

    @property
    def broke_off(self) -> bool:
        """The answer ended before it was complete."""
        return self._record.broke_off

    def give_up(self, route: Route | None = None) -> None:
        """Answer with what went wrong; route: the refusal, where no engine is left to try."""
        if self._attempts.told is not None:
            self.reply.fail(self._attempts.told)
        elif route is not None:
            self.reply.refuse_route(route)
        else:
            after = (b"retry-after", b"%d" % RETRY_AFTER_S)
            self.reply.refuse(503, "no engine could serve the request", [after])

    @property
    def _spent_s(self) -> float:
        return self.service.now() - self.view.arrival_s

    async def whole(self, route: Route, on_first: Callable[[], None] | None = None) -> None:
        """All of it on one engine. Raises LegFailed."""
        engine = self.service.engines[route.engine or ""]
        with self.leg(engine, prefill_tokens=route.uncached_tokens) as leg:
            call = await self.send(leg, self.parsed.body)
            await self.reply.pass_on(leg, call, on_first)

    def leg(self, engine: EngineState, *, prefill_tokens: int) -> Leg:
        """A leg on `engine`; it is noted on the receipt and in the prefix map."""
        service, receipt = self.service, self.receipt
        if self._chain:
            service.prefixes.add(self._chain, engine.id)
        receipt.engines = (*receipt.engines, engine.id)
        return Leg(engine, service.now, prefill_tokens=prefill_tokens, kv_tokens=self.kv_tokens)

    async def send(
        self,
        leg: Leg,
        body: Body | AsyncIterator[bytes],
        *,
        length: int | None = None,
        streams: bool | None = None,
    ) -> Call:
        """Send a leg; returns with the head of an answer that isn't an error. Raises LegFailed.

        length: of a body that is an iterator.
        streams: an answer begins before it is complete, so its first byte is due earlier.
        """
        service, request = self.service, self._request
        target = request.path.encode("latin-1")
        if request.query:
            target += b"?" + request.query
        lines = service.upstream_lines(request.headers, self.parsed.settled.priority)
        spent_s = self._spent_s
        if self.receipt.queue_s is None:
            self.receipt.queue_s = spent_s
        streams = self.parsed.stream if streams is None else streams
        timeouts = service.timeouts(self.view.prompt_tokens, streams=streams, spent_s=spent_s)
        # Sent again by the pool it would have the same id, and no budget would know.
        call = await leg.send(
            request.method, target, lines, body, timeouts, length=length, resend=False
        )
        if call.status < 400:
            return call
        answer = joined(await leg.read(call, ERROR_LIMIT_BYTES))
        lacks = call.status == _NOT_FOUND and self.service.lacks_model(
            leg.engine, self.parsed.model
        )
        raise leg.refused(call.status, call.headers, answer, lacks_model=lacks)
