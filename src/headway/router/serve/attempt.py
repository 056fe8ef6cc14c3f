"""One attempt on one engine: its share of the work, its place in the breaker, its connection."""

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Final, Self

from headway.core.errors import HeadwayError
from headway.router.openai.errors import too_long
from headway.router.state.engine import EngineState
from headway.router.wire.coding import whole_answer
from headway.router.wire.engines.pool import (
    Call,
    ConnectFailed,
    CutShort,
    FirstByteTimeout,
    IdleTimeout,
    NoRoom,
    Timeouts,
    TotalTimeout,
    UpstreamError,
)
from headway.router.wire.headers import uncoded
from headway.router.wire.http1 import Headers
from headway.router.wire.pieces import Body

_NO_CONNECTION: Final = "connect"
_BREAKER_OPEN: Final = "breaker open"
_TIMEOUTS: Final = (FirstByteTimeout, IdleTimeout, TotalTimeout)


class LegFailed(HeadwayError):  # noqa: N818 - says what happened
    """An attempt of which nothing has reached the client: a `Failure` of `core.reliability.retry`.

    status: the engine's, 0 where it gave no answer. cause: a few words for metrics.
    headers, body: its answer; body is None where that isn't whole.
    too_long: it refused the prompt's length. lacks_model: it has no such model, and another
    that is ready says that it has it. stale: it may have closed an idle connection just
    when the request went out on it, so nothing is known against it.
    """

    def __init__(
        self,
        engine: EngineState,
        status: int,
        cause: str,
        headers: Headers = (),
        body: bytes | None = None,
        *,
        too_long: bool = False,
        lacks_model: bool = False,
        stale: bool = False,
    ) -> None:
        super().__init__(f"{engine.id}: {cause}")
        self.engine = engine
        self.status = status
        self.cause = cause
        self.headers = headers
        self.body = body
        self.too_long = too_long
        self.lacks_model = lacks_model
        self.stale = stale

    @property
    def engine_id(self) -> str:
        """Where it failed."""
        return self.engine.id

    @property
    def pool_name(self) -> str:
        """That engine's pool."""
        return self.engine.pool.name

    @property
    def unsent(self) -> bool:
        """Nothing went out."""
        return self.cause in {_NO_CONNECTION, _BREAKER_OPEN}

    @property
    def client_status(self) -> int:
        """What the client is told where the engine's answer can't be passed on."""
        if self.status >= 400:
            return self.status
        return 504 if self.cause == "timeout" else 502


class Leg:
    """Holds an engine's work and breaker seat from `with` to its end, however it ends.

    An end nobody has named counts as cancelled: the client left, or the other leg failed.
    """

    def __init__(
        self, engine: EngineState, now: Callable[[], float], *, prefill_tokens: int, kv_tokens: int
    ) -> None:
        self.engine = engine
        self.claim = engine.claim(prefill_tokens=prefill_tokens, kv_tokens=kv_tokens)
        self.sent_s = 0.0
        self._now = now
        self._ticket = 0
        self._failed = False
        self._call: Call | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.claim.release()
        call, engine = self._call, self.engine
        if call is not None:
            if call.streaming and call.status < 400:
                engine.last_byte_s = max(engine.last_byte_s, call.last_byte_s)
            call.abort()
        if self._ticket:
            self.engine.health.breaker.cancelled(self._now(), self._ticket)

    async def send(
        self,
        method: str,
        target: bytes,
        lines: bytes,
        body: Body | AsyncIterator[bytes],
        timeouts: Timeouts,
        *,
        length: int | None = None,
        resend: bool = True,
    ) -> Call:
        """Send it; returns with the answer's head. Raises LegFailed.

        lines, length, resend: see `UpstreamPool.send`.
        """
        self.sent_s = self._now()
        self._ticket = self.engine.health.breaker.allow(self.sent_s)
        if not self._ticket:
            raise LegFailed(self.engine, 0, _BREAKER_OPEN)
        try:
            self._call = await self.engine.upstream.send(
                method, target, lines, body, timeouts, length=length, resend=resend
            )
        except UpstreamError as error:
            if error.sent_on_reused:
                raise LegFailed(self.engine, 0, "stale connection", stale=True) from error
            raise self.broke(error) from error
        return self._call

    async def read(self, call: Call, limit: int) -> Body:
        """An answer's whole body, uncompressed. Raises LegFailed."""
        try:
            body = await call.read(limit)
            if call.codings:
                body = await whole_answer(body, call.codings, limit)
                call.headers = uncoded(call.headers)
            return body  # noqa: TRY300  both may break the leg
        except UpstreamError as error:
            raise self.broke(error, call.status) from error

    def judge(self, status: int) -> None:
        """The engine answered with this status: what that says about its health."""
        if status < 400:
            self.succeeded()
        elif status < 500 or status == 503:
            self.engine.health.breaker.neutral(self._now(), self._ticket)
        else:
            self._fail()

    def refused(
        self, status: int, headers: Headers, body: bytes, *, lacks_model: bool = False
    ) -> LegFailed:
        """What to raise for an error that the engine answered with."""
        self.judge(status)
        return LegFailed(
            *(self.engine, status, str(status), headers, body),
            too_long=too_long(status, body),
            lacks_model=lacks_model,
        )

    def succeeded(self) -> None:
        """The first bytes of a good answer came."""
        self.engine.health.breaker.succeeded(self._now(), self._ticket)

    def broke(self, error: Exception, status: int = 0) -> LegFailed:
        """The engine failed in the middle; what to raise if the client has seen nothing.

        status: of its answer, if the head of one came.
        """
        cause = "died"
        if isinstance(error, ConnectFailed):
            cause = _NO_CONNECTION
        elif isinstance(error, _TIMEOUTS):
            cause = "timeout"
        elif isinstance(error, CutShort):
            cause = "cut short"
        if not isinstance(error, NoRoom):
            self._fail()
        return LegFailed(self.engine, status, cause)

    def _fail(self) -> None:
        """One leg is one failure, however much of it goes wrong."""
        if not self._failed:
            self._failed = True
            self.engine.health.breaker.failed(self._now(), self._ticket)
