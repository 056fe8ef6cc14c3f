"""Whether models fit engines, against facts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.testing import model_configs as models

from headway.core.hardware.fit import (
    EngineMemory,
    fit,
    kv_bytes,
    smallest_tensor_parallel_size,
    splits,
)
from headway.core.hardware.footprint import footprint
from headway.core.hardware.gpu import GPU_BY_NAME

GIB = 1 << 30
H100 = EngineMemory(gpu_bytes=GPU_BY_NAME["h100-sxm"].memory_bytes)
LLAMA_70B = footprint(models.LLAMA_70B)


@pytest.mark.parametrize(
    ("config", "context", "size"),
    [
        (models.LLAMA_70B, None, 4),
        (models.LLAMA_70B, 10_000, 2),
        (models.LLAMA_70B | {"quantization_config": {"quant_method": "fp8"}}, None, 2),
        (models.LLAMA_70B | {"quantization_config": {"quant_method": "awq", "bits": 4}}, None, 2),
        (
            models.LLAMA_70B | {"quantization_config": {"quant_method": "awq", "bits": 4}},
            64_000,
            1,
        ),
        (models.LLAMA_8B, None, 1),
        (models.QWEN3_235B_FP8, None, 4),
        (models.LLAMA_405B_FP8, 10_000, 8),
        (models.DEEPSEEK_V3, None, None),
    ],
)
def test_the_smallest_number_of_h100s(config, context, size):
    engine = replace(H100, context_tokens=context)
    assert smallest_tensor_parallel_size(footprint(config), engine, 8) == size


def test_kv_of_70b_on_four_h100s_is_what_vllm_arrives_at():
    four = replace(H100, tensor_parallel_size=4)
    tokens = fit(LLAMA_70B, four).room_bytes / (kv_bytes(LLAMA_70B, four, 1600) / 1600)
    assert tokens == pytest.approx(484_016, rel=0.02)


def test_kv_of_8b_on_an_h100_is_what_vllm_logs():
    """vllm-project/vllm#10511: 53.29 GiB at 0.9, CUDA graphs not counted."""
    old = replace(H100, utilization=0.9, seats=256, graphs=False)
    assert fit(footprint(models.LLAMA_8B), old).room_bytes == pytest.approx(53.29 * GIB, rel=0.03)


def test_what_surely_does_not_fit_is_less_than_what_likely_does_not():
    engine = replace(H100, tensor_parallel_size=2, context_tokens=30_000)
    assert not fit(LLAMA_70B, engine).fits
    assert fit(LLAMA_70B, engine, least=True).fits


def test_gpt_oss_on_one_h100_is_not_refused():
    assert fit(footprint(models.GPT_OSS_120B), H100, least=True).fits


def test_a_kv_cache_of_a_set_size_holds_what_it_holds():
    engine = replace(H100, tensor_parallel_size=2, kv_bytes=2 * GIB, context_tokens=10_000)
    assert fit(LLAMA_70B, engine).fits
    longer = replace(engine, context_tokens=20_000)
    assert not fit(LLAMA_70B, longer).fits
    assert fit(LLAMA_70B, longer).largest_context_tokens == 13_104
    assert not fit(LLAMA_70B, replace(engine, kv_bytes=20 * GIB)).fits, "more than is left"


def test_pipeline_stages_have_a_part_of_the_layers_each():
    engine = replace(H100, pipeline_parallel_size=4)
    assert fit(LLAMA_70B, engine).fits
    assert kv_bytes(LLAMA_70B, engine, 16) * 4 == kv_bytes(LLAMA_70B, H100, 16)


@pytest.mark.parametrize(
    ("config", "size", "right"),
    [
        (models.LLAMA_70B, 3, False),
        (models.LLAMA_70B, 16, True),
        (models.LLAMA_70B, 32, True),
        (models.LLAMA_70B | {"num_key_value_heads": 4}, 8, True),
        (models.QWEN_14B, 5, False),
        (models.DEEPSEEK_V3, 8, True),
        (models.LLAMA_70B | {"intermediate_size": 28670}, 4, False),
    ],
)
def test_layers_are_shared_as_vllm_can(config, size, right):
    assert splits(footprint(config), size) is right


MODELS = [
    models.LLAMA_70B,
    models.LLAMA_8B,
    models.DEEPSEEK_V3,
    models.GPT_OSS_120B,
    models.MISTRAL_7B,
    models.QWEN3_NEXT,
]


@given(
    config=st.sampled_from(MODELS),
    gib=st.floats(1, 300),
    utilization=st.floats(0.05, 1),
    size=st.sampled_from([1, 2, 4, 8]),
    context=st.integers(1, 300_000),
    kv_gib=st.none() | st.floats(0.1, 100),
)
def test_more_memory_never_fits_less(config, gib, utilization, size, context, kv_gib):
    model = footprint(config)
    engine = EngineMemory(
        gpu_bytes=round(gib * GIB),
        utilization=utilization,
        tensor_parallel_size=size,
        context_tokens=context,
        kv_bytes=None if kv_gib is None else round(kv_gib * GIB),
        step_tokens=2048,
        seats=256,
    )
    used, least = fit(model, engine), fit(model, engine, least=True)
    larger = fit(model, replace(engine, gpu_bytes=2 * engine.gpu_bytes))
    assert used.fits <= least.fits
    assert used.fits <= larger.fits
    assert 0 <= used.largest_context_tokens <= context
    assert used.fits == (used.spare_bytes >= 0 and used.largest_context_tokens == context)
    longest = used.largest_context_tokens
    if longest:
        assert kv_bytes(model, engine, longest) <= used.room_bytes
    if longest < context:
        assert kv_bytes(model, engine, longest + 1) > used.room_bytes
