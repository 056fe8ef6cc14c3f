"""What a read from an engine is if it is just one thing: one chunk, or one plain answer."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from headway.router.wire.http1 import FIELD_LINES, HEAD_FIELDS, LENGTH_LINE, Field, fields_of

_HEAD: Final = re.compile(
    rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [\t -~\x80-\xff]*)?\r\n(" + FIELD_LINES + rb")"
)
_ENDS: Final = frozenset(
    {b"content-length", b"transfer-encoding", b"connection", b"proxy-connection", b"keep-alive"}
)
"""Fields that say where an answer ends, or its connection."""
_BODILESS: Final = frozenset({204, 304})
NO_ENDING: Final[tuple[bytes, ...]] = ()
"""How no event ends: nothing `endswith` it."""


def whole_answer(data: bytes) -> tuple[int, tuple[Field, ...], bytes] | None:
    """Status, fields but Content-Length, and body of bytes that are one answer and nothing more.

    None for anything but the plainest: a final status, a length, and not a word about the
    connection. It says nothing about bytes that aren't such an answer.
    """
    end = data.find(b"\r\n\r\n") + 2
    length = LENGTH_LINE.search(data, 0, end)
    if length is None or length[1] != b"%d" % (len(data) - end - 2):
        return None
    # An engine's heads often differ in this line alone, so the others are known already.
    head = _plain_head(data[: length.start()] + data[length.end() : end])
    return None if head is None else (*head, data[end + 2 :])


@lru_cache(maxsize=256)
def _plain_head(lines: bytes) -> tuple[int, tuple[Field, ...]] | None:
    """Status and fields of a head without its Content-Length and its end."""
    head = _HEAD.fullmatch(lines)
    if head is None:
        return None
    status, headers = int(head[1]), fields_of(lines, head.start(2), head.end(2))
    plain = status not in _BODILESS and len(headers) < HEAD_FIELDS
    return (status, headers) if plain and _ENDS.isdisjoint(dict(headers)) else None


@lru_cache(maxsize=4096)
def size_line(length: int) -> bytes | None:
    """How so many bytes begin if they are one chunk as `http1.chunk` frames it; None: none is."""
    for digits in range(1, 9):
        line = b"%x\r\n" % max(0, length - digits - 4)
        if len(line) == digits + 2 and length > digits + 4:
            return line
    return None


class Passing:
    """Events that go from the engine to the client without being kept, only counted.

    With many streams a router's time goes to memory that every token touches, and most events
    tell nothing about the answer's end. Each is one chunk (`http1.chunk`) of one line.

    ending: how such chunks end, framing included; count: of them so far; write: takes them, set
    before there are any; last_s: when the stream's latest bytes came (monotonic), 0 before.
    """

    __slots__ = ("count", "ending", "last_s", "write")
    write: Callable[[bytes], object]

    def __init__(self) -> None:
        self.count = 0
        self.ending: bytes | tuple[bytes, ...] = NO_ENDING
        self.last_s = 0.0
