"""A request that no strategy routes: its receipt, its count and its line in the log."""

from typing import Final

from headway.router.errors import Kind, error_body
from headway.router.http1 import JSON_TYPE, Headers
from headway.router.receipt import Receipt, log_line
from headway.router.request import ClientRequest
from headway.router.service import Service

_PATH_CHARS: Final = 128
"""Of a path as logged."""


class Record:
    """What the router answers itself or passes on to one engine leaves this behind.

    kind: of a request that generates; None for all others. receipt: of a request that comes to
    be generated, too.
    """

    def __init__(self, service: Service, request: ClientRequest, kind: Kind | None) -> None:
        self.service = service
        self.request = request
        self.kind = kind
        self.receipt = Receipt(service.new_id(), service.config.router.strategy, "", "none")

    def served(self, reason: str, *engines: str) -> None:
        """How it is served, and on which engines; the queue ends here."""
        queue_s = self.receipt.queue_s
        if queue_s is None:
            queue_s = self.service.now() - self.request.created_s
        receipt = self.receipt
        receipt.reason, receipt.engines, receipt.queue_s = reason, engines, queue_s

    def lines(self) -> bytes:
        """What the answer's head says about the request."""
        return self.service.answer_lines(self.request, self.receipt)

    def respond(self, status: int, reason: str, headers: Headers, body: bytes) -> None:
        """A whole answer of the router's own."""
        self.served(reason, *self.receipt.engines)
        self.request.respond(status, headers, body, lines=self.lines())
        self.end(status)

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

    def end(self, status: int, *, broke_off: bool = False) -> None:
        """Count and log it, once. status: 499 if the client left."""
        service, endpoint = self.service, self.kind or "other"
        service.metrics.requests.add(endpoint, "none", str(status))
        if broke_off:
            service.metrics.truncated.add()
        if service.log is not None:
            line = log_line(
                self.receipt,
                endpoint=endpoint,
                status=status,
                method=self.request.method,
                path=self.request.path[:_PATH_CHARS],
                client_request_id=self._client_id(),
                broke_off=broke_off or None,
            )
            service.log(line)

    def _client_id(self) -> str | None:
        own = self.receipt.request_id
        found = self.service.client_id(self.request, own).decode("ascii")
        return None if found == own else found
