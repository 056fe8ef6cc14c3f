"""One streamed completion over one connection, with the arrival of every token."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from headway.bench.load.stream import CompletionStream, StreamError
from headway.bench.load.workload import Arrival

CUT_OFF: Final = "cut off"
"""The error of a request still unfinished when the measurement ended."""


@dataclass(frozen=True, slots=True)
class Target:
    """An engine to send to."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as the client saw it; times are seconds after the schedule's start.

    intended_s, sent_s: when it was to be sent, and when its bytes went out.
    token_times_s: arrival of each output token.
    error: None if every token asked for arrived.
    """

    length_class: str
    prompt_tokens: int
    output_tokens: int
    intended_s: float
    sent_s: float
    token_times_s: tuple[float, ...]
    error: str | None


@dataclass(frozen=True, slots=True)
class Extras:
    """Optional request fields by length class: vLLM's `priority` and `vllm_xargs`."""

    priority: Mapping[str, int] = field(default_factory=dict)
    xargs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def body(arrival: Arrival, prompt: Sequence[int], extras: Extras) -> bytes:
    """A `/v1/completions` body with exact lengths: token ids in, `output_tokens` out."""
    fields: dict[str, Any] = {
        "prompt": list(prompt),
        "max_tokens": arrival.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if arrival.length_class in extras.priority:
        fields["priority"] = extras.priority[arrival.length_class]
    if arrival.length_class in extras.xargs:
        fields["vllm_xargs"] = dict(extras.xargs[arrival.length_class])
    return json.dumps(fields, separators=(",", ":")).encode()


class _Exchange(asyncio.Protocol):
    """One request on one connection."""

    def __init__(self, request: bytes, now_s: Callable[[], float]) -> None:
        self._request = request
        self._now_s = now_s
        self._stream = CompletionStream()
        self.sent_s: float | None = None
        self.token_times_s: list[float] = []
        self.finished: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.sent_s = self._now_s()
        cast("asyncio.WriteTransport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.finished.done():
            return
        now_s = self._now_s()
        try:
            self.token_times_s += [now_s] * self._stream.feed(data)
        except StreamError as error:
            self._finish(str(error))
        if self._stream.done:
            self._finish(None)

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            self._stream.close()
        except StreamError as error:
            self._finish(f"{error} ({exc})" if exc else str(error))

    def _finish(self, error: str | None) -> None:
        if not self.finished.done():
            self.finished.set_result(error)


def _head(target: Target, size: int) -> bytes:
    return (
        f"POST /v1/completions HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {size}\r\n"
        "Connection: close\r\n\r\n"
    ).encode()


async def exchange(
    target: Target,
    arrival: Arrival,
    content: bytes,
    intended_s: float,
    now_s: Callable[[], float],
    timeout_s: float,
) -> Sample:
    """Send one request now and follow it to its end; cancelling it disconnects.

    Never raises for what the server does: failures are in the sample.
    """
    talk = _Exchange(_head(target, len(content)) + content, now_s)
    transport: asyncio.Transport | None = None
    error: str | None
    try:
        async with asyncio.timeout(timeout_s - (now_s() - intended_s)):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: talk, target.host, target.port
            )
            error = await talk.finished
    except TimeoutError:
        error = f"no end within {timeout_s:g} s"
    except OSError as failure:
        error = f"cannot connect: {failure}"
    except asyncio.CancelledError:
        error = CUT_OFF
    finally:
        if transport is not None:
            transport.abort()
    received = len(talk.token_times_s)
    if error is None and received != arrival.output_tokens:
        error = f"ended after {received} of {arrival.output_tokens} tokens"
    return Sample(
        arrival.length_class,
        arrival.prompt_tokens,
        arrival.output_tokens,
        intended_s,
        now_s() if talk.sent_s is None else talk.sent_s,
        tuple(talk.token_times_s),
        error,
    )
