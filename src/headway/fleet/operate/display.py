"""The engines of a fleet while it starts: a line each, drawn anew on a terminal, else as told."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TextIO

_UP: Final = "\x1b[{}A"
_CLEAR_LINE: Final = "\x1b[2K"
_CLEAR_BELOW: Final = "\x1b[J"
_USUAL: Final = os.terminal_size((80, 24))


@dataclass(frozen=True, slots=True)
class Row:
    """One engine: what it does, and for how many seconds it has been started.

    since_s: None where that means nothing. note: why; it has been said when it came to that.
    """

    name: str
    doing: str
    since_s: float | None = None
    note: str = ""


class Display(Protocol):
    """Shows rows, and lines between them."""

    def show(self, rows: Sequence[Row]) -> None:
        """Show them as they are now."""

    def say(self, text: str) -> None:
        """A message that stays."""

    def leave(self) -> None:
        """The rows stay as they are; what comes, comes below."""


def table(rows: Sequence[Row]) -> list[str]:
    """The rows, in columns."""
    width = max((len(row.name) for row in rows), default=0)
    doing = max((len(row.doing) for row in rows), default=0)
    lines = []
    for row in rows:
        since = "" if row.since_s is None else f"{row.since_s:4.0f} s"
        lines.append(f"  {row.name:{width}}  {row.doing:{doing}}  {since:6}  {row.note}".rstrip())
    return lines


class Terminal:
    """Draws over its own lines."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._drawn: list[str] = []

    def show(self, rows: Sequence[Row]) -> None:
        columns, lines = _size(self._out)
        drawn = [line[:columns] for line in table(rows)]
        if len(drawn) > lines - 1:  # what scrolls away can't be drawn over
            hidden = len(drawn) - lines + 2
            drawn[lines - 2 :] = [f"  … and {hidden} more"]
        self._draw(drawn)

    def say(self, text: str) -> None:
        drawn, self._drawn = self._drawn, []
        self._out.write(_UP.format(len(drawn)) if drawn else "")
        self._draw(text.split("\n"))
        self._drawn = []
        self._draw(drawn)

    def leave(self) -> None:
        self._drawn = []

    def _draw(self, lines: list[str]) -> None:
        up = _UP.format(len(self._drawn)) if self._drawn else ""
        shown = "".join(f"{_CLEAR_LINE}{line}\n" for line in lines)
        self._out.write(f"{up}{shown}{_CLEAR_BELOW}")
        self._out.flush()
        self._drawn = lines


class Plain:
    """A line when an engine begins something else. For logs and pipes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._shown: dict[str, str] = {}

    def show(self, rows: Sequence[Row]) -> None:
        for row in rows:
            # A percentage isn't news: it would be a line a second.
            what = " ".join(word for word in row.doing.split() if not word.endswith("%"))
            if not row.note and self._shown.get(row.name) != what:
                self._shown[row.name] = what
                after = f" ({row.since_s:.0f} s)" if row.since_s else ""
                self._say(f"{row.name}: {what}{after}")

    def say(self, text: str) -> None:
        self._say(text)

    def leave(self) -> None:
        pass


def display(out: TextIO, say: Callable[[str], None]) -> Display:
    """What suits where `out` goes. say: writes a line to it."""
    if out.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return Terminal(out)
    return Plain(say)


def _size(out: TextIO) -> os.terminal_size:
    try:
        size = os.get_terminal_size(out.fileno())
    except OSError:
        return _USUAL
    return size if size.columns and size.lines > 2 else _USUAL
