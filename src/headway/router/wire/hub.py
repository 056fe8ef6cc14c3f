"""What the connections of one server share."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from headway.router.wire.client_request import ClientRequest

App = Callable[[ClientRequest], Awaitable[None]]
"""Answers one request. It must finish or abort the answer unless the client is gone; an
exception becomes an answer: a BodyError its own, any other a 500 (or a cut after the head)."""


class OpenConnection(Protocol):
    """A client's connection, as its server ends it."""

    def drain(self) -> None:
        """Closes it once it owes no answer."""

    def close(self) -> None:
        """Closes it; what is written still goes out."""

    def cut(self) -> None:
        """Closes it at once."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a client may take up.

    head_timeout_s: from a head's first byte (or the connection's begin) to its end.
    body_timeout_s: between pieces of a body. keep_alive_s: between requests.
    write_stall_s: without the client taking a byte of its answer, as TCP sees it.
    max_connections: open at once, those in their TLS handshake included, which has to be done in
    head_timeout_s.
    """

    head_timeout_s: float = 20.0
    body_timeout_s: float = 60.0
    keep_alive_s: float = 75.0
    write_stall_s: float = 60.0
    max_head_bytes: int = 65_536
    max_headers: int = 128
    max_connections: int = 16_384


class Hub:
    """What the connections of one server share."""

    def __init__(
        self,
        app: App,
        limits: ClientLimits,
        loop: asyncio.AbstractEventLoop,
        say: Callable[[str], object],
    ) -> None:
        """say: told what an operator should know of."""
        self.app = app
        self.say = say
        self.limits = limits
        self.loop = loop
        self.connections: set[OpenConnection] = set()
        self.opening: set[OpenConnection] = set()  # accepted, not connections yet
        self.tasks: dict[ClientRequest, asyncio.Task[None]] = {}
        self.draining = False
        self.empty = asyncio.Event()
        self.empty.set()

    @property
    def open(self) -> int:
        """Connections, those that are being opened included."""
        return len(self.connections) + len(self.opening)
