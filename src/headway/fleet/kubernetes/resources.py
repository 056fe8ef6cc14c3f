"""What the pods of an engine ask their nodes for: GPUs or cores, and memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headway.config import Pool
from headway.core.hardware.gpu import GIB
from headway.fleet.place.start_order import memory_gib
from headway.fleet.plan import memory, vllm_flags
from headway.fleet.plan.spec import EngineSpec

_SERVER_CPUS: Final = 2
"""An engine's API server and its scheduler; vLLM's documentation wants a core for each process."""
_SERVER_GIB: Final = 4.0
"""Those two."""
_WORKER_GIB: Final = 4.0
"""A GPU's process: CUDA's libraries, pinned buffers, what compiling takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResources:
    """What one pod of an engine asks for, and may use.

    gpus: 0 on CPUs. weighed: whether the model's weights are in `memory_gib`.
    """

    cpus: float
    memory_gib: float
    gpus: int = 0
    weighed: bool = True

    def manifest(self) -> dict[str, Any]:
        """As a container has it. Memory and, beside GPUs, cores have no limit: an engine would end
        at the one, and stall at the other.
        """
        cores = f"{math.ceil(self.cpus * 1000)}m" if self.cpus % 1 else int(self.cpus)
        limits = {"nvidia.com/gpu": self.gpus} if self.gpus else {"cpu": cores}
        return {"requests": {"cpu": cores, "memory": _quantity(self.memory_gib)}, "limits": limits}


def devices(engine: EngineSpec) -> int:
    """How many GPUs an engine takes."""
    return engine.tensor_parallel_size * engine.pipeline_parallel_size


def of_pod(
    pool: Pool, engine: EngineSpec, *, cpus: int | None, nodes: int, environ: Mapping[str, str]
) -> PodResources:
    """Of each pod of the pool's engines, as the file says; what it doesn't say is worked out.

    cpus: of an engine on CPUs, else None. nodes: that an engine spans.

    Weights count on GPUs too: they come through the node's memory, and while they are loaded a node
    that is short of memory would end the pod that has more than it asked for.
    """
    asked, gpus = pool.kubernetes, 0
    known, _ = memory.known_model(pool, vllm_flags.given(pool.flags), environ)
    weights_gib = known.weights_bytes / GIB / nodes if known else 0.0
    if cpus is not None:
        needed_gib = memory_gib(engine) + weights_gib
    else:
        gpus = devices(engine) // nodes
        needed_gib = _SERVER_GIB + gpus * _WORKER_GIB + weights_gib
    return PodResources(
        cpus=cpus or asked.cpus or _SERVER_CPUS + gpus,
        memory_gib=asked.memory_gib or math.ceil(needed_gib),
        gpus=gpus,
        weighed=bool(known or asked.memory_gib or pool.model is None),
    )


def _quantity(gib: float) -> str:
    return f"{math.ceil(gib * 1024)}Mi" if gib % 1 else f"{gib:.0f}Gi"
