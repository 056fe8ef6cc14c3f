"""Which devices of this machine a user's fleets have, so that no two take the same.

Each fleet writes its own into its state directory; they count as long as its lock is held, which is
until its last engine has ended. Fleets with another state directory aren't seen.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping

from headway.fleet.errors import FleetError
from headway.fleet.operate.state_dir import Home, unusable


def held(name: str, *, cpu: bool) -> Mapping[int, str]:
    """Devices that fleets other than `name` have, each with its fleet.

    cpu: of CPU cores; else of GPUs.
    """
    return {device: other.name for other in Home(name).beside() for device in _of(other, cpu=cpu)}


def claim(home: Home, devices: Collection[int], *, cpu: bool) -> None:
    """Have these devices, and no others any more.

    Raises FleetError where another fleet has one, and for a state directory that can't be written.

    home: of a fleet whose lock is held.
    """
    with _alone(home):
        others = held(home.name, cpu=cpu)
        taken = sorted(set(devices) & others.keys())
        if taken:
            raise FleetError(
                f"{'CPU core' if cpu else 'GPU'} {taken[0]} is used by the fleet "
                f"{others[taken[0]]}; use others, or end it with headway down --name "
                f"{others[taken[0]]}"
            )
        home.write(home.devices_file, json.dumps({"cpu": cpu, "devices": sorted(devices)}))


def _of(home: Home, *, cpu: bool) -> tuple[int, ...]:
    """A running fleet's devices of this kind."""
    if not home.running():
        return ()
    try:
        said = json.loads(home.devices_file.read_text())
        return tuple(map(int, said["devices"])) if said["cpu"] is cpu else ()
    except (OSError, ValueError, LookupError, TypeError):
        return ()


@contextlib.contextmanager
def _alone(home: Home) -> Iterator[None]:
    """Nobody else claims anything meanwhile."""
    try:  # no fleet can have this name
        fd = os.open(home.path.parent / "~devices.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise unusable(home.path.parent, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
