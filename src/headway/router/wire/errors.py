"""Errors in the form each API's clients read, and bodies that can't be used."""

import json
from typing import Final, Literal

from headway.core.errors import HeadwayError
from headway.core.routing.route import RETRY_AFTER_S

Kind = Literal["chat", "completions", "responses", "messages"]
"""Which API a request speaks: its fields, its usage and its errors."""

_OPENAI_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class BodyError(HeadwayError):
    """A request body that can't be used.

    status: the HTTP status it deserves. param: the field that is wrong, where there is one.
    code: a short machine-readable name. headers: what the answer's head says beside it.
    """

    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as what it was made of."""
        return BodyError, (self.status, self.message, self.param, self.code)


def error_body(
    status: int,
    message: str,
    *,
    type: str | None = None,  # noqa: A002 - the field's own name, as clients know it
    param: str | None = None,
    code: str | None = None,
    kind: Kind = "chat",
) -> bytes:
    """An error answer: OpenAI's form, or Anthropic's for `messages`.

    type: from the status where not given. Anthropic's form has no `param` and no `code`.
    """
    if kind == "messages":
        error = {"type": type or _anthropic_type(status), "message": message}
        return dump_error({"type": "error", "error": error})
    fields = {"message": message, "type": type or openai_type(status), "param": param}
    return dump_error({"error": {**fields, "code": code}})


def openai_type(status: int) -> str:
    """The `type` of an error in OpenAI's form."""
    fallback = "invalid_request_error" if status < 500 else "server_error"
    return _OPENAI_TYPES.get(status, fallback)


def _anthropic_type(status: int) -> str:
    fallback = "invalid_request_error" if status < 500 else "api_error"
    return _ANTHROPIC_TYPES.get(status, fallback)


def dump_error(value: object) -> bytes:
    """An error as JSON."""
    # ASCII only: a lone surrogate in a quoted name can't break it.
    return json.dumps(value, separators=(",", ":")).encode("ascii")


class BodyTooLarge(BodyError):  # noqa: N818 - the name says what happened
    """The body exceeds the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the request body is larger than {limit} bytes")


class BodiesFull(BodyError):  # noqa: N818 - the name says what happened
    """The bodies of all requests together are as large as they may be."""

    headers = ((b"retry-after", b"%d" % RETRY_AFTER_S),)

    def __init__(self) -> None:
        super().__init__(429, "the router holds as many bytes of requests as it may")


class BodyTimeout(BodyError):  # noqa: N818 - the name says what happened
    """The body stopped coming."""

    def __init__(self) -> None:
        super().__init__(408, "the request body did not arrive in time")


class BodyMalformed(BodyError):  # noqa: N818 - the name says what happened
    """The body's framing is broken; where the next request begins is unknown."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)
