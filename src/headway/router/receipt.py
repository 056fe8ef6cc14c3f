"""The receipt: how a request was served, in the answer's headers and in the log."""

import re
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Final

from headway.router.http1 import Headers

_UNSAFE: Final = re.compile(r"[^ !#-\[\]-~]")
_TIMINGS: Final = (
    ("queue", "queue_s"),
    ("prefill", "prefill_s"),
    ("handoff", "handoff_s"),
    ("decode", "first_decode_s"),
)


@dataclass(slots=True)
class Receipt:
    """How one request was served, written down as it goes. Seconds; None for what it skipped.

    queue_s: from the request's arrival to the departure of its first leg. prefill_s: the prefill
    leg, departure to answer. handoff_s: from that answer to the departure of the decode leg.
    first_decode_s: from the departure of the leg that answers to the first byte of its answer.
    engines: ids ("pool/host:port") in the order they were used. length_class: short or long.
    """

    request_id: str
    strategy: str
    reason: str
    length_class: str
    engines: tuple[str, ...] = ()
    queue_s: float | None = None
    prefill_s: float | None = None
    handoff_s: float | None = None
    first_decode_s: float | None = None


def server_timing(receipt: Receipt) -> bytes:
    """The value of `Server-Timing`: milliseconds, as its specification says."""
    stages = [
        f"{name};dur={value * 1e3:.1f}"
        for name, field in _TIMINGS
        if (value := getattr(receipt, field)) is not None
    ]
    return ", ".join(stages).encode("ascii")


def route(receipt: Receipt) -> bytes:
    """The value of `X-Headway-Route`. It names pools; where engines are is no client's business."""
    return _route(receipt.strategy, receipt.reason, receipt.length_class, receipt.engines)


@lru_cache(maxsize=1024)
def _route(strategy: str, reason: str, length_class: str, engines: tuple[str, ...]) -> bytes:
    pools = "+".join(_safe(engine.partition("/")[0]) for engine in engines)
    fields = [_safe(strategy), f'reason="{_safe(reason)}"', f'class="{_safe(length_class)}"']
    if pools:
        fields.append(f'pools="{pools}"')
    return "; ".join(fields).encode("ascii")


def receipt_headers(receipt: Receipt) -> Headers:
    """Both headers; `Server-Timing` only if there is a time to tell."""
    headers: Headers = [(b"x-headway-route", route(receipt))]
    timing = server_timing(receipt)
    if timing:
        headers.append((b"server-timing", timing))
    return headers


def log_line(receipt: Receipt, **more: str | float | bool | None) -> str:
    """The receipt as one line of JSON, engines included; `more` are fields of the caller's own.

    For instance status, stream, prompt_tokens, answer_tokens, ttft_s, tpot_s.
    """
    fields = {
        "request_id": receipt.request_id,
        "strategy": receipt.strategy,
        "reason": receipt.reason,
        "class": receipt.length_class,
        "engines": receipt.engines,
        "queue_s": receipt.queue_s,
        "prefill_s": receipt.prefill_s,
        "handoff_s": receipt.handoff_s,
        "first_decode_s": receipt.first_decode_s,
        **more,
    }
    told = [f'"{name}":{_json(value)}' for name, value in fields.items() if value is not None]
    return f"{{{','.join(told)}}}"


def _json(value: object) -> str:
    """By hand: half of what json's encoder, which starts anew for each line, takes."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, float):
        return f"{value:.6f}"
    if isinstance(value, tuple):
        return f"[{','.join(map(quoted, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _safe(text: str) -> str:
    """Text that can't end a quoted string or a header."""
    return _UNSAFE.sub("_", text)
