"""Ports that nobody else gets for as long as they are held, whether or not anybody listens.

A held port is bound and doesn't listen. It is bound without any option, which fails where anybody
at all has the port, and marked for reuse only then. From then on the kernel gives it to nobody who
asks for any port, nor to whoever binds it plainly. Those it is held for can bind and listen again
and again: vLLM, ZeroMQ and asyncio all bind with SO_REUSEADDR. While they listen, nobody else can
bind it, unless with SO_REUSEPORT and as the same user. Between two runs of an engine whoever names
the port and asks for reuse could take it; the engine then fails to start and says so.
"""

import contextlib
import errno
import socket
from typing import Final, Self

from headway.fleet.errors import FleetError

FIRST: Final = 8100
_LAST: Final = 32767
"""Below the ports that Linux gives to outgoing connections."""
_REUSE: Final = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)


class Port:
    """A held port. `number` is what it is."""

    def __init__(self, held: socket.socket) -> None:
        self._held = held
        self.number = int(held.getsockname()[1])

    def release(self) -> None:
        """Let go of it. May be called again."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def reserve(host: str, first: int = FIRST) -> Port:
    """The lowest port from `first` on that nobody has. Raises FleetError where there is none."""
    for number in range(first, _LAST + 1):
        with contextlib.suppress(OSError):
            return Port(_bound(host, number))
    raise FleetError(f"no port from {first} to {_LAST} is free on {host}")


def claim(host: str, number: int) -> Port:
    """This port, or any free one where `number` is 0.

    Raises FleetError where it is taken. Connections that have ended don't count as taking it.
    """
    if number == 0:
        return reserve(host)
    try:
        return Port(_bound(host, number, socket.SO_REUSEADDR))
    except OSError as error:
        raise FleetError(f"cannot listen on {host}:{number}: {_said(error)}") from error


def _bound(host: str, number: int, *before: int) -> socket.socket:
    """A bound socket that doesn't listen, with the options `before` set first."""
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        for option in before:
            held.setsockopt(socket.SOL_SOCKET, option, 1)
        held.bind((host, number))
        for option in _REUSE:
            held.setsockopt(socket.SOL_SOCKET, option, 1)
    except OSError:
        held.close()
        raise
    return held


def _said(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process has the port; stop it, or choose another port"
    return str(error.strerror or error)
