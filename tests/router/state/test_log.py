"""The request log keeps nobody waiting."""

import io
import os

from headway.router.state import log
from headway.router.state.log import Log


def test_lines_are_written_in_order_and_whole():
    file = io.BytesIO()
    lines = Log(file)
    for number in range(1000):
        lines(f"line {number}")
    lines.close()
    assert file.getvalue().decode().splitlines() == [f"line {number}" for number in range(1000)]


def test_a_reader_that_does_not_read_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(log, "MOST_LINES", 500)
    monkeypatch.setattr(log, "WRITE_EVERY_S", 0.001)
    monkeypatch.setattr(log, "CLOSE_S", 0.01)
    read, write = os.pipe()
    lines = Log(os.fdopen(write, "wb"))
    for _ in range(2000):
        lines("x" * 1000)
    lines.close()
    assert lines.dropped > 0
    os.close(read)  # the thread's write fails, and it ends
    lines._thread.join(10)
    assert not lines._thread.is_alive()


def test_a_reader_that_has_left_is_not_missed():
    read, write = os.pipe()
    os.close(read)
    lines = Log(os.fdopen(write, "wb"))
    lines("one")
    lines.close()
    lines("two")
    assert not lines._thread.is_alive()
