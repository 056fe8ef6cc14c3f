"""What of a request body will be tokenised: how much it is, and in which order it starts."""

import json
from array import array
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from headway.router.wire.errors import Kind

MEDIA_BYTES: Final = 4096
"""What an image, a sound or a video counts as: about 1,000 tokens at four bytes a token."""
TOKEN_BYTES: Final = 4
"""What a prompt given as token ids counts a token, in size and in the prefix."""

_MEDIA: Final = (
    *("image_url", "input_image", "image", "image_embeds"),
    *("input_audio", "audio_url", "audio", "audio_embeds", "video_url", "video"),
    *("input_file", "file", "document"),
)
_NOT_TEXT: Final = frozenset({"role", "type", "content", "output", "id", "status"})
_PLAIN: Final = frozenset({"role", "content"})
"""What most messages have, and no more."""
_LONG_CHARS: Final = 256
"""A text in a medium's description that is longer is the medium itself, or where it is."""
_COMPACT: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_ROLE_END: Final = b"\x1e"
_PART_END: Final = b"\x1f"


class PromptText(NamedTuple):
    """The prompt of one request.

    prefix: bytes that begin alike for prompts that begin alike; a conversation continued starts
    with the bytes of the shorter one. size: bytes of prompt text, media counted as MEDIA_BYTES.
    token_ids: how many tokens, where the client sent ids only.
    """

    prefix: bytes
    size: int
    token_ids: int | None = None


def prompt_of(kind: Kind, raw: dict[str, Any]) -> PromptText:
    """The prompt of a request body. Fields of a wrong type count by their JSON text."""
    if kind == "completions":
        return _completion(raw)
    if kind == "responses":
        opening, turns = raw.get("instructions"), raw.get("input")
    else:
        opening, turns = raw.get("system"), raw["messages"]
    writer = _Writer()
    writer.start(raw)
    if raw.get("tools"):
        writer.data(raw["tools"])
    if opening:
        writer.content(opening)
        writer.end()
    if not isinstance(turns, list):
        turns = [{"role": "user", "content": turns}]
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict):
            writer.data(turns[index:])  # the engine will refuse them
            break
        writer.turn(turn)
    return writer.prompt()


def _completion(raw: dict[str, Any]) -> PromptText:
    writer = _Writer()
    writer.start(raw)
    given = raw.get("prompt")
    prompts = given if isinstance(given, list) and _ids(given) is None else [given]
    tokens: int | None = 0
    for prompt in prompts:
        ids = _ids(prompt)
        if ids is not None:
            writer.text(ids)
            tokens = None if tokens is None else tokens + len(ids) // TOKEN_BYTES
        else:
            tokens = None
            if prompt is not None:
                writer.content(prompt)
    return writer.prompt()._replace(token_ids=tokens or None)


def _ids(prompt: object) -> bytes | None:
    """The bytes of a list of token ids; None if it isn't one."""
    if not isinstance(prompt, list) or not prompt:
        return None
    try:
        return array("I", prompt).tobytes()
    except (TypeError, OverflowError):
        return None


class _Writer:
    """Collects the prefix and counts the size."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def prompt(self) -> PromptText:
        return PromptText(b"".join(self._pieces), self._size)

    def start(self, raw: dict[str, Any]) -> None:
        """What keeps caches apart: the model and the cache salt. Neither is prompt text."""
        for key in ("model", "cache_salt"):
            value = raw.get(key)
            if value is not None:
                self._pieces.append(str(value).encode("utf-8", "surrogatepass"))
            self._pieces.append(_PART_END)

    def end(self) -> None:
        self._pieces.append(_PART_END)

    def text(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)

    def data(self, value: object) -> None:
        """Anything else that a chat template may print: tools, calls, odd values."""
        self.text(_COMPACT(value).encode("ascii"))
        self.end()

    def turn(self, turn: dict[str, Any]) -> None:
        """One message, or one item of a Responses input."""
        role, content = str(turn.get("role") or turn.get("type") or ""), turn.get("content")
        self._pieces += (role.encode("utf-8", "surrogatepass"), _ROLE_END)
        if content is not None:
            self.content(content)
        if not _PLAIN.issuperset(turn):
            if turn.get("output") is not None:
                self.content(turn["output"])
            rest = {k: v for k, v in turn.items() if k not in _NOT_TEXT and v is not None}
            if rest:
                self.data(rest)
        self.end()

    def content(self, content: object) -> None:
        """A string, or a list of parts: texts, media, tool results."""
        if isinstance(content, str):
            self.text(content.encode("utf-8", "surrogatepass"))
            return
        if not isinstance(content, list):
            self.data(content)
            return
        for index, part in enumerate(content):
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                self.text(text.encode("utf-8", "surrogatepass"))
            elif not isinstance(part, dict):
                self.data(content[index:])  # the engine will refuse them
                break
            elif part.get("type") in _MEDIA:
                self._media(part)
            elif "content" in part:
                self.turn(part)  # a tool's result, which may hold media
            else:
                self.data(part)

    def _media(self, part: dict[str, Any]) -> None:
        """By its digest: as a file it may be megabytes, as a prompt it is some tokens."""
        digest = blake2b(digest_size=16)
        short = {
            name: {key: _taken(each, digest) for key, each in value.items()}
            if isinstance(value, dict)
            else _taken(value, digest)
            for name, value in part.items()
        }
        digest.update(_COMPACT(short).encode("ascii"))
        self._pieces.append(digest.digest())
        self._size += MEDIA_BYTES


def _taken(value: object, digest: blake2b) -> object:
    """What is left to digest of a value: of a long text its length, for the text is taken in."""
    if not isinstance(value, str) or len(value) <= _LONG_CHARS:
        return value
    digest.update(value.encode("utf-8", "surrogatepass"))
    return len(value)
