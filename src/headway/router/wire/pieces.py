"""Bodies in pieces.

To join 30 MB takes as long as everybody else may wait, so what is large stays in the pieces in
which it came, and no step on the event loop touches more than one of them.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

JOINED_BYTES: Final = 1 << 18
"""A body up to this size is one object: about 60,000 tokens of text."""
FULL_READ_BYTES: Final = 256_000
"""What uvloop reads at once. Where that much has come, libuv reads on, for up to 8 MB."""
PIECE_BYTES: Final = 65_536
"""What comes in smaller pieces is joined up to this size."""


class Pieces:
    """A large body, in order. Iterated over by whoever sends it, as often as need be."""

    __slots__ = ("_size", "parts")

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = tuple(parts)
        self._size = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part

    def end(self, size: int) -> bytes:
        """Its last bytes, so many or all."""
        found = b""
        for part in reversed(self.parts):
            found = part[-(size - len(found)) :] + found
            if len(found) >= size:
                break
        return found

    def replaced_end(self, size: int, end: bytes) -> "Pieces":
        """With `end` in the place of its last bytes, of which there are `size`."""
        parts = list(self.parts)
        while parts and size >= len(parts[-1]):
            size -= len(parts.pop())
        if size:
            parts[-1] = parts[-1][:-size]
        return Pieces([*parts, end])


Body = bytes | Pieces


def gathered(parts: Sequence[bytes]) -> Body:
    """Pieces as one object, if they are no more than JOINED_BYTES."""
    if len(parts) == 1 and len(parts[0]) <= JOINED_BYTES:
        return parts[0]
    return b"".join(parts) if sum(map(len, parts)) <= JOINED_BYTES else Pieces(parts)


def joined(body: Body) -> bytes:
    """As one object, however long that takes."""
    return body if isinstance(body, bytes) else b"".join(body.parts)


def parts_of(body: Body) -> Sequence[bytes]:
    """Its pieces."""
    return (body,) if isinstance(body, bytes) else body.parts


def append(parts: list[bytes], data: bytes) -> None:
    """Add a piece; small ones become part of the one before."""
    if parts and len(parts[-1]) + len(data) <= PIECE_BYTES:
        parts[-1] += data
    else:
        parts.append(data)
