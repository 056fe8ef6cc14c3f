"""The request log: a line of JSON for each request."""

import contextlib
import queue
import threading
from typing import BinaryIO, Final

WRITE_EVERY_S: Final = 0.2
MOST_LINES: Final = 100_000
"""Kept for a reader that is slow; what is more is dropped and counted."""
CLOSE_S: Final = 1.0


class Log:
    """Writes lines from a thread of its own, many at once.

    A reader that is slow, or gone, holds no request up.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.dropped = 0
        self._file = file
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headway-log", daemon=True)
        self._thread.start()

    def __call__(self, line: str) -> None:
        """Take a line; it is written soon."""
        if self._lines.qsize() < MOST_LINES:
            self._lines.put(line)
        else:
            self.dropped += 1

    def close(self) -> None:
        """Write what is left, as far as the reader takes it in time."""
        self._closing.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the reader is gone: nobody misses the lines
            while not self._closing.wait(WRITE_EVERY_S):
                self._write()
            self._write()

    def _write(self) -> None:
        lines = [self._lines.get() for _ in range(self._lines.qsize())]
        if lines:
            self._file.write("".join(f"{line}\n" for line in lines).encode())
            self._file.flush()
