"""The process that does jobs on large bodies: `python -m headway.router.openai.job_process`.

Its standard input is a socket to the router. It says that it is there, does one job after the
other, and ends when the router does.

To it: HEAD (sizes of what follows), the job (its name and arguments, pickled), the body.
From it: HEAD (sizes of what follows), the answer (value or error, and sizes, pickled), bodies.
"""

import contextlib
import gc
import io
import pickle
import signal
import socket
import struct
from pathlib import Path
from typing import Any, Final

from headway.core.errors import HeadwayError
from headway.router.openai.jobs import JOBS

HEAD: Final = struct.Struct("!QQ")
READY: Final = b"+"


def main() -> None:
    """Until the router ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # JSON has no cycles, and to look for them in millions of values takes long
    with contextlib.suppress(OSError):  # if memory runs out, sooner this process than the router
        Path("/proc/self/oom_score_adj").write_text("1000")
    with contextlib.suppress(ConnectionError), socket.socket(fileno=0).makefile("rwb") as stream:
        stream.write(READY)
        stream.flush()
        while _serve(stream):
            pass


def _serve(stream: io.BufferedRWPair) -> bool:
    """One job; whether there was one."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return False
    job_bytes, body_bytes = HEAD.unpack(head)
    name, arguments = pickle.loads(stream.read(job_bytes))  # noqa: S301  the router's own
    answer, bodies = _done(name, arguments, stream.read(body_bytes))
    said = pickle.dumps((answer, [len(body) for body in bodies]))
    stream.write(HEAD.pack(len(said), sum(map(len, bodies))))
    stream.write(said)
    stream.writelines(bodies)
    stream.flush()
    return True


def _done(name: str, arguments: dict[str, Any], body: bytes) -> tuple[Any, list[bytes]]:
    try:
        return JOBS[name](body, **arguments)
    except HeadwayError as error:
        return error, []


if __name__ == "__main__":
    main()
