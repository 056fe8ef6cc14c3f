"""Where the router listens: families of addresses, and those that the machine lacks."""

import asyncio
import errno
import socket

import pytest
from tests.router.raw_client import each_loop, soon

from headway.router.wire.server import serve


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="needs IPv6")


async def answer(request):
    request.respond(200, [], request.peer.encode())


async def peer(address, port):
    """How the router saw a client that connected to this address."""
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    data = await soon(reader.read())
    writer.close()
    return data.rpartition(b"\r\n\r\n")[2].decode()


LOCAL = {
    "IPv4": (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    "IPv6": (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
    "elsewhere": (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0)),
}


def resolves_to(*names):
    """From now on every name has these addresses."""

    async def found(*_, **__):
        return [LOCAL[name] for name in names]

    asyncio.get_running_loop().getaddrinfo = found


@needs_ipv6
@each_loop
@pytest.mark.parametrize("host", ["::", "a name with both"])
def test_one_port_at_both_families(run, host):
    async def main():
        if host != "::":
            resolves_to("IPv6", "IPv4")
        server = await serve(answer, host, 0)
        try:
            assert (await peer("127.0.0.1", server.port)).endswith("127.0.0.1")
            assert await peer("::1", server.port) == "::1"
        finally:
            await server.close(0.2)

    run(main)


@needs_ipv6
@each_loop
def test_one_address_is_one_family(run):
    async def main():
        server = await serve(answer, "::1", 0)
        try:
            with pytest.raises(ConnectionRefusedError):
                await peer("127.0.0.1", server.port)
        finally:
            await server.close(0.2)

    run(main)


@each_loop
def test_an_address_that_the_machine_lacks_does_not_keep_it_from_the_others(run):
    async def main():
        resolves_to("elsewhere", "IPv4")
        said = []
        server = await serve(answer, "router.example", 0, say=said.append)
        try:
            assert await peer("127.0.0.1", server.port) == "127.0.0.1"
        finally:
            await server.close(0.2)
        assert said == ["router.example: 192.0.2.1 isn't an address of this machine"]

    run(main)


@each_loop
@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("::", "this machine has no IPv6; use 0.0.0.0"),
        ("::1", "::1 isn't an address of this machine"),
    ],
)
def test_without_ipv6_it_says_so(run, host, said, monkeypatch):
    class Without(socket.socket):
        def __init__(self, family=socket.AF_INET, *more):
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *more)

    async def main():
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Without)
            with pytest.raises(OSError, match=said):
                await serve(answer, host, 0)

    run(main)


@each_loop
def test_a_taken_port_is_told_as_before(run):
    async def main():
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(OSError, match="in use"):
                await serve(answer, "127.0.0.1", taken.getsockname()[1])

    run(main)
