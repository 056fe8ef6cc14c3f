"""Bodies in pieces: the same bytes, whatever they are cut into."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.router.wire.pieces import (
    JOINED_BYTES,
    PIECE_BYTES,
    Pieces,
    append,
    gathered,
    joined,
    parts_of,
)

cut = st.lists(st.binary(max_size=9), max_size=9)


@given(cut, st.data())
def test_an_end_is_replaced(parts, data):
    whole = b"".join(parts)
    size = data.draw(st.integers(0, len(whole)))
    made = Pieces(parts).replaced_end(size, b"<>")
    assert joined(made) == whole[: len(whole) - size] + b"<>"
    assert len(made) == len(whole) - size + 2


@given(cut, st.integers(1, 30))
def test_an_end_is_read(parts, size):
    assert Pieces(parts).end(size) == b"".join(parts)[-size:]


@given(cut)
def test_it_is_sent_as_often_as_need_be(parts):
    async def sent(body):
        return b"".join([part async for part in body])

    body = Pieces(parts)
    assert [asyncio.run(sent(body)) for _ in range(2)] == [b"".join(parts)] * 2


@pytest.mark.parametrize("size", [0, 1, JOINED_BYTES, JOINED_BYTES + 1])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_only_what_is_small_is_joined(size, count):
    parts = [b"x" * (size // count)] * (count - 1)
    parts.append(b"x" * (size - sum(map(len, parts))))
    body = gathered(parts)
    assert isinstance(body, bytes) == (size <= JOINED_BYTES)
    assert joined(body) == b"".join(parts_of(body)) == b"x" * size
    assert len(body) == size


@given(st.lists(st.integers(1, PIECE_BYTES), max_size=40))
def test_small_pieces_become_few(sizes):
    """However slowly a body drips in, its pieces are at most twice as many as full ones."""
    parts = []
    for index, size in enumerate(sizes):
        append(parts, bytes([index]) * size)
    assert b"".join(parts) == b"".join(bytes([i]) * size for i, size in enumerate(sizes))
    assert len(parts) <= 1 + 2 * sum(sizes) / PIECE_BYTES
