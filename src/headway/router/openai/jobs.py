"""What is done with bodies, small or large.

A job takes one body and small arguments and returns a value without bodies, and the bodies it
made, so that `beside.py` can have it done in another process just as here.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from headway.core.routing.prefixes import PrefixMap
from headway.core.slo import TPOT_ARGUMENT, TTFT_ARGUMENT
from headway.router.openai.answers import handoff_params, is_whole, strip_answer
from headway.router.openai.asked import PRIORITY, Settled, Terms, objects, settle_passed
from headway.router.openai.legs import closing_bytes, prefill_body
from headway.router.openai.request import TRANSFER_FIELDS, Large, Parsed, dump, parse
from headway.router.openai.token_counter import SAMPLE_BYTES
from headway.router.wire.errors import BodyError
from headway.router.wire.pieces import JOINED_BYTES, Body, joined

LIGHT_BYTES: Final = 16_384
"""A body up to this size is read at once, whatever it holds."""
LIGHT_VALUES: Final = 8_000
"""A larger one, if it is one object and has no more values than this: each takes up to a
microsecond."""
MODEL_CHARS: Final = 1_024
"""Of a large body's model. No engine has one with a longer name."""
_UNSPLIT: Final = "nobody would split it"
_REPEATED: Final = "a stream that repeats a large request"
_NAMES: Final = (*TRANSFER_FIELDS, PRIORITY, TTFT_ARGUMENT, TPOT_ARGUMENT)
_MARKS: Final = (*(f'"{name}"'.encode() for name in _NAMES), b"\\u", b"\0")
"""Without these bytes a body has none of the names: \\u escapes, NUL stands for UTF-16."""

Done = tuple[Any, list[bytes]]


def is_light(body: Body) -> bool:
    """Whether it can be read on the event loop: in less than 10 ms, whatever it holds."""
    if not isinstance(body, bytes):
        return False
    if len(body) <= LIGHT_BYTES:
        return True
    # Every value stands behind one of these, or behind the colon of a name that does.
    return body.count(b",") + body.count(b"[") + body.count(b"{") <= LIGHT_VALUES


def large_request(body: bytes, path: str, terms: Terms, *, splits: bool) -> Done:
    """A `Parsed` without bodies; then the body for one engine where it had to change, or nothing,
    and that of a prefill leg, or nothing. Raises BodyError.

    terms: see `parse`. splits: the router may want to split it.
    """
    parsed = parse(path, body, terms)
    why_not = parsed.why_not or ("" if splits else _UNSPLIT) or _why_whole(parsed)
    split = not why_not
    large = Large(
        PrefixMap().chain(parsed.prefix),
        len(parsed.prefix),
        closing_bytes(joined(parsed.body)),
        b"",
    )
    small = parsed._replace(
        model=parsed.model[:MODEL_CHARS],
        prefix=parsed.prefix[:SAMPLE_BYTES],
        splittable=split,
        why_not=why_not,
        raw={},
        body=b"",
        large=large,
    )
    changed = joined(parsed.body) if parsed.must_change else b""
    return small, [changed, joined(prefill_body(parsed)) if split else b""]


def _why_whole(parsed: Parsed) -> str:
    """Why a request isn't split because of its size; empty if it is.

    Of a split stream of Responses the events are read, on the event loop, and the first and the
    last repeat all of the request but its input, or that too.
    """
    if parsed.kind != "responses" or not parsed.stream:
        return ""
    raw = parsed.raw
    repeated = raw if raw.get("enable_response_messages") else {**raw, "input": ""}
    return _REPEATED if len(dump(repeated)) > JOINED_BYTES else ""


def passed_request(body: bytes, terms: Terms) -> Done:
    """What became of what a body that passes through asks for (`Settled`), and the body if that
    had to change.

    It also loses fields that make engines connect elsewhere: some of these paths generate too,
    with fields in other places. Raises BodyError.
    """
    if not body or (terms.ask_nothing and not any(mark in body for mark in _MARKS)):
        return Settled(), []
    try:
        value = json.loads(body)
        settled = settle_passed(value, terms)
        settled = settled._replace(changed=_strip(value) or settled.changed)
        return settled, [dump(value)] if settled.changed else []
    except (ValueError, RecursionError):
        raise BodyError(400, "The body must be JSON.", code="invalid_json") from None


def prefill_answer(body: bytes) -> Done:
    """A prefill leg's handoff parameters and count of prompt tokens, and whether it is whole."""
    params, tokens = handoff_params(body)
    return (params, tokens, params is not None or is_whole(body, framed=False)), []


def whole_answer(body: bytes) -> Done:
    """Whether an answer of which nothing says where it ends is all there."""
    return is_whole(body, framed=False), []


def clean_answer(body: bytes, *, cached_tokens: int | None) -> Done:
    """Whether an answer had to change, and what it is then. Raises AnswerError."""
    clean = strip_answer(body, cached_tokens=cached_tokens)
    return (False, []) if clean is body else (True, [clean])


JOBS: Final[Mapping[str, Callable[..., Done]]] = {
    job.__name__: job
    for job in (large_request, passed_request, prefill_answer, whole_answer, clean_answer)
}


def _strip(value: object) -> bool:
    """Take the fields out at any depth; whether there was anything."""
    found = False
    for each in objects(value):
        named = [name for name in TRANSFER_FIELDS if name in each]
        for name in named:
            del each[name]
        found = found or bool(named)
    return found
