"""Where in a TOML text each key and list item stands; `tomllib` doesn't tell."""

import re
import tomllib
from bisect import bisect_right
from typing import Final

Path = tuple[str | int, ...]
"""Keys and list indexes from the top of the document, for example ("pool", 0, "name")."""

_SPACE: Final = re.compile(r"[ \t]*")
_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY: Final = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*'""")
_SCALAR: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})'  # up to two more quotes belong to the string
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\]|\\.)*"'
    r"|'[^']*'"
    r"|[^,\]}#\n]+",
    re.DOTALL,
)


def key_lines(text: str) -> dict[Path, int]:
    """The line (from 1) where each table, key and list item begins.

    text: valid TOML; `tomllib.loads` has taken it.
    """
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


class _Scanner:
    """Walks over a text known to be valid, so that it only has to find where things begin."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Path, int] = {}
        self._text = text
        self._at = 0
        self._starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self._tables: dict[Path, int] = {}  # arrays of tables: how many [[…]] so far

    def document(self) -> None:
        table: Path = ()
        while self._peek(_BLANK):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        line = self._line()
        brackets = 2 if self._text.startswith("[[", self._at) else 1
        self._at += brackets
        *parents, last = self._key()
        self._peek(_SPACE)
        self._at += brackets
        path: Path = ()
        for part in parents:
            path = self._mark((*path, part), line)
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
        path = self._mark((*path, last), line)
        if brackets == 1:
            return path
        index = self._tables.get(path, 0)
        self._tables[path] = index + 1
        return self._mark((*path, index), line)

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for part in self._key():
            path = self._mark((*path, part), line)
        self._peek(_SPACE)
        self._at += 1  # the equals sign
        self._peek(_SPACE)
        self._value(path)

    def _value(self, path: Path) -> None:
        opening = self._text[self._at]
        if opening == "[":
            self._array(path)
        elif opening == "{":
            self._at += 1
            while self._until("}"):
                self._pair(path)
        else:
            self._take(_SCALAR)

    def _array(self, path: Path) -> None:
        self._at += 1
        index = 0
        while self._until("]"):
            self._value(self._mark((*path, index), self._line()))
            index += 1

    def _until(self, closing: str) -> bool:
        """Whether another item follows; moves to it, or behind `closing`."""
        self._peek(_BLANK)
        if self._text[self._at] == ",":
            self._at += 1
            self._peek(_BLANK)
        if self._text[self._at] != closing:
            return True
        self._at += 1
        return False

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._peek(_SPACE)
            word = self._take(_KEY)
            parts.append(tomllib.loads(f"k = {word}")["k"] if word[0] in "\"'" else word)
            self._peek(_SPACE)
            if self._text[self._at] != ".":
                return parts
            self._at += 1

    def _mark(self, path: Path, line: int) -> Path:
        self.lines.setdefault(path, line)
        return path

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError(f"line {self._line()}: not TOML as this scanner knows it")
        self._at = match.end()
        return match.group()

    def _peek(self, blank: re.Pattern[str]) -> bool:
        """Whether anything follows the blank, which is passed over."""
        self._take(blank)
        return self._at < len(self._text)

    def _line(self) -> int:
        return bisect_right(self._starts, self._at)
