"""Which headers pass between client and engine, each way. Names are lower-case throughout."""

from collections.abc import Iterable
from typing import Final

from headway.router.http1 import Headers, hop_by_hop

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


def upstream_headers(
    headers: Iterable[tuple[bytes, bytes]], *, host: str, request_id: str, api_key: str | None
) -> Headers:
    """The headers of a request to an engine. Length and framing are the sender's to add.

    host: of the engine, with its port. request_id: of this leg and attempt, its own for each.
    api_key: the engines' key, if they ask for one. The answer's bytes are to be passed on and
    read, so the engine may not compress them.
    """
    passed: Headers = [(b"host", host.encode("ascii"))]
    passed += _passed(headers, CLIENT_HEADERS_DROPPED)
    passed.append((b"accept-encoding", b"identity"))
    passed.append((b"x-request-id", request_id.encode("ascii")))
    if api_key is not None:
        passed.append((b"authorization", b"Bearer " + api_key.encode("ascii")))
    return passed


def answer_headers(headers: Iterable[tuple[bytes, bytes]], *, rewritten: bool = False) -> Headers:
    """The headers of an engine's answer for the client. Length and framing are the sender's.

    rewritten: the body isn't the engine's bytes, so nothing that describes those bytes passes.
    Otherwise a `content-encoding`, which the engine shouldn't use, passes: it stays true.
    """
    passed = _passed(headers, ANSWER_HEADERS_DROPPED)
    if rewritten:
        about_bytes = (b"content-encoding", b"content-md5", b"digest", b"content-digest", b"etag")
        passed = [header for header in passed if header[0] not in about_bytes]
    return passed


def _passed(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> Headers:
    """All but those dropped, ours, and those of the connection itself."""
    known = [(name.lower(), value) for name, value in headers]
    connection = hop_by_hop(known)
    return [
        (name, value)
        for name, value in known
        if name not in dropped and name not in connection and not name.startswith(_OURS)
    ]
