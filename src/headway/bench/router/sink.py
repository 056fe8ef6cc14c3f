"""Stub engines for large bodies: what they get they throw away, what they send has a time in it.

A stream's token is the monotonic time in nanoseconds at which it left. A query `answer=N` asks
for an answer of N bytes. Started with the ports of an engine for all, one for prefills and one
for decodes; ends when its standard input does.
"""

import asyncio
import re
import sys
import time
from functools import partial
from typing import Final

import uvloop

GAP_S: Final = 0.005
"""Between a stream's tokens."""
_READ_BYTES: Final = 1 << 18
_BEGINNING_BYTES: Final = 1_024
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_ANSWER: Final = re.compile(rb"[?&]answer=(\d+)")
_MODELS: Final = (
    b'{"object":"list","data":[{"id":"stub","object":"model","max_model_len":9999999}]}'
)
_USAGE: Final = b'"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}'
_PARAMS: Final = (
    b'"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_port":5600,'
    b'"remote_block_ids":[[4,5]],"remote_engine_id":"e","remote_request_id":"r",'
    b'"remote_host":"127.0.0.1","tp_size":1}'
)
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_EVENT: Final = b'data: {"choices":[{"index":0,"delta":{"content":"%d"},"finish_reason":null}]}\n\n'


async def _serve(
    prefills: bool,  # noqa: FBT001  bound by position
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            beginning = await _body(head, reader)
            if b'"stream": true' in beginning and not prefills:
                await _stream(writer)
            writer.write(_answer(head, prefills=prefills))
            await writer.drain()
    except (EOFError, ConnectionError, asyncio.CancelledError):
        writer.close()


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    """The beginning of a body, all of which is read."""
    length = _LENGTH.search(head)
    if length is not None:
        return await _part(reader, int(length[1]))
    if b"transfer-encoding" not in head.lower():
        return b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        await _part(reader, size + 2)
    await reader.readuntil(b"\r\n")
    return b""


async def _part(reader: asyncio.StreamReader, size: int) -> bytes:
    beginning = b""
    while size:
        data = await reader.read(min(size, _READ_BYTES))
        if not data:
            raise EOFError
        size -= len(data)
        beginning = (beginning + data)[:_BEGINNING_BYTES]
    return beginning


def _answer(head: bytes, *, prefills: bool) -> bytes:
    asked = _ANSWER.search(head.partition(b"\r\n")[0])
    more = b',"x":[%b1]' % (b"1," * (int(asked[1]) // 2)) if asked else b""
    body = b"{%b,%b%b}" % (_USAGE, _PARAMS if prefills else b'"kv_transfer_params":null', more)
    if head.startswith(b"GET"):
        body = _MODELS
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


async def _stream(writer: asyncio.StreamWriter) -> None:
    """Until whoever reads it leaves."""
    writer.write(_STREAM_HEAD)
    while not writer.transport.is_closing():
        event = _EVENT % time.monotonic_ns()
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await asyncio.sleep(GAP_S)
    raise EOFError


async def _main(ports: list[int]) -> None:
    for port, prefills in zip(ports, (False, True, False), strict=True):
        await asyncio.start_server(
            partial(_serve, prefills), "127.0.0.1", port, limit=2 * _READ_BYTES
        )
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, ended.set)
    print("ready", flush=True)  # noqa: T201  whoever started it waits for this line
    await ended.wait()


if __name__ == "__main__":
    uvloop.run(_main([int(port) for port in sys.argv[1:]]))
