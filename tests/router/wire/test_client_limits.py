"""Limits on what a client may take up: time, connections, handshakes, files."""

import asyncio
import json
import socket

import pytest
from tests.router.certificates import contexts
from tests.router.raw_client import Wire, each_loop, no_more_files, served, soon, until
from tests.router.wire.client_side import GET, echo

from headway.router.wire import listener


@each_loop
@pytest.mark.parametrize("data", [b"", b"GET / HT", GET[:-2], b"POST"])
def test_a_head_must_arrive_in_time(run, data):
    async def main():
        async with served(echo, head_timeout_s=0.5) as server:
            wire = await Wire.open(server.port)
            dripping = asyncio.ensure_future(drip(wire, data))
            wire.send(data)
            answer = await wire.answer()
            assert answer.status == (408 if data else 0)
            dripping.cancel()
            wire.close()

    async def drip(wire, data):
        while data == GET[:-2]:
            await asyncio.sleep(0.02)
            wire.send(b"A")

    run(main)


@each_loop
@pytest.mark.parametrize("dripping", [False, True])
def test_a_body_must_keep_coming(run, dripping):
    async def main():
        async with served(echo, body_timeout_s=0.3) as server:
            wire = await Wire.open(server.port)
            wire.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
            drops = asyncio.ensure_future(drip(wire))
            answer = await wire.answer()
            assert answer.status == 408
            assert json.loads(answer.body)["error"]["message"]
            drops.cancel()
            wire.close()

    async def drip(wire):
        while dripping:
            wire.send(b"x")
            await asyncio.sleep(0.05)

    run(main)


@each_loop
def test_a_connection_at_rest_is_closed_after_a_while(run):
    async def main():
        async with served(echo, keep_alive_s=0.2) as server:
            wire = await Wire.open(server.port)
            wire.send(GET)
            assert (await wire.answer()).status == 200
            assert await wire.rest() == b""
            wire.close()

    run(main)


@each_loop
def test_connections_beyond_the_limit_are_refused(run):
    async def main():
        async with served(echo, max_connections=2) as server:
            wires = [await Wire.open(server.port) for _ in range(3)]
            assert (await wires[2].answer()).status == 503
            wires[0].send(GET)
            assert (await wires[0].answer()).status == 200
            for wire in wires:
                wire.close()

    run(main)


@each_loop
def test_what_is_refused_is_bounded_too(run, monkeypatch, caplog):
    """One more than may be told so is closed without a word."""
    monkeypatch.setattr(listener, "REFUSED_AT_ONCE", 1)

    async def main():
        async with served(echo, max_connections=2) as server:
            wires = [await Wire.open(server.port) for _ in range(3)]
            assert (await wires[2].answer()).status == 503
            assert await (await Wire.open(server.port)).rest() == b""
            for wire in wires:
                wire.close()

    run(main)
    assert caplog.text.count("2 connections are open") == 1


@each_loop
def test_a_connection_counts_before_its_handshake(run, tmp_path):
    server_tls, client_tls = contexts(tmp_path)

    async def main():
        async with served(echo, server_tls, max_connections=2) as server:
            silent = [await Wire.open(server.port) for _ in range(2)]
            await until(lambda: server.connections == 2)
            refused = await Wire.open(server.port, ssl=client_tls)
            assert (await refused.answer()).status == 503
            refused.close()
            silent[0].close()
            await until(lambda: server.connections == 1)
            wire = await Wire.open(server.port, ssl=client_tls)
            wire.send(GET)
            assert (await wire.answer()).status == 200
            wire.close()
            silent[1].close()

    run(main)


@each_loop
@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "begun"])
def test_a_handshake_must_be_done_in_time(run, data, tmp_path):
    server_tls, _ = contexts(tmp_path)

    async def main():
        async with served(echo, server_tls, head_timeout_s=0.2) as server:
            wire = await Wire.open(server.port)
            wire.send(data)
            assert await wire.rest() == b""
            await until(lambda: not server.connections)
            wire.close()

    run(main)


@each_loop
def test_no_handshake_outlives_the_server(run, tmp_path):
    server_tls, _ = contexts(tmp_path)

    async def main():
        async with served(echo, server_tls) as server:
            wire = await Wire.open(server.port)
            await until(lambda: server.connections)
        assert await wire.rest() == b""
        wire.close()

    run(main)


@each_loop
def test_without_files_clients_wait_and_are_served_later(run, monkeypatch, caplog):
    """None is closed, and it is said once."""
    monkeypatch.setattr(listener, "_PAUSE_S", 0.05)
    waits = []
    wait = listener.Listener._wait

    def noting(self, error):
        waits.append(error)
        wait(self, error)

    monkeypatch.setattr(listener.Listener, "_wait", noting)

    async def main():
        async with served(echo) as server:
            loop = asyncio.get_running_loop()
            clients = [socket.socket() for _ in range(30)]
            with no_more_files():
                for client in clients:
                    client.setblocking(False)
                    await loop.sock_connect(client, ("127.0.0.1", server.port))
                await until(lambda: "accept: Too many open files" in caplog.text)
                await until(lambda: len(waits) > 3)
                assert not server.connections
            for client in clients:
                await loop.sock_sendall(client, GET)
            for client in clients:
                assert (await soon(loop.sock_recv(client, 100))).startswith(b"HTTP/1.1 200")
                client.close()
            await until(lambda: not server.connections)

    run(main)
    assert caplog.text.count("accept:") == 1
