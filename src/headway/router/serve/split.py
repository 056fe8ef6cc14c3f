"""A disaggregated request: performs what `core.handoff` decides."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from headway.core.errors import HeadwayError
from headway.core.handoff import (
    Action,
    Actions,
    Answer,
    Count,
    Handoff,
    Params,
    Release,
    SendDecode,
    SendPrefill,
    SendWhole,
    State,
)
from headway.core.routing.strategy import Route
from headway.router.openai import decode_body, handoff_params, is_whole, prefill_body
from headway.router.serve.attempt import Leg, LegFailed
from headway.router.state.engine import EngineState
from headway.router.wire.engine_pool import Call, CutShort

if TYPE_CHECKING:
    from headway.router.serve.generation import Generation

SAFE_SHARE: Final = 0.7
"""Share of its lease after which a handoff is dropped: the decode engine must still reach it."""
PREFILL_ANSWER_BYTES: Final = 1 << 26
_ENDED: Final = (State.ABORTED, State.DONE)


class _TooLate(HeadwayError):  # noqa: N818 - says what happened
    """The decode leg may not leave; `actions` are to be done instead."""

    def __init__(self, actions: Actions) -> None:
        super().__init__("the handoff got too old")
        self.actions = actions


class Split:
    """One request in two legs, with its handoff."""

    def __init__(self, generation: "Generation", route: Route) -> None:
        self._generation = generation
        self._service = service = generation.service
        self._route: Route | None = route
        self._prefill_engine: EngineState | None = None
        self._decode_engine: EngineState | None = None
        lease_s = min(pool.kv_lease_s for pool in service.pools if pool.role != "decode")
        self._handoff = Handoff(generation.view.id, lease_s, SAFE_SHARE * lease_s)
        self._refusal: Route | None = None
        self._answered_s = 0.0

    async def run(self) -> None:
        """Serve the request; it is answered, well or not, when this returns."""
        now = self._service.now
        try:
            actions = self._handoff.start(now())
            while actions:
                for action in actions:  # what is counted counts whatever comes of the rest
                    self._note(action)
                actions = await self._perform(actions)
        finally:
            if self._handoff.state not in _ENDED:  # the client left
                for action in self._handoff.client_left(now()):
                    self._note(action)

    async def _perform(self, actions: Actions) -> Actions:
        """The one action among these that takes time, if there is one; what follows from it."""
        for action in actions:
            if isinstance(action, SendPrefill):
                return await self._prefill()
            if isinstance(action, SendDecode):
                return await self._decode(action.params)
            if isinstance(action, SendWhole):
                return await self._whole(action)
        return ()

    def _note(self, action: Action) -> None:
        """Actions that nobody waits for.

        Aborting a leg is done by then: a leg cuts its connection when it is left.
        """
        if isinstance(action, Count):
            self._service.metrics.handoffs.add(action.name)
        elif isinstance(action, Release):
            # An engine that failed in another way may still do this.
            engine = self._puller() or self._decode_engine
            self._service.release(self._handoff, action.params, engine)
        elif isinstance(action, Answer) and not self._generation.reply.started:
            self._generation.give_up(self._refusal)

    async def _prefill(self) -> Actions:
        generation, now = self._generation, self._service.now
        route = self._route or generation.route()
        self._route = None
        if route.kind != "split":
            return self._handoff.prefill_failed(503, now())
        engine = self._prefill_engine = self._service.engines[route.prefill or ""]
        decode = self._decode_engine = self._service.engines[route.decode or ""]
        staged = decode.claim(prefill_tokens=0, kv_tokens=generation.kv_tokens)
        try:
            with generation.leg(engine, prefill_tokens=route.uncached_tokens) as leg:
                # Its only token is due when a stream's first would be.
                call = await generation.send(leg, prefill_body(generation.parsed), streams=True)
                answer = await leg.read(call, PREFILL_ANSWER_BYTES)
                params, tokens = handoff_params(answer)
                if params is None and not is_whole(answer, framed=False):
                    raise leg.broke(CutShort("half an answer"), call.status)
                leg.succeeded()
                self._answered_s = now()
                waited_s = self._answered_s - leg.sent_s
                engine.learn_rate(leg.claim.ahead_tokens, waited_s)
        except LegFailed as failure:
            again = generation.retry_after(failure) and not failure.too_long
            return self._handoff.prefill_failed(
                failure.status, now(), again=again, too_long=failure.too_long
            )
        finally:
            staged.release()
        if tokens is not None:
            generation.reply.learn_length(tokens)
        generation.receipt.prefill_s = waited_s
        return self._handoff.prefill_answered(params, now())

    async def _decode(self, params: Params) -> Actions:
        generation, now = self._generation, self._service.now
        engine = self._puller()
        if engine is None:
            return self._handoff.decode_failed(503, now())
        cached = params.get("remote_prefill_cached_tokens")
        known = cached if isinstance(cached, int) else None
        try:
            with generation.leg(engine, prefill_tokens=0) as leg:
                call = await self._send_decode(leg, params)
                await generation.reply.pass_on(
                    leg, call, self._first, cached_tokens=known, clean=True
                )
        except _TooLate as late:
            return late.actions
        except LegFailed as failure:
            again = generation.retry_after(failure)
            return self._handoff.decode_failed(failure.status, now(), again=again)
        return self._ended()

    async def _send_decode(self, leg: Leg, params: Params) -> Call:
        body = decode_body(self._generation.parsed, params)
        return await self._generation.send(leg, self._leaving(body), length=len(body))

    async def _leaving(self, body: bytes) -> AsyncIterator[bytes]:
        """The decode leg's body, asked for once its connection stands.

        So an engine that can't be reached doesn't cost the handoff, and what waited too long for
        a connection doesn't leave. A body that is an iterator isn't sent twice either.
        """
        now_s = self._service.now()
        late = self._handoff.decode_sent(now_s)
        if late:
            raise _TooLate(late)
        handoff_s = now_s - self._answered_s
        self._generation.receipt.handoff_s = handoff_s
        yield body

    def _puller(self) -> EngineState | None:
        """A decode engine for the handoff: the one it was meant for, while that may be sent to."""
        service, meant = self._service, self._decode_engine
        now_s, excluded = service.now(), self._generation.view.excluded
        if (
            meant is not None
            and service.engines.get(meant.id) is meant
            and meant.id not in excluded
            and meant.usable
            and meant.breaker.would_allow(now_s)
        ):
            return meant
        others = [
            engine
            for engine in service.engines.values()
            if engine.ready(now_s)
            and engine.pool.role != "prefill"
            and engine.id not in excluded
            and engine is not self._prefill_engine
        ]
        return min(others, key=lambda e: (e.degraded, e.work.kv_tokens, e.id), default=None)

    async def _whole(self, action: SendWhole) -> Actions:
        generation, now = self._generation, self._service.now
        generation.view = generation.view._replace(splittable=False)
        route = generation.route(action.reason)
        if route.kind != "whole":
            self._refusal = route
            return self._handoff.decode_failed(503, now())
        try:
            await generation.whole(route, self._first)
        except LegFailed as failure:
            again = generation.retry_after(failure)
            return self._handoff.decode_failed(failure.status, now(), again=again)
        return self._ended()

    def _first(self) -> None:
        for action in self._handoff.decode_first_byte(self._service.now()):
            self._note(action)

    def _ended(self) -> Actions:
        if self._generation.broke_off:
            return self._handoff.decode_failed(0, self._service.now())
        return self._handoff.decode_done(self._service.now())
