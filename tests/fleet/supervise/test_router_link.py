"""The router is told which engines may get requests, whatever becomes of it meanwhile."""

import asyncio
import contextlib
import json
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.testing.ports import held_port

from headway.fleet.supervise import router_link
from headway.fleet.supervise.router_link import RouterLink, RouterProbe

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """What is told is told once, however long it takes to be heard."""
    monkeypatch.setattr(router_link, "_TELL_TIMEOUT_S", WAIT_S)
    monkeypatch.setattr(router_link, "_STATE_TIMEOUT_S", WAIT_S)


@pytest.fixture
def at_once(monkeypatch):
    """What has changed is told then: nothing is tried again before a test is over."""
    monkeypatch.setattr(router_link, "_AGAIN_S", 600.0)


class Admin:
    """A router's admin port. It knows `engines`, and believes that all may get requests.

    The port stays its own while nobody listens.
    """

    def __init__(self):
        self.drained = set()
        self.engines = {"p/a:1", "p/b:2"}
        self.asked = []
        self.silent = False
        self.held = held_port()
        self.port = self.held.number
        self._server = None

    async def start(self):
        self.drained.clear()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self):
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            status, body = self._answer(*head.split(" ")[:2])
            if not self.silent:
                head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
                writer.write(head + body)
                await writer.drain()
            writer.close()

    def _answer(self, method, target):
        address = urlsplit(target)
        if address.path == "/state":
            engines = [
                {"id": e, "ready": e not in self.drained, "work": {"requests": len(e)}}
                for e in sorted(self.engines)
            ]
            return 200, json.dumps(
                {"pools": [{"name": "a", "role": "both", "engines": engines}]}
            ).encode()
        (engine,) = parse_qs(address.query)["engine"]
        self.asked.append((address.path, engine))
        if engine not in self.engines:
            return 404, b"{}"
        if not self.silent:
            change = self.drained.add if address.path == "/drain" else self.drained.discard
            change(engine)
        return 200, b"{}"


async def until(condition):
    async with asyncio.timeout(WAIT_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


@pytest.fixture
def failures(monkeypatch):
    """One entry for each time that the link reached nobody."""
    found = []
    exchange = router_link.exchange

    async def noting(*given):
        try:
            return await exchange(*given)
        except ConnectionError:
            found.append(given)
            raise

    monkeypatch.setattr(router_link, "exchange", noting)
    return found


def linked(test):
    async def run():
        admin = Admin()
        await admin.start()
        link = RouterLink(f"http://127.0.0.1:{admin.port}")
        telling = asyncio.create_task(link.run())
        try:
            await test(admin, link)
        finally:
            telling.cancel()
            await admin.stop()
            admin.held.release()

    asyncio.run(run())


def test_what_changes_is_told_at_once_and_what_the_router_believes_is_not(at_once):
    async def test(admin, link):
        link.started()
        link.set_open("p/a:1", is_open=True)
        link.set_open("p/b:2", is_open=False)
        await asyncio.wait_for(link.until_closed("p/b:2"), WAIT_S)
        assert admin.asked == [("/drain", "p/b:2")]
        link.set_open("p/b:2", is_open=True)
        await until(lambda: not admin.drained)
        link.set_open("p/a:1", is_open=False)
        await asyncio.wait_for(link.until_closed("p/a:1"), WAIT_S)
        drain_other = ("/drain", "p/a:1")
        assert admin.asked == [("/drain", "p/b:2"), ("/undrain", "p/b:2"), drain_other]

    linked(test)


def test_a_router_that_was_restarted_is_told_again(failures):
    async def test(admin, link):
        link.started()
        link.set_open("p/a:1", is_open=False)
        await until(lambda: admin.drained == {"p/a:1"})
        await admin.stop()
        link.ended()
        assert link.told_closed("p/a:1")  # there is nobody to send anything
        link.started()  # and nobody listens yet
        assert not link.told_closed("p/a:1")
        await until(lambda: failures)
        await admin.start()
        await until(lambda: admin.drained == {"p/a:1"})

    linked(test)


def test_an_engine_that_the_router_has_not_read_of_yet_is_told_later():
    async def test(admin, link):
        link.started()
        link.set_open("p/new:3", is_open=False)
        await until(lambda: len(admin.asked) >= 2)
        admin.engines.add("p/new:3")
        await asyncio.wait_for(link.until_closed("p/new:3"), WAIT_S)
        link.set_open("p/gone:4", is_open=False)
        await until(lambda: ("/drain", "p/gone:4") in admin.asked)
        link.forget("p/gone:4")
        link.set_open("p/a:1", is_open=False)  # told when what was on its way has ended
        await asyncio.wait_for(link.until_closed("p/a:1"), WAIT_S)
        asked = admin.asked.count(("/drain", "p/gone:4"))
        for is_open in (True, False):
            link.set_open("p/a:1", is_open=is_open)
            await until(lambda: link.told_closed("p/a:1") is not is_open)  # noqa: B023
        assert admin.asked.count(("/drain", "p/gone:4")) == asked

    linked(test)


def test_an_answer_that_never_came_counts_as_nothing_heard():
    async def test(admin, link):
        link.started()
        admin.silent = True
        link.set_open("p/a:1", is_open=False)
        await until(lambda: admin.asked)
        assert not link.told_closed("p/a:1")
        admin.silent = False
        await until(lambda: admin.drained == {"p/a:1"})

    linked(test)


def test_what_changes_back_while_the_router_is_deaf_needs_nothing(failures, at_once):
    async def test(admin, link):
        await admin.stop()
        link.started()
        link.set_open("p/a:1", is_open=False)
        await until(lambda: failures)
        link.set_open("p/a:1", is_open=True)
        await admin.start()
        link.set_open("p/b:2", is_open=False)
        await asyncio.wait_for(link.until_closed("p/b:2"), WAIT_S)
        assert admin.asked == [("/drain", "p/b:2")]

    linked(test)


def test_its_state_is_what_it_last_said_until_it_ends():
    async def test(admin, link):
        link.started()
        assert link.requests("p/a:1") == 0
        assert await link.refresh()
        assert link.requests("p/a:1") == 5
        assert link.serves("p/a:1")
        assert not link.serves("p/x:9")
        link.set_open("p/a:1", is_open=False)
        assert link.serves("p/a:1"), "it hasn't heard yet"
        await until(lambda: link.told_closed("p/a:1"))
        assert not link.serves("p/a:1")
        link.set_open("p/a:1", is_open=True)
        assert not link.serves("p/a:1"), "what it said is older than the drain"
        await until(lambda: link.serves("p/a:1"))
        link.ended()
        assert not link.serves("p/a:1")

    linked(test)


def test_a_router_that_does_not_answer_hangs():
    async def test(admin, link):
        probe = RouterProbe(link, 10)
        assert await probe.trouble(0.0) is None
        await admin.stop()
        assert not await probe.ready()
        assert await probe.trouble(9.0) is None
        assert await probe.trouble(10.0) == "hung: no answer for 10 s"
        await admin.start()
        assert await probe.trouble(11.0) is None

    linked(test)
