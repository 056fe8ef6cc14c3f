"""A generating request, from its body to the last byte of its answer."""

from collections.abc import AsyncIterator, Callable
from typing import Final

from headway.core.routing.classify import length_class
from headway.core.routing.pick import kv_need_tokens
from headway.core.routing.strategy import RETRY_AFTER_S, Route
from headway.core.routing.views import RequestView
from headway.router.openai import Parsed
from headway.router.serve.attempt import Leg, LegFailed
from headway.router.serve.record import Record
from headway.router.serve.reply import Reply
from headway.router.serve.split import Split
from headway.router.state.engine import EngineState
from headway.router.wire.engine_pool import Call

ATTEMPTS: Final = 3
"""Legs a request may cost on engines that fail; lengths refused and engines that can't be reached
don't count."""
LEAST_S: Final = 0.01
"""With less time left a request isn't tried again. Timers are early by less than this."""
ERROR_LIMIT_BYTES: Final = 1 << 20


class Generation:
    """One request: routed, sent, answered.

    The task that runs it is cancelled when the client leaves; every leg then cuts its
    connection and gives its work back.
    """

    def __init__(
        self,
        record: Record,
        parsed: Parsed,
    ) -> None:
        self.service = service = record.service
        self._record = record
        self._request = request = record.request
        self._attempts = 0
        self._failure: LegFailed | None = None
        known = parsed.prompt_token_ids
        tokens = known
        if tokens is None:
            tokens = service.lengths.estimate(parsed.model, parsed.kind, parsed.prompt_bytes)
        limits = service.limits(tokens, parsed.ttft_slo_s, parsed.tpot_slo_s)
        self._chain = service.prefixes.chain(parsed.prefix)
        self.view = RequestView(
            record.receipt.request_id,
            tokens,
            parsed.max_tokens,
            request.created_s,
            limits.ttft_s,
            parsed.splittable,
            service.cached_tokens(self._chain, len(parsed.prefix), tokens),
            exact=known is not None and not parsed.raw.get("truncate_prompt_tokens"),
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

    async def run(self) -> None:
        """Serve it. Whatever happens, the client gets one answer and every count comes back."""
        while (route := self.route()).kind == "whole":
            try:
                await self.whole(route)
            except LegFailed as failure:
                if self.retry_after(failure):
                    continue
                self.give_up()
            return
        if route.kind == "split":
            # The seam to disaggregation, which drives legs of its own and answers by itself.
            await Split(self, route).run()
        else:
            self.give_up(route)

    def route(self, why: str | None = None) -> Route:
        """Ask the strategy; the receipt says what it answered, or `why` where that says more."""
        service = self.service
        route = service.strategy.route(
            self.view, service.views(), service.now(), service.random.random()
        )
        reason = why or str(route.reason)
        self.receipt.reason = reason
        service.metrics.routes.add(self.receipt.strategy, reason)
        return route

    def retry_after(self, failure: LegFailed) -> bool:
        """Whether to try again; the next route avoids the engine or pool that failed."""
        # The first failure is what went wrong; the next ones may be its consequence. But whether
        # a prompt is too long, the largest pool knows best, and a judgement of the request itself
        # says more than an engine's death.
        if self._failure is None or self._failure.too_long or failure.final:
            self._failure = failure
        if self.reply.started or not failure.retriable:
            return False
        view, service = self.view, self.service
        if failure.too_long:
            refused = view.too_long_for | {failure.engine.pool.name}
            self.view = view._replace(too_long_for=refused)
            return True
        if not failure.stale:
            self.view = view._replace(excluded=view.excluded | {failure.engine.id})
        if service.config.router.timeouts.total_s - self._spent_s < LEAST_S:
            return False
        if not failure.unsent:  # what no engine got is no more load: any that is left may get it
            self._attempts += 1
            if self._attempts >= ATTEMPTS or not service.retries.spend(service.now()):
                return False
        service.metrics.retries.add(failure.cause)
        return True

    @property
    def broke_off(self) -> bool:
        """The answer ended before it was complete."""
        return self._record.broke_off

    def give_up(self, route: Route | None = None) -> None:
        """Answer with what went wrong; route: the refusal, where no engine is left to try."""
        if self._failure is not None:
            self.reply.fail(self._failure)
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
        body: bytes | AsyncIterator[bytes],
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
        lines = service.upstream_lines(request.headers)
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
        answer = await leg.read(call, ERROR_LIMIT_BYTES)
        raise leg.refused(call.status, call.headers, answer)
