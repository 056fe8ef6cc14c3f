"""`headway init`'s file is right for the machine it was written on."""

import itertools
import json

import pytest

from headway import config
from headway.core.errors import SettingError
from headway.core.routing.strategies import STRATEGY_BY_NAME
from headway.fleet.plan import compatibility, plan, template
from headway.fleet.plan.spec import Machine


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
    assert template.context_tokens(str(tmp_path)) == tokens
    if tokens:
        assert f"# max_model_len = {tokens} " in template.text(machine(1), model=str(tmp_path))


def test_a_model_on_a_hub_is_not_looked_up(tmp_path):
    assert template.context_tokens("org/model") is None
    (tmp_path / "config.json").write_text("{")
    assert template.context_tokens(str(tmp_path)) is None
