"""What the control groups of this process leave it: cores and memory (version 1 and 2).

A limit of any group above counts as well, so the tightest does. Groups that aren't visible here, as
those above a container's own, can't be asked.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
_CACHE: Final = ("inactive_file", "active_file")
"""Page cache, in memory.stat: it counts as used and is given up when memory is asked for."""
_UNLIMITED: Final = 1 << 60
"""Version 1 writes about so many bytes where there is no limit."""


def cores(root: Path = ROOT, own: Path = OWN) -> float:
    """How many cores' worth of time there is; infinite without a limit."""
    quotas = [math.inf]
    for group in _groups("cpu", root, own):
        said = _words(group / "cpu.max")
        said = said or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        if [word.isdecimal() for word in said] == [True, True] and int(said[1]):
            quotas.append(int(said[0]) / int(said[1]))
    return min(quotas)


def free_bytes(root: Path = ROOT, own: Path = OWN) -> float:
    """Memory that may still be taken; infinite without a limit."""
    free = [math.inf]
    for group in _groups("memory", root, own):
        for limit, used, prefix in (
            ("memory.max", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            most, taken = _number(group / limit), _number(group / used)
            if most is not None and taken is not None and most < _UNLIMITED:
                free.append(max(0, most - max(0, taken - _cache_bytes(group, prefix))))
    return min(free)


def _groups(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """Folders of the process's groups with this controller, and of those above them."""
    for line in _text(own).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        mounts = [root] if not controllers else [root / controllers, root / controller]
        for mount in filter(Path.is_dir, dict.fromkeys(mounts)):
            group = mount / path.lstrip("/")
            yield from (each for each in (group, *group.parents) if each.is_relative_to(mount))


def _cache_bytes(group: Path, prefix: str) -> int:
    lines = (line.split() for line in _text(group / "memory.stat").splitlines())
    names = {f"{prefix}{name}" for name in _CACHE}
    return sum(
        int(words[1])
        for words in lines
        if len(words) == len(_CACHE) and words[0] in names and words[1].isdecimal()
    )


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _words(path: Path) -> tuple[str, ...]:
    return tuple(_text(path).split())


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
