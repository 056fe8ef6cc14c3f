"""A fleet's state directory: its control socket, its lock, the router's file, logs."""

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from headway.core.errors import SettingError
from headway.fleet.errors import FleetError
from headway.home import home

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ENDING_S: Final = 60.0
"""How long a start waits for what a killed supervisor's guards have still to end."""
_LEAVING_S: Final = 1.0
"""How long one waits for a supervisor that has ended its fleet to leave."""
_POLL_S: Final = 0.1


class Home:
    """The directory of the fleet `name`; nothing is made until `make`."""

    def __init__(self, name: str, environ: Mapping[str, str] = os.environ) -> None:
        if not _NAME.fullmatch(name) or name in {".", ".."}:
            said = f"{name!r} can't name a fleet; use up to 64 letters, digits, . _ or -"
            raise SettingError("--name", said)
        given = environ.get("XDG_STATE_HOME", "")
        state = Path(given) if os.path.isabs(given) else home() / ".local" / "state"  # noqa: PTH117  of a text that may be empty
        self._environ = environ
        self.name = name
        self.path = state / "headway" / name
        self.socket = self.path / "control.sock"
        self.router_file = self.path / "router.toml"
        self.devices_file = self.path / "devices.json"
        self.scratch = self.path / "scratch"

    def log(self, process: str) -> Path:
        """Of an engine, or of "router"."""
        return self.path / "logs" / f"{process}.log"

    def beside(self) -> Iterator["Home"]:
        """Those of the user's other fleets, running or not, by name."""
        try:
            names = sorted(each.name for each in self.path.parent.iterdir() if each.is_dir())
        except OSError:
            return
        for name in names:
            if name != self.name and _NAME.fullmatch(name):
                yield Home(name, self._environ)

    def running(self) -> bool:
        """Whether a supervisor, or what it has left to end, holds the lock."""
        try:
            fd = os.open(self.path / "lock", os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def make(self) -> None:
        """Make it, for its owner alone, without what an earlier run has left. Raises FleetError."""
        try:
            self.log("").parent.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o700)
            self.socket.unlink(missing_ok=True)
            self.devices_file.unlink(missing_ok=True)
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.scratch.mkdir()
        except OSError as error:
            raise unusable(self.path, error) from error

    def write_router_file(self, text: str) -> None:
        """Replace the router's file as a whole. Raises FleetError; it is as it was then."""
        self.write(self.router_file, text)

    def write(self, file: Path, text: str) -> None:
        """Replace a file of the directory as a whole, for its owner alone.

        Raises FleetError where it can't be written; it is as it was then.
        """
        new = file.with_suffix(".new")
        try:
            new.touch(0o600)
            new.write_text(text)
            new.replace(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise unusable(self.path, error) from error

    @contextlib.contextmanager
    def locked(self, say: Callable[[str], None]) -> Iterator[int]:
        """Holds the lock: one supervisor a name. Gives its descriptor.

        Guards of engines keep it open too, so that a new supervisor waits until nothing of a
        killed one runs any more. Raises FleetError where a live one has it, and for a state
        directory that can't be used.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise unusable(self.path, error) from error
        try:
            self._lock(fd, say)
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
            yield fd
        finally:
            os.close(fd)

    def _lock(self, fd: int, say: Callable[[str], None]) -> None:
        soon = time.monotonic() + _LEAVING_S
        deadline = time.monotonic() + _ENDING_S
        said = False
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            holder = os.pread(fd, 32, 0).decode("ascii", "replace")
            living = holder.isdigit() and _lives(int(holder))
            if living and time.monotonic() > soon:
                raise FleetError(
                    f"the fleet {self.name} runs already (process {holder}); see headway status, "
                    "end it with headway down, or choose another name with --name"
                )
            if time.monotonic() > deadline:
                raise FleetError(
                    f"something of the last run of the fleet {self.name} still runs; "
                    f"see who has {self.path / 'lock'} open"
                )
            if not (living or said):
                say(f"waiting for the last run of the fleet {self.name} to end")
                said = True
            time.sleep(_POLL_S)


def unusable(path: Path, error: OSError) -> FleetError:
    """What to raise for a state directory that can't be made or written."""
    return FleetError(
        f"the state directory {path} can't be used: {error.strerror}; "
        "set XDG_STATE_HOME to a directory that can be written and has room"
    )


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
