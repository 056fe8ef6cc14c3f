"""Which headers pass between client and engine, each way. Names are lower-case throughout."""

from typing import Final

from headway.router.http1 import HOP_BY_HOP, Headers, hop_by_hop

# The sender frames the body anew.
_FRAMING: Final = frozenset({b"content-length", b"expect"})
CLIENT_HEADERS_DROPPED: Final = frozenset(
    {
        *_FRAMING,
        *(b"host", b"accept-encoding", b"x-request-id"),
        # The client's credentials are for the router; the engines have a key of their own.
        *(b"authorization", b"x-api-key", b"api-key", b"cookie"),
        # vLLM sends a request to the data-parallel rank that this names.
        b"x-data-parallel-rank",
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
"""Request headers that never reach an engine, nor does any `x-headway-*` or hop-by-hop one."""

ANSWER_HEADERS_DROPPED: Final = frozenset(
    {
        *_FRAMING,
        # These the router says itself, or nobody does.
        *(b"server", b"server-timing", b"x-request-id", b"alt-svc"),
    }
)
"""Answer headers that never reach a client, nor does any `x-headway-*` or hop-by-hop one."""

_OURS: Final = b"x-headway-"
_CLIENT_DROPPED: Final = CLIENT_HEADERS_DROPPED | HOP_BY_HOP
_ANSWER_DROPPED: Final = ANSWER_HEADERS_DROPPED | HOP_BY_HOP
_REWRITTEN_DROPPED: Final = _ANSWER_DROPPED | {
    *(b"content-encoding", b"content-md5", b"digest", b"content-digest", b"etag")
}


def upstream_headers(
    headers: Headers, *, host: str, request_id: str, api_key: str | None
) -> Headers:
    """The headers of a request to an engine. Length and framing are the sender's to add.

    host: of the engine, with its port. request_id: of this leg and attempt, its own for each.
    api_key: the engines' key, if they ask for one. The answer's bytes are to be passed on and
    read, so the engine may not compress them.
    """
    passed: Headers = [(b"host", host.encode("ascii"))]
    passed += _passed(headers, _CLIENT_DROPPED)
    passed.append((b"accept-encoding", b"identity"))
    passed.append((b"x-request-id", request_id.encode("ascii")))
    if api_key is not None:
        passed.append((b"authorization", b"Bearer " + api_key.encode("ascii")))
    return passed


def answer_headers(headers: Headers, *, rewritten: bool = False) -> Headers:
    """The headers of an engine's answer for the client. Length and framing are the sender's.

    rewritten: the body isn't the engine's bytes, so nothing that describes those bytes passes.
    Otherwise a `content-encoding`, which the engine shouldn't use, passes: it stays true.
    """
    return _passed(headers, _REWRITTEN_DROPPED if rewritten else _ANSWER_DROPPED)


def _passed(headers: Headers, dropped: frozenset[bytes]) -> Headers:
    """All but those dropped, ours, and those of the connection itself."""
    if b"connection" in dict(headers):
        dropped |= hop_by_hop(headers)
    return [
        field
        for field in headers
        if (name := field[0].lower()) not in dropped and not name.startswith(_OURS)
    ]
