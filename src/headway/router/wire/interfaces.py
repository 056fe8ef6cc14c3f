"""What a call asks of those it connects: the connection that carries it, the client, a tap."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from headway.router.wire.fast_path import Passing


class Departing(Protocol):
    """Someone who may leave. `ClientRequest` is one."""

    @property
    def is_gone(self) -> bool:
        """Whether they have left."""

    def on_gone(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls back when they leave, at once if they have; returns a way to unsubscribe."""


class Sink(Departing, Protocol):
    """Where a body goes. `ClientRequest` is one."""

    @property
    def writable(self) -> bool:
        """Whether more is welcome."""

    def write(self, data: bytes) -> None:
        """Takes a piece, even while `writable` is False."""

    @property
    def write_chunk(self) -> Callable[[bytes], object] | None:
        """Once something was written: takes a piece framed by `http1.chunk`; None: can't."""

    @property
    def write_passing(self) -> Callable[[bytes], object] | None:
        """As write_chunk, for events that need not be fed to the tap (`Passing`)."""

    def on_flow(self, callback: Callable[[], None] | None) -> None:
        """Calls back each time `writable` has changed."""


class Tap(Protocol):
    """Sees a body's pieces, and when they came (monotonic). `StreamTap` is one."""

    passing: Passing

    def feed(self, data: bytes, now_s: float) -> None:
        """A piece."""


class Carrier(Protocol):
    """The connection that carries a call."""

    loop: asyncio.AbstractEventLoop
    passing: Passing | None

    def write(self, data: bytes) -> None:
        """Sends bytes of the request."""

    async def room(self) -> None:
        """Returns when the transport's buffer has room."""

    def pause(self) -> None:
        """Stops reading."""

    def resume(self) -> None:
        """Reads on."""

    def drop(self) -> None:
        """Closes at once; the engine sees a disconnect."""

    def wake_at(self, at_s: float) -> None:
        """Calls `check_time` of the call it carries then, or before."""


class ClientLink(Protocol):
    """What a request needs of the connection it came on."""

    def send(self, data: bytes) -> None:
        """Hands bytes to the transport."""

    @property
    def sender(self) -> Callable[[bytes], object] | None:
        """What hands bytes to the transport without a way round; None without one."""

    def send_continue(self) -> None:
        """Asks for the body."""

    def want_body(self) -> None:
        """Reading may go on: the request has room again."""

    def stays(self) -> bool:
        """Whether the connection can carry another request after this answer."""

    def answered(self) -> None:
        """The answer is complete."""

    def cut(self) -> None:
        """Closes at once; what isn't sent yet is lost."""
