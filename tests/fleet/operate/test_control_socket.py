"""One line asks, one answers; whatever is sent, the supervisor goes on."""

import asyncio
import contextlib
import json
import os
import socket
import stat

import pytest

from headway.fleet.errors import FleetError
from headway.fleet.operate import control_socket
from headway.fleet.operate.state_dir import Home

WAIT_S = 60.0


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Its path is longer than a socket's may be."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("long" * 30)))
    made = Home("one")
    made.make()
    return made


async def handle(request):
    if request.get("do") == "fail":
        raise FleetError("not today; try tomorrow")
    return {"asked": request}


def served(home, *requests):
    """What comes of each request, asked one after the other by a client beside the supervisor."""

    def ask(request):
        try:
            return control_socket.ask("one", request, WAIT_S)
        except FleetError as error:
            return str(error)

    async def run():
        async with control_socket.served(home.socket, handle):
            return [await asyncio.to_thread(ask, request) for request in requests]

    return asyncio.run(run())


def test_what_is_asked_is_answered(home):
    assert len(str(home.socket)) > 120
    assert served(home, {"do": "x"}, {"do": "y" * 5000}) == [
        {"asked": {"do": "x"}},
        {"asked": {"do": "y" * 5000}},
    ]


def test_what_cannot_be_done_is_said_in_the_supervisors_words(home):
    assert served(home, {"do": "fail"}, {"do": "x"})[0] == "not today; try tomorrow"


def test_an_answer_that_does_not_come_is_told(home):
    async def run():
        go = asyncio.Event()

        async def waits(request):
            await go.wait()

        async with control_socket.served(home.socket, waits):
            try:
                await asyncio.to_thread(control_socket.ask, "one", {"do": "x"}, 0.2)
            finally:
                go.set()

    with pytest.raises(FleetError, match=r"the fleet one didn't answer within 0\.2 s"):
        asyncio.run(run())


def test_nobody_there(home):
    with pytest.raises(FleetError, match="no fleet one runs here; start it with headway up"):
        control_socket.ask("one", {"do": "status"}, 1.0)
    with pytest.raises(FleetError, match="no fleet other runs here"):
        control_socket.ask("other", {"do": "status"}, 1.0)
    with socket.socket(socket.AF_UNIX) as left, contextlib.chdir(home.path):
        left.bind(home.socket.name)  # a killed supervisor's
    with pytest.raises(FleetError, match="no fleet one runs here"):
        control_socket.ask("one", {"do": "status"}, 1.0)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"no json", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"do": %b}' % (b"9" * 5000), "not JSON with ordinary numbers"),
        (b"[" * 200_000, "not JSON with ordinary numbers and nesting"),
        (b'{"do": "x", "do": "y"}', "a key twice"),
        (b'{"do": {"a": 1, "a": 2}}', "a key twice"),
        (b"x" * (2 << 20), "longer than 1048576 bytes"),
        (b"[]", "not an object"),
        (b"NaN", "not an object"),
    ],
)
def test_what_is_no_request_is_told_so(home, sent, told):
    def talk():
        with contextlib.chdir(home.path), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(WAIT_S)
            client.connect(home.socket.name)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(sent + b"\n")
            return json.loads(client.makefile("rb").readline())

    async def run():
        async with control_socket.served(home.socket, handle):
            return await asyncio.to_thread(talk)

    assert told in asyncio.run(run())["error"]


@pytest.mark.parametrize(
    "sent", [b"", b"\n", b"no json\n", b"[]\n", b'{"do": "x"}', b"\xff\n", b"x" * (2 << 20) + b"\n"]
)
def test_nonsense_is_answered_or_dropped_and_harms_nobody(home, sent):
    def talk():
        with contextlib.chdir(home.path), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(WAIT_S)
            client.connect(home.socket.name)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                line = client.recv(1 << 16)
                assert not line or json.loads(line)
        return control_socket.ask("one", {"do": "x"}, WAIT_S)

    async def run():
        async with control_socket.served(home.socket, handle):
            return await asyncio.to_thread(talk)

    assert asyncio.run(run()) == {"asked": {"do": "x"}}


def test_the_socket_is_the_owners_alone_and_goes_with_the_supervisor(home):
    async def run():
        async with control_socket.served(home.socket, handle):
            assert stat.S_IMODE(os.stat(home.socket).st_mode) == 0o600  # noqa: PTH116

    asyncio.run(run())
    assert not home.socket.exists()


def test_an_answer_under_way_at_the_end_is_still_given(home):
    async def run():
        begun, go, handled = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def waits(request):
            begun.set()
            await go.wait()
            handled.set()
            return {"asked": request}

        async with control_socket.served(home.socket, waits):
            asked = asyncio.create_task(
                asyncio.to_thread(control_socket.ask, "one", {"do": "x"}, WAIT_S)
            )
            await begun.wait()
            asyncio.get_running_loop().call_soon(go.set)  # once the socket is being closed
        assert handled.is_set(), "the end waits for it"
        return await asked

    assert asyncio.run(run()) == {"asked": {"do": "x"}}
