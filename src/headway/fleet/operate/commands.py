"""What is asked of a fleet that runs: its status and logs, draining, scaling, restarts, its end."""

import contextlib
import fcntl
import sys
import time
from collections.abc import Callable
from typing import Final

from headway import masking
from headway.core.status import written
from headway.fleet.errors import NotFoundError
from headway.fleet.operate import goodput
from headway.fleet.operate import logs as logging
from headway.fleet.operate import status as seeing
from headway.fleet.operate.control_socket import ask, fleet_status
from headway.fleet.operate.goodput import Recent
from headway.fleet.operate.state_dir import Home

_SOON_S: Final = 10.0
_WATCH_S: Final = 2.0
_FOLLOW_S: Final = 0.25
_HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"

Say = Callable[[str], None]


def status(name: str, *, watch: bool, json: bool) -> int:
    """Show a fleet once, or anew every two seconds until interrupted."""
    if not watch:
        seen = _asked(name)
        _print(written(seen.report(), indent=1) if json else seeing.text(seen))
        return 0
    while True:
        shown = seeing.text(_asked(name))
        _print(f"{_HOME_AND_CLEAR}{shown}" if sys.stdout.isatty() else f"{shown}\n")
        time.sleep(_WATCH_S)


def logs(name: str, process: str, count: int, *, follow: bool, json: bool = False) -> int:
    """Print a log's last lines, and what is added to it until interrupted.

    json: as JSON lines (`operate.logs.json_line`), empty ones left out.
    """
    home = Home(name)
    known = sorted(path.stem for path in home.log("").parent.glob("*.log"))
    if process not in known:
        listed = f"; there are: {', '.join(known)}" if known else ""
        raise NotFoundError(f"no log of {process} in the fleet {name}{listed}")
    log = home.log(process)
    tail = logging.Tail(log, from_end=True)
    with contextlib.closing(tail):
        for line in logging.last_lines(log, count):
            if line or not json:
                _print(logging.json_line(line) if json else masking.text(line))
        lines = logging.Lines()
        while follow:
            added = tail.read()
            if json:
                whole = lines.add(added, restarted=tail.restarted)
                added = "".join(f"{logging.json_line(line)}\n" for line in whole if line)
            sys.stdout.write(added if json else masking.text(added))
            sys.stdout.flush()
            time.sleep(_FOLLOW_S)
    return 0


def drain(name: str, engine: str, say: Say, *, draining: bool) -> int:
    """Send no new requests to an engine, or send them again."""
    ask(name, {"do": "drain" if draining else "undrain", "engine": engine}, _SOON_S)
    if draining:
        say(f"{engine} gets no new requests; headway undrain {engine} takes that back")
    else:
        say(f"{engine} gets requests as soon as it is ready")
    return 0


def scale(name: str, pool: str, count: int, say: Say) -> int:
    """Change how many engines a pool has."""
    done = ask(name, {"do": "scale", "pool": pool, "replicas": count}, _SOON_S)
    told = [("starting", done["added"]), ("stopping, once drained:", done["leaving"])]
    changes = "; ".join(f"{what} {', '.join(engines)}" for what, engines in told if engines)
    say(f"{changes}; see headway status" if changes else f"{pool} has {count} already")
    return 0


def restart(name: str, pool: str, say: Say) -> int:
    """Restart a pool's engines one after the other; returns when all get requests again."""
    ask(name, {"do": "status"}, _SOON_S)  # raises where there is no fleet
    say(f"restarting {pool}, one engine after the other; Ctrl-C leaves the supervisor to it")
    done = ask(name, {"do": "restart", "pool": pool})
    say(f"restarted {', '.join(done['restarted'])}")
    return 0


def reload(name: str, say: Say) -> int:
    """Have the file read again; says what of it counts only later."""
    done = ask(name, {"do": "reload"})
    for pool in done["restart"]:
        say(f"what is new for {pool} needs headway restart {pool}")
    for each in done["waiting"]:
        say(f"{each}, until headway down and headway up")
    named = done["restart"] or done["waiting"]
    say("all else counts from now on" if named else "the file's settings count from now on")
    return 0


def down(name: str, say: Say, *, force: bool) -> int:
    """Stop a fleet; returns when nothing of it is left."""
    ask(name, {"do": "down", "force": force}, _SOON_S)
    say("stopping" if force else "stopping; running requests may finish (--force: at once)")
    with (Home(name).path / "lock").open("rb") as lock:
        # The supervisor and all that it has started keep it.
        fcntl.flock(lock, fcntl.LOCK_EX)
    say("stopped")
    return 0


def _asked(name: str) -> seeing.Seen:
    """What the fleet's supervisor and router say."""
    recent = Recent.read(Home(name).path / goodput.FILE, time.monotonic())
    return seeing.seen(fleet_status(name, _SOON_S), recent)


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201  what was asked for
