"""How a machine's GPUs are made into engines of a model."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from headway.core.hardware.fit import EngineMemory, fit, smallest_tensor_parallel_size, splits
from headway.core.hardware.footprint import footprint
from headway.core.hardware.gpu import GIB
from headway.fleet.plan.spec import Machine
from headway.models.files import ModelFiles

STEP_TOKENS: Final = 1024
"""Contexts that are proposed are multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSize:
    """How a machine's GPUs are made into engines of a model.

    max_model_len: where the model's whole context doesn't fit, what does; None: it does.
    """

    tensor_parallel_size: int
    engines: int
    max_model_len: int | None = None


def size_for(model: ModelFiles, machine: Machine) -> EngineSize | None:
    """The most engines that hold the model's whole context, else one that holds as much as it can.

    None where model or GPUs aren't known well enough, or no number of them is enough.
    """
    memory_bytes, most = smallest_bytes(machine, machine.usable), widest(machine)
    known = footprint(model.config, files_bytes=model.weights_bytes)
    if known is None or not memory_bytes:
        return None
    engine = EngineMemory(gpu_bytes=memory_bytes)
    size = smallest_tensor_parallel_size(known, engine, most)
    if size is not None:
        return EngineSize(tensor_parallel_size=size, engines=len(machine.usable) // size)
    size = max(each for each in range(1, most + 1) if splits(known, each))
    wide = replace(engine, tensor_parallel_size=size)
    tokens = fit(known, wide).largest_context_tokens // STEP_TOKENS * STEP_TOKENS
    if not tokens:
        return None
    return EngineSize(
        tensor_parallel_size=size, engines=len(machine.usable) // size, max_model_len=tokens
    )


def too_large(model: ModelFiles, machine: Machine) -> str | None:
    """What to say where no number of a machine's GPUs holds a model; None: one does, or may."""
    memory_bytes = smallest_bytes(machine, machine.usable)
    known = footprint(model.config, files_bytes=model.weights_bytes)
    if known is None or not memory_bytes or size_for(model, machine):
        return None
    gpus = widest(machine)
    return (
        f"its weights take {gib(known.weights_bytes)} and {gpus} "
        f"GPU{'s' if gpus > 1 else ''} of {gib(memory_bytes)} are here; "
        "use a smaller or quantised model, or more GPUs"
    )


def smallest_bytes(machine: Machine, numbers: Iterable[int]) -> int:
    """Memory of the smallest of these GPUs; 0 where one's isn't known."""
    found = [machine.gpu_by_number.get(number) for number in numbers]
    return min((device.memory_bytes if device else 0 for device in found), default=0)


def widest(machine: Machine) -> int:
    """How many of the GPUs can work together: of MIG devices none can."""
    parts = any(device.parent is not None for device in machine.gpu_by_number.values())
    return 1 if parts else max(1, len(machine.usable))


def gib(size: float) -> str:
    """A size in words."""
    return f"{size / GIB:.1f} GiB"
