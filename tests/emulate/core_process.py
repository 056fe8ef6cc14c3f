"""vLLM's engine core on emulated GPUs, as a process: another platform can't be had in pytest's own.

`python core_process.py FOLDER` serves the same requests by several engines, one after the other,
on a clock that jumps; prints what came of it as JSON.
"""

import json
import os
import sys
from pathlib import Path

# ruff: noqa: E402  vLLM reads these two as it is imported, and asks for its platform
os.environ["HEADWAY_EMULATE"] = "h100-sxm"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"

import vllm.platforms

from headway.emulate.platform import EmulatedPlatform

vllm.platforms._current_platform = EmulatedPlatform()

from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor
from vllm.v1.request import Request

from headway.emulate.device import Device
from headway.models import known

REQUESTS = [(1_000, 20), (20_000, 6), (300, 40), (9_000, 3), (64, 30)]
"""Prompts and answers, tokens."""


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def engine(model, *, ahead, policy):
    headway = {"headway": {"policy": policy}} if policy else {}
    arguments = EngineArgs(
        model=str(model),
        load_format="dummy",
        tensor_parallel_size=4,
        async_scheduling=ahead,
        scheduler_cls="headway.engine.Scheduler" if policy else None,
        additional_config=headway,
    )
    config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
    return EngineCore(config, Executor.get_class(config), log_stats=True)


def request(core, number, prompt, answer, **sampling):
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=[300 + (i * 7 + number) % 7_000 for i in range(prompt)],
        sampling_params=SamplingParams(
            max_tokens=answer, ignore_eos=True, temperature=0.0, **sampling
        ),
        pooling_params=None,
        block_hasher=core.request_block_hasher,
    )


def serve(core, requests):
    """Tokens, logprobs and the end of each request, what each step computed, and how long it took.

    All requests are there from the start.
    """
    executor, clock = core.model_executor, Clock()
    executor._device = Device(now=clock, sleep=clock.sleep)
    steps, modelled_s = [], []
    begin = executor._step_s

    def step_s(batch):
        chunks = sorted((chunk.tokens, chunk.context_tokens) for chunk in batch.chunks)
        steps.append([chunks, batch.decodes, batch.decode_context_tokens])
        modelled_s.append(begin(batch))
        return modelled_s[-1]

    executor._step_s = step_s
    try:
        served = _served(core, requests, clock)
        return served | {"steps": steps, "modelled_s": sum(modelled_s)}
    finally:
        executor._step_s = begin


def _served(core, requests, clock):
    for each in requests:
        core.add_request(each)
    tokens, ended_s, logprobs = {}, {}, {}
    while core.scheduler.has_requests() or core.batch_queue:
        outputs, _ = core.step_fn()
        for batch in (outputs or {}).values():
            for item in batch.outputs:
                tokens.setdefault(item.request_id, []).extend(item.new_token_ids)
                if item.new_logprobs:
                    logprobs.setdefault(item.request_id, []).append(
                        [item.new_logprobs.logprob_token_ids.tolist()]
                    )
                if item.finish_reason is not None:
                    ended_s[item.request_id] = clock.now_s
    return {
        "tokens": tokens,
        "logprobs": logprobs,
        "ended_s": ended_s,
        "took_s": clock.now_s,
    }


def told(core):
    """What an engine says of itself."""
    config = core.vllm_config
    return {
        "kv_tokens": config.cache_config.num_gpu_blocks * config.cache_config.block_size,
        "block_tokens": config.cache_config.block_size,
        "step_tokens": config.scheduler_config.max_num_batched_tokens,
        "seats": config.scheduler_config.max_num_seqs,
        "async": config.scheduler_config.async_scheduling,
        "v2": config.use_v2_model_runner,
        "graphs": config.compilation_config.cudagraph_capture_sizes,
        "graph_mode": config.compilation_config.cudagraph_mode.name,
        "device": EmulatedPlatform.get_device_name(),
        "scheduler": type(core.scheduler).__name__,
    }


def main():
    model = known.ensure("llama-3.1-70b", Path(sys.argv[1]))
    found = {}
    for name, ahead, policy in (
        ("async", None, None),
        ("plain", False, None),
        ("sequential", None, "sequential"),
        ("sequential plain", False, "sequential"),
    ):
        core = engine(model, ahead=ahead, policy=policy)
        found[name] = told(core) | serve(
            core, [request(core, i, *each) for i, each in enumerate(REQUESTS)]
        )
        if name == "async":
            wanted = [request(core, 10 + i, 50, 5, logprobs=i) for i in range(3)]
            found["logprobs"] = serve(core, wanted)
        core.shutdown()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
