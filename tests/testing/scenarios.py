"""How a stub engine answers a request: each scenario by its name, in one table.

A new behaviour is one row of `SCENARIOS`, made of what `Scenario` can vary.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

WHOLE, CHUNKED, AT_CLOSE = "whole", "chunked", "at close"
"""How a body says where it ends: by its length, its last chunk, the connection's end."""
HEAD, END = "head", "end"


@dataclass(frozen=True)
class Refusal:
    """An error for an answer.

    in_stream: as the first event of a stream, where one is asked for; comment: behind one.
    another_may_pull: the handoff it came with.
    """

    status: int
    message: str = "the stub says {status}"
    in_stream: bool = False
    comment: bool = False
    another_may_pull: bool = True


@dataclass(frozen=True)
class Stop:
    """Where an answer stops: `HEAD`, `END` (all of it was sent), or within an event.

    hangs: nothing more comes; else the connection is reset.
    event: the event of a stream; of_event, of_body: what is sent of it, or of a body.
    """

    at: str = ""
    hangs: bool = False
    event: int = 0
    of_event: Callable[[bytes], bytes] = lambda event: b""
    of_body: Callable[[bytes], bytes] = lambda body: b""


@dataclass(frozen=True)
class Scenario:
    """What differs from a good answer.

    silent: `hang` or `die` before anything is sent.
    params: the handoff parameters of a prefill answer, from the right ones; they are left out
    where `names_params` is false.
    body: a body that isn't streamed, from the right one; events: those of a stream (path, right
    ones). framing: how an incomplete body ends; streams: whether a stream is one.
    """

    refusal: Refusal | None = None
    silent: str = ""
    params: Callable[[dict[str, Any]], Any] = lambda params: params
    names_params: bool = True
    body: Callable[[bytes], bytes] = lambda body: body
    events: Callable[[str, list[bytes]], Any] = lambda path, events: events
    framing: str = WHOLE
    stop: Stop | None = None
    streams: bool = True


def _half(data):
    return data[: len(data) // 2]


def _half_event(path, events):
    return [*events[:2], _half(events[2]) + b"\n\n", *events[3:]]


def _flood(path, events):
    return itertools.repeat(b"data: %b\n\n" % (b"x" * 60_000))


STREAMED_ERROR = {
    "/v1/chat/completions": b'data: {"error":{"message":"the stub failed"}}\n\ndata: [DONE]\n\n',
    "/v1/completions": b'data: {"error":{"message":"the stub failed"}}\n\ndata: [DONE]\n\n',
    "/v1/responses": b'event: response.failed\ndata: {"type":"response.failed",'
    b'"response":{"status":"the stub failed"}}\n\n',
    "/v1/messages": b'event: error\ndata: {"type":"error","error":{"message":"the stub failed"}}'
    b"\n\ndata: [DONE]\n\n",
}
"""How vLLM's streams end that fail by themselves."""

REFUSALS = {"400": 400, "429": 429, "503": 503, "500": 500}
SAYS_SO = "error mid-stream"
FLOODS = "floods"
"""More than any client takes."""

_IN_STREAM = Refusal(500, in_stream=True)
_TOO_LONG = "This model's maximum context length is 10 tokens. Use less."
_NOTHING = Scenario(body=lambda body: b"", events=lambda path, events: [], framing=CHUNKED)
_CUT = Scenario(body=_half, events=lambda path, events: events[:2], framing=CHUNKED)
_BEFORE_THE_END = replace(
    _CUT, body=lambda body: body[:-1], events=lambda path, events: events[:-1]
)
_ONE_BYTE = Stop(
    of_event=lambda event: event[:20],  # enough to tell that it is an answer
    of_body=lambda body: body[:1],
)

_REFUSING = {name: Scenario(refusal=Refusal(status)) for name, status in REFUSALS.items()}
_IN_FIRST_EVENT = {
    "500 in the first event": Scenario(refusal=_IN_STREAM),
    "500 behind a comment": Scenario(refusal=replace(_IN_STREAM, comment=True)),
}
_SILENT = {"hang before head": Scenario(silent="hang"), "die before head": Scenario(silent="die")}
_HEADED = {
    "hang after head": Scenario(stop=Stop(HEAD, hangs=True)),
    "die after head": Scenario(stop=Stop(HEAD)),
}
_BROKEN = {
    "die after first byte": Scenario(stop=_ONE_BYTE),
    "die mid-event": Scenario(stop=Stop(event=2, of_event=_half, of_body=_half)),
    "hang mid-stream": Scenario(stop=Stop(event=2, of_body=_half, hangs=True)),
}
_PARAMS = {
    "no params": Scenario(params=lambda params: None, names_params=False),
    "null params": Scenario(params=lambda params: None),
    "mistyped params": Scenario(
        params=lambda params: params | {"remote_port": str(params["remote_port"])}
    ),
    "params without blocks": Scenario(params=lambda params: params | {"remote_block_ids": [[]]}),
    "wrong flag": Scenario(params=lambda params: params | {"do_remote_prefill": False}),
}
_EMPTY = {
    "empty": _NOTHING,
    "empty at close": replace(_NOTHING, framing=AT_CLOSE),
    "comments alone": replace(_NOTHING, events=lambda path, events: [b": one moment\n\n"]),
}
_CUTS = {
    "cut in chunks": _CUT,
    "cut at close": replace(_CUT, framing=AT_CLOSE),
    "all but the end": _BEFORE_THE_END,
}
"""What is complete in form: its last chunk comes, or its connection ends in order."""

SCENARIOS = {
    "": Scenario(),
    "half json": Scenario(body=_half, events=_half_event),
    "too long": Scenario(refusal=Refusal(400, _TOO_LONG, another_may_pull=False)),
    "not streamed": Scenario(streams=False),
    "die after the end": Scenario(stop=Stop(END)),
    SAYS_SO: Scenario(events=lambda path, events: [*events[:2], STREAMED_ERROR[path]]),
    FLOODS: Scenario(body=lambda body: b'{"x":"%b"}' % (b"x" * 30_000_000), events=_flood),
    **_REFUSING,
    **_IN_FIRST_EVENT,
    **_SILENT,
    **_HEADED,
    **_BROKEN,
    **_PARAMS,
    **_EMPTY,
    **_CUTS,
}

FIRST_EVENTS, SILENT, HEADED = tuple(_IN_FIRST_EVENT), tuple(_SILENT), tuple(_HEADED)
BROKEN, PARAMS, EMPTY, CUT = tuple(_BROKEN), tuple(_PARAMS), tuple(_EMPTY), tuple(_CUTS)
FAULTS = (
    *("refuse", *REFUSALS, *FIRST_EVENTS, *SILENT, *HEADED, *BROKEN, *EMPTY, *CUT),
    "half json",
)
"""Of a whole request. `refuse` is for the test to do: an engine that is stopped."""
