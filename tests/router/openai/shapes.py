"""Request bodies of any size, each hard on whoever reads it in a way of its own."""

import json

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def shapes(size):
    """Name, path and body of about `size` bytes of each shape."""
    yield "one text", CHAT, _content("a" * size)
    yield "lines", CHAT, _content("ab\n" * (size // 4))
    yield "another alphabet", CHAT, _content("\u00e9" * (size // 6))
    yield "one image", CHAT, _content([_image("A" * size)])
    yield "many images", CHAT, _content([_image("A" * 20)] * (size // 90))
    yield "many messages", CHAT, _messages([{"role": "user", "content": "hi"}] * (size // 38))
    yield "odd messages", CHAT, b'{"messages":[' + _many(b"1", size) + b"]}"
    yield "empty parts", CHAT, b'{"messages":[{"content":[' + _many(b"{}", size) + b"]}]}"
    yield (
        "many fields",
        CHAT,
        json.dumps({"messages": []} | dict.fromkeys(map(str, range(size // 12)))).encode(),
    )
    yield "token ids", COMPLETIONS, json.dumps({"prompt": [12345] * (size // 7)}).encode()
    yield "many prompts", COMPLETIONS, b'{"prompt":[' + _many(b'""', size) + b"]}"
    yield "deep", CHAT, b'{"messages":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}"


def _many(item, size):
    return b",".join([item] * (size // (len(item) + 1)))


def _content(content):
    return _messages([{"role": "user", "content": content}])


def _messages(messages):
    return json.dumps({"model": "m", "messages": messages}).encode()


def _image(data):
    return {"type": "image_url", "image_url": {"url": data}}
