"""`headway route` as a process: reloads, signals, exit statuses."""

import asyncio
import contextlib
import json
import signal
import socket

import httpx
import pytest
from tests.router.rules import WAIT_S, engines, on_loop, until
from tests.testing.vllm_answers import EVENTS, body_for, event

from headway import config as settings

from .route_process import route, served

pytestmark = pytest.mark.process

CHAT = "/v1/chat/completions"
KEY = "sk-0123456789abcdefghijklmnop"


def written(path, engines, more="", **router):
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in router.items())
    urls = json.dumps([engine.url for engine in engines])
    text = f"""
[router]
port = 0
admin_port = 0
{lines}
[router.health]
interval_s = 0.1
passes = 1
{more}
[[pool]]
name = "all"
engines = {urls}
"""
    path.write_text(text)
    return str(path)


class Stream:
    """A stream that the test holds open at the engine."""

    def __init__(self, engine):
        self.engine = engine
        self.go_on = asyncio.Event()
        engine.script = self.serve

    async def serve(self, request, seen):
        if not seen.json.get("stream"):
            return
        request.start(200, [EVENTS])
        request.write(event({"n": 1}))
        await self.go_on.wait()
        request.write(event({"n": 2}) + b"data: [DONE]\n\n")
        request.finish()

    async def begin(self, client):
        """The open answer: an iterator, its first event read."""
        await served(client, CHAT, body_for(CHAT))
        asked = client.build_request("POST", CHAT, content=body_for(CHAT, stream=True))
        answer = await client.send(asked, stream=True)
        parts = answer.aiter_raw()
        first = await anext(parts)
        assert first == event({"n": 1})
        return parts


def client_of(process):
    return httpx.AsyncClient(base_url=process.url, timeout=WAIT_S)


async def rest(parts):
    return b"".join([part async for part in parts])


@pytest.mark.parametrize("how", ["signal", "file"])
@on_loop
async def test_a_reload_changes_engines_and_drops_no_stream(tmp_path, how):
    path = tmp_path / "headway.toml"
    async with engines(2) as [old, new]:
        flags = ("--config", written(path, [old]))
        async with route(*flags) as process, client_of(process) as client:
            stream = Stream(old)
            parts = await stream.begin(client)
            since = len(process.said)
            written(path, [new])
            if how == "signal":
                process.signal(signal.SIGHUP)
            await process.says("settings applied", since)
            await process.says(f"all/127.0.0.1:{new.port} is ready", since)
            asked = len(old.seen)
            for _ in range(3):
                assert (await served(client, CHAT, body_for(CHAT))).status_code == 200
            assert (len(old.seen), len(new.seen)) == (asked, 3)
            stream.go_on.set()
            assert await rest(parts) == event({"n": 2}) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("how", ["signal", "file"])
@on_loop
async def test_a_bad_file_changes_nothing_and_is_told(tmp_path, how):
    path = tmp_path / "headway.toml"
    async with engines() as [engine]:
        flags = ("--config", written(path, [engine]))
        async with route(*flags) as process, client_of(process) as client:
            assert (await served(client, CHAT, body_for(CHAT))).status_code == 200
            since = len(process.said)
            written(path, [engine], prot=1, max_concurrent=0)
            if how == "signal":
                process.signal(signal.SIGHUP)
            await process.says("the settings stay as they are", since)
            told = await process.says("router.prot", since)
            assert f"{path}:5" in told
            await process.says("router.max_concurrent", since)
            assert (await client.post(CHAT, content=body_for(CHAT))).status_code == 200
            since = len(process.said)
            written(path, [engine])
            await process.says("settings applied", since)
            path.unlink()
            process.signal(signal.SIGHUP)
            await process.says("can't be read", since)
            assert (await client.post(CHAT, content=body_for(CHAT))).status_code == 200


@on_loop
async def test_keys_and_limits_are_reloaded(tmp_path):
    path, keys = tmp_path / "headway.toml", tmp_path / "keys.txt"
    keys.write_text(f"alice:{settings.hash_key(KEY)}\n")
    async with engines() as [engine]:
        flags = ("--config", written(path, [engine]))
        async with route(*flags) as process, client_of(process) as client:
            assert (await served(client, CHAT, body_for(CHAT))).status_code == 200
            since = len(process.said)
            more = '[router.keys]\nfile = "keys.txt"\n[router.clients.alice]\n'
            more += 'priority = [1, 2]\nbeyond = "refuse"'
            written(path, [engine], more, max_body_bytes=2000)
            await process.says("settings applied", since)
            await process.says("alice may ask for priority from 1 to 2", since)
            assert (await client.post(CHAT, content=body_for(CHAT))).status_code == 401
            mine = {"authorization": f"Bearer {KEY}"}
            got = await client.post(CHAT, content=body_for(CHAT), headers=mine)
            assert got.status_code == 200
            urgent = body_for(CHAT, priority=0)
            assert (await client.post(CHAT, content=urgent, headers=mine)).status_code == 400
            big = body_for(CHAT, padding="x" * 2000)
            assert (await client.post(CHAT, content=big, headers=mine)).status_code == 413
            since = len(process.said)
            # The key file alone; what is left of alice doesn't keep her key.
            keys.write_text(f"bob:{settings.hash_key(KEY[::-1])}\n")
            await process.says("settings applied", since)
            await process.says("warning: router.clients.alice has no effect", since)
            got = await client.post(CHAT, content=body_for(CHAT), headers=mine)
            assert got.status_code == 401


@on_loop
async def test_what_needs_a_restart_is_told(tmp_path):
    path = tmp_path / "headway.toml"
    async with engines() as [engine], route("--config", written(path, [engine])) as process:
        text = path.read_text()
        path.write_text(text.replace("port = 0\nadmin", 'port = 1\nhost = "::1"\nadmin', 1))
        process.signal(signal.SIGHUP)
        assert "router.host stays 127.0.0.1, not ::1, until" in await process.says("router.host")
        assert "router.port stays 0, not 1, until" in await process.says("router.port")
        await process.says("all other settings applied")


@on_loop
async def test_settings_are_taken_whole_or_not_at_all(tmp_path):
    """An engine key that isn't there: what is set beside it isn't taken either."""
    path = tmp_path / "headway.toml"
    async with engines() as [engine]:
        flags = ("--config", written(path, [engine]))
        async with route(*flags) as process, client_of(process) as client:
            assert (await served(client, CHAT, body_for(CHAT))).status_code == 200
            since = len(process.said)
            more = '[router.keys]\nengine_key_env = "NO_SUCH_VARIABLE"'
            written(path, [engine], more, receipt=False)
            process.signal(signal.SIGHUP)
            await process.says("NO_SUCH_VARIABLE", since)
            got = await client.post(CHAT, content=body_for(CHAT))
            assert got.status_code == 200
            assert "x-headway-route" in got.headers


@on_loop
async def test_without_a_file_there_is_nothing_to_read_again():
    async with engines() as [engine]:
        flags = ("--engine", engine.url, "--port", "0", "--admin-port", "0")
        async with route(*flags) as process, client_of(process) as client:
            process.signal(signal.SIGHUP)
            await process.says("no file to read again")
            assert (await served(client, CHAT, body_for(CHAT))).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@on_loop
async def test_stopping_lets_answers_end(number):
    async with engines() as [engine]:
        flags = ("--engine", engine.url, "--port", "0", "--admin-port", "0")
        async with route(*flags) as process, client_of(process) as client:
            stream = Stream(engine)
            parts = await stream.begin(client)
            process.signal(number)
            await process.says("stopping; 1 answers may end")
            with pytest.raises(httpx.ConnectError):
                async with httpx.AsyncClient() as other:
                    await other.get(process.url + "/health")
            stream.go_on.set()
            assert await rest(parts) == event({"n": 2}) + b"data: [DONE]\n\n"
            assert await process.ended() == 0
            await process.says("stopped")
            lines = await process.log()
            assert lines[-1]["stream"] is True
            assert {line["status"] for line in lines} <= {200, 503}


@on_loop
async def test_a_second_signal_cuts_them():
    async with engines() as [engine]:
        flags = ("--engine", engine.url, "--port", "0", "--admin-port", "0")
        async with route(*flags) as process, client_of(process) as client:
            parts = await Stream(engine).begin(client)
            process.signal(signal.SIGTERM)
            await process.says("stopping")
            process.signal(signal.SIGTERM)
            with pytest.raises(httpx.TransportError):
                await rest(parts)
            await until(lambda: engine.left == 1)
            assert await process.ended() == 0
            assert not any("Traceback" in line for line in process.said)


@on_loop
async def test_an_idle_router_stops_at_once():
    async with engines() as [engine]:
        flags = ("--engine", engine.url, "--port", "0", "--admin-port", "0")
        async with route(*flags) as process, client_of(process) as client:
            await client.get("/health")  # a connection that is kept alive
            process.signal(signal.SIGTERM)
            assert await process.ended() == 0
            assert [line for line in process.said if line][-1] == "headway: stopped"


@pytest.mark.parametrize("which", ["--port", "--admin-port"])
@on_loop
async def test_a_port_in_use_is_one_clear_line(which):
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = {"--port": "0", "--admin-port": "0", which: str(port)}
        given = [part for pair in flags.items() for part in pair]
        async with route("--engine", "http://127.0.0.1:1", *given, ready=False) as process:
            assert await process.ended() == 1
            line = await process.says("error")
            assert line == (
                f"headway: error: cannot listen on 127.0.0.1:{port}: address already in use"
            )
            assert [each for each in process.said if each] == [line]


@on_loop
async def test_the_log_is_one_line_of_json_for_each_request():
    async with engines() as [engine]:
        flags = ("--engine", engine.url, "--port", "0", "--admin-port", "0")
        async with route(*flags) as process, client_of(process) as client:
            await served(client, CHAT, body_for(CHAT))
            for path, body in ((CHAT, b"{"), ("/v1/embeddings", b"{}"), ("/nothing", b"")):
                await client.post(path, content=body, headers={"x-request-id": "mine"})
            await client.get("/health")
            process.signal(signal.SIGTERM)
            assert await process.ended() == 0
            lines = await process.log()
            while lines[0]["status"] == 503:  # asked before the engine was up
                del lines[0]
            assert [line["status"] for line in lines] == [200, 400, 200, 404]
            assert [line.get("client_request_id") for line in lines[1:]] == ["mine"] * 3
            assert all(line["request_id"] for line in lines)


@on_loop
async def test_a_reader_of_the_log_may_leave():
    """Requests are served all the same."""
    async with engines() as [engine]:
        flags = ("--engine", engine.url, "--port", "0", "--admin-port", "0")
        async with route(*flags) as process, client_of(process) as client:
            process.process._transport.get_pipe_transport(1).close()
            for _ in range(5):
                assert (await served(client, CHAT, body_for(CHAT))).status_code == 200
                await asyncio.sleep(0.1)
            process.signal(signal.SIGTERM)
            assert await process.ended() == 0
