"""What an emulated GPU would have left for the KV cache, from vLLM's configuration."""

from typing import Any

from headway.core.errors import SettingError
from headway.core.hardware.fit import EngineMemory, fit
from headway.core.hardware.footprint import footprint
from headway.core.hardware.gpu import Gpu


def kv_room_bytes(config: Any, gpu: Gpu) -> int:
    """Of each GPU, for its KV cache. config: vLLM's VllmConfig. Raises SettingError."""
    model = config.model_config
    known = footprint(model.hf_config.to_dict(), quantized=model.quantization)
    if known is None:
        raise SettingError("config.json", "doesn't tell what the model takes of memory")
    return max(0, fit(known, engine_memory(config, gpu)).room_bytes)


def engine_memory(config: Any, gpu: Gpu) -> EngineMemory:
    """What vLLM is told about memory. config: its VllmConfig."""
    cache, scheduler = config.cache_config, config.scheduler_config
    return EngineMemory(
        gpu_bytes=gpu.memory_bytes,
        utilization=cache.gpu_memory_utilization,
        tensor_parallel_size=config.parallel_config.tensor_parallel_size,
        context_tokens=config.model_config.max_model_len,
        kv_bytes=cache.kv_cache_memory_bytes,
        kv_element_bytes=1 if fp8_cache(cache) else None,
        step_tokens=scheduler.max_num_batched_tokens,
        seats=scheduler.max_num_seqs,
        graphs=not config.model_config.enforce_eager,
    )


def fp8_cache(cache: Any) -> bool:
    """Whether the KV cache has a byte an element. cache: vLLM's CacheConfig."""
    return str(cache.cache_dtype).startswith("fp8")
