"""The parent of one engine: `python -m … ALIVE_FD GRACE_S SCRATCH COMMAND…` (`GUARD`).

The guard sits between the launcher and vLLM and sees to it that nothing is left, whichever of
them is killed, by whatever:

- the launcher: its end of the pipe ALIVE_FD closes, and the guard stops the engine;
- the API server, or all of the engine below it: the guard ends the rest;
- the guard: the kernel sends SIGTERM to the API server, and the launcher, a subreaper too, ends
  what is left.

SIGTERM or SIGINT stops the engine gracefully, and by force after GRACE_S seconds or at a second
signal. The directory SCRATCH is removed at the end, with the sockets by which vLLM's processes
meet: vLLM leaves them behind. The exit status is the engine's (128 + the signal's number where a
signal ended it).
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from headway import processes

_REST_GRACE_S: Final = 8.0
_SOCKETS: Final = "VLLM_RPC_BASE_PATH"
"""Tells vLLM where its sockets are to be."""
_SOCKETS_BYTES: Final = 107 - len("/") - 36
"""Of that path at most: Linux allows 107 for a socket's, and vLLM names each by a UUID."""


class Guard:
    """One engine from start to end.

    States: running, stopping (since `_stop_by_s` was set), gone (`status` is set).
    """

    def __init__(self, command: Sequence[str], alive_fd: int, grace_s: float) -> None:
        processes.become_subreaper()
        self._alive_fds = [alive_fd]
        self._grace_s = grace_s
        self._stop_by_s: float | None = None
        self._wake_read, wake_write = os.pipe()
        for fd in (self._wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: self._stop())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # The guard is single-threaded, so running Python between fork and exec is safe.
        self._engine = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            preexec_fn=processes.die_with_parent,  # noqa: PLW1509 -- as above
        )

    def run(self) -> int:
        """Wait for the engine's end, stop what is left of it; its exit status."""
        status = None
        while status is None:
            self._wait()
            status = processes.reap().get(self._engine.pid)
            if status is None and self._stop_by_s and time.monotonic() > self._stop_by_s:
                break
        processes.end_descendants(_REST_GRACE_S if status is not None else 1.0)
        if status is None:
            return 128 + signal.SIGKILL
        return status if status >= 0 else 128 - status

    def _wait(self) -> None:
        timeout_s = None
        if self._stop_by_s is not None:
            timeout_s = max(0.0, self._stop_by_s - time.monotonic()) + 0.01
        ready, _, _ = select.select([self._wake_read, *self._alive_fds], [], [], timeout_s)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if any(fd in ready for fd in self._alive_fds):
            self._alive_fds.clear()
            self._stop()

    def _stop(self) -> None:
        now_s = time.monotonic()
        if self._stop_by_s is None:
            self._stop_by_s = now_s + self._grace_s
            processes.tell([self._engine.pid], signal.SIGTERM)
        else:
            self._stop_by_s = now_s


def _may_spread(command: Sequence[str]) -> bool:
    """Whether Ray may start parts of the engine elsewhere, as its flags say or a file might.

    vLLM has Ray set the same variables there, and there is no such directory.
    """
    return any(w == "ray" or w.endswith("=ray") or w.startswith("--config") for w in command)


def main(argv: Sequence[str]) -> int:
    """Guard the engine `argv` describes; remove its scratch directory afterwards."""
    alive_fd, grace_s, scratch, *command = argv
    if len(os.fsencode(scratch)) <= _SOCKETS_BYTES and not _may_spread(command):
        os.environ.setdefault(_SOCKETS, scratch)
    try:
        return Guard(command, int(alive_fd), float(grace_s)).run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
