"""Processes of the benchmark: started on a core, watched from outside, ended for certain."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from headway.processes import descendants, tell

STOP_S: Final = 10.0
_PAGE_BYTES: Final = resource.getpagesize()


def raise_file_limit() -> int:
    """Allow this process and its children as many open files as the system lets them."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@contextlib.contextmanager
def running(
    command: Sequence[str], *, core: int | None, **more: Any
) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the `with` block. core: all it may use; None for any."""
    allowed = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})  # a child inherits it from its first instruction
    try:
        process = subprocess.Popen(command, text=True, start_new_session=True, **more)
    finally:
        os.sched_setaffinity(0, allowed)
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """End it and what it started: SIGTERM, then SIGKILL."""
    below = tree(process.pid)[1:]
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    tell(below, signal.SIGKILL)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def tree(root: int) -> list[int]:
    """A process and all below it."""
    return [root, *sorted(descendants(root))]


def cpu_s(pids: Iterable[int]) -> float:
    """CPU time used so far, user and system, all threads, those that ended included.

    It is what /proc/PID/stat tells, but by the nanosecond, not by the tick of 10 ms: Linux
    derives the id of a process's clock from its pid (CPUCLOCK_SCHED, see clock_getcpuclockid(3)).
    """
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def stolen_s() -> float:
    """Time that the machine under this one kept from its CPUs while they had work; their mean."""
    ticks = [
        int(line.split()[8])
        for line in Path("/proc/stat").read_text().splitlines()
        if line.startswith("cpu") and line[3].isdigit()
    ]
    return sum(ticks) / len(ticks) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pids: Iterable[int]) -> int:
    """Memory in RAM."""
    pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return _PAGE_BYTES * sum(pages)
