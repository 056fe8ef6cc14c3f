"""Reads and cleans answers of engines: usage, handoff parameters, cache hits.

Where vLLM 0.32 puts handoff parameters: at the top level of an answer that isn't streamed, of all
four endpoints (null where there are none; `/v1/messages` leaves nulls out); in a stream only
inside `response` of `/v1/responses`' last event. A prefill engine adds its own cache hits to them
(`remote_prefill_cached_tokens`), and the decode engine reports those as `cached_tokens`.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headway.core.errors import HeadwayError
from headway.router.openai.request import TRANSFER_FIELDS, dump
from headway.router.wire.errors import BodyError

_MARKS: Final = tuple(f'"{name}"'.encode() for name in TRANSFER_FIELDS)
_CACHE_MARKS: Final = (b'"cached_tokens"', b'"cache_read_input_tokens"')
_DETAILS: Final = (
    ("prompt_tokens", "prompt_tokens_details"),
    ("input_tokens", "input_tokens_details"),
)


class AnswerError(HeadwayError):
    """An engine's answer that can't be read, and so can't be shown to be clean."""


class Usage(NamedTuple):
    """Tokens of one answer. prompt_tokens: all of them, cached ones included.

    cached_tokens: None if the engine doesn't say.
    """

    prompt_tokens: int
    answer_tokens: int
    cached_tokens: int | None = None


def usage_of(usage: object) -> Usage | None:
    """The `usage` object of any of the four endpoints; None if it is something else."""
    if not isinstance(usage, Mapping):
        return None
    if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
        read = _count(usage.get("cache_read_input_tokens")) or 0
        made = _count(usage.get("cache_creation_input_tokens")) or 0
        fresh = _count(usage.get("input_tokens"))
        if fresh is None:
            return None
        return Usage(fresh + read + made, _count(usage.get("output_tokens")) or 0, read)
    for (total, details), answer in zip(
        _DETAILS, ("completion_tokens", "output_tokens"), strict=True
    ):
        tokens = _count(usage.get(total))
        if tokens is not None:
            more = usage.get(details)
            cached = _count(more.get("cached_tokens")) if isinstance(more, Mapping) else None
            return Usage(tokens, _count(usage.get(answer)) or 0, cached)
    return None


def is_whole(answer: bytes, *, framed: bool) -> bool:
    """Whether an answer that isn't streamed, a JSON object, is all there.

    framed: a length or chunks said where it ends, so its last byte tells. Where nothing but the
    connection's end did, it is read: it may have been cut behind any brace.
    """
    if framed:
        return answer.rstrip(b" \t\r\n").endswith(b"}")
    try:
        json.loads(answer)
    except (ValueError, RecursionError):
        return False
    return True


def handoff_params(answer: bytes) -> tuple[Mapping[str, Any] | None, int | None]:
    """A prefill leg's handoff parameters and its count of prompt tokens; None what it lacks.

    Whether the parameters are any good is for `headway.core.handoff` to say.
    """
    try:
        fields = json.loads(answer)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(fields, dict):
        return None, None
    params = fields.get("kv_transfer_params")
    usage = usage_of(fields.get("usage"))
    return (
        params if isinstance(params, dict) and params else None,
        usage.prompt_tokens if usage else None,
    )


def strip_answer(body: bytes, *, cached_tokens: int | None) -> bytes:
    """An answer that isn't streamed, as the client may see it; the same bytes if it is clean.

    Handoff parameters go. cached_tokens: the prompt tokens that the prefill engine had in its
    cache; they replace what the decode engine counts, to which KV that came by handoff may look
    like a hit. None: not known, so the engine's count stays, at most `prompt_tokens`.
    Raises AnswerError if the answer names handoff parameters and can't be read.
    """
    if not any(mark in body for mark in (*_MARKS, *_CACHE_MARKS)):
        return body
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        if not any(mark in body for mark in _MARKS):
            return body
        raise AnswerError("the engine's answer isn't JSON, so it can't be cleaned") from error
    changed = isinstance(fields, dict) and clean(fields, cached_tokens)
    return dump_answer(fields) if changed else body


def dump_answer(fields: dict[str, Any]) -> bytes:
    """A cleaned answer, or event, as JSON. Raises AnswerError."""
    try:
        return dump(fields)
    except BodyError as error:
        raise AnswerError("the engine's answer is nested too deeply to be cleaned") from error


def clean(fields: dict[str, Any], cached_tokens: int | None) -> bool:
    """Clean an answer, or an event of a stream, in place; whether anything changed.

    cached_tokens: as for `strip_answer`.
    """
    changed = False
    for name in TRANSFER_FIELDS:
        if fields.get(name) is not None:
            del fields[name]
            changed = True
    usage = fields.get("usage")
    if isinstance(usage, dict):
        changed |= _correct_cached(usage, cached_tokens)
    for name in ("response", "message"):  # where events of Responses and Messages hold theirs
        inner = fields.get(name)
        if isinstance(inner, dict):
            changed |= clean(inner, cached_tokens)
    return changed


def _correct_cached(usage: dict[str, Any], cached_tokens: int | None) -> bool:
    known = usage_of(usage)
    if known is None or known.cached_tokens is None:
        return False
    wanted = known.cached_tokens if cached_tokens is None else max(0, cached_tokens)
    made = _count(usage.get("cache_creation_input_tokens")) or 0
    wanted = min(wanted, known.prompt_tokens - made)
    if wanted == known.cached_tokens:
        return False
    if "cache_read_input_tokens" in usage:  # Messages: what wasn't read from the cache is input
        usage["cache_read_input_tokens"] = wanted
        usage["input_tokens"] = known.prompt_tokens - made - wanted
        return True
    for _, details in _DETAILS:
        if isinstance(usage.get(details), dict):
            usage[details]["cached_tokens"] = wanted
    return True


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
