"""`headway init`'s file is right for the machine it was written on."""

import itertools
import json

import pytest
from tests.fleet.plan.gpu_machine import h100s, machine_of, model_in
from tests.testing import model_configs as models
from tests.testing.nvidia import Card, Part

from headway import config
from headway.core.errors import SettingError
from headway.core.routing.strategies import STRATEGY_BY_NAME
from headway.fleet.plan import compatibility, memory, plan, template
from headway.fleet.plan.spec import Machine
from headway.models.files import model_files


def machine(count, *, cpu=True, memory_gib=64.0):
    devices = tuple(range(count))
    return Machine(
        cores=devices if cpu else (0, 1),
        gpus=() if cpu else devices,
        memory_gib=memory_gib,
        cpu=cpu,
    )


@pytest.mark.parametrize(
    ("count", "cpu", "strategy", "model"),
    list(
        itertools.product(
            (1, 2, 3, 8), (True, False), (None, *STRATEGY_BY_NAME), (None, 'org/"m"\\', "é/m")
        )
    ),
)
def test_the_file_is_read_again_planned_and_without_problems(count, cpu, strategy, model):
    hardware = machine(count, cpu=cpu)
    row = STRATEGY_BY_NAME.get(strategy)
    if count == 1 and row and (row.splits or row.by_length):
        with pytest.raises(SettingError, match="use unified"):
            template.text(hardware, strategy=strategy, model=model)
        return
    text = template.text(hardware, strategy=strategy, model=model)
    parsed = config.parse(text, starts=True)
    assert not config.warnings(parsed)
    assert strategy in {None, parsed.router.strategy}
    assert {pool.model for pool in parsed.pools} == {model}
    fleet = plan.plan(parsed, hardware)
    assert not compatibility.problems(fleet)
    if model is not None or cpu:
        used = sum(len(engine.devices) for engine in fleet.engines)
        assert used == count, "a model of one's own is meant to use the machine"
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    "line", ["model = ", "devices = ", "max_model_len = ", "kv_memory_gib = ", "flags = ", "env = "]
)
def test_what_is_commented_out_is_right_too(line):
    for cpu in (True, False):
        text = template.text(machine(2, cpu=cpu), strategy="unified")
        assert f"\n# {line}" in text or f"\n{line}" in text
        assert config.parse(text.replace(f"\n# {line}", f"\n{line}"), starts=True)


def test_an_unknown_strategy_is_an_error():
    with pytest.raises(SettingError, match="unified, dedicated"):
        template.text(machine(2), strategy="best")


@pytest.mark.parametrize(
    ("count", "cpu", "memory_gib", "roles", "kv_gib"),
    [
        (1, True, 64.0, ["both"], 2.0),
        (2, True, 64.0, ["prefill", "decode"], 2.0),
        (2, True, 7.0, ["prefill", "decode"], 1.0),
        (2, True, 5.0, ["both"], 1.0),
        (16, True, 64.0, ["prefill", "decode"], 2.0),
        (1, False, 64.0, ["both"], None),
        (8, False, 64.0, ["prefill", "decode"], None),
    ],
)
def test_the_default_is_what_the_machine_can_bear(count, cpu, memory_gib, roles, kv_gib):
    hardware = machine(count, cpu=cpu, memory_gib=memory_gib)
    fleet = plan.plan(plan.load(None, hardware), hardware)
    assert [engine.role for engine in fleet.engines] == roles
    assert all(engine.kv_memory_gib == kv_gib for engine in fleet.engines)
    assert all(engine.model is None for engine in fleet.engines)
    assert all(engine.batching["policy"] == "slo" for engine in fleet.engines)
    assert all(engine.max_model_len is None for engine in fleet.engines), "the whole context"


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ({"max_position_embeddings": 40960}, 40960),
        ({"text_config": {"max_position_embeddings": 9}}, 9),
        ({"max_position_embeddings": "9"}, None),
        ({}, None),
        ([], None),
    ],
)
def test_the_context_of_a_model_is_looked_up(tmp_path, content, tokens):
    (tmp_path / "config.json").write_text(json.dumps(content))
    files = model_files(str(tmp_path), {})
    text = template.text(machine(1), model=str(tmp_path), files=files)
    assert f"# max_model_len = {tokens or 32768} " in text


def of_gpus(hardware, folder, model, strategy=None):
    """The fleet of the file that is made for a model on GPUs; its problems are none."""
    named = model_in(folder / "m", model)
    files = model_files(named, {})
    text = template.text(hardware, model=named, files=files, strategy=strategy)
    fleet = plan.plan(config.parse(text, starts=True), hardware)
    assert not memory.problems(fleet, hardware, {})
    return fleet


@pytest.mark.parametrize(
    ("model", "count", "sizes"),
    [
        (models.LLAMA_70B, 8, [4, 4]),
        (models.LLAMA_70B, 4, [4]),
        (models.LLAMA_70B, 6, [4]),
        (models.LLAMA_8B, 8, [1] * 8),
        (models.LLAMA_70B | {"quantization_config": {"quant_method": "fp8"}}, 8, [2] * 4),
        (models.LLAMA_405B_FP8 | {"max_position_embeddings": 8192}, 8, [8]),
    ],
)
def test_engines_get_the_gpus_that_their_model_needs(tmp_path, model, count, sizes):
    fleet = of_gpus(h100s(count), tmp_path, model)
    assert [len(engine.devices) for engine in fleet.engines] == sizes
    assert [engine.tensor_parallel_size for engine in fleet.engines] == sizes
    assert {engine.max_model_len for engine in fleet.engines} == {None}
    roles = {engine.role for engine in fleet.engines}
    assert roles == ({"prefill", "decode"} if len(sizes) > 1 else {"both"})


def test_where_the_whole_context_does_not_fit_the_longest_that_does_is_written(tmp_path):
    fleet = of_gpus(h100s(2), tmp_path, models.LLAMA_70B)
    [engine] = fleet.engines
    assert (engine.tensor_parallel_size, engine.max_model_len) == (2, 23552)
    small = machine_of(Card("GPU-a", name="NVIDIA L4", gib=22.5))
    [engine] = of_gpus(small, tmp_path, models.LLAMA_8B).engines
    assert engine.max_model_len == 29696


def test_mig_devices_get_an_engine_each(tmp_path):
    divided = machine_of(Card("GPU-a", parts=(Part("MIG-1"), Part("MIG-2"))), Card("GPU-b"))
    fleet = of_gpus(divided, tmp_path, models.LLAMA_8B)
    assert [engine.devices for engine in fleet.engines] == [(1,), (2,), (3,)]


def test_a_model_that_no_gpus_here_hold_is_refused(tmp_path):
    files = model_files(model_in(tmp_path / "m", models.DEEPSEEK_V3), {})
    with pytest.raises(SettingError, match=r"626.6 GiB and 8 GPUs of 79.1 GiB are here"):
        template.text(h100s(8), model="m", files=files)


def test_a_strategy_that_needs_two_engines_says_how_large_they_are(tmp_path):
    files = model_files(model_in(tmp_path / "m", models.LLAMA_70B), {})
    with pytest.raises(SettingError, match="two engines of 4 GPUs, as the model needs"):
        template.text(h100s(4), model="m", files=files, strategy="disaggregated")
