"""What this machine has for engines: cores, GPUs, memory."""

import math
import os
import re
import subprocess
from pathlib import Path
from typing import Final

from headway import cgroup
from headway.engine.start import launch
from headway.engine.start.command import usable_cores
from headway.fleet.plan.spec import Machine

_GIB: Final = 2**30
_MEMINFO: Final = Path("/proc/meminfo")
_NVIDIA_SMI: Final = ("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader")
_TIMEOUT_S: Final = 20.0


def detect() -> Machine:
    """This machine, as far as this process may use it.

    Where vLLM isn't installed, its build is taken to be the one for what is there.
    """
    gpus = visible_gpus(_nvidia_smi(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    try:
        cpu = launch.cpu_build()
    except launch.LaunchError:
        cpu = not gpus
    return Machine(
        cores=usable_cores(),
        gpus=gpus,
        memory_gib=available_gib(_read(_MEMINFO), cgroup.free_bytes()),
        cpu=cpu,
    )


def visible_gpus(listing: str, visible: str | None) -> tuple[int, ...]:
    """The GPUs' indices.

    listing: lines "index, uuid", as from nvidia-smi.
    visible: CUDA_VISIBLE_DEVICES: indices or (beginnings of) UUIDs; what follows one that isn't
        there doesn't count, as CUDA has it. None: all.
    """
    found = re.findall(r"^\s*(\d+)\s*,\s*(\S+)", listing, re.MULTILINE)
    if visible is None:
        return tuple(int(index) for index, _ in found)
    chosen: list[int] = []
    for word in filter(None, (part.strip() for part in visible.split(","))):
        matches = [int(i) for i, uuid in found if word == i or uuid.startswith(word)]
        if len(matches) != 1 or matches[0] in chosen:
            break
        chosen += matches
    return tuple(chosen)


def available_gib(meminfo: str, of_group_bytes: float = math.inf) -> float:
    """Memory that can be had now, GiB; 0 where it isn't known.

    meminfo: /proc/meminfo. of_group_bytes: what the control groups leave.
    """
    match = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo, re.MULTILINE)
    available = int(match[1]) * 1024 if match else 0
    return min(available, of_group_bytes) / _GIB


def _nvidia_smi() -> str:
    try:
        done = subprocess.run(
            _NVIDIA_SMI, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
