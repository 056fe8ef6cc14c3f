"""vLLM's real scheduler without a model, on virtual tokens.

`Driver` alternates `schedule()` and `update_from_output()` with made-up model
output, so that thousands of engine steps take seconds.
"""

import itertools
import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as PlainScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from headway.engine import Scheduler as HeadwayScheduler

BLOCK = 16
_serial = itertools.count()


def model_dir(folder: Path) -> Path:
    """A folder with the configuration of a small Llama and no weights."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 32000,
        "max_position_embeddings": 131072,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_scheduler(
    folder: Path,
    policy: str | None = "parallel",
    *,
    budget: int = 512,
    seats: int = 64,
    blocks: int = 10_000,
    max_model_len: int = 32_768,
    async_scheduling: bool = False,
    caching: bool = True,
    scheduling_policy: str = "fcfs",
    kv_transfer: KVTransferConfig | None = None,
    scheduler_options: dict[str, Any] | None = None,
    config_options: dict[str, Any] | None = None,
    more_settings: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """A vLLM scheduler: stock if `policy` is None, headway's with `settings` otherwise."""
    settings.update(more_settings or {})
    model = ModelConfig(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=max_model_len,
        seed=0,
    )
    scheduler = SchedulerConfig(
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        policy=scheduling_policy,
        async_scheduling=async_scheduling,
        **(scheduler_options or {}),
    )
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=caching)
    config = VllmConfig(
        model_config=model,
        scheduler_config=scheduler,
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=kv_transfer,
        additional_config={"headway": {"policy": policy, **settings}} if policy else {},
        **(config_options or {}),
    )
    config.scheduler_config.async_scheduling = async_scheduling
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    stock = AsyncScheduler if async_scheduling else PlainScheduler
    made: Any = HeadwayScheduler if policy else stock
    init_none_hash(sha256)
    return made(
        vllm_config=config,
        kv_cache_config=kv,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )


def make_request(
    tokens: int,
    output: int = 4,
    *,
    name: str | None = None,
    priority: int = 0,
    prefix: int | None = None,
    prefix_tokens: int = 0,
    extra_args: dict[str, Any] | None = None,
    arrival_time: float | None = None,
    **options: Any,
) -> Request:
    """A request of `tokens` prompt tokens, the first `prefix_tokens` those of prefix `prefix`."""
    options.setdefault("block_hasher", get_request_block_hasher(BLOCK, sha256))
    serial = next(_serial)
    shared = [] if prefix is None else [(prefix * 7919 + i) % 31_000 for i in range(prefix_tokens)]
    own = [(serial * 104_729 + i * 31) % 31_000 for i in range(tokens - len(shared))]
    parameters = SamplingParams(max_tokens=output, ignore_eos=True, extra_args=extra_args)
    parameters.update_from_generation_config({}, 31_999)
    return Request(
        request_id=name or f"r{serial:06d}",
        prompt_token_ids=shared + own,
        sampling_params=parameters,
        pooling_params=None,
        priority=priority,
        arrival_time=arrival_time,
        **options,
    )


class Clock:
    """Virtual time, in place of the `time` module inside headway.engine."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s


def step_s(output: Any) -> float:
    """How long a virtual step takes."""
    return 0.02 + 1e-4 * float(output.total_num_scheduled_tokens)


def computed_before(output: Any) -> dict[str, int]:
    """Of each request in a scheduled step, the tokens that were computed before it."""
    cached = output.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    computed.update({r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs})
    return computed


def mid_prefill(scheduler: Any) -> list[Request]:
    """Running requests whose prompt isn't finished after the steps scheduled so far."""
    return [r for r in scheduler.running if r.is_prefill_chunk]


def tokens_left(request: Request) -> int:
    """Tokens that are known and not scheduled yet."""
    return int(request.num_tokens - request.num_computed_tokens)


def faults(scheduler: Any) -> set[tuple[str, str]]:
    """Where headway failed and left steps to vLLM, and with what."""
    steering = getattr(scheduler, "_steering", None)
    return set() if steering is None else set(steering._told)


def check_restored(scheduler: Any) -> None:
    """Nothing of a plan is left between steps."""
    headway = getattr(scheduler, "headway", None)
    if headway is None:
        return
    assert all(r.num_output_placeholders >= 0 for r in scheduler.requests.values())
    assert scheduler.max_num_scheduled_tokens == headway._step_tokens
    assert bool(scheduler.waiting) == bool(len(scheduler.waiting))
    if scheduler.waiting is headway.queue and not scheduler._steering._failed:
        assert {r.request_id for r in scheduler.waiting} == set(headway.policy.backlog._prompts)


class Driver:
    """Runs a scheduler step by step; `depth` steps are in flight at once.

    kv_arrivals: requests whose KV the next delivered step reports as received.
    kv_losses: blocks that it reports as not loaded.
    """

    def __init__(
        self,
        scheduler: Any,
        depth: int = 1,
        clock: Clock | None = None,
        step_s: Callable[[Any], float] = step_s,
    ) -> None:
        """step_s: how long a scheduled step takes on `clock`."""
        self.scheduler = scheduler
        self.depth = depth
        self.clock = clock
        self.step_s = step_s
        self.kv_arrivals: set[str] = set()
        self.kv_losses: set[int] = set()
        self.reasons: dict[str, str] = {}
        self.steps = 0
        self.first_token_step: dict[str, int] = {}
        self.finished_step: dict[str, int] = {}
        self.tokens: dict[str, int] = {}
        self._in_flight: deque[Any] = deque()

    @property
    def busy(self) -> bool:
        """Steps are in flight."""
        return bool(self._in_flight)

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add_request(request)

    def step(self) -> Any:
        """Schedule one step and deliver the oldest one in flight."""
        output = self.scheduler.schedule()
        check_restored(self.scheduler)
        self.take(output)
        return output

    def take(self, output: Any) -> None:
        """Put a scheduled step in flight and deliver the oldest one."""
        self.steps += 1
        self._in_flight.append(output)
        if len(self._in_flight) >= self.depth:
            self.deliver()

    def deliver(self) -> None:
        """Hand the results of the oldest step in flight to the scheduler."""
        output = self._in_flight.popleft()
        if self.clock is not None:
            self.clock.now_s += self.step_s(output)
        received, self.kv_arrivals = self.kv_arrivals, set()
        lost, self.kv_losses = self.kv_losses, set()
        ids = list(output.num_scheduled_tokens)
        begins = computed_before(output)
        sampled = [self._sample(output, request_id, begins[request_id]) for request_id in ids]
        results = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
                kv_connector_output=(
                    KVConnectorOutput(finished_recving=received, invalid_block_ids=lost)
                    if received or lost
                    else None
                ),
            ),
        )
        for batch in results.values():
            for item in batch.outputs:
                self.received(item)

    def received(self, item: Any) -> None:
        """Tokens or the end of a request reached its client."""
        if item.new_token_ids:
            self.first_token_step.setdefault(item.request_id, self.steps)
            count = self.tokens.get(item.request_id, 0) + len(item.new_token_ids)
            self.tokens[item.request_id] = count
        if item.finish_reason is not None:
            self.finished_step[item.request_id] = self.steps
            self.reasons[item.request_id] = str(item.finish_reason)

    def _sample(self, output: Any, request_id: str, computed: int) -> list[int]:
        request = self.scheduler.requests.get(request_id)
        if request is None:
            return []
        done = computed + output.num_scheduled_tokens[request_id]
        known = request.num_prompt_tokens + request.num_output_tokens
        return [7] if done >= known else []

    def run(self, most: int = 10_000) -> int:
        """Step until nothing is left; the number of steps taken."""
        begin = self.steps
        while self.scheduler.has_unfinished_requests() or self._in_flight:
            if not self.scheduler.has_unfinished_requests():
                self.deliver()
                continue
            self.step()
            assert self.steps - begin < most, "no end"
        return self.steps - begin
