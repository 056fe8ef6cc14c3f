"""Everything wrong with a configuration, collected and told at once."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, Self

from headway.config.lines import Path
from headway.core.errors import SettingError

_PLACE: Final = re.compile(r"\(at (?:line (\d+), column (\d+)|end of document)\)")


def dotted(path: Path) -> str:
    """The path as users write it: `pool[0].engines[1]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in path)
    return text.removeprefix(".")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) else json.dumps(name[:64])


class Problem(NamedTuple):
    """One thing wrong.

    key: path of the setting, or a flag; "" for the file as a whole.
    problem: what is wrong and what would be right.
    file, line: where, if it came from a file; lines count from 1.
    """

    key: str
    problem: str
    file: str = ""
    line: int | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.problem) if part)


class ConfigError(SettingError):
    """A configuration that can't be used. `problems` has all that is wrong, in file order.

    `key` and `problem` are those of the first; the text has a line for each.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems[0].key, problems[0].problem)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))

    @classmethod
    def of_syntax(cls, error: Exception, name: str, text: str) -> Self:
        """The error for a text that isn't TOML."""
        said = str(error)
        match = _PLACE.search(said)
        line = None
        if isinstance(error, tomllib.TOMLDecodeError) and match:
            line = int(match[1]) if match[1] else text.rstrip().count("\n") + 1
            said = said.replace(match[0], f"(column {match[2]})" if match[2] else "(end of file)")
        elif isinstance(error, RecursionError):
            said = "lists or tables are nested too deeply"
        return cls((Problem("", f"not valid TOML: {said}", name, line),))


class Source(Protocol):
    """Where the settings were written."""

    def problem(self, path: Path, text: str) -> Problem:
        """`text` said about the setting at `path`."""

    def given(self, path: Path) -> str | None:
        """Where the setting was set, in a word or two; None if it has its default."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file; `lines` as from `key_lines`."""

    name: str
    lines: Mapping[Path, int]

    def problem(self, path: Path, text: str) -> Problem:
        known = (self.lines.get(path[:end]) for end in range(len(path), 0, -1))
        line = next((line for line in known if line is not None), None)
        return Problem(dotted(path), text, self.name, line)

    def given(self, path: Path) -> str | None:
        line = self.lines.get(path)
        return None if line is None else f"line {line}"


@dataclass(frozen=True, slots=True)
class FlagSource:
    """Flags of a command: `pools` names the flag whose engines make each pool."""

    pools: tuple[str, ...]
    set: frozenset[Path]

    def problem(self, path: Path, text: str) -> Problem:
        return Problem(self._flag(path), text)

    def given(self, path: Path) -> str | None:
        return self._flag(path) if path in self.set else None

    def _flag(self, path: Path) -> str:
        if path[0] == "router":
            return flag_of(path)
        index = path[1] if len(path) > 1 else None
        return self.pools[index] if isinstance(index, int) else "--engine"


def flag_of(path: Path) -> str:
    """The flag for a setting below `router`: ("router", "slo", "ttft_s") is --slo-ttft-s."""
    return "--" + "-".join(str(part) for part in path[1:]).replace("_", "-")


@dataclass(slots=True)
class Problems:
    """Problems found so far, by path."""

    source: Source
    found: list[tuple[Path, Problem]] = field(default_factory=list)

    def add(self, path: Path, text: str) -> None:
        self.found.append((path, self.source.problem(path, text)))

    def add_from(self, path: Path, problem: Problem) -> None:
        """A problem in a file that the setting at `path` names."""
        self.found.append((path, problem))

    def clear_of(self, *paths: Path) -> bool:
        """Whether nothing at or below any of the paths is wrong, so that a rule may use them."""
        return not any(at[: len(path)] == path for at, _ in self.found for path in paths)

    def finish(self) -> None:
        """Raise ConfigError if there are any."""
        if self.found:
            problems = [problem for _, problem in self.found]
            own = getattr(self.source, "name", "")
            problems.sort(key=lambda p: (p.file != own, p.line or 0))
            raise ConfigError(tuple(problems))
