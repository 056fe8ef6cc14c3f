"""NIXL on CPUs: its threads wait instead of working, and computing stays where it belongs.

NIXL's progress thread waits for events no longer than the agent's `pthrDelay`, which its Python
API sets to 0: one thread of every worker spins. Beside a GPU that costs one of many cores; an
engine that computes on one CPU core loses half of it. The thread wakes for events in any case,
so a longer wait costs no latency.

On CPUs vLLM's NIXL connector also binds the thread that sets it up to the last core of each NUMA
node, to keep transfers apart from computing. It is the thread that computes: the workers of all
engines of a machine would share that core, whatever cores they were given.

UCX watches every change of the process's memory map to keep its cache of registrations true. On
CPUs nothing that NIXL uses is in that cache, and computing maps and unmaps memory hundreds of
times a second: each time a thread of UCX woke up on the computing core.

vLLM loads this as a plugin (`vllm.general_plugins`) in each of its processes. It does nothing
unless `WAIT_VARIABLE` is set, as `headway serve` does for engines on CPUs.
"""

import importlib
import logging
import os
from typing import Any, Final

WAIT_VARIABLE: Final = "HEADWAY_NIXL_WAIT_US"
WAIT_US: Final = 20_000
"""Each wait that ends in vain takes the computing thread's core for a moment: at the least that
NIXL allows, 1,000 us, a decode engine of one core took 7 to 11% more time a token."""
_RCACHE_VARIABLE: Final = "UCX_RCACHE_MAX_UNRELEASED"
_RCACHE: Final = "1024"
"""What vLLM sets before it imports NIXL, and can't afterwards."""
_HOOKS_VARIABLE: Final = "UCX_MEM_MMAP_HOOK_MODE"

_log = logging.getLogger("headway.engine")


def register() -> None:
    """Make NIXL agents of this process wait, if the environment says how long (microseconds)."""
    wait = os.environ.get(WAIT_VARIABLE, "")
    if not wait.isdecimal():
        return
    os.environ.setdefault(_RCACHE_VARIABLE, _RCACHE)
    os.environ.setdefault(_HOOKS_VARIABLE, "none")
    try:
        bindings = importlib.import_module("nixl._api").nixlBind
        patient(bindings, int(wait))
        stay(importlib.import_module("vllm.platforms").current_platform)
    except (ImportError, AttributeError) as error:
        _log.warning("NIXL will take a core, or computing will change its core: %s", error)


def stay(platform: Any) -> None:
    """Let a platform name no cores for KV transfer. Raises AttributeError if it can't name any."""
    kind = type(platform)
    if not hasattr(kind, "discover_numa_topology"):
        raise AttributeError(f"{kind.__name__} has no discover_numa_topology")
    kind.discover_numa_topology = staticmethod(list)  # no NUMA node has a core to spare


def patient(bindings: Any, wait_us: int) -> None:
    """Let `bindings` (NIXL's) make agents whose progress thread waits `wait_us` for events.

    Raises AttributeError if they have no such setting.
    """
    config: Any = bindings.nixlAgentConfig
    if hasattr(config, "waits_us"):
        return
    given: Any = config.pthrDelay

    class PatientConfig(config):
        """NIXL's agent configuration, but that the wait is never shorter than `waits_us`."""

        waits_us = wait_us

        @property
        def pthrDelay(self) -> int:  # noqa: N802 -- NIXL's name
            return int(given.__get__(self))

        @pthrDelay.setter
        def pthrDelay(self, delay_us: int) -> None:  # noqa: N802 -- NIXL's name
            given.__set__(self, max(delay_us, wait_us))

    bindings.nixlAgentConfig = PatientConfig
