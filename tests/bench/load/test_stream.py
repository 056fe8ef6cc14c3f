"""Reading a streamed completion, however its bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench import stub

from headway.bench.load.stream import CompletionStream, StreamError


@given(st.integers(1, 6), st.data())
def test_tokens_are_counted_however_the_bytes_are_cut(tokens, data) -> None:
    content = stub.answer(tokens)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=12)))
    pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    stream = CompletionStream()
    assert sum(stream.feed(piece) for piece in pieces) == tokens
    assert stream.done
    stream.close()


def test_tokens_that_come_together_are_all_counted() -> None:
    stream = CompletionStream()
    assert stream.feed(stub.HEAD + stub.chunk(stub.event(3))) == 3
    assert stream.feed(stub.chunk(stub.event(3))) == 0


def test_a_response_without_chunks_is_read_too() -> None:
    stream = CompletionStream()
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"
    assert stream.feed(head + stub.event(1) + stub.event(2) + b"data: [DONE]\n\n") == 2
    assert stream.done


@given(st.integers(1, 5))
def test_a_connection_lost_midway_is_an_error(tokens) -> None:
    stream = CompletionStream()
    stream.feed(stub.HEAD + b"".join(stub.chunk(stub.event(n + 1)) for n in range(tokens)))
    with pytest.raises(StreamError, match=f"after {tokens} tokens"):
        stream.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'HTTP/1.1 503 Busy\r\ncontent-length: 13\r\n\r\n{"error":"x"}', "status 503"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not an HTTP response"),
        (stub.HEAD + stub.chunk(b'data: {"error": {"message": "no"}}\n\n'), "no"),
        (stub.HEAD + b"zz\r\n", "chunk size"),
    ],
)
def test_anything_else_is_an_error(content, message) -> None:
    with pytest.raises(StreamError, match=message):
        CompletionStream().feed(content)


def test_a_model_may_say_error() -> None:
    stream = CompletionStream()
    stream.feed(stub.HEAD + stub.chunk(b'data: {"choices": [{"text":"error"}]}\n\n'))
    assert not stream.done


def test_a_refusal_without_a_body_is_an_error_at_the_end() -> None:
    stream = CompletionStream()
    stream.feed(b"HTTP/1.1 404 Not Found\r\n\r\n")
    with pytest.raises(StreamError, match="status 404"):
        stream.close()
