"""The receipt: how a request was served, in the answer's headers and in the log."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final

_UNSAFE: Final = re.compile(r"[^ !#-\[\]-~]")


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
    stages = []
    if receipt.queue_s is not None:
        stages.append(b"queue;dur=%.1f" % (receipt.queue_s * 1e3))
    if receipt.prefill_s is not None:
        stages.append(b"prefill;dur=%.1f" % (receipt.prefill_s * 1e3))
    if receipt.handoff_s is not None:
        stages.append(b"handoff;dur=%.1f" % (receipt.handoff_s * 1e3))
    if receipt.first_decode_s is not None:
        stages.append(b"decode;dur=%.1f" % (receipt.first_decode_s * 1e3))
    return b", ".join(stages)


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


def receipt_lines(receipt: Receipt) -> bytes:
    """Both headers as lines; `Server-Timing` only if there is a time to tell."""
    timing = server_timing(receipt)
    if not timing:
        return b"x-headway-route: %b\r\n" % route(receipt)
    return b"x-headway-route: %b\r\nserver-timing: %b\r\n" % (route(receipt), timing)


def log_line(receipt: Receipt, **more: str | float | bool | None) -> str:
    """The receipt as one line of JSON, engines included; `more` are fields of the caller's own.

    For instance status, stream, prompt_tokens, answer_tokens, ttft_s, tpot_s.
    """
    route = _route_json(receipt.strategy, receipt.reason, receipt.length_class, receipt.engines)
    line = f'{{"request_id":{quoted(receipt.request_id)},{route}'
    if receipt.queue_s is not None:
        line += f',"queue_s":{receipt.queue_s:.6f}'
    if receipt.prefill_s is not None:
        line += f',"prefill_s":{receipt.prefill_s:.6f}'
    if receipt.handoff_s is not None:
        line += f',"handoff_s":{receipt.handoff_s:.6f}'
    if receipt.first_decode_s is not None:
        line += f',"first_decode_s":{receipt.first_decode_s:.6f}'
    for name, value in more.items():
        if value is not None:
            line += f',"{name}":{_JSON[type(value)](value)}'
    return line + "}"


@lru_cache(maxsize=1024)
def _route_json(strategy: str, reason: str, length_class: str, engines: tuple[str, ...]) -> str:
    fields = {"strategy": strategy, "reason": reason, "class": length_class, "engines": engines}
    return json.dumps(fields, separators=(",", ":"))[1:-1]


# By hand: a fraction of what json's encoder, which starts anew for each line, takes.
_JSON: Final[Mapping[type, Callable[[Any], str]]] = {
    str: quoted,
    float: "{:.6f}".format,
    int: str,
    bool: {False: "false", True: "true"}.__getitem__,
}


def _safe(text: str) -> str:
    """Text that can't end a quoted string or a header."""
    return _UNSAFE.sub("_", text)
