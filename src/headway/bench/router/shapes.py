"""Request bodies of any size, each hard on whoever reads it in a way of its own."""

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
SPEECH: Final = "/v1/audio/transcriptions"


class BodyShape(NamedTuple):
    """One kind of request.

    make: a body of about so many bytes. many: it is of many values, and takes a second for each
    few megabytes to read. fields: of its head, beside those that frame it. chunked: the body is
    framed as it should go out. answered: the status it deserves.
    """

    name: str
    path: str
    make: Callable[[int], bytes]
    many: bool = False
    fields: bytes = b"content-type: application/json\r\n"
    chunked: bool = False
    answered: int = 200


def _messages(messages: list[dict[str, object]]) -> bytes:
    return json.dumps({"model": "stub", "messages": messages}).encode()


def _content(content: object) -> bytes:
    return _messages([{"role": "user", "content": content}])


def _image(data: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": data}}


def _many(item: bytes, size: int) -> bytes:
    return b",".join([item] * (size // (len(item) + 1)))


def _fields(size: int) -> bytes:
    return json.dumps({"messages": [], **dict.fromkeys(map(str, range(size // 14)))}).encode()


def _deep(size: int) -> bytes:
    return b'{"messages":%b%b}' % (b"[" * (size // 2), b"]" * (size // 2))


def _marked(size: int) -> bytes:
    return json.dumps({"input": "a" * size, "kv_transfer_params": {}}).encode()


def _chunks(chunk: bytes, size: int) -> bytes:
    return chunk * (size // len(chunk)) + b"0\r\n\r\n"


GENERATING: Final = (
    BodyShape("one text", CHAT, lambda size: _content("a" * size)),
    BodyShape("lines", CHAT, lambda size: _content("ab\n" * (size // 4))),
    BodyShape("another alphabet", CHAT, lambda size: _content("\u00e9" * (size // 6))),
    BodyShape("one image", CHAT, lambda size: _content([_image("A" * size)])),
    BodyShape(
        "many images", CHAT, lambda size: _content([_image("A" * 20)] * (size // 90)), many=True
    ),
    BodyShape(
        *("many messages", CHAT),
        lambda size: _messages([{"role": "user", "content": "a"}] * (size // 37)),
        many=True,
    ),
    BodyShape(
        *("odd messages", CHAT), lambda size: b'{"messages":[%b]}' % _many(b"1", size), many=True
    ),
    BodyShape(
        *("empty parts", CHAT),
        lambda size: b'{"messages":[{"content":[%b]}]}' % _many(b"{}", size),
        many=True,
    ),
    BodyShape("many fields", CHAT, _fields, many=True),
    BodyShape(
        *("token ids", COMPLETIONS),
        lambda size: json.dumps({"prompt": [12345] * (size // 7)}).encode(),
        many=True,
    ),
    BodyShape(
        *("many prompts", COMPLETIONS),
        lambda size: b'{"prompt":[%b]}' % _many(b'""', size),
        many=True,
    ),
    BodyShape("deep", CHAT, _deep, answered=400),
)
"""Plain JSON that generates."""

_GZIP: Final = b"content-encoding: gzip\r\n"
_SOUND: Final = b"content-type: audio/wav\r\n"
SHAPES: Final = (
    *GENERATING,
    BodyShape("gzip", CHAT, lambda size: gzip.compress(_content("a" * size)), fields=_GZIP),
    BodyShape(
        *("gzip bomb", CHAT),
        lambda size: gzip.compress(bytes(8 * size)),
        fields=_GZIP,
        answered=413,
    ),
    BodyShape("passed and changed", EMBEDDINGS, _marked),
    BodyShape(
        *("passed with many values", EMBEDDINGS),
        lambda size: b'{"\\u0061":[%b]}' % _many(b"{}", size),
        many=True,
    ),
    BodyShape("passed as it comes", SPEECH, bytes, fields=_SOUND),
    BodyShape(
        *("chunks of line ends", SPEECH),
        lambda size: _chunks(b"4\r\n\r\n\r\n\r\n", size),
        many=True,
        fields=_SOUND,
        chunked=True,
    ),
    BodyShape(
        *("chunks of one byte", SPEECH),
        lambda size: _chunks(b"1\r\na\r\n", size),
        many=True,
        fields=_SOUND,
        chunked=True,
    ),
    BodyShape("large answer", f"{CHAT}?answer=6000000", lambda size: _content("hi")),
)
"""These, and what comes otherwise, passes by, or has a large answer."""


def bodies(size: int) -> Iterator[tuple[str, str, bytes]]:
    """Name, path and body of each kind of plain JSON that generates."""
    for shape in GENERATING:
        yield shape.name, shape.path, shape.make(size)
