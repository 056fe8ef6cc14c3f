"""Pools whose engines are started: what a file may say about them, and who may start them."""

import dataclasses
import json

import pytest

from headway import config
from headway.config.fleet import STARTING, Batching, Fleet
from headway.config.model import Pool
from headway.config.reading import form
from headway.core.batching.settings import BUDGETS, ORDERS, PRESETS, SETTINGS
from headway.core.hardware.emulation import Emulation

POOL = '[[pool]]\nname = "a"\n'
ELSEWHERE = POOL + 'engines = ["http://h:1"]\n'


def problems(text, *, starts=True):
    try:
        config.parse(text, "h.toml", starts=starts)
    except config.ConfigError as error:
        return {(p.key, p.line) for p in error.problems}
    return set()


def only(text):
    with pytest.raises(config.ConfigError) as caught:
        config.parse(text, "h.toml", starts=True)
    (problem,) = caught.value.problems
    return problem


def test_a_name_is_enough_to_start_a_pool():
    parsed = config.parse(POOL, starts=True)
    assert parsed.pools == (Pool(name="a"),)
    assert parsed.fleet == Fleet()


def test_only_a_fleet_starts_engines():
    with pytest.raises(config.ConfigError, match="headway up") as caught:
        config.parse(POOL + ELSEWHERE.replace('"a"', '"b"'), "h.toml")
    (problem,) = caught.value.problems
    assert (problem.key, problem.line) == ("pool[0].engines", 1)


def test_a_router_reads_over_the_fleet():
    assert config.parse(ELSEWHERE + "[fleet]\ndrain_s = 0\n").fleet.drain_s == 0


def test_a_fleet_takes_both_kinds_of_pools():
    assert not problems(POOL + ELSEWHERE.replace('"a"', '"b"'))


GIVEN = {
    "replicas": "1",
    "model": '"m"',
    "devices": "[0]",
    "tensor_parallel_size": "1",
    "pipeline_parallel_size": "1",
    "emulate": '"h100-sxm"',
    "kv_memory_gib": "1.0",
    "flags": '["--x"]',
    "batching": "{}",
    "env": "{}",
    "kubernetes": "{}",
}


def test_the_starting_settings_are_all_there():
    settings, sections, _ = form(Pool)
    assert set(GIVEN) == set(STARTING) <= {*(s.name for s in settings), *sections}


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("name", STARTING)
def test_engines_that_run_elsewhere_are_not_started(name, starts):
    text = ELSEWHERE + f"{name} = {GIVEN[name]}\n"
    assert problems(text, starts=starts) == {(f"pool[0].{name}", 4)}


def test_batching_settings_are_those_of_the_core():
    assert tuple(each.name for each in dataclasses.fields(Batching)) == tuple(SETTINGS)
    choices = {s.name: s.check.schema().get("enum") for s in form(Batching).settings}
    assert choices["policy"] == [*PRESETS, "vllm"]
    assert (choices["order"], choices["budget"]) == (list(ORDERS), list(BUDGETS))


def test_what_is_given_of_batching_and_no_more():
    text = POOL + '[pool.batching]\npolicy = "parallel"\nmax_wait_s = 5\n'
    (pool,) = config.parse(text, starts=True).pools
    assert pool.batching.given() == {"policy": "parallel", "max_wait_s": 5.0}


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        (["max_num_partial_prefills = 1", "max_long_partial_prefills = 2"], {3: "at most 1"}),
        (['policy = "vllm"', "max_wait_s = 9", 'order = "fcfs"'], {3: "leave out", 4: "leave out"}),
        (['policy = "vllm"', "long_prefill_token_threshold = 9"], {}),
        (["policy = 3"], {2: "not one of"}),
        (["ttft_s = 3"], {2: "ttft_slo_s"}),
    ],
)
def test_batching_settings_fit_one_another(lines, wrong):
    text = "\n".join([POOL + "[pool.batching]", *lines, ""])
    found = {}
    try:
        config.parse(text, starts=True)
    except config.ConfigError as error:
        found = {p.line - 2: p.problem for p in error.problems}
    assert found.keys() == wrong.keys()
    assert all(said in found[line] for line, said in wrong.items())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--port=8000"], "the fleet's to choose"),
        (["--host", "h"], "the fleet's to choose"),
        (["--max_model_len", "9"], "`max_model_len`"),
        (["-tp", "2"], "`tensor_parallel_size`"),
        (["--additional-config.headway", "{}"], "[pool.batching]"),
        (["--scheduler-cls=x"], "policy"),
        (["--config=f"], "write its flags here"),
        (["--api-key", "s3cret"], "everybody in `ps`; set VLLM_API_KEY"),
        (["--api_key=s3cret"], "set VLLM_API_KEY"),
        (["--hf-token=s3cret"], "set HF_TOKEN"),
        (["--api-key s3cret"], "set VLLM_API_KEY"),
        (["--api-k", "s3cret"], "may stand for --api-key, which"),
        (["--hf_tok=s3cret"], "set HF_TOKEN"),
        (["--por", "9"], "the fleet's to choose"),
        (["--m", "x"], "may stand for --model"),
        (["-api-key s3cret"], "more than one word"),
        (["--max-num-seqs 8"], "more than one word"),
        ([""], "not a word"),
    ],
)
def test_flags_that_are_not_the_files_to_set(flags, said):
    problem = only(POOL + "flags = [\n" + json.dumps(flags)[1:] + "\n")
    assert (problem.key, problem.line) == ("pool[0].flags[0]", 4)
    assert "s3cret" not in str(problem)
    assert said in problem.problem


@pytest.mark.parametrize(
    "flags", [["--dtype", "float32"], ["-O3"], ['--hf-overrides={"a": 1}'], ["--x", "a b"]]
)
def test_other_flags_go_to_vllm_as_they_are(flags):
    parsed = config.parse(POOL + f"flags = {json.dumps(flags)}\n", starts=True)
    assert parsed.pools[0].flags == tuple(flags)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('CUDA_VISIBLE_DEVICES = "0"', "`devices`"),
        ('VLLM_CPU_KVCACHE_SPACE = "4"', "`kv_memory_gib`"),
        ("A = 1", "in quotes"),
        ('"A-B" = "1"', "not the name"),
        ('A = "\\u0000"', "in quotes"),
    ],
)
def test_variables_that_can_not_be_set(line, said):
    problem = only(POOL + f'[pool.env]\nGOOD = "1"\n{line}\n')
    assert problem.line == 5
    assert said in problem.problem


def test_a_device_belongs_to_one_pool_once():
    text = POOL + "devices = [0,\n0]\n[[pool]]\nname = 'b'\ndevices = [1,\n0]\n"
    assert problems(text) == {("pool[0].devices[1]", 4), ("pool[1].devices[1]", 8)}


@pytest.mark.parametrize(
    ("model", "read"),
    [
        ("./m", "/etc/headway/m"),
        ("../m", "/etc/headway/../m"),
        ("/m", "/m"),
        ("org/m", "org/m"),
        (".hidden/m", ".hidden/m"),
    ],
)
def test_a_path_that_says_it_is_one_starts_at_the_files_folder(model, read):
    text = POOL + f'model = "{model}"\n'
    assert config.parse(text, "/etc/headway/h.toml", starts=True).pools[0].model == read


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a" * 33, " "])
def test_a_fleets_name_is_a_directory_of_its_own(name):
    assert problems(f'[fleet]\nname = "{name}"\n' + POOL) == {("fleet.name", 2)}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('"h100-sxm"', Emulation(gpu="h100-sxm")),
        ('{ gpu = "l4", slow = 4.0 }', Emulation(gpu="l4", slow=4.0)),
        ('{ gpu = "l4", answer_tokens = 9 }', Emulation(gpu="l4", answer_tokens=9)),
    ],
)
def test_gpus_that_are_not_there_are_a_name_or_a_table(written, meant):
    (pool,) = config.parse(POOL + f"emulate = {written}\n", starts=True).pools
    assert pool.emulate == meant


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('emulate = "h1000"', "emulate"),
        ("emulate = 4", "emulate"),
        ('emulate = { gpu = "l4", slow = 0.0 }', "emulate.slow"),
        ('emulate = { gpu = "l4", slow = nan }', "emulate.slow"),
        ('emulate = { gpu = "l4", slow = true }', "emulate.slow"),
        ('emulate = { gpu = "l4", speed = 2 }', "emulate.speed"),
        ("emulate = { slow = 2.0 }", "emulate"),
        ('emulate = "l4"\ndevices = [0]', "devices"),
        ('emulate = "l4"\npipeline_parallel_size = 2', "pipeline_parallel_size"),
        ('emulate = "l4"\nrole = "prefill"', "role"),
        ('env = { HEADWAY_EMULATE = "l4" }', "env.HEADWAY_EMULATE"),
    ],
)
def test_what_can_not_be_emulated_is_refused_where_it_is_written(line, key):
    assert f"pool[0].{key}" in {at for at, _ in problems(POOL + line + "\n", starts=True)}
