"""Which engines may start at the same time: memory that two of them measure must not race."""

from collections.abc import Collection
from typing import Final

from headway.fleet.plan.spec import EngineSpec, Machine

PROCESS_GIB: Final = 2.0
"""An engine's processes, with the weights of a small model."""
EMULATED_GIB: Final = 1.5
_BUNDLED_KV_GIB: Final = 2.0
_KV_GIB: Final = 4.0
"""vLLM's own on CPUs."""


def may_start(
    engine: EngineSpec,
    starting: Collection[EngineSpec],
    every: Collection[EngineSpec],
    machine: Machine,
) -> bool:
    """Whether `engine` may start while those in `starting` do.

    every: all that run or are to run, `engine` included.

    On GPUs, engines that share a device start one after the other: vLLM measures what is free to
    size its KV cache. On CPUs the cache has a fixed size, so all start together if all fit.
    """
    if not starting:
        return True
    if not machine.cpu:
        devices = set(engine.devices)
        return all(devices.isdisjoint(other.devices) for other in starting)
    return sum(map(memory_gib, every)) <= machine.memory_gib


def memory_gib(engine: EngineSpec) -> float:
    """About what an engine takes on a CPU."""
    if engine.emulation:
        return EMULATED_GIB
    default = _BUNDLED_KV_GIB if engine.model is None else _KV_GIB
    return PROCESS_GIB + (default if engine.kv_memory_gib is None else engine.kv_memory_gib)
