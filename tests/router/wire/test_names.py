"""Engines with names: lookups beside the data plane, all addresses, and names that move."""

import asyncio
import contextlib
import socket
import threading
from collections import Counter

import pytest
from tests.router.fleet import body_of, wire_bytes
from tests.router.fleet import run as run_fleet
from tests.router.raw_client import PATIENT, WAIT_S, Engine, Wire, each_loop, soon, until
from tests.testing.engine import Stub

from headway import config
from headway.router.serve.admin import Admin
from headway.router.serve.app import App
from headway.router.state.service import Service
from headway.router.wire.engines.names import Names
from headway.router.wire.engines.pool import ConnectFailed, ConnectTimeout, Timeouts, UpstreamPool
from headway.router.wire.server import serve

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BRIEF = Timeouts(connect_s=0.05, first_byte_s=20.0, idle_s=20.0, total_s=60.0)


class Machine:
    """A resolver. `hosts`: by name its addresses, or an error. A name in `silent` isn't answered
    for until `release`.
    """

    def __init__(self, **hosts):
        self.hosts = hosts
        self.silent = set()
        self.release = threading.Event()
        self.asked = Counter()

    def __call__(self, host):
        self.asked[host] += 1
        if host in self.silent:
            self.release.wait(WAIT_S)
        found = self.hosts.get(host, socket.gaierror(socket.EAI_NONAME, "not known"))
        if isinstance(found, Exception):
            raise found
        return [
            (socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0))
            for ip in found
        ]


@contextlib.asynccontextmanager
async def resolver(said=None, **hosts):
    """A machine, and names that it looks up every few milliseconds. No lookup stays behind."""
    machine = Machine(**hosts)
    say = (lambda what: None) if said is None else said.append
    try:
        yield machine, Names(machine, say, every_s=0.005, pause_s=0.0)
    finally:
        machine.release.set()


@contextlib.asynccontextmanager
async def engines(*addresses):
    """An engine at each address, all on one port."""

    async def answer(wire, request):
        wire.send(OK)

    stubs, servers, port = [], [], 0
    for address in addresses:
        stubs.append(Engine(answer))
        servers.append(await asyncio.start_server(stubs[-1].serve, address, port))
        port = servers[0].sockets[0].getsockname()[1]
    try:
        yield stubs, port
    finally:
        for server in servers:
            server.close()
        for task in [task for stub in stubs for task in stub.tasks]:
            task.cancel()
        await asyncio.gather(*(t for s in stubs for t in s.tasks), return_exceptions=True)


@contextlib.asynccontextmanager
async def pool_at(names, host, port):
    pool = UpstreamPool(host, port, names=names)
    try:
        yield pool
        assert pool.busy == 0
    finally:
        pool.close()


async def get(pool, timeouts=PATIENT):
    call = await pool.send("GET", b"/", b"", b"", timeouts)
    return await call.read(100)


async def fresh(pool):
    pool.discard_idle()
    return await get(pool)


@each_loop
def test_names_whose_server_is_silent_hold_nobody_up(run):
    async def main():
        async with engines("127.0.0.1") as (_, port), resolver(up=["127.0.0.1"]) as found:
            machine, names = found
            lost = [f"lost-{i}" for i in range(40)]
            machine.silent.update(lost)
            async with contextlib.AsyncExitStack() as stack:
                pools = [await stack.enter_async_context(pool_at(names, n, 9)) for n in lost]
                for pool in pools * 3:
                    with pytest.raises(ConnectTimeout):
                        await get(pool, BRIEF._replace(connect_s=0.0))
                pool = await stack.enter_async_context(pool_at(names, "up", port))
                assert await get(pool) == b"ok"
            assert {machine.asked[name] for name in lost} == {1}, "one lookup at a time"

    run(main)


@each_loop
def test_a_lookup_that_comes_late_is_used_and_one_that_fails_later_warns_nobody(run, caplog):
    async def main():
        problems = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: problems.append(what))
        async with engines("127.0.0.1") as (_, port), resolver(late=["127.0.0.1"]) as found:
            machine, names = found
            machine.silent.update({"late", "never"})
            async with pool_at(names, "late", port) as late, pool_at(names, "never", 9) as never:
                for pool in (late, never):
                    with pytest.raises(ConnectTimeout):
                        await get(pool, BRIEF)
                waiting = [asyncio.create_task(get(late)) for _ in range(3)]
                await asyncio.sleep(0)
                waiting[0].cancel()
                machine.release.set()
                assert await asyncio.gather(*waiting[1:]) == [b"ok", b"ok"]
                await until(lambda: never.address().failure)
        assert not problems

    run(main)
    assert not caplog.records


@each_loop
def test_a_name_that_stops_resolving_keeps_its_addresses(run):
    async def main():
        said = []
        async with engines("127.0.0.1") as (_, port), resolver(said) as (machine, names):
            machine.hosts["engine"] = ["127.0.0.1"]
            async with pool_at(names, "engine", port) as pool:
                assert await get(pool) == b"ok"
                machine.hosts["engine"] = socket.gaierror(socket.EAI_AGAIN, "try again")
                await until(lambda: pool.address().failure)
                assert await fresh(pool) == b"ok"
                assert pool.address().known == ("127.0.0.1",)
                machine.hosts["engine"] = ["127.0.0.1"]
                await until(lambda: not pool.address().failure)
        assert said == [
            "engine is at 127.0.0.1",
            "engine isn't found: try again; connections go on to 127.0.0.1",
            "engine is found again",
        ]

    run(main)


@each_loop
def test_a_name_that_was_never_found_fails_at_once_and_is_found_later(run):
    async def main():
        async with (
            engines("127.0.0.1") as (_, port),
            resolver() as (machine, names),
            pool_at(names, "engine", port) as pool,
        ):
            with pytest.raises(ConnectFailed, match="not known"):
                await get(pool)
            machine.hosts["engine"] = ["127.0.0.1"]
            await until(lambda: pool.address().known)
            assert await get(pool) == b"ok"

    run(main)


@each_loop
def test_of_several_addresses_one_that_answers_is_used_and_kept(run):
    async def main():
        said = []
        async with engines("127.0.0.2") as (_, port), resolver(said) as (machine, names):
            machine.hosts["engine"] = ["127.0.0.1", "127.0.0.2"]  # the first refuses
            async with pool_at(names, "engine", port) as pool:
                assert await get(pool) == b"ok"
                assert pool.address().used == "127.0.0.2"
                assert pool.address().known == ("127.0.0.1", "127.0.0.2")
        assert said == [
            "engine is at 127.0.0.1, 127.0.0.2; they count as one engine: one of them is in use"
        ]

    run(main)


@each_loop
def test_the_address_in_use_goes_first_wherever_it_stands(run):
    async def main():
        async with engines("127.0.0.1", "127.0.0.2") as ([one, two], port), resolver() as found:
            machine, names = found
            machine.hosts["engine"] = ["127.0.0.1", "127.0.0.2"]
            async with pool_at(names, "engine", port) as pool:
                await get(pool)
                machine.hosts["engine"] = ["127.0.0.2", "127.0.0.1"]
                await until(lambda: pool.address().known[0] == "127.0.0.2")
                await fresh(pool)
                assert (one.connections, two.connections) == (2, 0)

    run(main)


@contextlib.contextmanager
def deaf(address, port):
    """A listener whose queue is full: the kernel drops every further SYN."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((address, port))
        listening.listen(0)
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((address, port))
        yield


@each_loop
def test_an_address_that_swallows_syns_does_not_hide_the_next(run):
    async def main():
        async with engines("127.0.0.2") as (_, port), resolver() as (machine, names):
            machine.hosts["engine"] = ["127.0.0.1", "127.0.0.2"]
            with deaf("127.0.0.1", port):
                async with pool_at(names, "engine", port) as pool:
                    assert await get(pool) == b"ok"
                    assert pool.address().used == "127.0.0.2"
                async with pool_at(names, "127.0.0.1", port) as pool:
                    with pytest.raises(ConnectTimeout):
                        await get(pool, BRIEF)

    run(main)


@each_loop
def test_a_name_that_moves_is_followed_while_the_old_address_lives(run):
    async def main():
        said = []
        async with engines("127.0.0.1", "127.0.0.2") as ([old, new], port), resolver(said) as found:
            machine, names = found
            machine.hosts["engine"] = ["127.0.0.1"]
            async with pool_at(names, "engine", port) as pool:
                await get(pool)
                held = await pool.send("GET", b"/", b"", b"", PATIENT)  # at rest again by now
                busy = asyncio.Event()
                release = asyncio.Event()

                async def slow(wire, request):
                    busy.set()
                    await release.wait()
                    wire.send(OK)

                old.script = slow
                under_way = asyncio.create_task(get(pool))
                await soon(busy.wait())
                machine.hosts["engine"] = ["127.0.0.2"]
                await until(lambda: pool.address().known == ("127.0.0.2",))
                assert await get(pool) == b"ok"  # on a connection of its own, to the new address
                assert new.connections == 1
                release.set()
                assert await soon(under_way) == b"ok"
                assert await held.read(100) == b"ok"
                assert pool.idle == 1, "that of the old address isn't kept"
                assert await get(pool) == b"ok"
                assert (old.connections, new.connections) == (1, 1)
        assert said[-1] == "engine is at 127.0.0.2, no longer at 127.0.0.1"

    run(main)


@each_loop
def test_a_refused_connection_has_the_name_looked_up_again(run):
    async def main():
        async with engines("127.0.0.2") as (_, port):
            machine = Machine(engine=["127.0.0.1"])
            async with pool_at(Names(machine, pause_s=0.0), "engine", port) as pool:
                with pytest.raises(ConnectFailed):
                    await get(pool)
                machine.hosts["engine"] = ["127.0.0.2"]
                with pytest.raises(ConnectFailed):  # once more: the lookup runs beside
                    await get(pool)
                await until(lambda: pool.address().known == ("127.0.0.2",))
                assert await get(pool) == b"ok"

    run(main)


@each_loop
def test_engines_on_one_host_share_its_lookups_and_the_last_ends_them(run):
    async def main():
        async with engines("127.0.0.1") as (_, port), resolver(host=["127.0.0.1"]) as found:
            machine, _ = found
            names = Names(machine)
            async with pool_at(names, "host", port) as one, pool_at(names, "host", port) as two:
                await get(one)
                await get(two)
                assert machine.asked["host"] == 1
            assert not names._names

    run(main)


@each_loop
def test_addresses_are_no_names(run):
    async def main():
        async with (
            engines("127.0.0.1") as (_, port),
            resolver() as (machine, names),
            pool_at(names, "127.0.0.1", port) as pool,
        ):
            assert await get(pool) == b"ok"
            told = pool.address()
            assert (told.used, told.known) == ("127.0.0.1", ("127.0.0.1",))
            assert told.looked_up_s_ago is None
        assert not machine.asked

    run(main)


@each_loop
@pytest.mark.parametrize("host", ["x" * 64, "a..b"])
def test_a_name_that_can_be_none_is_not_found(run, host):
    async def main():
        async with pool_at(Names(), host, 9) as pool:
            with pytest.raises(ConnectFailed):
                await get(pool)

    run(main)


@each_loop
def test_without_another_thread_a_name_is_not_found_yet(run, monkeypatch):
    async def main():
        def start(thread):
            raise RuntimeError("can't start new thread")

        async with (
            engines("127.0.0.1") as (_, port),
            resolver(up=["127.0.0.1"]) as (_, names),
            pool_at(names, "up", port) as pool,
        ):
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", start)
                with pytest.raises(ConnectFailed, match="thread"):
                    await get(pool)
            await until(lambda: pool.address().known)
            assert await get(pool) == b"ok"

    run(main)


FILE = """
[router]
admin_port = 0
health = {{ interval_s = 600.0, timeout_s = 0.1 }}
[[pool]]
name = "engines"
engines = ["http://engine:{0}", "http://lost-1.example:8000", "http://lost-2.example:8000"]
"""


def test_a_router_serves_beside_lost_names_and_says_where_engines_are():
    async def main():
        stub = Stub()
        await stub.start()
        said = []
        async with resolver(said, engine=["127.0.0.1"]) as (machine, names):
            machine.silent.update({"lost-1.example", "lost-2.example"})
            service = Service(config.parse(FILE.format(stub.port)), say=said.append, names=names)
            server = await serve(App(service), "127.0.0.1", 0)
            service.start()
            await until(service.ready)
            wire = await Wire.open(server.port)
            machine.hosts["engine"] = socket.gaierror(socket.EAI_AGAIN, "try again")
            await until(lambda: len(said) == 3)  # found, ready, found no longer
            for _ in range(5):
                wire.send(wire_bytes(body_of()))
                assert (await wire.answer()).status == 200
            told = [engine.address for engine in Admin(service).state().engines]
            assert [each.used for each in told] == ["127.0.0.1", None, None]
            assert told[0].known == ("127.0.0.1",)
            assert told[0].looked_up_s_ago is not None
            assert told[0].failure == "try again"
            wire.close()
            await server.close(0.2)
            await service.stop()
            await stub.stop()

    run_fleet(main)
