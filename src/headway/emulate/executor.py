"""vLLM's executor without a model: a step takes as long as it would, and words come of it."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from vllm.platforms import current_platform
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

from headway.core.hardware.emulation import VARIABLE, parse
from headway.core.hardware.gpu import gpu_named
from headway.core.hardware.shape import model_shape
from headway.core.hardware.step import StepTimes
from headway.emulate.answers import Writing, writing
from headway.emulate.batch import Batch, Requests
from headway.emulate.device import Device, Due
from headway.emulate.faults import Fault, FaultFile
from headway.emulate.memory import fp8_cache, kv_room_bytes
from headway.emulate.report import EmulationReport
from headway.emulate.sampler import Sampler
from headway.gpus import step_times

_HANG_LOOK_S: Final = 0.05
_LAYOUT: Final = "LBNHC"
_NOTHING_TO_DO: Final = frozenset(
    {
        "get_kv_connector_handshake_metadata",
        "profile",
        "reset_encoder_cache",
        "reset_mm_cache",
        "synchronize_device",
        "update_max_model_len",
    }
)
"""What vLLM asks of workers that changes nothing where nothing is computed."""


class _Result(Future[Any]):
    """What is there once it has been waited for, by whoever asks for it."""

    def __init__(self, wait: Callable[[], Any]) -> None:
        super().__init__()
        self._wait = wait

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.set_result(self._wait())
        return super().result(timeout)


class EmulatedExecutor(Executor):
    """All GPUs of a tensor parallel engine."""

    def _init_executor(self) -> None:
        """Raises SettingError for a model whose time isn't known."""
        self._emulation = parse(os.environ[VARIABLE])
        self._gpu = gpu_named(self._emulation.gpu)
        self._times = self._step_times()
        self._device = Device()
        self._faults = FaultFile(self._emulation.faults)
        self._requests = Requests(self._writing)
        self._sampler = Sampler(self.model_config)
        self._begun: tuple[Batch, Due] | None = None
        gpus = self.parallel_config.tensor_parallel_size
        self._report = EmulationReport(self._emulation, gpus)

    def _step_times(self) -> StepTimes:
        model = self.model_config
        shape = model_shape(
            model.hf_config.to_dict(),
            quantized=model.quantization,
            kv_dtype="fp8" if fp8_cache(self.cache_config) else "bfloat16",
        )
        return step_times(
            shape,
            self._gpu.name,
            gpus=self.parallel_config.tensor_parallel_size,
            graph_sizes=sorted(self.vllm_config.compilation_config.cudagraph_capture_sizes or ()),
        )

    def _writing(self, new: Any) -> Writing:
        return writing(
            new.req_id,
            new.prompt_token_ids or (),
            new.sampling_params,
            context_tokens=self.model_config.max_model_len,
            answer_tokens=self._emulation.answer_tokens,
        )

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        """Of one GPU: all have the same."""
        model, cache = self.model_config, self.cache_config
        spec = FullAttentionSpec(
            block_size=cache.block_size,
            num_kv_heads=model.get_num_kv_heads(self.parallel_config),
            head_size=model.get_head_size(),
            dtype=kv_cache_dtype_str_to_dtype(cache.cache_dtype, model),
        )
        layers = model.get_num_layers(self.parallel_config)
        return [{f"model.layers.{layer}.self_attn.attn": spec for layer in range(layers)}]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [[_LAYOUT]]

    def set_kv_cache_layout(self, layout_name: str) -> None:
        """No cache is there to be laid out."""

    def determine_available_memory(self) -> list[int]:
        return [kv_room_bytes(self.vllm_config, self._gpu)]

    def initialize_from_config(self, kv_cache_configs: Any) -> None:
        """Nothing is allocated."""

    def compile_or_warm_up_model(self) -> None:
        """Nothing is compiled."""

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def supports_draft_weight_updates(self) -> bool:
        return False

    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        """Raises NotImplementedError for what only a worker could do."""
        if method not in _NOTHING_TO_DO:
            raise NotImplementedError(f"an emulated engine has no workers to ask for {method}")
        return _done([None]) if non_block else [None]

    def check_health(self) -> None:
        """It is well as long as it runs."""

    def shutdown(self) -> None:
        self._report.ended()
        type(current_platform).device_gone = True

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Begin a step; `sample_tokens` ends it."""
        batch = self._requests.batch(scheduler_output)
        if batch.ids:
            self._begun = batch, self._device.begin(self._step_s(batch))
            return _done(None) if non_block else None
        if not self._requests:
            self._report.idle()
        return _done(EMPTY_MODEL_RUNNER_OUTPUT) if non_block else EMPTY_MODEL_RUNNER_OUTPUT

    def _step_s(self, batch: Batch) -> float:
        fault = self._fault()
        if fault.crash:
            os.kill(os.getpid(), signal.SIGKILL)
        seconds = self._times.seconds(
            batch.chunks, decodes=batch.decodes, decode_context_tokens=batch.decode_context_tokens
        )
        return seconds * self._emulation.slow * fault.slow

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """The result of the step that was begun last, when it is due."""
        if self._begun is None:
            raise RuntimeError("no step was begun")
        (batch, due), self._begun = self._begun, None
        output = self._sampler.output(batch, grammar_output)

        def wait() -> Any:
            self._wait(due)
            return output

        return _Result(wait) if non_block else wait()

    def _wait(self, due: Due) -> None:
        late_s = self._device.wait(due)
        while self._fault().hang:
            self._device.pause(_HANG_LOOK_S)
        self._report.delivered(late_s, due.step_s)

    def _fault(self) -> Fault:
        """How to misbehave now; each change is told."""
        before, fault = self._faults.told, self._faults.now()
        if self._faults.told != before:
            self._report.failing(self._faults.told)
        return fault


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
