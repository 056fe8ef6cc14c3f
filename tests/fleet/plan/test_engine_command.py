"""An engine's command has its devices, addresses, sizes and the connector its role needs."""

import json

import pytest

from headway.core.errors import SettingError
from headway.core.hardware.emulation import Emulation, parse
from headway.fleet.plan.engine_command import core_list, engine_command
from headway.fleet.plan.spec import Address, EngineSpec, Machine

CPU = Machine(cores=(0, 1, 2, 3), gpus=(), memory_gib=16.0, cpu=True)
GPU = Machine(cores=(0, 1), gpus=(0, 1, 2, 3), memory_gib=64.0, cpu=False)
ADDRESS = Address(host="127.0.0.1", port=8100, side_port=5600)


def engine(**settings):
    given = {"name": "a-0", "pool": "a", "role": "both", "model": "org/m", "devices": (1, 2)}
    return EngineSpec(**(given | settings))


def command(machine=GPU, environ=None, **settings):
    each = engine(**settings)
    return engine_command(each, ADDRESS, machine, each.model or "/bundled", environ or {})


def value(found, flag):
    assert found.argv.count(flag) == 1
    return found.argv[found.argv.index(flag) + 1]


def test_it_listens_where_it_is_told():
    found = command()
    assert found.url == ADDRESS.url == "http://127.0.0.1:8100"
    assert (value(found, "--host"), value(found, "--port")) == ("127.0.0.1", "8100")


def test_an_engine_on_several_nodes_is_left_to_vllms_ray_executor():
    address = Address(host="10.0.0.5", port=8100, side_port=5600, spread=True)
    spec = engine(devices=(), tensor_parallel_size=8)
    found = engine_command(spec, address, GPU, "org/m", {})
    assert value(found, "--distributed-executor-backend") == "ray"
    assert found.env["VLLM_HOST_IP"] == "10.0.0.5"
    assert "--distributed-executor-backend" not in command().argv


def test_an_address_of_ipv6_is_a_url_too():
    assert Address(host="::1", port=1, side_port=2).url == "http://[::1]:1"


def test_gpus_are_those_of_nvidia_smi():
    env = command(environ={"CUDA_VISIBLE_DEVICES": "0,1,2,3"}).env
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("1,2", "PCI_BUS_ID")


def test_cores_are_bound_and_none_is_set_aside():
    assert command(CPU).cores == (1, 2)
    assert command().cores is None
    env = command(CPU).env
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "1-2"
    assert env["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "0"
    assert "CUDA_VISIBLE_DEVICES" not in env


def test_devices_that_ray_chooses_are_not_told():
    found = command(devices=(), environ={"CUDA_VISIBLE_DEVICES": "7"})
    assert found.env["CUDA_VISIBLE_DEVICES"] == "7"
    assert "CUDA_DEVICE_ORDER" not in found.env
    found = command(CPU, devices=())
    assert (found.cores, found.env["OMP_NUM_THREADS"]) == (None, "1")
    assert found.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert command(CPU, devices=(), env={"OMP_NUM_THREADS": "6"}).env["OMP_NUM_THREADS"] == "6"


def test_ranks_on_cpus_have_cores_of_their_own():
    env = command(CPU, devices=(0, 1, 2, 5, 7), tensor_parallel_size=2).env
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "0-2|5,7"


@pytest.mark.parametrize(
    ("cores", "text"), [((3,), "3"), ((0, 1, 2), "0-2"), ((4, 0, 1), "0-1,4"), ((0, 2), "0,2")]
)
def test_lists_of_cores(cores, text):
    assert core_list(cores) == text


def test_sizes_are_flags():
    found = command(tensor_parallel_size=2, pipeline_parallel_size=3, max_model_len=9)
    assert value(found, "--tensor-parallel-size") == "2"
    assert value(found, "--pipeline-parallel-size") == "3"
    assert value(found, "--max-model-len") == "9"
    plain = command().argv
    assert not {"--tensor-parallel-size", "--max-model-len", "--kv-transfer-config"} & {*plain}


@pytest.mark.parametrize("machine", [CPU, GPU])
def test_kv_memory_may_be_part_of_a_gib(machine):
    found = command(
        machine, {"VLLM_CPU_KVCACHE_SPACE": "9"}, model=None, devices=(0,), kv_memory_gib=0.5
    )
    assert value(found, "--kv-cache-memory-bytes") == str(2**29)
    assert "VLLM_CPU_KVCACHE_SPACE" not in found.env, "it would win over the flag"


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(("machine", "buffer"), [(CPU, "cpu"), (GPU, None)])
def test_a_role_brings_the_connector_and_its_side_channel(role, machine, buffer):
    found = command(machine, role=role)
    connector = json.loads(value(found, "--kv-transfer-config"))
    assert connector["kv_connector"] == "NixlConnector"
    assert connector["kv_role"] == "kv_both"
    assert connector["kv_load_failure_policy"] == "fail"
    assert connector.get("kv_buffer_device") == buffer
    assert "kv_connector_extra_config" not in connector
    assert found.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    assert found.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"


def test_kv_is_kept_as_long_as_the_router_believes():
    connector = json.loads(value(command(role="prefill", kv_lease_s=45.5), "--kv-transfer-config"))
    assert connector["kv_connector_extra_config"] == {"kv_lease_duration": 46}


def test_a_connector_of_the_users_own_stays_as_it_is():
    own = ("--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}')
    found = command(role="both", flags=own)
    assert value(found, "--kv-transfer-config") == own[1]
    assert found.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"


def test_the_engines_environment_wins_over_the_users():
    found = command(environ={"A": "user", "B": "user"}, env={"A": "engine"})
    assert (found.env["A"], found.env["B"]) == ("engine", "user")


def test_flags_of_the_user_come_last():
    assert command(flags=("--dtype", "half")).argv[-2:] == ("--dtype", "half")


def test_the_bundled_model_is_served_under_its_name():
    found = command(model=None)
    assert found.served_name == "smollm2-135m"
    assert value(found, "--model") == "/bundled"
    assert command().served_name == "org/m"


def test_batching_settings_reach_the_scheduler():
    found = command(batching={"policy": "parallel", "max_wait_s": 9.0})
    assert json.loads(value(found, "--additional-config"))["headway"]["max_wait_s"] == 9.0
    assert "--scheduler-cls" not in command(batching={"policy": "vllm"}).argv
    with pytest.raises(SettingError):
        command(batching={"policy": "best"})


@pytest.mark.parametrize("machine", [CPU, GPU])
def test_an_emulated_engine_is_told_what_to_be_and_sees_no_gpu(machine):
    asked = Emulation(gpu="h100-sxm", slow=2.0)
    spec = engine(
        model="llama-3.1-70b", devices=(), emulation=asked, tensor_parallel_size=4, env={"A": "1"}
    )
    found = engine_command(spec, ADDRESS, machine, "/models/70b", {"CUDA_VISIBLE_DEVICES": "0"})
    assert parse(found.env["HEADWAY_EMULATE"]) == asked
    assert found.env["CUDA_VISIBLE_DEVICES"] == ""
    assert found.env["A"] == "1"
    assert not {name for name in found.env if name.startswith("VLLM_CPU")}
    assert (value(found, "--model"), found.served_name) == ("/models/70b", "llama-3.1-70b")
    assert value(found, "--load-format") == "dummy"
    assert found.emulated == "emulated 4 x NVIDIA H100 80GB HBM3, 2 times slower"
    assert found.cores is None
