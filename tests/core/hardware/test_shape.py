"""What a model computes, from its config.json."""

import pytest
from tests.testing import model_configs as models

from headway.core.errors import SettingError
from headway.core.hardware.shape import ModelShape, model_shape


def test_a_dense_model():
    assert model_shape(models.LLAMA_70B, name="Llama") == ModelShape(
        name="Llama",
        layers=80,
        hidden=8_192,
        mlp=28_672,
        heads=64,
        kv_heads=8,
        head_dim=128,
        vocabulary=128_256,
    )


def test_a_model_of_experts():
    shape = model_shape(models.QWEN3_30B_A3B)
    assert (shape.experts, shape.experts_per_token, shape.mlp) == (128, 8, 768)


def test_quantised_weights_are_timed_as_such():
    assert model_shape(models.LLAMA_70B, quantized="fp8").weight_dtype == "fp8"
    assert model_shape(models.LLAMA_405B_FP8).weight_dtype == "fp8"
    assert model_shape(models.LLAMA_8B).weight_dtype == "bfloat16"


def test_a_window_that_is_switched_off_is_none():
    assert model_shape(models.QWEN_14B).layers == 48


@pytest.mark.parametrize(
    "config", [models.DEEPSEEK_V3, models.GPT_OSS_120B, models.GEMMA_2_27B, models.QWEN3_NEXT, {}]
)
def test_attention_whose_time_is_not_known_is_refused(config):
    with pytest.raises(SettingError, match=r"config\.json"):
        model_shape(config)
