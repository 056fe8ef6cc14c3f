"""Request bodies with a Content-Encoding: gzip is undone within the bounds, others are refused."""

import asyncio
import gzip
import json
import zlib

import pytest
from tests.router.raw_client import Wire
from tests.router.rules import engines, flags, on_loop, routing
from tests.testing.vllm_answers import body_for

from headway.core.admission import ByteCeiling
from headway.router.openai import ENDPOINTS
from headway.router.wire.client_request import ClientRequest
from headway.router.wire.coding import whole_body
from headway.router.wire.errors import BodiesFull, BodyError, BodyTooLarge
from headway.router.wire.http1 import RequestHead
from headway.router.wire.pieces import joined

GZIP = {"content-encoding": "gzip"}


@pytest.mark.parametrize("path", [*ENDPOINTS, "/v1/embeddings", "/v1/audio/speech"])
@pytest.mark.parametrize("coding", ["gzip", "GZIP", "x-gzip", "identity, gzip", "identity"])
@on_loop
async def test_the_engine_gets_it_plain(path, coding):
    plain = body_for(path) if path in ENDPOINTS else b'{"input": "x"}'
    kind = "audio/wav" if "audio" in path else "application/json"
    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        sent = gzip.compress(plain) if "gzip" in coding.lower() else plain
        fields = {"content-encoding": coding, "content-type": kind}
        got = await client.post(path, content=sent, headers=fields)
        assert got.status_code == 200
        [seen] = engine.seen
        assert seen.body == plain
        assert seen.length == len(plain)
        assert seen.field(b"content-encoding") is None


@pytest.mark.parametrize("coding", ["br", "zstd", "deflate", "gzip, gzip", "gzip, br", "x"])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/embeddings"])
@on_loop
async def test_another_coding_is_refused_before_it_is_read(path, coding):
    async with engines() as [engine], routing(flags([engine])) as router:
        wire = await Wire.open(router.port)
        wire.send(
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-encoding: {coding}\r\n"
            "content-type: application/json\r\ncontent-length: 1000\r\n\r\n".encode()
        )
        got = await wire.answer()
        assert got.status == 415
        assert got.field(b"accept-encoding") == b"gzip"
        error = json.loads(got.body)
        assert coding in error["error"]["message"]
        assert (error.get("type") == "error") == (path == "/v1/messages")
        assert not engine.seen
        wire.close()


@on_loop
async def test_a_bomb_is_refused():
    bomb = gzip.compress(bytes(8 << 20))
    async with (
        engines() as [engine],
        routing(flags([engine], max_body_bytes=32_768)) as router,
        router.client() as client,
    ):
        assert len(bomb) < 32_768
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            got = await client.post(path, content=bomb, headers=GZIP)
            assert got.status_code == 413
            assert "32768 bytes" in got.json()["error"]["message"]
        assert not engine.seen
        assert router.service.bodies.held_bytes == 0


@pytest.mark.parametrize(
    "body",
    [
        *(b"{}", b"\x1f\x8b", gzip.compress(b"{}")[:-1], gzip.compress(b"{}")[:-9]),
        *(gzip.compress(b"{}") + b"x", gzip.compress(b"{}") * 2, zlib.compress(b"{}")),
        gzip.compress(b"{}")[:-5] + b"\0\0\0\0\0",
    ],
)
@on_loop
async def test_what_is_not_one_gzip_stream_is_refused(body):
    async with engines() as [engine], routing(flags([engine])) as router, router.client() as client:
        got = await client.post("/v1/chat/completions", content=body, headers=GZIP)
        assert got.status_code == 400
        assert got.json()["error"]["code"] == "invalid_gzip"
        assert not engine.seen


class Link:
    """A connection that isn't."""

    def want_body(self):
        """All of the body has been given."""


def request_of(pieces):
    size = sum(map(len, pieces))
    head = RequestHead("POST", "/", b"", (), False, True, size, False, (b"gzip",))
    request = ClientRequest(Link(), head, "")
    for piece in pieces:
        request.add_body(piece)
    request.end_body()
    return request


def cut(data, size):
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [0, 1, 1 << 18, (1 << 18) + 1, 3 << 20])
@pytest.mark.parametrize("piece", [70_000, 1 << 20])
@on_loop
async def test_bytes_are_what_they_were(size, piece):
    plain = bytes(range(256)) * (size // 256) + bytes(size % 256)
    for level in (0, 9):
        made = gzip.compress(plain, level)
        pieces, ceiling = cut(made, piece), ByteCeiling(10 << 20)
        limit = max(size, len(made))
        assert joined(await whole_body(request_of(pieces), limit, ceiling)) == plain
        with pytest.raises(BodyTooLarge):
            await whole_body(request_of(pieces), limit - 1, ceiling)


@on_loop
async def test_what_it_becomes_counts_for_all_bodies_together():
    request = request_of([gzip.compress(bytes(1 << 20))])
    ceiling = ByteCeiling(1 << 20)  # it, and what it was made of, are a little more
    with pytest.raises(BodiesFull):
        await whole_body(request, 1 << 30, ceiling)
    assert ceiling.held_bytes == 0


@pytest.mark.parametrize(
    ("data", "refused"),
    [
        (gzip.compress(bytes(16 << 20)), BodyTooLarge),
        (gzip.compress(bytes(15 << 20)), None),
        (gzip.compress(b"")[:-10] + b"\0\0\0\xff\xff" * 400_000, BodyError),
    ],
    ids=["too large", "large", "nothing in much"],
)
@on_loop
async def test_others_have_their_turn_meanwhile(data, refused):
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    reading = whole_body(request_of(cut(data, 1 << 18)), 15 << 20, ByteCeiling(1 << 30))
    if refused is None:
        assert len(await reading) == 15 << 20
    else:
        with pytest.raises(refused):
            await reading
    assert turns >= (59 if refused is not BodyError else 7), "one for each slice"
    beside.cancel()
