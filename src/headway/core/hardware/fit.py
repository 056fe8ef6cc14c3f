"""Whether a model fits the GPUs of an engine, as vLLM shares out their memory.

    usable  = utilization * the GPU's memory
    KV room = usable - weights - working memory         (each GPU's part)

and one context of the engine's length has to fit the KV room. Working memory (activations, sampler,
CUDA graphs, what CUDA and NCCL take) is what vLLM measures while it starts; it is estimated here.
"""

from dataclasses import dataclass, replace
from typing import Final

from headway.core.hardware.footprint import KvLayers, ModelFootprint
from headway.core.hardware.gpu import GIB

UTILIZATION: Final = 0.92
"""vLLM's share of a GPU unless told otherwise."""
BLOCK_TOKENS: Final = 16
_BYTES: Final = 2
_PROCESS_BYTES: Final = GIB // 2
"""What CUDA's and PyTorch's libraries take."""
_LINKED_BYTES: Final = 3 * GIB // 4
"""What NCCL and the all-reduce take beside, where several GPUs work together."""
_GRAPHS_BYTES: Final = 3 * GIB // 4
_LEAST_SHARE: Final = 0.4
"""Of the estimated working memory, what an engine takes for certain."""
_STEPS_IN_FLIGHT: Final = 2
"""Under asynchronous scheduling."""
_LOGITS_BYTES: Final = 8
"""Of each seat and word: logits in float32 and a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """What an engine may use, and for what.

    gpu_bytes: of each of its GPUs, of the smallest. context_tokens: None is the model's.
    kv_bytes: of each GPU's KV cache where it is set; vLLM then heeds no utilization. step_tokens:
    tokens of a step. seats: requests of a step. kv_element_bytes: 1 for a KV cache
    in fp8; None is the model's.
    """

    gpu_bytes: int
    utilization: float = UTILIZATION
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_tokens: int | None = None
    kv_bytes: int | None = None
    kv_element_bytes: int | None = None
    step_tokens: int | None = None
    seats: int | None = None
    graphs: bool = True

    @property
    def step(self) -> tuple[int, int]:
        """Tokens and requests of a step, as vLLM chooses them for a GPU of this size."""
        large, huge = self.gpu_bytes >= 70 * GIB, self.gpu_bytes >= 160 * GIB
        tokens = self.step_tokens or (16384 if huge else 8192 if large else 2048)
        return tokens, self.seats or (1024 if large else 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """How an engine's memory is used, bytes of each GPU.

    spare_bytes: what weights, working memory and a KV cache of a set size leave of usable_bytes;
    below 0: they are too much. room_bytes: for KV. kv_bytes: of one context of context_tokens.
    largest_context_tokens: the longest whose KV has room, up to that; 0: none.
    """

    usable_bytes: int
    weights_bytes: int
    working_bytes: int
    spare_bytes: int
    room_bytes: int
    kv_bytes: int
    context_tokens: int
    largest_context_tokens: int

    @property
    def fits(self) -> bool:
        """Whether one context of the engine's length has room."""
        return self.spare_bytes >= 0 and self.kv_bytes <= self.room_bytes


def fit(model: ModelFootprint, engine: EngineMemory, *, least: bool = False) -> MemoryUse:
    """How a model fits an engine.

    least: with the least that it can take, so that what doesn't fit then surely doesn't; else with
    what it is likely to take.
    """
    gpus = engine.tensor_parallel_size * engine.pipeline_parallel_size
    weights = model.weights_bytes // gpus
    working = _working_bytes(model, engine)
    if least:
        working = round(working * _LEAST_SHARE)
    utilization = engine.utilization if engine.kv_bytes is None else 1.0
    usable = round(engine.gpu_bytes * utilization)
    spare = usable - weights - working - (engine.kv_bytes or 0)
    room = spare if engine.kv_bytes is None else engine.kv_bytes
    context = engine.context_tokens or model.context_tokens or 1
    return MemoryUse(
        usable_bytes=usable,
        weights_bytes=weights,
        working_bytes=working,
        spare_bytes=spare,
        room_bytes=room,
        kv_bytes=kv_bytes(model, engine, context, least=least),
        context_tokens=context,
        largest_context_tokens=_largest_context(model, engine, room, context, least=least),
    )


def kv_bytes(
    model: ModelFootprint, engine: EngineMemory, tokens: int, *, least: bool = False
) -> int:
    """KV of one request of so many tokens on one GPU. least: as in `fit`."""
    element = engine.kv_element_bytes or model.kv_element_bytes
    return element * sum(_elements(layers, engine, tokens, least=least) for layers in model.kv)


def splits(model: ModelFootprint, tensor_parallel_size: int) -> bool:
    """Whether vLLM can share each layer out to so many GPUs."""
    size, kv_heads = tensor_parallel_size, model.kv_heads
    if model.heads % size or any(width % size for width in model.splits):
        return False
    return not kv_heads or not kv_heads % size or not size % kv_heads


def smallest_tensor_parallel_size(
    model: ModelFootprint, engine: EngineMemory, gpus: int, *, least: bool = False
) -> int | None:
    """The fewest of so many GPUs over which each layer is shared and the model fits; None: none."""
    for size in range(1, gpus + 1):
        wide = replace(engine, tensor_parallel_size=size)
        if splits(model, size) and fit(model, wide, least=least).fits:
            return size
    return None


def _elements(layers: KvLayers, engine: EngineMemory, tokens: int, *, least: bool) -> int:
    """Of the KV on one GPU."""
    window = layers.window_tokens
    blocks = -(-tokens // BLOCK_TOKENS)
    if window is not None and (layers.certain or least):
        # Beside the window, what steps in flight add before the oldest blocks are given back, and
        # a block that it needn't begin with.
        steps = 1 if least else _STEPS_IN_FLIGHT
        seen = window - 1 + steps * engine.step[0]
        blocks = min(blocks, -(-min(tokens, seen) // BLOCK_TOKENS) + 1)
    heads = max(1, layers.heads // engine.tensor_parallel_size)
    here = -(-layers.layers // engine.pipeline_parallel_size)
    return here * heads * layers.elements * blocks * BLOCK_TOKENS


def _largest_context(
    model: ModelFootprint, engine: EngineMemory, room: int, context: int, *, least: bool
) -> int:
    low, high = 0, context
    while low < high:
        middle = (low + high + 1) // 2
        if kv_bytes(model, engine, middle, least=least) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def _working_bytes(model: ModelFootprint, engine: EngineMemory) -> int:
    """What vLLM's profiling run would find, roughly."""
    tokens, seats = engine.step
    gpus = engine.tensor_parallel_size
    width = 3 * -(-model.mlp // gpus) + 6 * model.hidden + 2 * model.expert_width
    layers = tokens * width * _BYTES
    sampling = seats * model.vocabulary * _LOGITS_BYTES
    linked = _LINKED_BYTES if gpus * engine.pipeline_parallel_size > 1 else 0
    graphs = _GRAPHS_BYTES if engine.graphs else 0
    return max(layers, sampling) + _PROCESS_BYTES + linked + graphs
