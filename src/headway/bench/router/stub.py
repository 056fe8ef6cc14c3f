"""Stub engines: one process that answers as vLLM does, on several ports, as fast as it can.

A request's `max_tokens` says how many tokens a stream has, its `seed` the milliseconds between
them. The first token leaves at once. `GET /stub/counts` tells what each port was asked for.

Started with a list of ports; ends when its standard input does.
"""

import asyncio
import gc
import json
import re
import sys
import time
import zlib
from collections import Counter, defaultdict
from functools import partial
from typing import Final, cast

import httptools
import uvloop

TICK_S: Final = 0.002
"""Tokens leave in ticks: a timer for each would cost more than the token."""
BACKLOG: Final = 4096
PROMPT_TOKENS: Final = 64
_ID: Final = '"id":"chatcmpl-5b1e1a0c9d4f4e6c8b7a695847362514","created":1764000000,"model":"stub"'
_TOKENS: Final = re.compile(rb'"max_tokens":\s*(\d+)')
_GAP_MS: Final = re.compile(rb'"seed":\s*(\d+)')
_STREAM: Final = re.compile(rb'"stream":\s*true')
_PREFILL: Final = re.compile(rb'"do_remote_decode":\s*true')
_DECODE: Final = re.compile(rb'"remote_block_ids":\s*\[\[')


def _event(delta: str, finish: str) -> bytes:
    choice = f'"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish}'
    fields = f'{_ID},"object":"chat.completion.chunk","choices":[{{{choice}}}]'
    return f"data: {{{fields}}}\n\n".encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _answer(content_type: str, body: str, more: str = "") -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}"
    return f"{head}\r\n{more}\r\n{body}".encode()


_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Dec 2025 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_TOKEN: Final = _chunk(_event('{"content":" token"}', "null"))
_END: Final = (
    _chunk(_event('{"content":" end"}', '"length"')) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
)
_MESSAGE: Final = (
    '"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":'
    '" token"},"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":64,'
    '"total_tokens":65,"completion_tokens":1}'
)
_WHOLE: Final = _answer("application/json", f"{{{_ID},{_MESSAGE}}}")
_PARAMS: Final = json.dumps(
    {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[4, 5, 6, 7]],
        "remote_engine_id": "7a6cb9c4-4f62-4f5e-9d9e-9e3f0a5f5c10",
        "remote_request_id": "chatcmpl-5b1e1a0c9d4f4e6c8b7a695847362514",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
        "remote_num_tokens": 64,
    }
)
_PREFILLED: Final = _answer(
    "application/json", f'{{{_ID},{_MESSAGE},"kv_transfer_params":{_PARAMS}}}'
)
_MODELS: Final = _answer(
    "application/json",
    '{"object":"list","data":[{"id":"stub","object":"model","max_model_len":131072}]}',
)
_METRICS: Final = _answer(
    "text/plain",
    'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 0.0\n',
)
_EMPTY: Final = _answer("text/plain", "")
_PLAIN: Final = {b"/v1/models": _MODELS, b"/metrics": _METRICS, b"/health": _EMPTY}
_MISSING: Final = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_RENDER: Final = b"/render"
_GENERATES: Final = frozenset({b"/v1/chat/completions", b"/v1/completions"})


def _rendered(body: bytes) -> bytes:
    """What `…/render` tells: the prompt's token ids, other ones for another prompt."""
    ids = ",".join(map(str, [zlib.crc32(body) % 50_000, *range(1_000, 1_000 + PROMPT_TOKENS)]))
    fields = f'"request_id":"chatcmpl-1","token_ids":[{ids}],"sampling_params":{{}},"model":"stub"'
    return _answer("application/json", f"{{{fields}}}")


class Pacer:
    """Sends the next token of each stream when it is due."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[int, list[StubConnection]] = defaultdict(list)
        self._next = int(time.monotonic() / TICK_S)
        self._run()

    def add(self, connection: "StubConnection", gap_ticks: int) -> None:
        """The connection's next token is due `gap_ticks` from now."""
        self._due[self._next + gap_ticks].append(connection)

    def _run(self) -> None:
        now = int(time.monotonic() / TICK_S)
        while self._next <= now:
            tick = self._next
            self._next += 1
            for connection in self._due.pop(tick, ()):
                gap_ticks = connection.token()
                if gap_ticks:
                    self._due[tick + gap_ticks].append(connection)
        self._loop.call_later(TICK_S, self._run)


class StubConnection(asyncio.Protocol):
    """A router's (or client's) connection: requests one after the other."""

    def __init__(self, port: int, pacer: Pacer, counts: Counter[str]) -> None:
        self._port = port
        self._pacer = pacer
        self._counts = counts
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = self._body = b""
        self._left = self._gap_ticks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._left:
            self._counts[f"{self._port} aborted"] += 1

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        transport, body = self._transport, self._body
        if transport is None:
            return
        if self._url not in _GENERATES:
            if self._url == b"/stub/counts":
                answer = _answer("application/json", json.dumps(self._counts))
            elif self._url.endswith(_RENDER):
                self._counts[f"{self._port} renders"] += 1
                answer = _rendered(body)
            else:
                answer = _PLAIN.get(self._url, _MISSING)
            transport.write(answer)
            return
        self._counts[f"{self._port} requests"] += 1
        if _STREAM.search(body) is None:
            prefill = _PREFILL.search(body) is not None
            self._counts[f"{self._port} prefills"] += prefill
            transport.write(_PREFILLED if prefill else _WHOLE)
        else:
            self._stream(transport, body)
        if _DECODE.search(body) is not None:
            self._counts[f"{self._port} handoffs"] += 1

    def _stream(self, transport: asyncio.Transport, body: bytes) -> None:
        tokens, gap_ms = _TOKENS.search(body), _GAP_MS.search(body)
        self._left = int(tokens[1]) if tokens else 1
        self._gap_ticks = max(1, round(int(gap_ms[1]) / 1e3 / TICK_S)) if gap_ms else 1
        self._left -= 1
        transport.write(_HEAD + (_TOKEN if self._left else _END))
        if self._left:
            self._pacer.add(self, self._gap_ticks)

    def token(self) -> int:
        """Send one; ticks until the next, 0 if there is none."""
        if self._transport is None:
            return 0
        self._left -= 1
        if self._left:
            self._transport.write(_TOKEN)
            return self._gap_ticks
        self._transport.write(_END)
        return 0


async def _main(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    pacer, counts = Pacer(loop), Counter[str]()
    for port in ports:
        made = partial(StubConnection, port, pacer, counts)
        await loop.create_server(made, "127.0.0.1", port, backlog=BACKLOG)
    gc.collect()
    gc.freeze()
    gc.disable()
    ended = asyncio.Event()
    loop.add_reader(0, ended.set)
    print("ready", flush=True)  # noqa: T201  whoever started it waits for this line
    await ended.wait()


if __name__ == "__main__":
    uvloop.run(_main([int(port) for port in sys.argv[1:]]))
