"""The record of one request: what it was answered, and, when all is over, its verdict."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headway.config import EVERYONE
from headway.core.slo import Ending, Limits, Verdict, judge
from headway.router.openai.asked import BeyondRange, Terms
from headway.router.openai.request import Parsed
from headway.router.state.receipt import Receipt, log_line
from headway.router.state.service import Service
from headway.router.wire.client_request import ClientRequest
from headway.router.wire.errors import BodyError, Kind, error_body
from headway.router.wire.headers import head_priority
from headway.router.wire.http1 import JSON_TYPE, Headers

if TYPE_CHECKING:
    from headway.router.openai.stream import StreamTap

_PATH_CHARS: Final = 128
"""Of a path as logged."""
_MET: Final = {True: "true", False: "false", None: "none"}
_SAID: Final = {verdict: (_MET[verdict.met], verdict.value) for verdict in Verdict}


class Record:
    """Every request that comes in has one, from its head to its end, and closes it once.

    Whoever answers writes down here what happens.

    kind: of a request that generates; None for all others.
    allowed: what its client may ask for.
    status: what the client was told, 0 while it is told nothing; by_engine: an engine said it.
    broke_off: the answer ended before it was complete. left: its client did.

    Of a request whose body has been read:
    parsed: what it says. prompt_tokens: an estimate. limits: what it is promised.
    tap: of its stream. answer_tokens: of all answers, where the engine has said it.
    """

    __slots__ = (
        "allowed",
        "answer_tokens",
        "broke_off",
        "by_engine",
        "kind",
        "left",
        "limits",
        "parsed",
        "prompt_tokens",
        "receipt",
        "request",
        "service",
        "status",
        "tap",
    )

    def __init__(self, service: Service, request: ClientRequest, kind: Kind | None) -> None:
        self.service = service
        self.request = request
        self.kind = kind
        self.allowed = service.allowed(EVERYONE)
        self.receipt = Receipt(service.new_id(), service.config.router.strategy, "", "none")
        self.status = 0
        self.by_engine = self.broke_off = self.left = False
        self.parsed: Parsed | None = None
        self.limits: Limits | None = None
        self.prompt_tokens = 0
        self.tap: StreamTap | None = None
        self.answer_tokens: int | None = None

    @property
    def spent_s(self) -> float:
        """Since its head came, seconds."""
        return self.service.now() - self.request.created_s

    @property
    def terms(self) -> Terms:
        """What it may ask for, and asks for in its head."""
        return Terms(self.allowed, head_priority(self.request.headers))

    def clamped(self, kinds: Iterable[str]) -> None:
        """It gets less of these than it asked for."""
        for kind in kinds:
            self.service.metrics.beyond_range.add(self.allowed.name, kind, "clamped")

    def served(self, reason: str, *engines: str) -> None:
        """How it is served, and on which engines; the queue ends here."""
        receipt = self.receipt
        queue_s = self.spent_s if receipt.queue_s is None else receipt.queue_s
        receipt.reason, receipt.engines, receipt.queue_s = reason, engines, queue_s

    def lines(self) -> bytes:
        """What the answer's head says about the request."""
        return self.service.answer_lines(self.request, self.receipt)

    def respond(self, status: int, reason: str, headers: Headers, body: bytes) -> None:
        """A whole answer of the router's own."""
        self.served(reason, *self.receipt.engines)
        self.status = status
        self.request.respond(status, headers, body, lines=self.lines())

    def refuse(
        self,
        status: int,
        message: str,
        reason: str,
        *,
        headers: Headers = (),
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        """An error of the router's own, in the form of the API that was asked."""
        messages = self.request.path.startswith("/v1/messages")
        form: Kind = self.kind or ("messages" if messages else "chat")
        body = error_body(status, message, param=param, code=code, kind=form)
        self.respond(status, reason, [JSON_TYPE, *headers], body)

    def refuse_body(self, error: BodyError) -> None:
        """The body can't be used."""
        if isinstance(error, BeyondRange):
            self.service.metrics.beyond_range.add(self.allowed.name, error.kind, "refused")
        self.refuse(
            error.status,
            error.message,
            "ceiling" if error.status == 429 else "bad body",
            headers=error.headers,
            param=error.param,
            code=error.code,
        )

    def failed(self) -> None:
        """The router failed, or is being stopped: the client gets a 500, or half an answer."""
        if self.request.started:
            self.broke_off = not self.request.finished
        else:
            self.status = 500

    def close(self) -> None:
        """Count, judge and log it. Called once, when all is over, however it ended."""
        service, receipt = self.service, self.receipt
        metrics, length = service.metrics, receipt.length_class
        ending = self._ending()
        met, verdict = _SAID[judge(ending)]
        status = 499 if self.left else self.status
        metrics.requests.add(self.kind or "other", length, str(status))
        metrics.slo.add(length, met, verdict)
        if self.broke_off:
            metrics.truncated.add()
        ttft_s = tpot_s = None
        if ending.first_s is not None:
            ttft_s, tpot_s = ending.first_s, ending.tpot_s
            metrics.ttft_s.add(ttft_s, length)
        if tpot_s is not None:
            metrics.tpot_s.add(tpot_s, length)
        if self.parsed is not None and receipt.queue_s is not None:
            metrics.added_s.add(receipt.queue_s, "before first leg")
        if receipt.handoff_s is not None:
            metrics.added_s.add(receipt.handoff_s, "between legs")
        if service.log is not None:
            service.log(self._line(status, verdict, ttft_s, tpot_s))

    def _ending(self) -> Ending:
        request, tap, parsed = self.request, self.tap, self.parsed
        first_s = last_s = None
        if tap is not None and tap.first_s is not None:
            first_s = tap.first_s - request.created_s
            last_s = tap.passing.last_s - request.created_s
        least_tokens, most_tokens = (1, math.inf) if parsed is None else self._longest(parsed)
        return Ending(
            self.status,
            self.service.now() - request.created_s,
            self.kind is not None,
            self.limits,
            self.left,
            request.writable,
            self.broke_off,
            self.by_engine,
            parsed is not None and parsed.stream,
            first_s,
            last_s,
            least_tokens,
            most_tokens,
        )

    def _longest(self, parsed: Parsed) -> tuple[int, float]:
        """Bounds of the longest answer's length, tokens. Where a stream's engine doesn't say how
        many there were, its events count: `[DONE]` is one of them and no token.
        """
        tokens = self.answer_tokens
        if tokens is None and self.tap is not None:
            tokens = self.tap.events - (not self.left)
        if tokens is None:
            return 1, math.inf if parsed.max_tokens is None else parsed.max_tokens
        answers = parsed.answers
        if answers <= 1:
            return tokens, tokens
        least_tokens = -(-tokens // answers)
        return least_tokens, max(least_tokens, tokens - answers + 1)

    def _line(self, status: int, verdict: str, ttft_s: float | None, tpot_s: float | None) -> str:
        if self.parsed is None:
            return log_line(
                self.receipt,
                endpoint=self.kind or "other",
                status=status,
                verdict=verdict,
                method=self.request.method,
                path=self.request.path[:_PATH_CHARS],
                client_request_id=self._client_id(),
                broke_off=self.broke_off or None,
            )
        return log_line(
            self.receipt,
            endpoint=self.kind,
            status=status,
            verdict=verdict,
            stream=self.parsed.stream,
            prompt_tokens=self.prompt_tokens,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            broke_off=self.broke_off or None,
        )

    def _client_id(self) -> str | None:
        own = self.receipt.request_id
        found = self.service.client_id(self.request, own).decode("ascii")
        return None if found == own else found
