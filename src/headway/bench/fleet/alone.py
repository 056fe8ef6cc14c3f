"""The default fleet's engines, started by hand."""

import contextlib
import http.client
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator

from headway import processes
from headway.bench.engines.processes import stop
from headway.bench.fleet.running import HEADWAY, READY_S, FleetRunError
from headway.bench.fleet.traffic import fetch, first_token_s


def engines_alone_s() -> float:
    """Start the default fleet's engines side by side, without a fleet; seconds to a token of each.

    Raises FleetRunError if one ends, or isn't up in time.
    """
    told = subprocess.run(
        [*HEADWAY, "up", "--dry-run"], capture_output=True, text=True, check=True, cwd="/"
    ).stdout
    blocks = [block for block in told.split("\n\n") if "KV side channel" in block]
    urls = [found[1] for block in blocks if (found := re.search(r"^# \S+: (http\S+),", block))]
    start_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(_shell(block)) for block in blocks]
        for url in urls:
            _until_healthy(url, engines)
        firsts = [first_token_s(url, _model_at(url)) for url in urls]
    return max(firsts) - start_s


@contextlib.contextmanager
def _shell(block: str) -> Iterator[subprocess.Popen[str]]:
    """A command as the dry run printed it."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        ["/bin/bash", "-c", block],
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        below = processes.descendants(process.pid)
        processes.tell(below, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        stop(process)
        processes.tell(below, signal.SIGKILL)


def _until_healthy(url: str, engines: list[subprocess.Popen[str]]) -> None:
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s and all(each.poll() is None for each in engines):
        with contextlib.suppress(OSError, http.client.HTTPException):
            if fetch(url, "/health")[0] == http.client.OK:
                return
        time.sleep(0.05)
    raise FleetRunError(f"the engine at {url} isn't up")


def _model_at(url: str) -> str:
    return str(json.loads(fetch(url, "/v1/models")[1])["data"][0]["id"])
