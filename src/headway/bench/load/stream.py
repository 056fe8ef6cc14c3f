"""Sans-I/O reader of one streamed completion: bytes in, token counts out.

Reads an HTTP/1.1 response of server-sent events whose every event carries
`usage.completion_tokens`, and counts output tokens without decoding the JSON:
a load generator beside two engines on two cores has no time to spare.
"""

import re
from typing import Final

_TOKENS: Final = re.compile(rb'"completion_tokens":\s*(\d+)')
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})")
ERROR_EVENT: Final = b'data: {"error"'
"""How an error within a stream begins. `"error"` elsewhere may be the model's own word."""
_ERROR_BYTES: Final = 300


class StreamError(Exception):
    """The server answered with something that isn't a streamed completion."""


class CompletionStream:
    """State of one response.

    tokens: output tokens received so far.
    done: the server said that the stream is complete.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.done = False
        self._status = 0
        self._chunked = False
        self._raw = bytearray()  # bytes not yet understood
        self._chunk_left = 0  # bytes still to come of the current HTTP chunk
        self._body = bytearray()  # decoded body up to an incomplete line

    def feed(self, data: bytes) -> int:
        """Take bytes as they came; return how many output tokens they completed.

        Raises StreamError for a status other than 200, an error event or a
        response that isn't HTTP.
        """
        self._raw += data
        if not self._status and not self._read_head():
            return 0
        self._unchunk() if self._chunked else self._move(len(self._raw))
        if self._status != 200:
            if b"\n" in self._body or b"}" in self._body:
                raise StreamError(self._refusal())
            return 0
        before = self.tokens
        self._read_lines()
        return self.tokens - before

    def close(self) -> None:
        """The connection ended. Raises StreamError unless the stream was complete."""
        if self._status not in (0, 200):
            raise StreamError(self._refusal())
        if not self.done:
            raise StreamError(f"connection closed after {self.tokens} tokens")

    def _refusal(self) -> str:
        text = bytes(self._body[:_ERROR_BYTES]).decode(errors="replace").strip()
        return f"status {self._status}: {text}"

    def _read_head(self) -> bool:
        head, found, rest = bytes(self._raw).partition(b"\r\n\r\n")
        if not found:
            return False
        status = _STATUS.match(head)
        if status is None:
            raise StreamError(f"not an HTTP response: {head[:60]!r}")
        self._status = int(status.group(1))
        self._chunked = b"transfer-encoding: chunked" in head.lower()
        self._raw = bytearray(rest)
        return True

    def _unchunk(self) -> None:
        """Move the content of whole and partial HTTP chunks to the body."""
        while self._raw:
            if self._chunk_left == 0:
                line, found, _ = bytes(self._raw[:32]).partition(b"\r\n")
                if not found:
                    return
                if line:  # the empty line is the end of the chunk before
                    try:
                        self._chunk_left = int(line.split(b";")[0], 16)
                    except ValueError as error:
                        raise StreamError(f"bad chunk size {line!r}") from error
                del self._raw[: len(line) + 2]
            else:
                size = min(self._chunk_left, len(self._raw))
                self._chunk_left -= size
                self._move(size)

    def _move(self, size: int) -> None:
        self._body += self._raw[:size]
        del self._raw[:size]

    def _read_lines(self) -> None:
        end = self._body.rfind(b"\n") + 1
        for line in bytes(self._body[:end]).split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            if line.startswith(b"data: [DONE]"):
                self.done = True
            elif counts := _TOKENS.findall(line):
                self.tokens = max(self.tokens, int(counts[-1]))
            elif line.startswith(ERROR_EVENT):
                raise StreamError(line[:_ERROR_BYTES].decode(errors="replace"))
        del self._body[:end]
