"""Process trees on Linux: who descends from whom, and how to end them all.

vLLM's API server starts an engine core, which starts workers. When one of them is killed outright
the others may live on as orphans. A *subreaper* inherits every orphan below it, so it can always
find them.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_ENDED: Final = "ZX"
_POLL_S: Final = 0.05
_KILL_WAIT_S: Final = 5.0


def become_subreaper() -> None:
    """From now on, orphans among this process's descendants become its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Ask the kernel to send SIGTERM to this process when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def descendants(root: int) -> set[int]:
    """Pids of the live processes below `root`; zombies, which only wait to be reaped, are not."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for pid, parent, state in _table():
        children.setdefault(parent, []).append(pid)
        if state in _ENDED:
            zombies.add(pid)
    found: set[int] = set()
    todo = [root]
    while todo:
        below = [pid for pid in children.get(todo.pop(), ()) if pid not in found]
        found.update(below)
        todo.extend(below)
    return found - zombies


def _table() -> Iterator[tuple[int, int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            pid = int(entry.name)
            found = _parent_and_state(pid)
            if found:
                yield pid, *found


def _parent_and_state(pid: int) -> tuple[int, str] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # "pid (name) state parent …", where the name may hold spaces and parentheses.
    state, parent = stat.rpartition(")")[2].split()[:2]
    return int(parent), state


def parent_of(pid: int) -> int | None:
    """The parent of a live process, None where `pid` has ended, reaped or not."""
    found = _parent_and_state(pid)
    return found[0] if found and found[1] not in _ENDED else None


def end_descendants(grace_s: float) -> None:
    """Stop everything below this process, a subreaper: SIGTERM, then SIGKILL after `grace_s`.

    Python's resource trackers go last: they remove the shared memory of those that were killed,
    and leave on their own.
    """
    if _signal_until_gone(signal.SIGTERM, grace_s):
        return
    _signal_until_gone(signal.SIGKILL, _KILL_WAIT_S, spare_trackers=True)
    _signal_until_gone(signal.SIGKILL, _KILL_WAIT_S)


def _signal_until_gone(signum: int, wait_s: float, *, spare_trackers: bool = False) -> bool:
    """Signal each descendant once, those that appear meanwhile too; whether all are gone."""
    deadline = time.monotonic() + wait_s
    told: set[int] = set()
    while True:
        reap()
        alive = descendants(os.getpid())
        if not alive:
            return True
        if time.monotonic() >= deadline:
            return False
        targets = alive - told
        if spare_trackers:
            targets -= {pid for pid in targets if is_tracker(pid)}
        tell(targets, signum)
        told |= targets
        time.sleep(_POLL_S)


def tell(pids: Iterable[int], signum: int) -> None:
    """Send a signal to each of `pids` that still exists."""
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue


def reap() -> dict[int, int]:
    """Collect the children that have ended: pid to exit status (negative: the signal's number)."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def is_tracker(pid: int) -> bool:
    """Whether it is one of Python's resource trackers."""
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
