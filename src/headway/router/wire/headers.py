"""Which headers pass between client and engine, each way. Names are lower-case throughout."""

from functools import lru_cache
from typing import Final

from headway.router.wire.http1 import HOP_BY_HOP, Field, Headers, hop_by_hop, lines

# The sender frames the body anew.
_FRAMING: Final = frozenset({b"content-length", b"expect"})
PRIORITY_HEADER: Final = b"x-vllm-priority"
"""vLLM reads it on the paths that generate, before the body's `priority`."""
CLIENT_HEADERS_DROPPED: Final = frozenset(
    {
        *_FRAMING,
        *(b"host", b"accept-encoding", b"x-request-id"),
        b"content-encoding",  # undone here
        # The client's credentials are for the router; the engines have a key of their own.
        *(b"authorization", b"x-api-key", b"api-key", b"cookie"),
        # vLLM sends a request to the data-parallel rank that this names.
        b"x-data-parallel-rank",
        # What a client may ask for is said anew.
        PRIORITY_HEADER,
        # A server that trusts its peer would believe these, and its peer is the router.
        *(
            b"forwarded",
            b"x-forwarded-for",
            b"x-forwarded-host",
            b"x-forwarded-proto",
            b"x-real-ip",
        ),
    }
)
"""Request headers that never reach an engine.

Nor does any `x-headway-*`, `access-control-*` or hop-by-hop one.
"""

ANSWER_HEADERS_DROPPED: Final = frozenset(
    {
        *_FRAMING,
        # These the router says itself, or nobody does.
        *(b"server", b"server-timing", b"x-request-id", b"alt-svc"),
        # A redirect would send the client to the engine itself.
        b"location",
    }
)
"""Answer headers that never reach a client.

Nor does any `x-headway-*`, `access-control-*` or hop-by-hop one.
"""

_UNBUFFERED: Final = (b"x-accel-buffering", b"no")
"""nginx asks in HTTP/1.0 by default, and holds back what has neither a length nor chunks."""
_UNCACHED: Final = (b"cache-control", b"no-cache")
_EVENTS_TYPE: Final = b"text/event-stream"
_OURS: Final = b"x-headway-"
_CROSS_ORIGIN: Final = b"access-control-"
"""Which web pages may use the router is its own to say: vLLM would let all of them."""
_CLIENT_DROPPED: Final = CLIENT_HEADERS_DROPPED | HOP_BY_HOP
_ANSWER_DROPPED: Final = ANSWER_HEADERS_DROPPED | HOP_BY_HOP
_CODED: Final = frozenset(
    {b"content-encoding", b"content-md5", b"digest", b"content-digest", b"etag"}
)
"""What describes the very bytes of an answer."""
_REWRITTEN_DROPPED: Final = _ANSWER_DROPPED | _CODED


def upstream_lines(
    headers: Headers, *, request_id: str, api_key: str | None, priority: int | None = None
) -> bytes:
    """The fields of a request to an engine, as lines. Host and framing are the sender's to add.

    request_id: of this leg and attempt, its own for each; the router makes it.
    priority: what the client gets of what it asked for; None if it asked for none.
    api_key: the engines' key, if they ask for one. The answer's bytes are to be passed on and
    read, so the engine may not compress them.
    """
    own = b"x-request-id: %b\r\n" % request_id.encode("ascii")
    if priority is not None:
        own += b"%b: %d\r\n" % (PRIORITY_HEADER, priority)
    return _upstream_lines(tuple(headers), api_key) + own


def head_priority(headers: Headers) -> int | None:
    """The priority that a request's head asks for; None where vLLM would see none."""
    for name, value in headers:
        if name == PRIORITY_HEADER:
            try:
                return int(value.decode("latin-1"))
            except ValueError:
                return None
    return None


def answer_lines(headers: Headers, *, rewritten: bool = False) -> bytes:
    """The fields of an engine's answer for the client, as lines. Framing is the sender's.

    rewritten: the body isn't the engine's bytes, so nothing that describes those bytes passes.
    Otherwise a `content-encoding`, which the engine shouldn't use, passes: it stays true.
    A stream of events also says that no proxy should hold it back or keep it, an answer in chunks
    that none should hold it back, unless the engine has said something about it.
    """
    return _answer_lines(tuple(headers), rewritten)


# The same fields come again and again: a client's for all it asks, an engine's for a second.


@lru_cache(maxsize=256)
def _upstream_lines(headers: tuple[Field, ...], api_key: str | None) -> bytes:
    passed = [*_passed(headers, _CLIENT_DROPPED), (b"accept-encoding", b"identity")]
    if api_key is not None:
        passed.append((b"authorization", b"Bearer " + api_key.encode("ascii")))
    return lines(passed)


@lru_cache(maxsize=256)
def _answer_lines(headers: tuple[Field, ...], rewritten: bool) -> bytes:  # noqa: FBT001
    passed = _passed(headers, _REWRITTEN_DROPPED if rewritten else _ANSWER_DROPPED)
    fields = dict(headers)
    events = streams_events(headers)
    if (events or b"transfer-encoding" in fields) and _UNBUFFERED[0] not in fields:
        passed.append(_UNBUFFERED)
    if events and _UNCACHED[0] not in fields:
        passed.append(_UNCACHED)
    return lines(passed)


def uncoded(headers: Headers) -> tuple[Field, ...]:
    """The fields of an answer whose coding was undone."""
    return tuple([field for field in headers if field[0].lower() not in _CODED])


def streams_events(headers: Headers) -> bool:
    """Whether an answer with these fields is a stream of server-sent events."""
    return dict(headers).get(b"content-type", b"").lower().startswith(_EVENTS_TYPE)


def _passed(headers: tuple[Field, ...], dropped: frozenset[bytes]) -> list[Field]:
    """All but those dropped, ours, and those of the connection itself."""
    if b"connection" in dict(headers):
        dropped |= hop_by_hop(headers)
    return [
        field
        for field in headers
        if (name := field[0].lower()) not in dropped and not name.startswith((_OURS, _CROSS_ORIGIN))
    ]
