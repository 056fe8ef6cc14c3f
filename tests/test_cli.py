"""The command line: what reaches vLLM, what is refused, and how."""

import itertools
import json
import shlex
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from headway import cli
from headway.core.errors import SettingError
from headway.core.hardware.emulation import Emulation
from headway.engine.start import command, launch


@pytest.fixture
def serve(monkeypatch, tmp_path):
    """`serve(line)` runs `headway serve LINE` up to the start; the engine it would start."""
    started = []
    monkeypatch.setattr(launch, "cpu_build", lambda: True)
    monkeypatch.setattr(launch, "check", lambda *_, **__: None)
    monkeypatch.setattr(launch, "run", lambda engine, *_: started.append(engine) or 0)
    monkeypatch.setattr(cli.bundled, "ensure", lambda: tmp_path)
    for name in ("VLLM_CPU_KVCACHE_SPACE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)

    def run(line):
        started.clear()
        assert cli.main(["serve", *shlex.split(line)]) == 0
        return started[0]

    return run


def flag(engine, name):
    """The value of the last flag `name`, which is the one vLLM takes."""
    argv = list(engine.argv)
    return argv[len(argv) - argv[::-1].index(name)] if name in argv else None


def headway_config(engine):
    return json.loads(flag(engine, "--additional-config"))["headway"]


def test_the_bundled_model_comes_with_defaults_for_a_cpu(serve, tmp_path):
    engine = serve("")
    assert flag(engine, "--model") == str(tmp_path)
    assert flag(engine, "--host") == "127.0.0.1"
    assert flag(engine, "--served-model-name") == "smollm2-135m"
    assert flag(engine, "--max-num-batched-tokens") == "512"
    assert "--enforce-eager" in engine.argv
    assert engine.env["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert engine.env["HF_HUB_OFFLINE"] == "1"
    assert engine.url == "http://127.0.0.1:8000"
    assert flag(engine, "--scheduler-cls") == "headway.engine.Scheduler"
    assert engine.settings.policy == "slo"


def test_what_the_user_says_wins_over_defaults(serve, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    engine = serve("--host=0.0.0.0 --port 9 --max_num_batched_tokens 64 --no-enforce-eager")
    assert engine.argv.count("--host") == 0
    assert "--host=0.0.0.0" in engine.argv
    assert "--enforce-eager" not in engine.argv
    assert flag(engine, "--max-num-batched-tokens") == "64"
    assert engine.env["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert engine.url == "http://127.0.0.1:9"


@pytest.mark.parametrize("line", ["org/model", "--model org/model", "--policy slo org/model"])
def test_any_model_can_be_named_and_gets_no_settings_of_the_bundled_one(serve, line):
    engine = serve(line)
    assert flag(engine, "--model") == "org/model"
    assert "--max-num-batched-tokens" not in engine.argv
    assert "--enforce-eager" not in engine.argv
    assert "VLLM_CPU_KVCACHE_SPACE" not in engine.env
    assert engine.served_name == "org/model"


def test_flags_that_headway_does_not_know_reach_vllm_in_order(serve):
    engine = serve("org/model -tp 2 --lora-modules a=b c=d --policy parallel -O3 --x=1")
    assert engine.argv[-7:] == ("-tp", "2", "--lora-modules", "a=b", "c=d", "-O3", "--x=1")


def test_settings_reach_the_scheduler_and_flags_win_over_json(serve):
    given = {"other": 1, "headway": {"policy": "parallel", "tpot_slo_s": 0.3}}
    line = f"--additional-config {shlex.quote(json.dumps(given))} --tpot-slo-s 0.2"
    engine = serve(line + " --max_long_partial_prefills=2")
    assert json.loads(flag(engine, "--additional-config"))["other"] == 1
    assert headway_config(engine) == {
        "policy": "parallel",
        "tpot_slo_s": 0.2,
        "max_long_partial_prefills": 2,
    }
    assert engine.settings.max_num_partial_prefills == 4


def test_every_setting_is_a_flag(serve):
    engine = serve(
        "--policy priority --order fcfs --budget deadline --max-num-partial-prefills 3 "
        "--max-long-partial-prefills 2 --long-prefill-token-threshold 99 --ttft-slo-s 2 "
        "--ttft-slo-factor 5 --tpot-slo-s 0.5 --max-wait-s 60 --min-client-slo-factor 0.5 "
        "--max-client-slo-factor 3 --min-client-priority -2"
    )
    expected = headway_config(engine)
    assert set(expected) == set(command.settings.SETTINGS)
    for name, value in expected.items():
        assert getattr(engine.settings, name) == value


def test_the_stock_scheduler_takes_vllms_flag_of_the_same_name(serve):
    engine = serve("--policy vllm --long-prefill-token-threshold 128")
    assert "--scheduler-cls" not in engine.argv
    assert "--additional-config" not in engine.argv
    assert flag(engine, "--long-prefill-token-threshold") == "128"
    assert engine.settings is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--policy nope", "argument --policy: invalid choice: 'nope'"),
        ("--max-long-partial-prefills 9", "--max-long-partial-prefills: 9 is more than"),
        ("--tpot-slo-s -1", "--tpot-slo-s: -1.0 is out of range"),
        ("--max-wait-s soon", "argument --max-wait-s: invalid float value: 'soon'"),
        ("--policy vllm --order fcfs", "--order: is a setting of headway's scheduler"),
        ("--scheduler-cls a.B", "--scheduler-cls: works only with --policy vllm"),
        ("--additional-config {", "--additional-config: is not JSON"),
        ("--additional-config 3", "--additional-config: must be an object"),
        ('--additional-config {"headway":1}', '"headway" must be an object'),
        ('--additional-config {"headway":{"ordre":1}}', "headway.ordre: unknown setting"),
        ("--additional-config.headway.order fcfs", "give one JSON object"),
        ("a --model b", "--model: b and a are given"),
        ("--port http", "--port: 'http' is not a whole number"),
    ],
)
def test_a_mistake_is_one_line_before_anything_starts(monkeypatch, capfd, line, says):
    monkeypatch.setattr(launch, "cpu_build", lambda: True)
    monkeypatch.setattr(launch, "run", lambda *_: pytest.fail("started"))
    monkeypatch.setattr(cli.bundled, "ensure", lambda: pytest.fail("prepared"))
    try:
        status = cli.main(["serve", *shlex.split(line, posix="{" not in line)])
    except SystemExit as stop:
        status = stop.code
    errors = capfd.readouterr().err
    assert status == 2
    assert says in errors
    assert errors.count("\n") == 1


def test_without_vllm_one_line_says_how_to_get_it(monkeypatch, capfd):
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda _: None)
    assert cli.main(["serve"]) == 1
    errors = capfd.readouterr().err
    assert "vLLM isn't installed" in errors
    assert errors.count("\n") == 1


def test_help_names_every_setting_policy_and_the_way_to_vllms_flags(capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    text = capsys.readouterr().out
    for name in command.settings.SETTINGS:
        assert "--" + name.replace("_", "-") in text
    for policy in (*command.settings.PRESETS, "vllm"):
        assert f"  {policy} " in text
    assert "--help=all" in text


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        ((), "http://127.0.0.1:8000"),
        (("--host", "::", "--port=1"), "http://[::1]:1"),
        (("--host", "10.0.0.1"), "http://10.0.0.1:8000"),
        (("--uds", "/run/x"), None),
        (("--ssl-certfile", "x"), None),
    ],
)
def test_the_address_is_where_the_server_can_be_reached(flags, url):
    wish = command.EngineWish(model="m", bundled=None, vllm_flags=flags)
    assert command.build(wish, {}, cpu=True, cores=(0, 1)).url == url


def test_a_lone_core_is_bound_and_none_is_reserved():
    wish = command.EngineWish(model="m", bundled=None)
    env = command.build(wish, {}, cpu=True, cores=(5,)).env
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "5"
    assert env["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "0"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in command.build(wish, {}, cpu=True, cores=(0, 1)).env


def test_a_gpu_engine_gets_no_cpu_settings():
    wish = command.EngineWish(model="m", bundled="smollm2-135m")
    engine = command.build(wish, {}, cpu=False, cores=(0,))
    assert not [name for name in engine.env if name.startswith("VLLM_CPU")]
    assert "--enforce-eager" not in engine.argv


def test_an_address_in_use_is_refused_before_the_start():
    with launch.socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        wish = command.EngineWish(model="m", bundled=None, vllm_flags=("--port", port))
        engine = command.build(wish, {}, cpu=False, cores=(0,))
        with pytest.raises(launch.LaunchError, match="--port"):
            launch.check(engine, cpu=False)


def test_compiling_without_a_compiler_is_refused_before_the_start(monkeypatch):
    monkeypatch.setattr(launch.shutil, "which", lambda _: None)
    wish = command.EngineWish(model="m", bundled=None, vllm_flags=("--uds", "x"))
    with pytest.raises(launch.LaunchError, match=r"install g\+\+"):
        launch.check(command.build(wish, {}, cpu=True, cores=(0,)), cpu=True)


def test_settings_errors_keep_the_key_where_no_flag_was_used():
    with pytest.raises(SettingError, match=r"headway\.order"):
        command.build(
            command.EngineWish(model="m", bundled=None, batching={"order": "x"}),
            {},
            cpu=True,
            cores=(0,),
        )


@pytest.mark.parametrize(
    ("cpu", "bundled", "flags", "dtypes"),
    [
        (True, "small", (), ["float32"]),
        (True, "small", ("--dtype", "bfloat16"), ["bfloat16"]),
        (True, "small", ("--dtype=half",), []),
        (True, None, (), []),
        (False, "small", (), []),
    ],
)
def test_on_a_cpu_the_bundled_model_runs_in_float32_unless_told(cpu, bundled, flags, dtypes):
    """A model of the user's own runs in what vLLM chooses."""
    wish = command.EngineWish(model="/m", bundled=bundled, vllm_flags=flags)
    argv = command.build(wish, {}, cpu=cpu, cores=(0, 1)).argv
    assert [value for name, value in itertools.pairwise(argv) if name == "--dtype"] == dtypes


@pytest.mark.parametrize(
    ("flags", "cpu", "waits"),
    [
        (("--kv-transfer-config", '{"kv_connector": "NixlConnector"}'), True, True),
        (("--kv-transfer-config.kv_connector=NixlConnector",), True, True),
        (("--kv-transfer-config", '{"kv_connector": "NixlConnector"}'), False, False),
        (("--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1"}'), True, False),
        ((), True, False),
    ],
)
def test_an_engine_on_a_cpu_keeps_its_core_from_nixl(flags, cpu, waits):
    wish = command.EngineWish(model="m", bundled=None, vllm_flags=flags)
    env = command.build(wish, {}, cpu=cpu, cores=(0, 1)).env
    assert ("HEADWAY_NIXL_WAIT_US" in env) == waits


@pytest.fixture
def known_models(monkeypatch):
    """Well-known models are where their names say."""
    monkeypatch.setattr(cli.known, "directory", lambda model: f"/cache/{model}")


def test_an_emulated_engine_needs_neither_weights_nor_settings_of_a_cpu(serve, known_models):
    engine = serve("llama-3.1-70b --emulate h100-sxm --tensor-parallel-size 4")
    assert engine.env["HEADWAY_EMULATE"] == "h100-sxm"
    assert not {name for name in engine.env if name.startswith("VLLM_CPU")}
    assert flag(engine, "--model") == "/cache/llama-3.1-70b"
    assert flag(engine, "--load-format") == "dummy"
    assert engine.served_name == flag(engine, "--served-model-name") == "llama-3.1-70b"
    assert engine.emulated == "emulated 4 x NVIDIA H100 80GB HBM3"
    assert "--emulate" not in engine.argv


@pytest.mark.parametrize(
    ("line", "variable"),
    [
        ("--emulate l4", "l4"),
        ("", "a100-sxm"),
        ('--emulate=\'{"gpu": "l4", "slow": 2}\'', '{"gpu": "l4", "slow": 2}'),
    ],
)
def test_what_is_emulated_comes_from_flag_or_environment(
    serve, known_models, monkeypatch, line, variable
):
    monkeypatch.setenv("HEADWAY_EMULATE", "a100-sxm")
    engine = serve(line)
    assert engine.env["HEADWAY_EMULATE"] == variable
    assert engine.served_name == "llama-3.1-8b", "there is one to emulate, without a name"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("llama-3.1-70b", "can be emulated only"),
        ("--emulate h1000", "h100-sxm"),
        ("--emulate '{'", "JSON"),
        ('--emulate \'{"gpu": "l4", "slow": 0}\'', "slow"),
        ("/not/there --emulate l4", "there is no directory"),
    ],
)
def test_what_can_not_be_emulated_is_said_at_once(serve, capfd, line, said):
    assert cli.main(["serve", *shlex.split(line)]) == 2
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    "env", [{"VLLM_TARGET_DEVICE": "cpu"}, {"VLLM_PLUGINS": ""}, {"VLLM_PLUGINS": "other"}]
)
def test_an_engine_that_would_compute_instead_is_not_started(monkeypatch, env):
    wish = command.EngineWish(model="m", bundled=None, emulation=Emulation(gpu="l4"))
    engine = command.build(wish, {**env, "A": "1"}, cpu=True, cores=(0,))
    points = EntryPoints([EntryPoint("headway_emulate", "x:y", "vllm.platform_plugins")])
    monkeypatch.setattr(launch.importlib.metadata, "entry_points", lambda group: points)
    with pytest.raises(launch.LaunchError, match=next(iter(env))):
        launch.check(engine, cpu=True)
    monkeypatch.setattr(launch.importlib.metadata, "entry_points", lambda group: EntryPoints())
    with pytest.raises(launch.LaunchError, match="install"):
        launch.check(engine, cpu=True)
