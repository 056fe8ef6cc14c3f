"""A file whose engines can't have memory enough is refused before anything starts."""

import json

import pytest
from tests.fleet.plan.gpu_machine import h100s, machine_of, model_in
from tests.testing import model_configs as models
from tests.testing.nvidia import Card, Part

from headway import config
from headway.fleet.plan import memory, plan


def judged(machine, text, environ=None):
    """What is known of the one pool of a file: a line, and its problem in words or None."""
    fleet = plan.plan(config.parse(text, starts=True), machine)
    [found] = memory.of_pools(fleet, machine, environ or {})
    return found.said, str(found.problem) if found.problem else None


def pool(model, *lines, name="all"):
    return "\n".join(
        ["[[pool]]", f'name = "{name}"', 'role = "both"', f'model = "{model}"', *lines]
    )


@pytest.fixture
def llama_70b(tmp_path):
    return model_in(tmp_path / "70b", models.LLAMA_70B, size_bytes=141_107_412_992)


def test_70b_on_one_gpu_each_is_refused_with_the_sizes_that_would_do(llama_70b):
    _, problem = judged(h100s(8), pool(llama_70b, "replicas = 4"))
    assert "pool[0].tensor_parallel_size" in problem
    assert "131.4 GiB of each of 1 GPU for its weights" in problem
    assert "use tensor_parallel_size = 4" in problem
    assert "max_model_len" not in problem


def test_70b_on_two_gpus_is_refused_its_whole_context_alone(llama_70b):
    _, problem = judged(h100s(8), pool(llama_70b, "tensor_parallel_size = 2"))
    assert "KV of 131072 tokens takes 20.0 GiB of each of 2 GPUs" in problem
    assert "use tensor_parallel_size = 4, or use max_model_len = 23552" in problem
    assert "quantised" in problem
    for tokens in (10_000, 23_552):
        lines = ("tensor_parallel_size = 2", f"max_model_len = {tokens}")
        said, problem = judged(h100s(8), pool(llama_70b, *lines))
        assert problem is None
        assert "weights 65.7 GiB of each GPU's 72.8 GiB" in said
    lines = ("tensor_parallel_size = 2", "max_model_len = 100000")
    assert "pool[0].max_model_len" in judged(h100s(8), pool(llama_70b, *lines))[1]


def test_70b_on_four_gpus_starts(llama_70b):
    said, problem = judged(h100s(8), pool(llama_70b, "tensor_parallel_size = 4", "replicas = 2"))
    assert problem is None
    assert "one context of 131072 tokens takes 10.0 GiB" in said


def test_what_is_proposed_is_accepted(llama_70b):
    text = pool(llama_70b, "tensor_parallel_size = 4", "replicas = 2")
    assert judged(h100s(8), text)[1] is None
    assert judged(h100s(2), pool(llama_70b, "tensor_parallel_size = 2"))[1].count("use ") == 2


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        (('flags = ["--quantization", "fp8"]', "tensor_parallel_size = 2"), False),
        (('flags = ["--gpu-memory-utilization", "0.5"]', "tensor_parallel_size = 4"), True),
        (('flags = ["--kv-cache-dtype=fp8"]', "tensor_parallel_size = 2"), True),
        (("kv_memory_gib = 8.0", "tensor_parallel_size = 4"), True),
        (("kv_memory_gib = 12.0", "tensor_parallel_size = 4"), False),
        (("kv_memory_gib = 60.0", "tensor_parallel_size = 4"), True),
        (("pipeline_parallel_size = 4",), False),
        (("tensor_parallel_size = 3",), True),
        (("tensor_parallel_size = 8", 'flags = ["--max-num-seqs", "x"]'), False),
    ],
)
def test_settings_and_flags_count(llama_70b, lines, refused):
    assert (judged(h100s(8), pool(llama_70b, *lines))[1] is not None) is refused


def test_a_size_that_does_not_divide_the_heads_names_those_that_do(llama_70b):
    _, problem = judged(h100s(8), pool(llama_70b, "tensor_parallel_size = 6"))
    assert "doesn't divide the model's 64 attention heads; use 1 or 2 or 4 or 8" in problem


@pytest.mark.parametrize(
    "flag", ["--cpu-offload-gb", "--hf-overrides", "--hf-overrides.a", "--data-parallel-size"]
)
def test_what_is_not_counted_is_not_refused(llama_70b, flag):
    said, problem = judged(h100s(8), pool(llama_70b, f'flags = ["{flag}", "1"]'))
    assert problem is None
    assert "not checked" in said


def test_what_is_not_known_is_not_refused(llama_70b, tmp_path):
    unknown_gpu = machine_of(Card("GPU-a", shared=True))
    assert judged(unknown_gpu, pool(llama_70b)) == (
        "memory of all: not checked: the GPUs' memory isn't known",
        None,
    )
    said, problem = judged(h100s(1), pool("org/model"), {"HF_HUB_CACHE": str(tmp_path)})
    assert problem is None
    assert said.endswith("not checked: the configuration of org/model isn't on this machine")
    odd = model_in(tmp_path / "odd", {"model_type": "new"})
    assert "doesn't tell its sizes" in judged(h100s(1), pool(odd))[0]


def test_on_cpus_and_for_ray_nothing_is_said(llama_70b):
    gpus = h100s(8)
    parsed = config.parse('[fleet]\nplacement = "ray"\n' + pool(llama_70b), starts=True)
    assert memory.of_pools(plan.plan(parsed, gpus), gpus, {}) == ()
    bundled = config.parse('[[pool]]\nname = "all"\nrole = "both"', starts=True)
    assert memory.of_pools(plan.plan(bundled, gpus), gpus, {}) == ()


def test_a_model_in_the_hubs_cache_is_found(tmp_path):
    home = tmp_path / "models--org--big"
    (home / "snapshots").mkdir(parents=True)
    model_in(home / "snapshots" / "abc", models.LLAMA_70B)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc")
    environ = {"HF_HUB_CACHE": str(tmp_path)}
    assert "131.4 GiB" in judged(h100s(8), pool("org/big"), environ)[1]
    own = f'env = {{ HF_HUB_CACHE = "{tmp_path}" }}'
    assert "131.4 GiB" in judged(h100s(8), pool("org/big", own))[1]
    named = f'flags = ["--download-dir", "{tmp_path}"]'
    assert "131.4 GiB" in judged(h100s(8), pool("org/big", named))[1]


def test_the_smallest_gpu_counts(llama_70b):
    mixed = machine_of(*(Card(f"GPU-{i}") for i in range(3)), Card("GPU-3", gib=24.0))
    assert judged(mixed, pool(llama_70b, "tensor_parallel_size = 4"))[1]


def test_mig_devices_are_engines_of_their_own(tmp_path):
    small = model_in(tmp_path / "8b", models.LLAMA_8B)
    divided = machine_of(Card("GPU-a", parts=(Part("MIG-1"), Part("MIG-2"))))
    assert judged(divided, pool(small, "replicas = 2"))[1] is None
    _, problem = judged(divided, pool(small, "tensor_parallel_size = 2"))
    assert "MIG devices can't work together in one engine; use 1" in problem


def test_files_on_disk_count_as_they_are(tmp_path):
    folder = tmp_path / "8b"
    model = model_in(folder, models.LLAMA_8B | {"quantization_config": {"quant_method": "new"}})
    assert "doesn't tell" in judged(h100s(1), pool(model))[0]
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(6 << 30)
    with (folder / "consolidated.safetensors").open("wb") as file:
        file.truncate(90 << 30)
    assert "weights 6.0 GiB" in judged(h100s(1), pool(model))[0]
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": [1]}))
    assert "weights 6.0 GiB" in judged(h100s(1), pool(model))[0]


def test_emulated_engines_are_judged_by_the_memory_of_the_gpus_that_are_not_there():
    nothing = machine_of()
    lines = ('emulate = "h100-sxm"', "tensor_parallel_size = 4", "replicas = 9")
    said, problem = judged(nothing, pool("llama-3.1-70b", *lines))
    assert problem is None
    assert "weights 32.9 GiB of each GPU's 72.8 GiB" in said
    _, problem = judged(nothing, pool("llama-3.1-70b", 'emulate = "h100-sxm"'))
    assert "use tensor_parallel_size = 4" in problem
    _, problem = judged(
        nothing, pool("llama-3.1-70b", 'emulate = "l4"', "tensor_parallel_size = 3")
    )
    assert "doesn't divide the model's 64 attention heads; use 1 or 2 or 4 or 8" in problem
