"""A disaggregated request: performs what `core.handoff` decides."""

from collections.abc import AsyncIterator
from typing import Final

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
from headway.core.routing.fallback import puller
from headway.core.routing.route import Route
from headway.router.openai import decode_body, prefill_body
from headway.router.serve.attempt import Leg, LegFailed
from headway.router.serve.dispatch import Dispatch
from headway.router.state.engine import EngineState
from headway.router.wire.engines.pool import Call, CutShort
from headway.router.wire.pieces import Body, parts_of

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

    def __init__(self, dispatch: Dispatch, route: Route) -> None:
        self._dispatch = dispatch
        self._service = service = dispatch.service
        self._route: Route | None = route
        self._prefill_engine: EngineState | None = None
        self._decode_engine: EngineState | None = None
        lease_s = min(pool.kv_lease_s for pool in service.pools if pool.role != "decode")
        self._handoff = Handoff(dispatch.view.id, lease_s, SAFE_SHARE * lease_s)
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
        elif isinstance(action, Answer) and not self._dispatch.reply.started:
            self._dispatch.give_up(self._refusal)

    async def _prefill(self) -> Actions:
        dispatch, now = self._dispatch, self._service.now
        route = self._route or dispatch.route()
        self._route = None
        if route.kind != "split":
            return self._handoff.prefill_failed(503, now())
        engine = self._prefill_engine = self._service.engines[route.prefill or ""]
        decode = self._decode_engine = self._service.engines[route.decode or ""]
        staged = decode.claim(prefill_tokens=0, kv_tokens=dispatch.kv_tokens)
        try:
            with dispatch.leg(engine, prefill_tokens=route.uncached_tokens) as leg:
                # Its only token is due when a stream's first would be.
                call = await dispatch.send(leg, prefill_body(dispatch.parsed), streams=True)
                answer = await leg.read(call, PREFILL_ANSWER_BYTES)
                params, tokens, whole = await self._service.reader.prefill_answer(answer)
                if not whole:
                    raise leg.broke(CutShort("half an answer"), call.status)
                leg.succeeded()
                self._answered_s = now()
                waited_s = self._answered_s - leg.sent_s
                engine.load.learn_rate(leg.claim.ahead_tokens, waited_s)
        except LegFailed as failure:
            again = dispatch.may_follow(failure) and not failure.too_long
            return self._handoff.prefill_failed(
                _status(failure), now(), again=again, too_long=failure.too_long
            )
        finally:
            staged.release()
        if tokens is not None:
            dispatch.reply.learn_length(tokens)
        dispatch.receipt.prefill_s = waited_s
        return self._handoff.prefill_answered(params, now())

    async def _decode(self, params: Params) -> Actions:
        dispatch, now = self._dispatch, self._service.now
        engine = self._puller()
        if engine is None:
            return self._handoff.decode_failed(503, now())
        cached = params.get("remote_prefill_cached_tokens")
        known = cached if isinstance(cached, int) else None
        try:
            with dispatch.leg(engine, prefill_tokens=0) as leg:
                call = await self._send_decode(leg, params)
                await dispatch.reply.pass_on(
                    leg, call, self._first, cached_tokens=known, clean=True
                )
        except _TooLate as late:
            return late.actions
        except LegFailed as failure:
            again = dispatch.may_follow(failure)
            return self._handoff.decode_failed(_status(failure), now(), again=again)
        return self._ended()

    async def _send_decode(self, leg: Leg, params: Params) -> Call:
        body = decode_body(self._dispatch.parsed, params)
        return await self._dispatch.send(leg, self._leaving(body), length=len(body))

    async def _leaving(self, body: Body) -> AsyncIterator[bytes]:
        """The decode leg's body, asked for once its connection stands.

        So an engine that can't be reached doesn't cost the handoff, and what waited too long for
        a connection doesn't leave. A body that is an iterator isn't sent twice either.
        """
        now_s = self._service.now()
        late = self._handoff.decode_sent(now_s)
        if late:
            raise _TooLate(late)
        handoff_s = now_s - self._answered_s
        self._dispatch.receipt.handoff_s = handoff_s
        for part in parts_of(body):
            yield part

    def _puller(self) -> EngineState | None:
        """A decode engine for the handoff; None if there is none left."""
        service, meant, now_s = self._service, self._decode_engine, self._service.now()
        known = meant is not None and service.engines.get(meant.id) is meant
        found = puller(
            (pool.view(now_s) for pool in service.pools),
            self._dispatch.view,
            meant=meant.id if meant and known and meant.health.may_end_there(now_s) else None,
            prefilled_on=self._prefill_engine.id if self._prefill_engine else None,
            draw=service.random.random(),
        )
        return service.engines[found] if found else None

    async def _whole(self, action: SendWhole) -> Actions:
        dispatch, now = self._dispatch, self._service.now
        dispatch.view = dispatch.view._replace(splittable=False)
        route = dispatch.route(action.reason)
        if route.kind != "whole":
            self._refusal = route
            return self._handoff.decode_failed(503, now())
        try:
            await dispatch.whole(route, self._first)
        except LegFailed as failure:
            again = dispatch.may_follow(failure)
            return self._handoff.decode_failed(_status(failure), now(), again=again)
        return self._ended()

    def _first(self) -> None:
        for action in self._handoff.decode_first_byte(self._service.now()):
            self._note(action)

    def _ended(self) -> Actions:
        if self._dispatch.broke_off:
            return self._handoff.decode_failed(0, self._service.now())
        return self._handoff.decode_done(self._service.now())


def _status(failure: LegFailed) -> int:
    """The engine's; one without a model that others have doesn't judge the request."""
    return 503 if failure.lacks_model else failure.status
