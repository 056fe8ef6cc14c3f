"""How a call to an engine can fail."""

import errno
from typing import Final

from headway.core.errors import HeadwayError

OUT_OF_ROOM: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)
"""Errors of sockets that are for want of files, memory or ports here."""


class UpstreamError(HeadwayError):
    """A call that failed.

    sent_on_reused: the request went out on a connection used before and nothing came back, so
    the engine may have closed it without ever reading the request.
    """

    sent_on_reused = False


class ConnectFailed(UpstreamError):  # noqa: N818 - as ClientGone
    """No connection: refused, unreachable, or not in time. Nothing was sent."""


class ConnectTimeout(ConnectFailed):
    """No connection in time. The engine may be busy, or its machine gone."""


class NoRoom(ConnectFailed):
    """No connection for want of files, memory or ports here. It says nothing of the engine."""


class FirstByteTimeout(UpstreamError):  # noqa: N818 - as ClientGone
    """No head, or none of the body's bytes, in time."""


class IdleTimeout(UpstreamError):  # noqa: N818 - as ClientGone
    """The body stopped coming, or the engine stopped taking the request's."""


class TotalTimeout(UpstreamError):  # noqa: N818 - as ClientGone
    """The call took too long as a whole."""


class UpstreamDied(UpstreamError):  # noqa: N818 - as ClientGone
    """The connection ended before the answer did. before_head: before its head was complete."""

    def __init__(self, message: str, *, before_head: bool, sent_on_reused: bool = False) -> None:
        super().__init__(message)
        self.before_head = before_head
        self.sent_on_reused = sent_on_reused


class BadUpstream(UpstreamError):  # noqa: N818 - as ClientGone
    """What came is not a valid HTTP/1.1 answer."""


class CutShort(UpstreamError):  # noqa: N818 - as ClientGone
    """The answer's bytes ended in order, but before what they say did."""


class TooLarge(UpstreamError):  # noqa: N818 - as ClientGone
    """The body exceeds what the caller would read."""


class ClientGone(HeadwayError):  # noqa: N818 - the name says what happened
    """The client left; nobody reads the answer."""
