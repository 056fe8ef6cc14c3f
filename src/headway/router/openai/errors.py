"""Errors in the form each API's clients read: whole answers, and events inside a stream."""

import json
import re
from typing import Final, Literal

from headway.core.errors import HeadwayError

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

# How vLLM 0.32 words a refusal because of length. All are anchored at the start of the message:
# other refusals quote what the client sent.
_TOO_LONG: Final = re.compile(
    r"This model's maximum context length is \d+ tokens"  # renderers/params.py
    r"|The (?:decoder|encoder) prompt \(length \d+\) (?:is|plus)"  # v1/engine/input_processor.py
    r"|\w*tokens=\d+ cannot be greater than max_model_len"  # renderers/params.py
)
_TOO_LONG_STATUS: Final = (400, 413, 422)


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

    def body(self, kind: Kind) -> bytes:
        """The answer's body in the form of that API."""
        return error_body(self.status, self.message, param=self.param, code=self.code, kind=kind)


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
        return _dump({"type": "error", "error": error})
    fields = {"message": message, "type": type or _openai_type(status), "param": param}
    return _dump({"error": {**fields, "code": code}})


def stream_error(
    message: str,
    kind: Kind,
    *,
    status: int = 502,
    sequence_number: int = 0,
    mid_event: bool = False,
) -> bytes:
    """The event that says, inside a stream, that the answer ends here unfinished.

    No `[DONE]`, `message_stop` or `response.completed` may follow it.
    sequence_number: the events sent before it; Responses events are numbered.
    mid_event: the stream was cut inside an event. A blank line then ends that event first, or
    this one would be taken for more of it; what the client has of it isn't whole JSON.
    """
    start = b"\n\n" if mid_event else b""
    if kind == "messages":
        return start + b"event: error\ndata: " + error_body(status, message, kind=kind) + b"\n\n"
    error = {"message": message, "type": _openai_type(status), "param": None, "code": None}
    if kind != "responses":
        return start + b"data: " + _dump({"error": error}) + b"\n\n"
    # The documented event has its fields at the top; OpenAI's clients raise on `error`.
    event = {
        "type": "error",
        "code": error["type"],
        "message": message,
        "param": None,
        "sequence_number": sequence_number,
        "error": error,
    }
    return start + b"event: error\ndata: " + _dump(event) + b"\n\n"


def too_long(status: int, body: bytes) -> bool:
    """Whether an engine refused a request for its length, so that a longer pool may take it."""
    if status not in _TOO_LONG_STATUS:
        return False
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return False
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return False
    if error.get("code") == "context_length_exceeded":
        return True
    message = error.get("message")
    return isinstance(message, str) and _TOO_LONG.match(message) is not None


def _openai_type(status: int) -> str:
    fallback = "invalid_request_error" if status < 500 else "server_error"
    return _OPENAI_TYPES.get(status, fallback)


def _anthropic_type(status: int) -> str:
    fallback = "invalid_request_error" if status < 500 else "api_error"
    return _ANTHROPIC_TYPES.get(status, fallback)


def _dump(value: object) -> bytes:
    # ASCII only: a lone surrogate in a quoted name can't break it.
    return json.dumps(value, separators=(",", ":")).encode("ascii")
