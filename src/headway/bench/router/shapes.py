"""Request bodies of any size, each hard on whoever reads it in a way of its own."""

import gzip
import json
from collections.abc import Iterator
from typing import Final, NamedTuple

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
SPEECH: Final = "/v1/audio/transcriptions"


class Shape(NamedTuple):
    """One request. fields: of its head, beside those that frame it.

    chunked: the body is framed as it should go out.
    """

    name: str
    path: str
    body: bytes
    fields: bytes = b""
    chunked: bool = False


def shapes(size: int, many: int | None = None) -> Iterator[Shape]:
    """JSON that generates, of about `size` bytes; `many`: of those with many values."""
    many = many or size
    yield Shape("one text", CHAT, _content("a" * size))
    yield Shape("lines", CHAT, _content("ab\n" * (size // 4)))
    yield Shape("another alphabet", CHAT, _content("\u00e9" * (size // 6)))
    yield Shape("one image", CHAT, _content([_image("A" * size)]))
    yield Shape("many images", CHAT, _content([_image("A" * 20)] * (many // 90)))
    yield Shape("many messages", CHAT, _messages([{"role": "user", "content": "a"}] * (many // 37)))
    yield Shape("odd messages", CHAT, b'{"messages":[%b]}' % _many(b"1", many))
    yield Shape("empty parts", CHAT, b'{"messages":[{"content":[%b]}]}' % _many(b"{}", many))
    fields = dict.fromkeys(map(str, range(many // 14)))
    yield Shape("many fields", CHAT, json.dumps({"messages": [], **fields}).encode())
    ids = json.dumps({"prompt": [12345] * (many // 7)}).encode()
    yield Shape("token ids", COMPLETIONS, ids)
    yield Shape("many prompts", COMPLETIONS, b'{"prompt":[%b]}' % _many(b'""', many))
    deep = b"[" * (size // 2) + b"]" * (size // 2)
    yield Shape("deep", CHAT, b'{"messages":%b}' % deep)


def others(size: int, many: int) -> Iterator[Shape]:
    """What isn't plain JSON that generates, and small requests with large answers."""
    text = _content("a" * size)
    yield Shape("gzip", CHAT, gzip.compress(text), b"content-encoding: gzip\r\n")
    bomb = gzip.compress(bytes(8 * size))
    yield Shape("gzip bomb", CHAT, bomb, b"content-encoding: gzip\r\n")
    marked = json.dumps({"input": "a" * size, "kv_transfer_params": {}}).encode()
    yield Shape("passed and changed", EMBEDDINGS, marked)
    yield Shape("passed with many values", EMBEDDINGS, b'{"\\u0061":[%b]}' % _many(b"{}", many))
    sound = b"content-type: audio/wav\r\n"
    yield Shape("passed as it comes", SPEECH, bytes(size), sound)
    lines = b"4\r\n\r\n\r\n\r\n" * (many // 10) + b"0\r\n\r\n"
    yield Shape("chunks of line ends", SPEECH, lines, sound, chunked=True)
    single = b"1\r\na\r\n" * (many // 6) + b"0\r\n\r\n"
    yield Shape("chunks of one byte", SPEECH, single, sound, chunked=True)
    yield Shape("large answer", f"{CHAT}?answer={many}", _content("hi"))


def _many(item: bytes, size: int) -> bytes:
    return b",".join([item] * (size // (len(item) + 1)))


def _content(content: object) -> bytes:
    return _messages([{"role": "user", "content": content}])


def _messages(messages: list[dict[str, object]]) -> bytes:
    return json.dumps({"model": "stub", "messages": messages}).encode()


def _image(data: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": data}}
