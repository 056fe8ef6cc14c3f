"""The APIs that vLLM serves, as the router sees them: one door to reading and rewriting.

`request` and `prompt` read requests, `legs` makes the legs' bodies, `answers` and `stream` read and
clean answers, `errors` words failures. Nothing of that waits or sends; `beside` waits for what is
done in another process.
"""

from headway.router.openai.answers import (
    AnswerError,
    Usage,
    handoff_params,
    is_whole,
    strip_answer,
    usage_of,
)
from headway.router.openai.asked import BeyondRange, Settled, Terms, settle_passed
from headway.router.openai.errors import stream_error, too_long
from headway.router.openai.legs import decode_body, prefill_body
from headway.router.openai.request import ENDPOINTS, Parsed, parse
from headway.router.wire.errors import BodyError, Kind, error_body
from headway.router.wire.headers import (
    ANSWER_HEADERS_DROPPED,
    CLIENT_HEADERS_DROPPED,
    answer_lines,
    streams_events,
    upstream_lines,
)
from headway.router.wire.http1 import Headers

__all__ = [
    "ANSWER_HEADERS_DROPPED",
    "CLIENT_HEADERS_DROPPED",
    "ENDPOINTS",
    "AnswerError",
    "BeyondRange",
    "BodyError",
    "Headers",
    "Kind",
    "Parsed",
    "Settled",
    "Terms",
    "Usage",
    "answer_lines",
    "decode_body",
    "error_body",
    "handoff_params",
    "is_whole",
    "parse",
    "prefill_body",
    "settle_passed",
    "stream_error",
    "streams_events",
    "strip_answer",
    "too_long",
    "upstream_lines",
    "usage_of",
]
