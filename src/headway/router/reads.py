"""What a read from an engine is if it is just one thing: one chunk, or one plain answer."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from headway.router.http1 import FIELD, FIELD_LINES, HEAD_FIELDS, Headers

_HEAD: Final = re.compile(
    rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [\t -~\x80-\xff]*)?\r\n(" + FIELD_LINES + rb")\r\n"
)
_ENDS: Final = frozenset(
    {b"content-length", b"transfer-encoding", b"connection", b"proxy-connection", b"keep-alive"}
)
"""Fields that say where an answer ends, or its connection."""
NO_ENDING: Final[tuple[bytes, ...]] = ()
"""How no event ends: nothing `endswith` it."""


def whole_answer(data: bytes) -> tuple[int, Headers, bytes] | None:
    """Status, fields and body of bytes that are one answer, to its end and no further.

    None for anything but the plainest: a final status, a length, and not a word about the
    connection. It says nothing about bytes that aren't such an answer.
    """
    head = _HEAD.match(data)
    if head is None:
        return None
    headers = [
        (name.lower(), value.strip(b" \t"))
        for name, value in FIELD.findall(data, head.start(2), head.end(2))
    ]
    ends = [field for field in headers if field[0] in _ENDS]
    if len(ends) != 1 or len(headers) > HEAD_FIELDS or head[1] in {b"204", b"304"}:
        return None
    name, length = ends[0]
    body = data[head.end() :]
    if name != b"content-length" or not length.isdigit() or length != b"%d" % len(body):
        return None
    return int(head[1]), headers, body


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
