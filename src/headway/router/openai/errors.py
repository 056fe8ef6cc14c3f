"""Errors inside a stream, and engines' words for a prompt that is too long."""

import json
import re
from typing import Final

from headway.router.wire.errors import Kind, dump_error, error_body, openai_type

# How vLLM 0.32 words a refusal because of length. All are anchored at the start of the message:
# other refusals quote what the client sent.
_TOO_LONG: Final = re.compile(
    r"This model's maximum context length is \d+ tokens"  # renderers/params.py
    r"|The (?:decoder|encoder) prompt \(length \d+\) (?:is|plus)"  # v1/engine/input_processor.py
    r"|\w*tokens=\d+ cannot be greater than max_model_len"  # renderers/params.py
)
_TOO_LONG_STATUS: Final = (400, 413, 422)


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
    error = {"message": message, "type": openai_type(status), "param": None, "code": None}
    if kind != "responses":
        return start + b"data: " + dump_error({"error": error}) + b"\n\n"
    # The documented event has its fields at the top; OpenAI's clients raise on `error`.
    event = {
        "type": "error",
        "code": error["type"],
        "message": message,
        "param": None,
        "sequence_number": sequence_number,
        "error": error,
    }
    return start + b"event: error\ndata: " + dump_error(event) + b"\n\n"


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
