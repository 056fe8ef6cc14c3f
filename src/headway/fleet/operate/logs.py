"""Logs of engines: their last lines, and what is added to them."""

import json
import os
from collections import deque
from pathlib import Path
from typing import BinaryIO, Final

from headway import masking

WHOLE_BYTES: Final = 2**22
"""More than an engine says while it starts."""
_CHUNK_BYTES: Final = 64 * 1024


def lines(text: str) -> list[str]:
    """The lines of a log. A progress bar that draws itself anew is a line each time."""
    return text.replace("\r", "\n").splitlines()


def end_of(path: Path, size_bytes: int) -> str:
    """The last `size_bytes` at most, from the start of a line; "" where there is no log."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - size_bytes)
            file.seek(start)
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return text.partition("\n")[2] if start else text


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines at most. Raises OSError."""
    with path.open("rb") as file:
        kept = deque(file, maxlen=count)
    return [line.decode("utf-8", "replace").rstrip("\r\n") for line in kept]


def json_line(line: str) -> str:
    """A line as JSON: an object as it is, else the `text` of one. Secrets are masked."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        value = {"text": line}
    return json.dumps(masking.values(value))


class Lines:
    """Puts lines together from the pieces in which a `Tail` reads them."""

    def __init__(self) -> None:
        self._begun = ""

    def add(self, text: str, *, restarted: bool) -> list[str]:
        """Those that are complete now. restarted: the piece begins a new log."""
        ended = [self._begun] if restarted and self._begun else []
        *complete, self._begun = (text if restarted else self._begun + text).split("\n")
        return [*ended, *complete]


class Tail:
    """What is added to a log. A new file under its name is read from its start."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self.restarted = False
        """Whether the latest `read` began a new file."""
        if from_end:
            self._open(os.SEEK_END)

    def read(self) -> str:
        """What was added since the last time, "" if nothing; of a new file only once the old
        one has been read to its end.
        """
        self.restarted = False
        if self._file is None:
            self._open()
        text = self._rest()
        if not text and self._replaced():
            self.close()
            self._open()
            self.restarted = True
            text = self._rest()
        return text

    def close(self) -> None:
        """Let go of the file."""
        if self._file:
            self._file.close()
        self._file = None

    def _open(self, whence: int = os.SEEK_SET) -> None:
        try:
            self._file = self._path.open("rb", buffering=0)
        except FileNotFoundError:
            self._file = None
        else:
            self._file.seek(0, whence)

    def _rest(self) -> str:
        if self._file is None:
            return ""
        parts: list[bytes] = []
        while part := self._file.read(_CHUNK_BYTES):
            parts.append(part)
        return b"".join(parts).decode("utf-8", "replace")

    def _replaced(self) -> bool:
        """Whether another file has the name now, or this one was cut."""
        if self._file is None:
            return False
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._file.fileno())
        other = (now.st_dev, now.st_ino) != (mine.st_dev, mine.st_ino)
        return other or now.st_size < self._file.tell()
