"""What this machine has for engines: cores, GPUs, memory."""

import math
import os
import re
from pathlib import Path
from typing import Final

from headway import cgroup
from headway.engine.start import launch
from headway.engine.start.command import usable_cores
from headway.fleet.plan.gpus import found_gpus, visible
from headway.fleet.plan.spec import Machine

_GIB: Final = 2**30
_MEMINFO: Final = Path("/proc/meminfo")
NO_GPU: Final = "none is visible (nvidia-smi; in a container --gpus all)"


def detect() -> Machine:
    """This machine, as far as this process may use it.

    Where vLLM isn't installed, its build is taken to be the one for what is there.
    """
    found = found_gpus()
    gpus = visible(found.devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
    problem = found.problem
    if not (found.devices or problem):
        problem = NO_GPU
    if found.devices and not gpus:
        problem = f"CUDA_VISIBLE_DEVICES leaves none of the {len(found.devices)} that are there"
    try:
        cpu = launch.cpu_build()
    except launch.LaunchError:
        cpu = not gpus
    return Machine(
        cores=usable_cores(),
        gpus=tuple(device.number for device in gpus),
        memory_gib=available_gib(_read(_MEMINFO), cgroup.free_bytes()),
        cpu=cpu,
        gpu_by_number={device.number: device for device in gpus},
        gpu_problem=problem,
    )


def available_gib(meminfo: str, of_group_bytes: float = math.inf) -> float:
    """Memory that can be had now, GiB; 0 where it isn't known.

    meminfo: /proc/meminfo. of_group_bytes: what the control groups leave.
    """
    match = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo, re.MULTILINE)
    available = int(match[1]) * 1024 if match else 0
    return min(available, of_group_bytes) / _GIB


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
