"""Where engines with names are: looked up beside the data plane, and remembered.

libuv looks names up on four threads, and a lookup that nobody waits for any more keeps its thread:
a few names whose server is silent hide all the others. Here every name has at most one lookup, on
a thread of its own, whatever becomes of the rest. `getaddrinfo` does it, so that /etc/hosts, search
domains and ndots mean what they mean to every other program of the machine; c-ares reads them
otherwise, and nsswitch.conf hardly.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic
from typing import Final

LOOK_UP_EVERY_S: Final = 30.0
"""Between two lookups of a name: the machine's resolver doesn't tell how long an answer lasts."""
PAUSE_S: Final = 1.0
"""From a lookup until somebody without an address, or with a dead one, causes another."""

Address = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""One of those that `socket.getaddrinfo` returns."""
LookUp = Callable[[str], Sequence[Address]]
"""The addresses of a host name, best first. It may block; raises OSError where there are none."""


class Names:
    """The names of one router's engines.

    look_up: called on threads. say: told what an operator should know. every_s, pause_s: see
    LOOK_UP_EVERY_S and PAUSE_S.
    """

    def __init__(
        self,
        look_up: LookUp | None = None,
        say: Callable[[str], object] = lambda what: None,
        *,
        every_s: float = LOOK_UP_EVERY_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        self.look_up = look_up or _look_up
        self.say = say
        self.every_s = every_s
        self.pause_s = pause_s
        self._names: dict[str, Name] = {}

    def follow(self, host: str, found: Callable[[], object]) -> "Name":
        """The name, which is looked up again and again from its first use on.

        found: called after each lookup that found addresses, until `Name.leave`.
        """
        name = self._names.get(host)
        if name is None:
            name = self._names[host] = Name(host, self)
        name.followers.append(found)
        return name

    def forget(self, name: "Name") -> None:
        """Nobody follows it."""
        if self._names.get(name.host) is name:
            del self._names[name.host]


class Name:
    """A host name and its addresses, or an IP address.

    A name that stops resolving keeps the addresses it had: an engine is well or not, whatever
    becomes of its name's server.

    addresses: best first; empty before the first lookup that found some.
    failure: what the latest lookup said; empty where it found addresses.
    found_s: when one last did (monotonic); -inf before.
    """

    def __init__(self, host: str, names: Names) -> None:
        self.host = host
        self.addresses = _literal(host)
        self.failure = ""
        self.followers: list[Callable[[], object]] = []
        self._names = names
        self._literal = bool(self.addresses)
        self.found_s = -inf
        self._ended_s = -inf
        self._running = False
        self._ended = asyncio.Event()
        self._next: asyncio.TimerHandle | None = None

    def leave(self, found: Callable[[], object]) -> None:
        """Follow it no longer; the last one ends the lookups."""
        if found in self.followers:
            self.followers.remove(found)
        if not self.followers:
            self._names.forget(self)
            if self._next is not None:
                self._next.cancel()

    async def known(self) -> tuple[Address, ...]:
        """Its addresses; waits only if there are none yet. Raises OSError if none are found."""
        if not self.addresses:
            self.look_up()
            if self._running:
                await self._ended.wait()
        if not self.addresses:
            raise OSError(self.failure or "no address")
        return self.addresses

    def look_up(self) -> None:
        """Begin a lookup, unless one is under way or has just ended. Needs a running event loop."""
        loop = asyncio.get_running_loop()
        fresh = monotonic() - self._ended_s < self._names.pause_s
        if self._literal or self._running or fresh:
            return
        if self._next is not None:
            self._next.cancel()
        self._running = True
        self._ended.clear()
        thread = threading.Thread(target=self._work, args=(loop,), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            self._take(loop, (), str(error))

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """On its own thread, for as long as the machine's resolver takes."""
        found: tuple[Address, ...] = ()
        failure = "no address"
        try:
            found = tuple(dict.fromkeys(self._names.look_up(self.host)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next lookup may begin
            failure = (error.strerror if isinstance(error, OSError) else None) or str(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._take, loop, found, failure)

    def _take(
        self, loop: asyncio.AbstractEventLoop, found: tuple[Address, ...], failure: str
    ) -> None:
        before, failed = self.addresses, self.failure
        self._ended_s = monotonic()
        self._running = False
        if found:
            self.addresses, self.failure, self.found_s = found, "", self._ended_s
            for follower in list(self.followers):
                follower()
        else:
            self.failure = failure
        self._ended.set()
        if self.followers:
            self._next = loop.call_later(self._names.every_s, self.look_up)
            said = self._news(before, failed)
            if said:
                self._names.say(said)

    def _news(self, before: tuple[Address, ...], failed: str) -> str:
        """What the latest lookup has changed, in words. failed: what the one before said."""
        old, new = shown(before), shown(self.addresses)
        if self.failure:
            kept = f"; connections go on to {new}" if new else ""
            return f"{self.host} isn't found: {self.failure}{kept}" if not failed else ""
        if set(before) == set(self.addresses):
            return f"{self.host} is found again" if failed else ""
        families = [address[0] for address in self.addresses]
        several = len(set(families)) < len(families)
        hint = "; they count as one engine: one of them is in use" if several else ""
        return f"{self.host} is at {new}{f', no longer at {old}' if old else ''}{hint}"


def shown(addresses: Sequence[Address]) -> str:
    """Addresses as people write them."""
    return ", ".join(map(text, addresses))


def text(address: Address) -> str:
    """An address without its port."""
    return str(address[4][0])


def at(address: Address, port: int) -> Address:
    """The address with a port."""
    family, kind, protocol, canonical, (host, _, *scope) = address
    where = (host, port, *scope)
    return family, kind, protocol, canonical, where  # type: ignore[return-value]


def _look_up(host: str) -> Sequence[Address]:
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)


def _literal(host: str) -> tuple[Address, ...]:
    """The address that the host is, if it is one: nobody needs to be asked then."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return ()
    return tuple(found)
