"""Which engine gets which GPUs or CPU cores."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Want(NamedTuple):
    """What a pool's engines need.

    replicas: engines.
    size: devices each must have: GPUs exactly as many, CPU cores at least.
    named: the devices they share; none: what no pool names.
    """

    replicas: int
    size: int
    named: tuple[int, ...] = ()


Shares = Mapping[str, tuple[tuple[int, ...], ...]]
"""By pool: the devices of each of its engines."""


class ShortError(ValueError):
    """Too few devices for a pool: it needs `needed` and has `left`."""

    def __init__(self, pool: str, needed: int, left: int) -> None:
        super().__init__(f"{pool}: {needed} needed, {left} left")
        self.pool = pool
        self.needed = needed
        self.left = left


def share(wants: Mapping[str, Want], devices: Sequence[int], *, cpu: bool) -> Shares:
    """Devices for every engine, in order, each device at most once.

    devices: those of the machine. A pool's named devices must be among them, and no other's.
    cpu: devices are cores: none is left over, and engines that share a set get evenly many.

    Raises ShortError for the first pool that gets too few.
    """
    named = {device for want in wants.values() for device in want.named}
    rest = [device for device in devices if device not in named]
    unnamed = {pool: want for pool, want in wants.items() if not want.named}
    shares = dict(_deal(unnamed, rest, cpu=cpu))
    for pool, want in wants.items():
        if want.named:
            shares |= _deal({pool: want}, want.named, cpu=cpu)
    return {pool: shares[pool] for pool in wants}


def _deal(wants: Mapping[str, Want], devices: Sequence[int], *, cpu: bool) -> Shares:
    """All wants served from one set of devices. Raises ShortError."""
    left = len(devices)
    for pool, want in wants.items():
        needed = want.replicas * want.size
        if needed > left:
            raise ShortError(pool, needed, left)
        left -= needed
    units = sum(want.replicas * want.size for want in wants.values())
    # A unit is what one rank gets: a GPU, or an even part of the cores.
    parts = iter(split(devices, units) if cpu else [(device,) for device in devices])
    return {
        pool: tuple(
            tuple(device for _ in range(want.size) for device in next(parts))
            for _ in range(want.replicas)
        )
        for pool, want in wants.items()
    }


def split(devices: Sequence[int], parts: int) -> list[tuple[int, ...]]:
    """The devices in order, in so many parts whose sizes differ by one at most, larger first."""
    if not parts:
        return []
    least, larger = divmod(len(devices), parts)
    starts = [index * least + min(index, larger) for index in range(parts + 1)]
    return [tuple(devices[starts[i] : starts[i + 1]]) for i in range(parts)]
