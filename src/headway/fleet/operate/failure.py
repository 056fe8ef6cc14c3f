"""Why an engine ended, from its log: the one line that matters, and what would be right."""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from headway import masking
from headway.fleet.operate import logs
from headway.fleet.operate.failure_patterns import KNOWN

READ_BYTES: Final = 256 * 1024
"""Of a log's end; an engine's last words are there."""
_LONGEST: Final = 300
"""Characters of what nothing is known about."""
_FURTHER_LINES: Final = 4
"""Of a message, after its first line."""
_SIGKILL: Final = 128 + 9


class Cause(NamedTuple):
    """told: in one line. lasting: another start would end the same way."""

    told: str
    lasting: bool = False


_PREFIX: Final = re.compile(
    r"(?P<process>(?:\([^()]*pid=\d+\) )*)"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] ?)?"
)
_TRACEBACK: Final = "Traceback (most recent call last):"
_CHAINED: Final = ("The above exception was", "During handling of the above")
_TELLING: Final = frozenset({None, "ERROR", "CRITICAL"})
"""Levels of lines that may tell of an end."""
_NAMED: Final = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?::(?: (?P<said>.*))?)?$")
_INVALID: Final = re.compile(
    r"\d+ validation errors? for \w+ (?:Value error, )?(?P<said>.*?)(?: \[type=.*)?$"
)
"""pydantic's: the settings' class, the problem, and what else there is."""
_LOUD: Final = re.compile(
    r"\S+: error: (?P<usage>.+)|Fatal Python error: (?P<fatal>.+)|\s+what\(\): +(?P<what>.+)"
    r"|(?P<bus>Bus error.*)|\S+: fatal error: (?P<compiler>.+)|\S*\bld: (?P<linker>cannot find .+)"
)
"""What ends a process without a traceback: argparse, the interpreter, C++; and why a compiler
failed, which its caller doesn't tell."""
_CONSEQUENCE: Final = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|EngineDeadError"
    r"|Frontend process failed|EngineCore encountered an issue|Executor failed"
    r"|^KeyboardInterrupt|^SystemExit|^(?:asyncio\.\S+\.)?CancelledError|BrokenPipeError"
    r"|cannot schedule new futures after"
)
"""One process telling of another's end."""


@dataclass(frozen=True, slots=True)
class _Error:
    """name: of the exception, "" where a process ended without one. further: what else was said
    with it, not all of which need belong to it. came_of: the error it was raised for.
    """

    name: str
    said: str
    further: str = ""
    came_of: Self | None = None

    def __str__(self) -> str:
        first = f"{self.name}: {self.said}" if self.name else self.said
        return f"{first} {self.further}".rstrip()

    def chain(self) -> Iterator[Self]:
        """Itself, and what it came of, back to the first."""
        error: Self | None = self
        while error:
            yield error
            error = error.came_of


def cause_in(path: Path, status: int | None = None) -> Cause:
    """`cause` of the log at `path`, secrets masked."""
    return cause(masking.text(logs.end_of(path, READ_BYTES)), status)


def cause(log: str, status: int | None = None) -> Cause:
    """Why the engine that wrote `log` ended.

    log: the text or its end. status: the exit status, 128 + n after signal n; None if unknown.
    """
    lines = [_LogLine.of(line) for line in logs.lines(log)]
    errors = [error for error in _errors(lines) if not _CONSEQUENCE.search(str(error))]
    for last in reversed(errors):
        # Of a chain, what is known best: its last error may say less than what it came of.
        for known, error in itertools.product(KNOWN, last.chain()):
            if found := known.pattern.search(str(error)):
                return Cause(known.told.format_map(found.groupdict()), known.lasting)
    if errors:
        return Cause(_brief(errors[-1]))
    return Cause(_unexplained(lines, status))


def _unexplained(lines: Iterable["_LogLine"], status: int | None) -> str:
    """How it ended, where nothing in its log tells of an error."""
    if status == _SIGKILL:
        return (
            "was killed (signal 9), as the kernel does when memory runs out (dmesg tells); lower "
            "kv_memory_gib, or start fewer engines"
        )
    how = "ended" if status is None else _ended(status)
    last = [line.text for line in lines if line.text.strip() and line.level in _TELLING]
    return f"{how}; its last words: {_cut(last[-1])}" if last else f"{how} without a word"


class _LogLine(NamedTuple):
    """process: as vLLM names it, "" if it doesn't. level: None where no logger wrote it."""

    process: str
    level: str | None
    text: str

    @classmethod
    def of(cls, line: str) -> Self:
        """The parts of a line."""
        prefix = _PREFIX.match(line)
        assert prefix  # noqa: S101  it matches everything
        return cls(prefix["process"], prefix["level"], line[prefix.end() :])

    @property
    def indented(self) -> bool:
        return not self.text[:1].strip()


def _errors(lines: Iterable[_LogLine]) -> Iterator[_Error]:
    """What went wrong, in the log's order. Processes' lines may be mixed."""
    in_traceback: set[str] = set()
    told: dict[str, list[_LogLine]] = {}  # by process: an exception's line and what follows it
    before: dict[str, _Error] = {}  # by process: what its next exception comes of
    for line in lines:
        process = line.process
        exception = told.get(process)
        if exception and _continues(exception, line):
            exception.append(line)
            continue
        if exception:
            error = _exception(told.pop(process), before.pop(process, None))
            yield error
            if line.text.startswith(_CHAINED):
                before[process] = error
        if line.text.startswith((_TRACEBACK, *_CHAINED)):  # one without frames has no heading
            in_traceback.add(process)
        elif process in in_traceback and not line.indented:
            in_traceback.discard(process)
            told[process] = [line]
        elif line.level in _TELLING and (loud := _LOUD.match(line.text)):
            yield _Error("", next(filter(None, loud.groups())))
    for process, exception in told.items():
        yield _exception(exception, before.get(process))


def _continues(exception: list[_LogLine], line: _LogLine) -> bool:
    """Whether a line may be a part of the exception's message."""
    return (
        line.level == exception[0].level
        and sum(bool(each.text.strip()) for each in exception) <= _FURTHER_LINES
        and not line.text.startswith((_TRACEBACK, *_CHAINED))
    )


def _exception(lines: list[_LogLine], came_of: _Error | None) -> _Error:
    first, *more = (line.text.strip() for line in lines)
    further = " ".join(filter(None, more))
    named = _NAMED.match(first)
    if named:
        return _Error(named["name"], named["said"] or "", further, came_of)
    return _Error("", first, "", came_of)


def _brief(error: _Error) -> str:
    """What nothing better is known about, short."""
    invalid = _INVALID.match(f"{error.said} {error.further}")
    if invalid:
        return _cut(invalid["said"])
    name = error.name.rpartition(".")[2]
    if error.said and name in {"", "ValueError", "RuntimeError", "Exception"}:
        return _cut(error.said)
    return _cut(f"{name}: {error.said}" if error.said else name)


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _ended(status: int) -> str:
    return f"ended by signal {status - 128}" if status > 128 else f"ended with status {status}"
