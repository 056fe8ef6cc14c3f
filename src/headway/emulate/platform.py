"""vLLM's platform for GPUs that aren't there: what the machine's driver would say of them."""

import importlib
import os
from typing import Any, Final

import torch
from vllm.exceptions import VLLMValidationError
from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

from headway.core.errors import SettingError
from headway.core.hardware.emulation import VARIABLE, parse
from headway.core.hardware.gpu import Gpu, gpu_named
from headway.core.hardware.shape import model_shape

EXECUTOR: Final = "headway.emulate.executor.EmulatedExecutor"
_NO_WORKER: Final = "vllm.v1.worker.worker_base.WorkerBase"
"""Named and never made."""


def emulated_gpu() -> Gpu:
    """What the environment asks for. Raises SettingError."""
    return gpu_named(parse(os.environ[VARIABLE]).gpu)


class EmulatedPlatform(Platform):
    """An NVIDIA GPU as far as it is asked about, on a CPU as far as anything is computed.

    device_gone: set once the executor has ended: vLLM then empties the caches of whatever isn't a
    CPU, and here is nothing to empty.
    """

    _enum = PlatformEnum.OOT
    device_name = "emulated"
    device_type = "cpu"
    dist_backend = "gloo"
    ray_device_key = "CPU"
    device_gone = False

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    def is_cpu(self) -> bool:
        return type(self).device_gone

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return emulated_gpu().device_name

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        return f"emulated-{device_id}"

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(*emulated_gpu().capability)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return emulated_gpu().memory_bytes

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        return 0.0

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        torch.manual_seed(seed)

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """No device is there to be chosen."""

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """What the GPU can't compute, it isn't asked to."""

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        return True

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True

    @classmethod
    def supports_fp8(cls) -> bool:
        return emulated_gpu().capability >= (8, 9)

    @classmethod
    def use_custom_allreduce(cls) -> bool:
        return True

    @classmethod
    def pre_register_and_update(cls, parser: Any = None) -> None:
        """Another engine begins, maybe in the process of one that has ended."""
        cls.device_gone = False

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Have nothing run but the executor. Raises SettingError for what can't be emulated."""
        # Without a GPU there is no Triton, which vLLM asks for before it uses the model runner of
        # GPUs; no model runner is ever made.
        importlib.import_module("vllm.config.vllm").HAS_TRITON = True  # type: ignore[attr-defined]
        if vllm_config.model_config is None:
            return
        check(vllm_config)
        vllm_config.parallel_config.distributed_executor_backend = EXECUTOR
        vllm_config.parallel_config.worker_cls = _NO_WORKER

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: Any) -> None:
        """Blocks are as large as CUDA's are."""

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Raise VLLMValidationError, which the client gets, for what no model computes here."""
        for name in _UNANSWERED:
            if _is_set(getattr(params, name, None)):
                said = f"an emulated engine computes nothing and can't serve {name}; leave it out"
                raise VLLMValidationError(said, parameter=name)


_UNANSWERED: Final = (
    "prompt_logprobs",
    "prompt_logprob_token_ids",
    "logprob_token_ids",
    "logit_bias",
    "bad_words",
)


def _is_set(value: object) -> bool:
    return value is not None and not (isinstance(value, list | dict) and not value)


def check(config: Any) -> None:
    """Raise SettingError for what an emulated engine can't do. config: vLLM's VllmConfig."""
    model, parallel = config.model_config, config.parallel_config
    wrong = {
        "--runner": model.runner_type != "generate",
        "--speculative-config": config.speculative_config is not None,
        "--enable-lora": config.lora_config is not None,
        "--pipeline-parallel-size": parallel.pipeline_parallel_size > 1,
        "--data-parallel-size": parallel.data_parallel_size > 1,
        "--kv-transfer-config": config.kv_transfer_config is not None,
        "MODEL": model.is_multimodal_model or model.is_encoder_decoder,
    }
    for flag, is_wrong in wrong.items():
        if is_wrong:
            raise SettingError(flag, _WHY[flag])
    model_shape(model.hf_config.to_dict(), quantized=model.quantization)


_WHY: Final = {
    "--runner": "an emulated engine only generates text",
    "--speculative-config": "speculative decoding isn't emulated: no draft would be accepted",
    "--enable-lora": "adapters aren't emulated",
    "--pipeline-parallel-size": "pipelines aren't emulated; use --tensor-parallel-size",
    "--data-parallel-size": "data parallel engines aren't emulated; start several",
    "--kv-transfer-config": "moving KV isn't emulated yet",
    "MODEL": "an emulated model reads text only",
}
