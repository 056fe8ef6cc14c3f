"""The KV cache is as large as on those GPUs, where that was published."""

from types import SimpleNamespace

import pytest
from tests.testing import model_configs as models

from headway.core.hardware.fit import kv_bytes
from headway.core.hardware.footprint import footprint
from headway.core.hardware.gpu import GIB, GPU_BY_NAME
from headway.emulate.memory import engine_memory, kv_room_bytes


def config(model, gpus, **given):
    """What is read of vLLM's configuration."""
    values = {
        "utilization": 0.92,
        "context": 131_072,
        "tokens": 8192,
        "seats": 1024,
        "eager": False,
        "cache": "auto",
        "kv_bytes": None,
    } | given
    return SimpleNamespace(
        model_config=SimpleNamespace(
            hf_config=SimpleNamespace(to_dict=lambda: model),
            quantization=given.get("quantization"),
            max_model_len=values["context"],
            enforce_eager=values["eager"],
        ),
        cache_config=SimpleNamespace(
            cache_dtype=values["cache"],
            gpu_memory_utilization=values["utilization"],
            kv_cache_memory_bytes=values["kv_bytes"],
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=values["tokens"], max_num_seqs=values["seats"]
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=gpus),
    )


def tokens(model, gpu, gpus, **given):
    """As vLLM counts them: whole blocks of every layer."""
    of = config(model, gpus, **given)
    spec = GPU_BY_NAME[gpu]
    block = kv_bytes(footprint(model), engine_memory(of, spec), 16)
    return kv_room_bytes(of, spec) // block * 16


def test_70b_on_four_h100s():
    assert tokens(models.LLAMA_70B, "h100-sxm", 4) == pytest.approx(484_016, rel=0.01)


def test_8b_on_one_h100():
    """vllm-project/vllm#10511: 53.29 GiB, by a release that didn't count CUDA graphs."""
    old = {"utilization": 0.9, "seats": 256, "eager": True}
    room = kv_room_bytes(config(models.LLAMA_8B, 1, **old), GPU_BY_NAME["h100-sxm"])
    assert room / GIB == pytest.approx(53.29, rel=0.03)


def test_many_experts_are_known_to_leave_less_than_this():
    """vllm-project/vllm#21348, on four H100s: 178,880 tokens. What vLLM holds for experts isn't
    known well enough; docs/emulation.md says so.
    """
    found = tokens(models.QWEN3_235B_FP8, "h100-sxm", 4, utilization=0.9, context=40_960)
    assert 1.4 < found / 178_880 < 1.7


def test_a_cache_of_a_set_size_is_that_large():
    of = config(models.LLAMA_70B, 4, kv_bytes=5 << 30)
    assert kv_room_bytes(of, GPU_BY_NAME["h100-sxm"]) == 5 << 30


def test_a_cache_in_fp8_holds_twice_as_much():
    plain = tokens(models.LLAMA_70B, "h100-sxm", 4)
    assert tokens(models.LLAMA_70B, "h100-sxm", 4, cache="fp8") == pytest.approx(
        2 * plain, rel=1e-3
    )


def test_what_does_not_fit_leaves_nothing():
    assert tokens(models.LLAMA_70B, "h100-sxm", 1) == 0
