"""Watches and cleans a stream of server-sent events on its way from an engine to a client.

Chunks are whatever the socket gave: an event, a line or a character may be cut anywhere.
"""

import json
import re
from functools import lru_cache
from typing import Any, Final

from headway.router.openai.answers import AnswerError, Usage, clean, dump_answer, usage_of
from headway.router.wire.errors import Kind
from headway.router.wire.fast_path import NO_ENDING, Passing

_START: Final = b"\ndata:"
_KEEP: Final = len(_START) - 1
_BOUNDARIES: Final = (b"\n\n", b"\n\r\n")
_SAYS_NOTHING: Final = re.compile(rb'"finish_reason":null(?:[\]}]*,"[a-z_]+":null)*[\]}]+\n\n\Z')
_TAIL_BYTES: Final = 4096
_TRIM_BYTES: Final = 6144
_DECODER: Final = json.JSONDecoder()

# Inside a JSON string these quotes would be escaped, so each matches only JSON's own fields.
_USAGE: Final = re.compile(r'"usage":\s*(?=\{)')
_FINISH: Final = re.compile(rb'(?<!\\)"finish_reason":\s*"([^"\\]*)"')
_STOP: Final = re.compile(rb'(?<!\\)"stop_reason":\s*"([^"\\]*)"')
_RESPONSE_END: Final = re.compile(rb'(?<!\\)"type":\s*"response\.(completed|incomplete|failed)"')
_RESPONSE_ENDS: Final = (b"response.completed", b"response.incomplete", b"response.failed")
_DONE: Final = re.compile(rb"\ndata:\s*\[DONE\]\s*(?:\n|\Z)")
_ERROR_EVENT: Final = re.compile(
    rb'\n(?:data:\s*\{"error"|event:\s*(?:error|response\.failed)\r?\n)'
)
_SILENCE: Final = re.compile(rb"(?::[^\n]*\n|\r?\n)*")
_ERROR_STARTS: Final = (b'data: {"error"', b"event: error\n")
_OPEN_STARTS: Final = (*_ERROR_STARTS, b"\r\n")
_WHOLE_EVENT: Final = re.compile(rb".+?\n\r?\n", re.DOTALL)
_OPENING_BYTES: Final = 65_536
_MESSAGE_END: Final = re.compile(rb"\nevent:\s*message_stop\r?\n")
_HANDOFF: Final = b'_transfer_params"'
"""How the names of TRANSFER_FIELDS end, and none but them."""
_CACHE: Final = b'"cache'
"""How the names of counts of cached tokens begin. Two scans an event, as there is one a token."""

# Events that vLLM sends before there is a token: response.created, response.in_progress.
_PREAMBLE: Final = {"responses": 2}


class Opening:
    """The beginning of a stream, held until it says something: an error, or some of an answer.

    Comments and blank lines, with which servers keep connections open, say nothing.
    error: what it says if it is an error: its status, 500 where it names none, and its JSON.
    """

    def __init__(self) -> None:
        self.error: tuple[int, bytes] | None = None
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Bytes that came; returns all that may pass now, nothing while it is open what it says."""
        self._held = held = self._held + data
        event = _SILENCE.sub(b"", held, count=1)
        if event.startswith(_ERROR_STARTS):
            whole = _WHOLE_EVENT.match(event)
            is_open = whole is None
            self.error = _error_in(whole[0]) if whole else None
        else:
            is_open = event[:1] == b":" or any(start.startswith(event) for start in _OPEN_STARTS)
        return b"" if is_open and len(held) <= _OPENING_BYTES else held


def _error_in(event: bytes) -> tuple[int, bytes] | None:
    body = event[event.find(b"data:") + 5 :].strip()
    try:
        error = json.loads(body)["error"]
        code = error.get("code")
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None
    return code if isinstance(code, int) and 400 <= code < 600 else 500, body


class StreamTap:
    """Counts a stream's events as they pass, without reading their JSON.

    events: so far (`[DONE]` is one). first_s: when the first event that follows from a token
    came, None before it, by the caller's clock. passing: what of the stream need not be fed.
    """

    __slots__ = (
        "_counted",
        "_ended",
        "_events",
        "_kind",
        "_preamble",
        "_seen",
        "first_s",
        "passing",
    )

    def __init__(self, kind: Kind = "chat") -> None:
        self.first_s: float | None = None
        self._kind = kind
        self._preamble = _PREAMBLE.get(kind, 0)
        self._seen = bytearray(_BOUNDARIES[0])  # an event starts after a line's end
        self._counted = 0  # of these bytes, those in which no further event can start
        self._events = 0
        self._ended = False  # said in bytes that are forgotten
        self.passing = Passing()

    def feed(self, data: bytes, now_s: float) -> None:
        """Bytes that came at now_s. Most are only kept: they are counted many at once."""
        self._seen += data
        self.passing.last_s = now_s
        if self.first_s is None and self.events > self._preamble:
            self.first_s = now_s
        self.passing.ending = NO_ENDING if self.first_s is None else _ending(data)
        if len(self._seen) > _TRIM_BYTES:
            self._trim()

    @property
    def events(self) -> int:
        """So far."""
        self._count()
        return self._events + self.passing.count

    def _count(self) -> None:
        seen = self._seen
        self._events += seen.count(_START, self._counted)
        self._counted = max(self._counted, len(seen) - _KEEP)

    def _trim(self) -> None:
        """Forget all but the end."""
        self._count()
        cut = len(self._seen) - _TAIL_BYTES
        if self._kind == "responses" and not self._ended:  # whose last event holds the whole answer
            self._ended = any(map(self._seen.count, _RESPONSE_ENDS)) and self._says_end()
        del self._seen[:cut]
        self._counted -= cut

    @property
    def at_boundary(self) -> bool:
        """Whether nothing of an unfinished event has passed."""
        return self._seen.endswith(_BOUNDARIES)

    @property
    def done(self) -> bool:
        """Whether the engine said that the stream is complete, and said it whole.

        OpenAI's streams end with `[DONE]`, whatever `finish_reason` said before: another answer of
        the same request, or the usage, may still be to come.
        """
        unfinished = self._kind in {"responses", "messages"} and not self.at_boundary
        return not unfinished and (self._ended or self._says_end())

    def _says_end(self) -> bool:
        end = {"responses": _RESPONSE_END, "messages": _MESSAGE_END}.get(self._kind, _DONE)
        return end.search(self._seen) is not None

    @property
    def failed(self) -> bool:
        """Whether the engine said, in an event, that the stream ends here unfinished."""
        return _ERROR_EVENT.search(self._seen) is not None

    @property
    def finish(self) -> str | None:
        """Why the answer ended, as the engine words it; None if it hasn't said."""
        words = {"responses": _RESPONSE_END, "messages": _STOP}.get(self._kind, _FINISH)
        found = words.findall(self._seen)
        return found[-1].decode("utf-8", "replace") if found else None

    @property
    def usage(self) -> Usage | None:
        """The last usage near the stream's end; None if the engine sent none."""
        text = self._seen.decode("utf-8", "replace")
        for match in reversed(list(_USAGE.finditer(text))):
            usage = usage_of(_object_at(text, match.end()))
            if usage is not None:
                return usage
        return None


class StreamCleaner:
    """Takes handoff parameters out of a stream, and corrects its usage, event by event.

    Events without them pass as the very bytes that came, and what isn't part of an unfinished
    event passes at once. An unfinished event is held until it is whole: no client can use a part
    of one, and so a stream that breaks off always ends, for the client, between two events.
    limit: bytes of one event, above which the stream is refused.
    """

    def __init__(self, *, cached_tokens: int | None = None, limit: int = 1 << 26) -> None:
        self._cached_tokens = cached_tokens
        self._limit = limit
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Bytes that came; returns those that may pass now, perhaps none.

        Raises AnswerError for an event that can't be cleaned or is longer than the limit.
        """
        if not self._held and data.endswith(_BOUNDARIES):
            return self._cleaned(data)
        start = max(0, len(self._held) - 3)
        self._held += data
        cut = max(_after(self._held, b"\n\n", start), _after(self._held, b"\n\r\n", start))
        if cut <= 0:
            if len(self._held) > self._limit:
                raise AnswerError(f"an event of the stream is longer than {self._limit} bytes")
            return b""
        whole = bytes(self._held[:cut])
        del self._held[:cut]
        return self._cleaned(whole)

    def rest(self) -> bytes:
        """What may pass of a last event that no blank line ends, once the stream is complete."""
        return b"" if _HANDOFF in self._held else bytes(self._held)

    def _cleaned(self, events: bytes) -> bytes:
        if _HANDOFF not in events and _CACHE not in events:
            return events
        return b"".join(
            self._line(line) if line.startswith(b"data:") else line
            for line in events.splitlines(keepends=True)
        )

    def _line(self, line: bytes) -> bytes:
        if _HANDOFF not in line and _CACHE not in line:
            return line
        try:
            fields: Any = json.loads(line[5:])
        except (ValueError, RecursionError) as error:
            if _HANDOFF not in line:
                return line
            raise AnswerError(
                "an event of the stream isn't JSON, so it can't be cleaned"
            ) from error
        if not (isinstance(fields, dict) and clean(fields, self._cached_tokens)):
            return line
        return b"data: " + dump_answer(fields) + line[len(line.rstrip(b"\r\n")) :]


def _ending(events: bytes) -> bytes | tuple[bytes, ...]:
    """How a chunk ends that tells no more than the last of these events; else `NO_ENDING`.

    That is from `"finish_reason":null` on, if nothing else is said after it.
    """
    found = _SAYS_NOTHING.search(events)
    return _framed(found[0]) if found else NO_ENDING


@lru_cache(maxsize=64)
def _framed(ending: bytes) -> bytes:
    """One object for all streams, so that it stays in the CPU's cache."""
    return ending + b"\r\n"


def _after(data: bytearray, mark: bytes, start: int) -> int:
    """Where the last mark at or after start ends; 0 if there is none."""
    at = data.rfind(mark, start)
    return at + len(mark) if at >= 0 else 0


def _object_at(text: str, at: int) -> object:
    """The JSON value that starts there; None if it isn't whole."""
    try:
        return _DECODER.raw_decode(text, at)[0]
    except (ValueError, RecursionError):
        return None
