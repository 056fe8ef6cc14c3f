"""Steps add up as a GPU's work does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import SettingError
from headway.core.hardware.gpu import GPU_BY_NAME, gpu_named
from headway.core.hardware.kernels import Roofline
from headway.core.hardware.shape import ModelShape
from headway.core.hardware.step import Calibration, Prefill, StepTimes

SIZES = {"layers": 32, "hidden": 4096, "mlp": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128}
LLAMA_8B = ModelShape(name="8B", vocabulary=128_256, **SIZES)
MIXTURE = ModelShape(
    name="30B of which 3B are active", layers=48, hidden=2048, mlp=768, heads=32, kv_heads=4,
    head_dim=128, vocabulary=151_936, experts=128, experts_per_token=8,
)  # fmt: skip


def times(model=LLAMA_8B, gpu="h100-sxm", gpus=1, calibration=None, **more):
    spec = gpu_named(gpu)
    return StepTimes(model, spec, Roofline(spec), gpus=gpus, calibration=calibration, **more)


EVERY = [times(gpu=gpu, gpus=n) for gpu in GPU_BY_NAME for n in (1, 4)] + [times(MIXTURE)]


@given(st.sampled_from(EVERY), st.integers(1, 20_000), st.integers(0, 100_000))
def test_more_prefill_takes_longer(of, tokens, context):
    assert of.seconds([Prefill(tokens, context)]) < of.seconds([Prefill(tokens + 64, context)])


@given(st.sampled_from(EVERY), st.integers(1, 8_000), st.integers(0, 100_000))
def test_context_makes_a_chunk_slower(of, tokens, context):
    assert (
        of.seconds([Prefill(tokens, context)])
        <= of.seconds([Prefill(tokens, context + 999)]) + 1e-9
    )


@given(st.sampled_from(EVERY), st.integers(1, 500), st.integers(1, 100_000))
def test_more_decodes_take_longer(of, decodes, context):
    one = of.seconds(decodes=decodes, decode_context_tokens=decodes * context)
    more = of.seconds(decodes=decodes + 1, decode_context_tokens=(decodes + 1) * context)
    assert one <= more


@given(st.sampled_from(EVERY), st.integers(1, 2_000), st.integers(1, 200), st.integers(1, 9_000))
def test_one_step_is_faster_than_two_with_the_same_work(of, tokens, decodes, context):
    decoding = {"decodes": decodes, "decode_context_tokens": decodes * context}
    apart = of.seconds([Prefill(tokens)]) + of.seconds(**decoding)
    assert of.seconds([Prefill(tokens)], **decoding) < apart


@given(st.integers(2, 60_000), st.sampled_from([512, 2048, 8192]))
def test_chunks_attend_to_as_much_as_the_whole_prompt(prompt, step_tokens):
    of = times(calibration=Calibration(0.0, 1.0))
    once = of.prompt_seconds(prompt, step_tokens=prompt)
    assert of.prompt_seconds(prompt, step_tokens=step_tokens) >= once * 0.95


def test_a_step_without_work_takes_no_time():
    assert times().seconds() == 0.0


def test_graphs_pad_a_step_to_their_next_size():
    of = times(gpu="l4", graph_sizes=[1, 256, 512])
    assert of.seconds([Prefill(300)]) > times(gpu="l4").seconds([Prefill(300)])
    assert of.seconds([Prefill(512)]) == times(gpu="l4").seconds([Prefill(512)])
    assert of.seconds([Prefill(513)]) == times(gpu="l4").seconds([Prefill(513)])


def test_more_gpus_are_faster_but_not_by_as_much():
    one, four = (times(gpus=n).prompt_seconds(8192, step_tokens=8192) for n in (1, 4))
    assert one / 4 < four < one


def test_a_mixture_reads_fewer_experts_for_fewer_tokens():
    of = times(MIXTURE)
    one, many = (of.seconds(decodes=n, decode_context_tokens=n) for n in (1, 64))
    assert many > 2 * one


@pytest.mark.parametrize("gpus", [0, 3, 64])
def test_heads_have_to_be_divided_evenly(gpus):
    with pytest.raises(SettingError, match="tensor_parallel_size"):
        times(gpus=gpus)


def test_kv_of_a_token_is_that_of_its_heads():
    assert LLAMA_8B.kv_bytes_per_token() == 131_072
    assert LLAMA_8B.kv_bytes_per_token(4) == 32_768
    assert LLAMA_8B.kv_bytes_per_token(16) == 16_384  # a KV head is the least


def test_a_gpu_that_is_not_known_is_refused_with_those_that_are():
    with pytest.raises(SettingError, match=r"use one of: a100-sxm, h100-sxm"):
        gpu_named("h900")
