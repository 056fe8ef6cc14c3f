"""Bodies that come compressed.

Engines read requests as they are written, so the router undoes what clients do to them; and what
an engine does to an answer, unasked, so that the router can read it.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Final

from headway.core.admission import ByteCeiling
from headway.router.wire.client_request import ClientRequest
from headway.router.wire.errors import BodyError, BodyTooLarge
from headway.router.wire.failures import BadUpstream, TooLarge
from headway.router.wire.pieces import Body, append, gathered, parts_of

_GZIP: Final = frozenset({b"gzip", b"x-gzip"})
_GZIP_BITS: Final = 31
"""zlib's word for a gzip header and the largest window."""
_SLICE_BYTES: Final = 1 << 18


class CodingUnsupported(BodyError):  # noqa: N818 - the name says what happened
    """The body is compressed in a way that the router can't undo."""

    headers = ((b"accept-encoding", b"gzip"),)

    def __init__(self, codings: tuple[bytes, ...]) -> None:
        said = b", ".join(codings)[:64].decode("latin-1")
        super().__init__(
            415, f"a body with Content-Encoding {said} can't be read; send it as it is, or gzip"
        )


def whole_body(request: ClientRequest, limit: int, ceiling: ByteCeiling) -> Awaitable[Body]:
    """A request's body, uncompressed; limit and ceiling are for that too.

    Raises CodingUnsupported, BodyError for what isn't one gzip stream, and what
    `ClientRequest.body` raises.
    """
    codings = request.codings
    if not codings or request.length == 0:
        return request.body(limit, ceiling)
    if len(codings) > 1 or codings[0] not in _GZIP:
        raise CodingUnsupported(codings)
    return _inflated(request, limit, ceiling)


async def whole_answer(body: Body, coded: tuple[bytes, ...], limit: int) -> Body:
    """An engine's answer, uncompressed. Raises BadUpstream, TooLarge."""
    if len(coded) > 1 or coded[0] not in _GZIP:
        said = b", ".join(coded)[:64].decode("latin-1")
        raise BadUpstream(f"an answer with Content-Encoding {said}, which wasn't asked for")
    try:
        return await _uncompressed(body, limit, lambda _: None)
    except BodyTooLarge:
        raise TooLarge(f"an answer of more than {limit} bytes") from None
    except BodyError as error:
        raise BadUpstream(error.message) from None


async def _inflated(request: ClientRequest, limit: int, ceiling: ByteCeiling) -> Body:
    return await _uncompressed(await request.body(limit, ceiling), limit, request.hold)


async def _uncompressed(body: Body, limit: int, hold: Callable[[int], None]) -> Body:
    """hold: told of each piece's size before it is kept."""
    inflate = zlib.decompressobj(_GZIP_BITS)
    parts: list[bytes] = []
    size = 0
    waiting = [*parts_of(body)][::-1]
    while waiting and not inflate.eof:
        try:
            data = inflate.decompress(waiting.pop(), _SLICE_BYTES)
        except zlib.error:
            raise _malformed("is no gzip stream") from None
        size += len(data)
        if size > limit:
            raise BodyTooLarge(limit)
        hold(len(data))
        append(parts, data)
        if inflate.unconsumed_tail or len(data) == _SLICE_BYTES:
            waiting.append(inflate.unconsumed_tail)  # empty: there may be more in zlib's hands
        if waiting:
            await asyncio.sleep(0)  # others have their turn
    if not inflate.eof:
        raise _malformed("ends before its gzip stream does")
    if inflate.unused_data or any(waiting):
        raise _malformed("goes on behind its gzip stream")
    return gathered(parts)


def _malformed(what: str) -> BodyError:
    return BodyError(400, f"The body {what}.", code="invalid_gzip")
