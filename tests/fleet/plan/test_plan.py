"""Engines get names and devices: all that are asked for, each device once, running ones kept."""

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headway import config
from headway.core.errors import SettingError
from headway.fleet.plan import devices, plan
from headway.fleet.plan.spec import Machine


def machine(count=4, *, cpu=True, memory_gib=64.0):
    cores = tuple(range(count)) if cpu else (0, 1)
    gpus = () if cpu else tuple(range(count))
    return Machine(cores=cores, gpus=gpus, memory_gib=memory_gib, cpu=cpu)


def parse(text):
    return config.parse(text, "h.toml", starts=True)


def pool(name, **settings):
    lines = [f"{key} = {value!r}" for key, value in settings.items()]
    return "\n".join(["[[pool]]", f'name = "{name}"', *lines, ""])


def placed(fleet):
    return {engine.name: engine.devices for engine in fleet.engines}


@st.composite
def fleets(draw):
    """A machine, and the text of a file for it that may ask for too much."""
    count, cpu = draw(st.integers(1, 12)), draw(st.booleans())
    free = draw(st.permutations(range(count)))
    text = ""
    for index in range(draw(st.integers(1, 4))):
        settings = {
            "replicas": draw(st.integers(1, 3)),
            "tensor_parallel_size": draw(st.integers(1, 3)),
        }
        named = draw(st.integers(0, len(free)))
        if named and draw(st.booleans()):
            settings["devices"], free = list(free[:named]), free[named:]
        text += pool(f"p{index}", **settings)
    return machine(count, cpu=cpu), text


def check(fleet, hardware, replicas):
    """What holds for every fleet; replicas: by pool."""
    used = [device for engine in fleet.engines for device in engine.devices]
    assert len(used) == len(set(used)), "a device is used twice"
    assert set(used) <= set(hardware.usable)
    names = [engine.name for engine in fleet.engines]
    assert len(names) == len(set(names))
    counts = {name: [e.pool for e in fleet.engines].count(name) for name in replicas}
    assert counts == replicas
    pools = {each.name: each for each in fleet.config.pools}
    assert [e.pool for e in fleet.engines] == [n for n in pools for _ in range(counts.get(n, 0))]
    for engine in fleet.engines:
        own = pools[engine.pool]
        assert engine.name.rpartition("-")[0] == engine.pool
        assert set(engine.devices) <= set(own.devices or hardware.usable)
        size = plan.size(own)
        assert len(engine.devices) >= size if hardware.cpu else len(engine.devices) == size


@given(fleets())
def test_a_plan_places_every_engine_or_says_which_line_asks_for_too_much(case):
    hardware, text = case
    parsed = parse(text)
    try:
        fleet = plan.plan(parsed, hardware)
    except config.ConfigError as error:
        assert all(p.line and p.key.startswith("pool[") for p in error.problems)  # noqa: PT017
        return
    check(fleet, hardware, {each.name: each.replicas for each in parsed.pools})
    if hardware.cpu:
        for each in parsed.pools:
            sizes = [len(e.devices) for e in fleet.engines if e.pool == each.name]
            assert max(sizes) - min(sizes) <= plan.size(each)


@given(fleets())
def test_a_plan_fails_only_for_too_few_devices(case):
    hardware, text = case
    parsed = parse(text)
    named = {each.name: len(each.devices) for each in parsed.pools}
    rest = len(hardware.usable) - sum(named.values())
    needs = {each.name: each.replicas * plan.size(each) for each in parsed.pools}
    fits = rest >= sum(need for name, need in needs.items() if not named[name])
    fits = fits and all(named[name] >= need for name, need in needs.items() if named[name])
    try:
        plan.plan(parsed, hardware)
    except config.ConfigError:
        assert not fits
    else:
        assert fits


@given(fleets(), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=5))
def test_rescaling_keeps_what_runs_where_it_is(case, steps):
    hardware, text = case
    parsed = parse(text)
    try:
        fleet = plan.plan(parsed, hardware)
    except config.ConfigError:
        assume(False)
    replicas = {each.name: each.replicas for each in parsed.pools}
    for index, count in steps:
        name = parsed.pools[index % len(parsed.pools)].name
        before = fleet
        try:
            fleet = plan.rescale(fleet, parsed, hardware, name, count)
        except SettingError as error:
            assert count > replicas[name]
            assert error.key == name  # noqa: PT017
            continue
        replicas[name] = count
        check(fleet, hardware, replicas)
        kept = {engine.name for engine in fleet.engines} & {e.name for e in before.engines}
        assert len(kept) == min(len(before.engines), len(fleet.engines))
        assert all(e in before.engines for e in fleet.engines if e.name in kept)


@given(st.lists(st.integers(), max_size=20), st.integers(1, 20))
def test_a_split_is_even_and_in_order(items, parts):
    found = devices.split(items, parts)
    assert [item for part in found for item in part] == items
    assert len(found) == parts
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_cores_are_shared_out_evenly_and_in_order():
    fleet = plan.plan(parse(pool("a", replicas=2) + pool("b")), machine(8))
    assert placed(fleet) == {"a-0": (0, 1, 2), "a-1": (3, 4, 5), "b-0": (6, 7)}


def test_named_devices_are_not_shared_with_others():
    text = pool("a") + pool("b", replicas=2, devices=[3, 1])
    assert placed(plan.plan(parse(text), machine(4))) == {"a-0": (0, 2), "b-0": (3,), "b-1": (1,)}


def test_gpus_are_dealt_by_size_and_some_may_be_left():
    text = pool("a", tensor_parallel_size=2, replicas=2) + pool("b")
    fleet = plan.plan(parse(text), machine(8, cpu=False))
    assert placed(fleet) == {"a-0": (0, 1), "a-1": (2, 3), "b-0": (4,)}


@pytest.mark.parametrize(
    ("text", "cpu", "key", "line", "said"),
    [
        (pool("a", replicas=5), True, "pool[0].replicas", 3, "5 CPU cores (5 engines) and 4 of 4"),
        (pool("a") + pool("b", replicas=4), False, "pool[1].replicas", 5, "3 of 4 are left"),
        (pool("a", devices=[0, 9]), True, "pool[0].devices[1]", 3, "usable here: 0, 1, 2, 3"),
        (
            pool("a", devices=[0, 1, 2], tensor_parallel_size=2, replicas=2),
            False,
            "pool[0].devices",
            3,
            "4 GPUs (2 engines, 2 each) and has 3",
        ),
        (pool("a", max_model_len=8193), True, "pool[0].max_model_len", 3, "8192 or less"),
    ],
)
def test_what_the_machine_has_not_is_said_at_its_line(text, cpu, key, line, said):
    with pytest.raises(config.ConfigError) as caught:
        plan.plan(parse(text), machine(4, cpu=cpu))
    (problem,) = caught.value.problems
    assert (problem.key, problem.line, problem.file) == (key, line, "h.toml")
    assert said in problem.problem


def test_pools_that_run_elsewhere_are_not_planned():
    text = pool("a", engines=["http://h:1"]) + pool("b")
    assert list(placed(plan.plan(parse(text), machine()))) == ["b-0"]


def test_capacity_moves_from_pool_to_pool():
    parsed, hardware = parse(pool("a", replicas=3) + pool("b")), machine(4, cpu=False)
    fleet = plan.plan(parsed, hardware)
    with pytest.raises(SettingError, match="0 are free; scale another pool down first"):
        plan.rescale(fleet, parsed, hardware, "b", 2)
    fleet = plan.rescale(fleet, parsed, hardware, "a", 2)
    fleet = plan.rescale(fleet, parsed, hardware, "b", 2)
    assert placed(fleet) == {"a-0": (0,), "a-1": (1,), "b-0": (3,), "b-1": (2,)}


@pytest.mark.parametrize("placement", ["local", "ray"])
@pytest.mark.parametrize(
    ("name", "count", "told"),
    [
        ("c", 1, "is not a pool whose engines are started here; those are: a"),
        ("b", 1, "is not a pool whose engines are started here; those are: a"),
        ("a", 0, "0 engines are out of range; use 1 to 1000"),
        ("a", -1, "-1 engines are out of range; use 1 to 1000"),
        ("a", 1001, "1001 engines are out of range; use 1 to 1000"),
        ("a", 20_000_000, "20000000 engines are out of range; use 1 to 1000"),
        ("a", 10**4000, "a number with more than 38 digits engines are out of range"),
    ],
)
def test_what_can_not_be_rescaled(placement, name, count, told):
    text = f"[fleet]\nplacement = '{placement}'\n" + pool("a") + pool("b", engines=["http://h:1"])
    parsed = parse(text)
    with pytest.raises(SettingError, match=told):
        plan.rescale(plan.plan(parsed, machine()), parsed, machine(), name, count)


def test_too_many_for_the_machine_are_told_how_many_fit():
    parsed, hardware = parse(pool("a", tensor_parallel_size=2)), machine(9, cpu=False)
    fleet = plan.plan(parsed, hardware)
    with pytest.raises(
        SettingError, match="8 more would need 16 GPUs and 7 are free; use 4 engines or fewer"
    ):
        plan.rescale(fleet, parsed, hardware, "a", 9)


def test_an_engine_has_all_its_pool_says():
    text = (
        "[fleet]\nname = 'f'\ndrain_s = 1\n[router]\nslo.tpot_s = 0.05\n"
        + pool("a", role="decode", model="m", max_model_len=9, kv_memory_gib=1.5, kv_lease_s=60.0)
        + "flags = ['--x']\nenv.A = '1'\nbatching.policy = 'parallel'\nbatching.ttft_slo_s = 3\n"
    )
    fleet = plan.plan(parse(text), machine(2))
    assert (fleet.name, fleet.placement, fleet.drain_s) == ("f", "local", 1.0)
    (engine,) = fleet.engines
    assert dataclasses.asdict(engine) == {
        "name": "a-0",
        "pool": "a",
        "role": "decode",
        "model": "m",
        "devices": (0, 1),
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "emulation": None,
        "max_model_len": 9,
        "kv_memory_gib": 1.5,
        "kv_lease_s": 60.0,
        # The limits are the router's unless the pool has its own.
        "batching": {
            "policy": "parallel",
            "ttft_slo_s": 3.0,
            "ttft_slo_factor": 4.0,
            "tpot_slo_s": 0.05,
        },
        "flags": ("--x",),
        "env": {"A": "1"},
    }


@pytest.mark.parametrize(
    ("clients", "more", "granted"),
    [
        ("", "", {}),
        ("alice.priority = [0, 5]\nbob.ttft_slo_s = [2, 3]\n", "", {}),
        ("alice.priority = [-5, 5]\n'*'.priority = [-99, 0]\n", "", {"min_client_priority": -8}),
        ("alice.ttft_slo_s = [0.5, 3]\nbob.tpot_slo_s = [0.03, 1]\n", "", 0.2),
        ("alice.ttft_slo_s = [0.5, 3]\n", "batching.ttft_slo_s = 2.0\n", 0.25),
        ("alice.ttft_slo_s = [0.5, 3]\n", "batching.min_client_slo_factor = 0.9\n", 0.9),
        ("alice.priority = [-5, 5]\n", "batching.policy = 'vllm'\n", {}),
    ],
)
def test_engines_grant_what_the_routers_clients_may_have(clients, more, granted):
    text = f"[router.clients]\n{clients}{pool('a')}{more}"
    batching = plan.plan(parse(text), machine(1)).engines[0].batching
    found = {name: value for name, value in batching.items() if name.startswith("min_client")}
    if not isinstance(granted, dict):
        granted = {"min_client_slo_factor": pytest.approx(granted)}
    assert found == granted


def test_vllms_own_scheduler_gets_no_limits():
    fleet = plan.plan(parse(pool("a") + "batching.policy = 'vllm'\n"), machine(1))
    assert fleet.engines[0].batching == {"policy": "vllm"}


@pytest.mark.parametrize(
    ("settings", "cpu", "gib"),
    [
        ({}, True, 2.0),
        ({"model": "m"}, True, 4.0),
        ({}, False, None),
        ({"model": "m"}, False, None),
    ],
)
def test_kv_memory_is_fixed_on_cpus_so_that_engines_do_not_race_for_it(settings, cpu, gib):
    fleet = plan.plan(parse(pool("a", **settings)), machine(1, cpu=cpu))
    assert fleet.engines[0].kv_memory_gib == gib


def test_ray_chooses_the_devices_however_many_this_machine_has():
    text = "[fleet]\nplacement = 'ray'\n" + pool("a", replicas=8, tensor_parallel_size=4)
    parsed, hardware = parse(text), machine(0, cpu=False)
    fleet = plan.plan(parsed, hardware)
    assert fleet.placement == "ray"
    assert placed(fleet) == {f"a-{n}": () for n in range(8)}
    larger = plan.rescale(fleet, parsed, hardware, "a", 10)
    assert placed(larger) == {f"a-{n}": () for n in range(10)}


def test_devices_under_ray_are_said_at_their_line():
    text = "[fleet]\nplacement = 'ray'\n" + pool("a", devices=[0])
    with pytest.raises(config.ConfigError, match=r"devices.*are chosen by Ray") as caught:
        plan.plan(parse(text), machine())
    assert caught.value.problems[0].line == 5


@pytest.mark.parametrize("cpu", [True, False])
def test_emulated_engines_ask_for_no_device_however_many_there_are(cpu):
    text = pool("a", emulate="h100-sxm", tensor_parallel_size=8, replicas=5) + pool("b")
    parsed, hardware = parse(text), machine(1, cpu=cpu)
    fleet = plan.plan(parsed, hardware)
    assert {engine.devices for engine in fleet.engines if engine.pool == "a"} == {()}
    assert placed(fleet)["b-0"] == (0,), "the others have all there are"
    fleet = plan.rescale(fleet, parsed, hardware, "a", 9)
    assert len(fleet.engines) == 10
    assert {engine.devices for engine in fleet.engines if engine.pool == "a"} == {()}
    emulated = fleet.engines[0]
    assert (emulated.model, emulated.kv_memory_gib) == ("llama-3.1-8b", None)


@pytest.mark.parametrize(
    ("model", "emulate", "wrong"),
    [
        ("llama-3.1-70b", "h100-sxm", ""),
        ("Llama-3.1-70B", "h100-sxm", ""),
        ("llama-3.1-70b", None, "can be emulated only"),
        ("/not/there", "h100-sxm", "there is no directory"),
    ],
)
def test_a_well_known_model_is_there_to_be_emulated(model, emulate, wrong):
    settings = {"model": model} | ({"emulate": emulate} if emulate else {})
    found = plan.wrong_models(plan.plan(parse(pool("a", **settings)), machine()), {})
    assert [wrong in str(problem) for problem in found] == [True] * bool(wrong)
