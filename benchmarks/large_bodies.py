"""How long others wait while one client sends bodies of megabytes, of every shape.

A router before stub engines that throw away what they get. Beside four streams and short
requests, another client sends one shape of body after the other, again and again. A stream's
wait is from a token's departure at the engine to its arrival, a short request's is that for an
answer of the router's own. `quiet` is a cell without the other client: what the machine does.
"""

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from headway.bench.engines.options import end_cleanly_on_sigterm
from headway.bench.engines.processes import free_ports, running
from headway.bench.judge.spread import spread
from headway.bench.report import document as report
from headway.bench.report.document import Goal, ProgressLines
from headway.bench.router import arms
from headway.bench.router.arms import Engines
from headway.bench.router.bench import cores
from headway.bench.router.shapes import SHAPES

TARGET_S: Final = 0.020
SIZE_BYTES: Final = 30 << 20
MANY_BYTES: Final = 6 << 20
"""Of bodies of many values, each of which takes a second or more to read."""
QUIET: Final = "quiet"
NAMES: Final = (QUIET, *(each.name for each in SHAPES))
MODES: Final = (arms.UNIFIED, arms.DISAGGREGATED)
STREAMS: Final = 4
SHORT_GAP_S: Final = 0.005
FOR_S: Final = 2.0
SETTLE_S: Final = 0.3
REPEATS: Final = 3
HOST: Final = "127.0.0.1"
_LEFT: Final = re.compile(rb'"content":"(\d+)"')
_STREAM: Final = (
    b'{"model": "stub", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'
)


@dataclass(frozen=True, slots=True)
class LargeCell:
    """Others' waits beside one shape, seconds. statuses: what its sender was answered."""

    mode: str
    shape: str
    repeat: int
    waits: int
    longest_s: float
    p99_s: float
    spent_s: float
    statuses: dict[str, int]


class Others:
    """The other clients. waits_s: since `forget`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.waits_s: list[float] = []

    async def stream(self) -> None:
        """Read a stream that doesn't end."""
        reader, writer = await asyncio.open_connection(HOST, self._port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(_STREAM), _STREAM)
        )
        with contextlib.closing(writer):
            while data := await reader.read(65_536):
                now_ns = time.monotonic_ns()
                self.waits_s += [(now_ns - int(left)) / 1e9 for left in _LEFT.findall(data)]
        raise ConnectionError("a stream ended")

    async def ask(self) -> None:
        """Short requests, one after the other."""
        reader, writer = await asyncio.open_connection(HOST, self._port)
        with contextlib.closing(writer):
            while True:
                began_s = time.monotonic()
                writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
                self.waits_s.append(time.monotonic() - began_s)
                await asyncio.sleep(SHORT_GAP_S)


@contextlib.contextmanager
def sinks(core: int | None) -> Iterator[Engines]:
    """The stub engines."""
    ports = free_ports(3)
    command = [sys.executable, "-m", "headway.bench.router.sink", *map(str, ports)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with running(command, core=core, **pipes) as process:
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise arms.ArmError("the stub engines don't start")
        yield Engines((ports[0],), ports[1], ports[2])


async def watch(port: int, name: str) -> tuple[list[float], dict[str, Any]]:
    """Others' waits beside one shape, and what its sender says."""
    beside = Others(port)
    tasks = [asyncio.create_task(beside.stream()) for _ in range(STREAMS)]
    tasks.append(asyncio.create_task(beside.ask()))
    sender = None
    if name != QUIET:
        sizes = (str(SIZE_BYTES), str(MANY_BYTES), str(FOR_S))
        sender = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headway.bench.router.heavy", str(port), name, *sizes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    try:
        said = await _sent(sender, beside)
    finally:
        if sender is not None and sender.returncode is None:
            sender.kill()
            await sender.wait()
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    broken = [each for each in ended if isinstance(each, Exception)]
    if broken:
        raise arms.ArmError(f"{name}: another client failed: {broken[0]!r}")
    return beside.waits_s, said


async def _sent(sender: asyncio.subprocess.Process | None, beside: Others) -> dict[str, Any]:
    if sender is None:
        await asyncio.sleep(SETTLE_S)
        beside.waits_s.clear()
        await asyncio.sleep(FOR_S)
        return {"spent_s": FOR_S, "statuses": {}}
    if sender.stdin is None or sender.stdout is None:
        raise arms.ArmError("no pipes")
    if await sender.stdout.readline() != b"ready\n":
        raise arms.ArmError("the sender doesn't start")
    await asyncio.sleep(SETTLE_S)
    beside.waits_s.clear()
    sender.stdin.write(b"\n")
    said: dict[str, Any] = json.loads(await sender.stdout.readline())
    return said


def measure(repeats: int, names: list[str], progress: ProgressLines) -> list[LargeCell]:
    """All cells. Raises ArmError."""
    found = []
    engine_core, router_core = cores(shared=True)
    with sinks(engine_core) as engines:
        for repeat in range(repeats):
            for mode in MODES:
                (port,) = free_ports(1)
                command = arms.headway_command(mode, engines, port)
                with arms.serving(arms.HEADWAY, mode, command, port, router_core):
                    for name in names:
                        waits_s, said = uvloop.run(watch(port, name))
                        waits_s.sort()
                        p99_s = waits_s[int(0.99 * (len(waits_s) - 1))]
                        cell = LargeCell(
                            *(mode, name, repeat, len(waits_s), waits_s[-1], p99_s),
                            said["spent_s"],
                            said["statuses"],
                        )
                        progress.line(str(asdict(cell)))
                        found.append(cell)
    return found


def odd(cell: LargeCell) -> int:
    """Requests of the sender that weren't answered as they should be."""
    due = {each.name: str(each.answered) for each in SHAPES}
    return sum(count for status, count in cell.statuses.items() if status != due[cell.shape])


def goals(cells: list[LargeCell]) -> list[Goal]:
    """The longest wait beside each shape; the median, least and most of the repeats."""
    wrong = float(sum(map(odd, cells)))
    answered = Goal(
        "large requests answered otherwise than they should be",
        bound=0.0,
        at_most=True,
        measured=spread([wrong]),
    )
    waits = [
        Goal(
            f"longest wait beside {name}, {mode}, s",
            TARGET_S,
            at_most=True,
            measured=spread(
                [each.longest_s for each in cells if (each.mode, each.shape) == (mode, name)]
            ),
        )
        for mode in MODES
        for name in dict.fromkeys(each.shape for each in cells)
        if name != QUIET
    ]
    return [*waits, answered]


def table(cells: list[LargeCell]) -> str:
    """A row a shape and mode, the worst of all repeats; times in milliseconds."""
    rows = []
    for mode, name in dict.fromkeys((each.mode, each.shape) for each in cells):
        of_it = [each for each in cells if (each.mode, each.shape) == (mode, name)]
        longest_s, p99_s = max(c.longest_s for c in of_it), max(c.p99_s for c in of_it)
        answered = " ".join(sorted({status for each in of_it for status in each.statuses}))
        rows.append([mode, name, longest_s * 1e3, p99_s * 1e3, answered or "-"])
    return report.table(["mode", "beside", "longest ms", "p99 ms", "answered"], rows)


def main() -> int:
    """Measure, print the table and, if asked, write the report; 1 if it couldn't measure."""
    options = _options()
    end_cleanly_on_sigterm()
    repeats = options.repeats or (1 if options.quick else REPEATS)
    try:
        cells = measure(repeats, options.shapes, ProgressLines())
    except arms.ArmError as error:
        print(error, file=sys.stderr)
        return 1
    found = goals(cells)
    print(table(cells), report.goals_table(found), sep="\n\n")
    if options.json is not None:
        configuration = {
            "repeats": repeats,
            "size_bytes": SIZE_BYTES,
            "many_bytes": MANY_BYTES,
            "streams": STREAMS,
            "for_s": FOR_S,
        }
        raw = [asdict(cell) for cell in cells]
        made = report.document(seed=0, configuration=configuration, raw=raw, targets=found)
        report.write(options.json, made)
    return 0


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--repeats", type=int, help=f"how often everything is measured (default: {REPEATS})")
    add("--quick", action="store_true", help="everything once")
    add("--json", type=Path, metavar="PATH", help="write the report here")
    add(
        "--shapes",
        metavar="A,B",
        default=",".join(NAMES),
        help=f"of {', '.join(NAMES)} (default: all)",
    )
    options = made.parse_args()
    options.shapes = options.shapes.split(",")
    if unknown := sorted(set(options.shapes) - set(NAMES)):
        made.error(f"--shapes: unknown {unknown[0]!r}; known are: {', '.join(NAMES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
