"""What models take, against what their files and vLLM's logs say."""

import pytest
from tests.testing import model_configs as models

from headway.core.hardware.dimensions import context_tokens
from headway.core.hardware.fit import EngineMemory, kv_bytes
from headway.core.hardware.footprint import footprint

GIB = 1 << 30
GPU = EngineMemory(gpu_bytes=80 * GIB)


def on(size):
    return EngineMemory(gpu_bytes=80 * GIB, tensor_parallel_size=size)


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (models.LLAMA_70B, 141.107),  # total_size of the files' index
        (models.LLAMA_8B, 16.061),
        (models.QWEN3_30B_A3B, 61.064),
        (models.QWEN_14B, 29.54),
        (models.MIXTRAL_8X7B, 93.406),
        (models.GEMMA_2_27B, 54.454),
        (models.LLAMA_4_SCOUT, 215.5),  # 107.8 billion beside the encoder of images
    ],
)
def test_weights_are_counted_as_the_files_index_says(config, billions):
    assert footprint(config).weights_bytes == pytest.approx(billions * 1e9, rel=0.002)


@pytest.mark.parametrize(
    ("config", "size", "gib", "within"),
    [
        (models.LLAMA_8B, 1, 14.96, 0.005),  # vllm-project/vllm#10511
        (models.LLAMA_8B, 2, 7.48, 0.005),
        (models.QWEN_14B, 2, 13.9476, 0.02),  # #13061
        (models.LLAMA_405B_FP8, 8, 57.752, 0.02),  # #6746
        (models.GPT_OSS_120B, 1, 64.38, 0.06),  # #33155; its kernels pad the experts
    ],
)
def test_weights_of_a_gpu_are_what_vllm_logs(config, size, gib, within):
    measured = footprint(config).weights_bytes / size / GIB
    assert measured == pytest.approx(gib, rel=within)


def test_files_that_are_there_are_preferred_to_counting():
    assert footprint(models.LLAMA_8B, files_bytes=17 * GIB).weights_bytes == 17 * GIB
    in_float32 = models.LLAMA_8B | {"torch_dtype": "float32"}
    assert footprint(in_float32, files_bytes=32 * GIB).weights_bytes == 16 * GIB
    loaded = footprint(models.LLAMA_8B, files_bytes=17 * GIB, quantized="fp8")
    assert loaded.weights_bytes == pytest.approx(8.4 * GIB, rel=0.02)


@pytest.mark.parametrize(
    ("quantization", "share"),
    [
        ({"quant_method": "fp8"}, 0.5),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.266),
        ({"quant_method": "gptq", "bits": 8}, 0.516),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.281),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 0.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.266),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128}}},
            },
            0.266,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "group_size": None}}},
            },
            0.5,
        ),
    ],
)
def test_quantised_weights_take_their_share_and_embeddings_stay(quantization, share):
    plain = footprint(models.LLAMA_70B).weights_bytes
    table = 2 * 2 * 128256 * 8192
    stored = footprint(models.LLAMA_70B | {"quantization_config": quantization})
    assert stored.weights_bytes == pytest.approx(table + share * (plain - table), rel=0.005)


def test_a_quantisation_that_is_not_known_is_not_guessed():
    unknown = models.LLAMA_8B | {"quantization_config": {"quant_method": "newest"}}
    assert footprint(unknown) is None
    assert footprint(unknown, files_bytes=5 * GIB).weights_bytes == 5 * GIB
    assert footprint(models.LLAMA_8B, quantized="newest") is None


@pytest.mark.parametrize(
    ("config", "size", "per_token"),
    [
        (models.LLAMA_70B, 1, 327_680),
        (models.LLAMA_70B, 4, 81_920),
        (models.LLAMA_8B, 1, 131_072),
        (models.LLAMA_70B, 16, 40_960),  # a KV head on every GPU at least
        (models.DEEPSEEK_V3, 1, 70_272),  # 512 + 64 elements, 61 layers
        (models.DEEPSEEK_V3, 8, 70_272),
        (models.QWEN3_NEXT, 1, 24_576),  # 12 of 48 layers
    ],
)
def test_kv_of_a_token(config, size, per_token):
    assert kv_bytes(footprint(config), on(size), 1600) == 1600 * per_token


@pytest.mark.parametrize(
    ("config", "size", "tokens", "gib", "within"),
    [
        (models.QWEN3_30B_A3B, 1, 262144, 24.0, 0.0),  # vllm-project/vllm#34076
        (models.QWEN3_480B_FP8, 1, 262144, 62.0, 0.0),  # vllm-project/recipes#12
        (models.QWEN3_235B_FP8, 4, 178880, 8.11, 0.015),  # vllm-project/vllm#21348
    ],
)
def test_kv_is_what_vllm_says_it_needs(config, size, tokens, gib, within):
    assert kv_bytes(footprint(config), on(size), tokens) == pytest.approx(gib * GIB, rel=within)


def test_layers_with_a_window_keep_no_more_than_it_and_the_steps_in_flight():
    model = footprint(models.GPT_OSS_120B)
    of_layer = 2 * 8 * 64 * 2
    seen = 16_528  # SlidingWindowSpec's, two steps of 8,192 in flight
    assert kv_bytes(model, GPU, 131072) == 18 * of_layer * (131072 + seen)
    assert kv_bytes(model, GPU, 1600) == 36 * of_layer * 1600


def test_a_window_of_which_only_the_code_knows_the_layers_counts_for_the_least_alone():
    model = footprint(models.MISTRAL_7B)
    assert kv_bytes(model, GPU, 32768) == 32768 * 131072
    assert kv_bytes(model, GPU, 32768, least=True) < 13000 * 131072


def test_chunks_of_attention_are_such_a_window():
    model = footprint(models.LLAMA_4_SCOUT)
    assert kv_bytes(model, GPU, 160_000) == 160_000 * 48 * 4096
    assert kv_bytes(model, GPU, 160_000, least=True) < 17_000 * 48 * 4096


def test_layers_that_use_the_kv_of_others_keep_none():
    own = models.LLAMA_8B | {"layer_types": ["full_attention"] * 32, "num_kv_shared_layers": 12}
    assert kv_bytes(footprint(own), GPU, 16) == 16 * 131072 * 20 // 32


def test_a_kv_cache_in_fp8_takes_half():
    fp8 = EngineMemory(gpu_bytes=80 * GIB, kv_element_bytes=1)
    assert kv_bytes(footprint(models.LLAMA_8B), fp8, 16) == 8 * 131072
    scales = {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    stored = models.LLAMA_8B | {"quantization_config": scales}
    assert kv_bytes(footprint(stored), GPU, 16) == 8 * 131072


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (models.LLAMA_70B, 131072),
        (models.DEEPSEEK_V3, 163840),
        (models.GPT_OSS_120B, 131072),
        ({"text_config": {"max_position_embeddings": 9}}, 9),
        ({"max_position_embeddings": 8, "rope_scaling": {"type": "linear", "factor": 4.0}}, 32),
        ({"max_position_embeddings": 8, "rope_scaling": {"type": "linear", "factor": "x"}}, 8),
        ({"max_position_embeddings": "9"}, None),
        ({}, None),
    ],
)
def test_the_context_is_derived_as_vllm_does(config, tokens):
    assert context_tokens(config) == tokens


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_hidden_layers": 2},
        models.LLAMA_8B | {"num_hidden_layers": True},
        models.LLAMA_8B | {"hidden_size": "4096"},
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768},
        models.LLAMA_8B | {"model_type": "deepseek_v4"},
    ],
)
def test_what_is_not_told_is_not_known(config):
    assert footprint(config) is None


@pytest.mark.parametrize("key", ["quant_method", "config_groups", "modules_to_not_convert", "bits"])
@pytest.mark.parametrize("odd", [[], [3], "x", 3, {"a": 1}, {"weights": {"num_bits": "x"}}, None])
@pytest.mark.parametrize("method", ["compressed-tensors", "gptq", "mxfp4", "modelopt"])
def test_nothing_that_is_said_of_quantisation_is_an_exception(key, odd, method):
    stored = {"quant_method": method, key: odd}
    footprint(models.LLAMA_8B | {"quantization_config": stored})
    footprint(models.LLAMA_8B | {"quantization_config": odd})


@pytest.mark.parametrize("odd", [[], "x", 3, {"a": 1}, None, -1, 1.5, True])
@pytest.mark.parametrize("key", sorted(models.DEEPSEEK_V3 | models.GPT_OSS_120B))
def test_nothing_that_a_file_says_is_an_exception(key, odd):
    for config in (models.DEEPSEEK_V3, models.GPT_OSS_120B):
        found = footprint(config | {key: odd})
        assert found is None or found.weights_bytes >= 0


def test_models_that_read_images_are_their_decoder():
    inner = {"text_config": models.LLAMA_8B, "vision_config": {"hidden_size": 9}}
    assert footprint(inner) == footprint(models.LLAMA_8B)
