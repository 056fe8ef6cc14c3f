"""`headway render kubernetes`: manifests that Kubernetes takes and that fit one another."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import cli, config
from headway.core.errors import SettingError
from headway.fleet.kubernetes import kubernetes
from headway.fleet.kubernetes.kubernetes import RenderOptions

from .published import check

PAIR = """
[router]
strategy = "disaggregated"
[[pool]]
name = "prefill"
role = "prefill"
model = "org/model"
replicas = 2
[pool.batching]
policy = "parallel"
[[pool]]
name = "decode"
role = "decode"
model = "org/model"
"""
ONE = '[[pool]]\nname = "all"\nmodel = "org/model"\n'


def rendered(text, **options):
    """The text and the manifests in it."""
    written = kubernetes.render(config.parse(text, starts=True), RenderOptions(**options))
    return written, list(yaml.load_all(written, Loader=yaml.CSafeLoader))


def of_kind(manifests, kind):
    return [each for each in manifests if each["kind"] == kind]


def one(manifests, kind, name):
    (found,) = [each for each in of_kind(manifests, kind) if each["metadata"]["name"] == name]
    return found


def templates(manifest):
    """Those of the manifest's pods, each with how many pods it makes."""
    spec = manifest.get("spec", {})
    if manifest["kind"] == "LeaderWorkerSet":
        group, count = spec["leaderWorkerTemplate"], spec["replicas"]
        yield group["leaderTemplate"], count
        yield group["workerTemplate"], count * (group["size"] - 1)
    elif "template" in spec:
        yield spec["template"], spec["replicas"]


def container(template):
    (found,) = template["spec"]["containers"]
    return found


def engine(manifests):
    """The only pool's container."""
    (found,) = of_kind(manifests, "StatefulSet")
    return container(found["spec"]["template"])


def values(container):
    return {each["name"]: each.get("value") for each in container.get("env", [])}


POOL = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["both", "prefill", "decode"]),
        "replicas": st.integers(1, 3),
        "tensor_parallel_size": st.sampled_from([1, 2, 8, 16]),
        "pipeline_parallel_size": st.sampled_from([1, 2]),
    },
    optional={
        "max_model_len": st.integers(1000, 100_000),
        "kv_memory_gib": st.floats(0.5, 50),
        "devices": st.just([5]),
        "kv_lease_s": st.sampled_from([30.0, 60.0]),
        "kubernetes": st.just({"cpus": 2.5, "memory_gib": 10}),
        "flags": st.lists(st.sampled_from(["--seed=1", "--trust-remote-code"]), min_size=1),
    },
)
NAMES = st.lists(
    st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,12}[a-z0-9]", fullmatch=True),
    min_size=1,
    max_size=3,
    unique_by=lambda name: name.lower().replace("_", "-").replace(".", "-"),
).filter(lambda names: "router" not in {name.lower() for name in names})


@st.composite
def files(draw):
    lines = ["[fleet]", f"hang_s = {draw(st.integers(1, 100))}"]
    lines += [f"drain_s = {draw(st.integers(0, 100))}", "[router]"]
    lines += [f"port = {draw(st.sampled_from([0, 80, 8000, 8443]))}"]
    for name in draw(NAMES):
        lines += ["[[pool]]", f'name = "{name}"', 'model = "org/model"']
        settings = draw(POOL)
        if "devices" in settings:
            # Such as a file for one machine has; the cluster's are Kubernetes' to choose.
            settings["devices"] = [len(lines), 1000 + len(lines)]
        asked = settings.pop("kubernetes", {})
        lines += [f"kubernetes.{key} = {value}" for key, value in asked.items()]
        lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    if draw(st.booleans()):
        lines += ["[[pool]]", 'name = "elsewhere"', 'engines = ["http://10.0.0.1:8000"]']
    if not any('role = "both"' in line or '"decode"' in line for line in lines):
        lines += ["[[pool]]", 'name = "whole"', 'model = "org/model"']
    return "\n".join(lines)


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "namespace": st.just("llm"),
        "cpus": st.integers(1, 64),
        "image": st.just("registry:5000/headway@sha256:0"),
    },
)


@settings(max_examples=10)
@given(files(), OPTIONS)
def test_kubernetes_takes_what_is_written(text, options):
    _, manifests = rendered(text, **options)
    for manifest in manifests:
        check(manifest)
    keys = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert len(set(keys)) == len(keys)
    for manifest in manifests:
        assert manifest["metadata"].get("namespace") == options.get("namespace")


@settings(max_examples=10)
@given(files(), OPTIONS)
def test_the_router_is_told_exactly_the_names_that_pods_will_have(text, options):
    _, manifests = rendered(text, **options)
    headless = {s["metadata"]["name"]: s["spec"] for s in of_kind(manifests, "Service")}
    names = set()
    for manifest in manifests:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "StatefulSet":
            service = headless[manifest["spec"]["serviceName"]]
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            assert service["clusterIP"] == "None"
            assert service["selector"].items() <= labels.items()
            pods = range(manifest["spec"]["replicas"])
            names |= {f"{name}-{i}.{manifest['spec']['serviceName']}" for i in pods}
        elif manifest["kind"] == "LeaderWorkerSet":
            # Its controller makes a headless Service of its own name and numbers the leaders.
            assert name not in headless
            names |= {f"{name}-{i}.{name}" for i in range(manifest["spec"]["replicas"])}
    (told,) = of_kind(manifests, "ConfigMap")
    routed = config.parse(told["data"]["headway.toml"])
    engines = [str(engine) for pool in routed.pools for engine in pool.engines]
    assert sorted(engines) == sorted(
        [f"http://{name}:8000" for name in names]
        + ["http://10.0.0.1:8000"] * any(pool.name == "elsewhere" for pool in routed.pools)
    )
    asked = config.parse(text, starts=True)
    assert [(p.name, p.role, p.kv_lease_s) for p in routed.pools] == [
        (p.name, p.role, p.kv_lease_s) for p in asked.pools
    ]


@settings(max_examples=10)
@given(files(), OPTIONS)
def test_parts_fit_one_another(text, options):
    _, manifests = rendered(text, **options)
    ports = {}
    for manifest in manifests:
        for template, _ in templates(manifest):
            labels, pod = template["metadata"]["labels"], template["spec"]
            if manifest["kind"] != "LeaderWorkerSet":
                assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
            mounts = {mount["name"] for mount in container(template)["volumeMounts"]}
            assert mounts == {volume["name"] for volume in pod["volumes"]}
            open_ports = {port["name"] for port in container(template).get("ports", [])}
            for name, probe in container(template).items():
                if name.endswith("Probe"):
                    assert probe["httpGet"]["port"] in open_ports
            ports[frozenset(labels.items())] = open_ports
    for monitor in of_kind(manifests, "PodMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        scraped = [names for labels, names in ports.items() if wanted <= labels]
        assert scraped
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert all(endpoint["port"] in names for names in scraped)


@settings(max_examples=10)
@given(files())
def test_every_engine_gets_its_gpus_whatever_devices_the_file_names(text):
    _, manifests = rendered(text)
    pools = [pool for pool in config.parse(text, starts=True).pools if not pool.engines]
    wanted = sum(p.replicas * p.tensor_parallel_size * p.pipeline_parallel_size for p in pools)
    given_ = 0
    for manifest in manifests:
        for template, count in templates(manifest):
            limits = container(template)["resources"].get("limits", {})
            assert limits.get("nvidia.com/gpu", 0) <= 8
            given_ += count * limits.get("nvidia.com/gpu", 0)
    assert given_ == wanted


@settings(max_examples=10)
@given(files(), OPTIONS)
def test_every_pod_asks_for_cores_and_memory(text, options):
    """A node would be filled with pods that ask for nothing, and end them first."""
    _, manifests = rendered(text, **options)
    for manifest in manifests:
        for template, _ in templates(manifest):
            asked = container(template)["resources"]["requests"]
            assert asked["cpu"]
            assert asked["memory"].endswith(("Gi", "Mi"))


@settings(max_examples=10)
@given(files(), OPTIONS)
def test_every_pod_may_be_drained_and_one_of_a_pool_at_a_time(text, options):
    """A pod that two budgets select can't be evicted, nor can one that has to stay available."""
    _, manifests = rendered(text, **options)
    budgets = [each["spec"] for each in of_kind(manifests, "PodDisruptionBudget")]
    assert {frozenset(each) for each in budgets} == {
        frozenset({"maxUnavailable", "selector", "unhealthyPodEvictionPolicy"})
    }
    assert {each["maxUnavailable"] for each in budgets} == {1}
    pods = [
        template["metadata"]["labels"].items()
        for manifest in manifests
        for template, _ in templates(manifest)
    ]
    selectors = [each["selector"]["matchLabels"].items() for each in budgets]
    assert all(sum(wanted <= labels for wanted in selectors) == 1 for labels in pods)
    assert all(any(wanted <= labels for labels in pods) for wanted in selectors)


@settings(max_examples=10)
@given(files(), OPTIONS)
def test_no_pod_runs_as_root_or_may_more_than_it_needs(text, options):
    _, manifests = rendered(text, **options)
    for manifest in manifests:
        for template, _ in templates(manifest):
            pod = template["spec"]
            assert pod["securityContext"]["runAsNonRoot"]
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert not pod["automountServiceAccountToken"]
            assert not pod["enableServiceLinks"]
            own = container(template)["securityContext"]
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert not own["allowPrivilegeEscalation"]


def test_headway_serve_takes_an_engine_s_command():
    _, manifests = rendered(PAIR)
    command = container(one(manifests, "StatefulSet", "headway-prefill")["spec"]["template"])[
        "command"
    ]
    arguments, rest = cli._parser().parse_known_args(command[1:])
    assert arguments.command == "serve"
    assert getattr(arguments, "headway.policy") == "parallel"
    assert rest[0] == "org/model"
    assert dict(zip(rest[1::2], rest[2::2], strict=True)).keys() == {
        "--host",
        "--port",
        "--shutdown-timeout",
        "--kv-transfer-config",
    }


def test_engines_of_a_pair_move_kv_at_their_pods_addresses():
    _, manifests = rendered(PAIR)
    for name in ("headway-prefill", "headway-decode"):
        found = container(one(manifests, "StatefulSet", name)["spec"]["template"])
        after = found["command"][found["command"].index("--kv-transfer-config") + 1]
        assert json.loads(after)["kv_connector"] == "NixlConnector"
        variables = {each["name"]: each for each in found["env"]}
        assert variables["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"] == {
            "fieldRef": {"fieldPath": "status.podIP"}
        }
        assert variables["VLLM_NIXL_SIDE_CHANNEL_PORT"]["value"] == "5600"
        assert {"name": "kv", "containerPort": 5600} in found["ports"]


def test_an_engine_that_does_everything_has_no_side_channel():
    _, manifests = rendered(ONE)
    found = engine(manifests)
    assert "--kv-transfer-config" not in found["command"]
    assert not [name for name in values(found) if "NIXL" in name]
    assert [port["name"] for port in found["ports"]] == ["http"]


@pytest.mark.parametrize(("hang_s", "first_byte_s"), [(95, 60), (60, 95)])
def test_probes_wait_as_long_as_the_file_lets_an_engine_start_and_hang(hang_s, first_byte_s):
    _, manifests = rendered(
        f"[fleet]\nstart_timeout_s = 1800\nhang_s = {hang_s}\n"
        f"[router.timeouts]\nfirst_byte_s = {first_byte_s}\n" + ONE
    )
    found = engine(manifests)
    for name, seconds in (("startupProbe", 1800), ("livenessProbe", 100)):
        assert found[name]["periodSeconds"] * found[name]["failureThreshold"] == seconds
        assert found[name]["httpGet"]["path"] == "/health"


def test_pods_have_time_to_finish_what_runs():
    _, manifests = rendered("[fleet]\ndrain_s = 200\n" + ONE)
    command = engine(manifests)["command"]
    assert command[command.index("--shutdown-timeout") + 1] == "200"
    for kind in ("StatefulSet", "Deployment"):
        (found,) = of_kind(manifests, kind)
        assert found["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 200


def test_an_engine_larger_than_a_node_is_a_leader_and_workers_that_meet_at_it():
    _, manifests = rendered(ONE + "tensor_parallel_size = 8\npipeline_parallel_size = 2\n")
    (found,) = of_kind(manifests, "LeaderWorkerSet")
    group = found["spec"]["leaderWorkerTemplate"]
    assert group["size"] == 2
    leader, worker = (container(group[name]) for name in ("leaderTemplate", "workerTemplate"))
    assert leader["command"][:3] == ["headway", "serve", "org/model"]
    assert worker["command"][:4] == ["vllm", "serve", "org/model", "--headless"]
    meet = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "$(LWS_LEADER_ADDRESS)"]
    meet += ["--master-port", "29501"]
    assert leader["command"][-8:] == meet
    meet[3] = "$(LWS_WORKER_INDEX)"
    assert worker["command"][-8:] == meet
    for flag in ("--tensor-parallel-size", "--pipeline-parallel-size"):
        sizes = {each["command"][each["command"].index(flag) + 1] for each in (leader, worker)}
        assert len(sizes) == 1


def test_engines_on_cpus_ask_for_cores_and_leave_binding_to_kubernetes():
    _, manifests = rendered(PAIR.replace('model = "org/model"\n', ""), cpus=4)
    found = container(one(manifests, "StatefulSet", "headway-decode")["spec"]["template"])
    asked = {"cpu": 4, "memory": "4Gi"}
    assert found["resources"] == {"requests": asked, "limits": {"cpu": 4}}
    variables = values(found)
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert variables["OMP_NUM_THREADS"] == "4"
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert '"kv_buffer_device": "cpu"' in " ".join(found["command"])
    assert found["command"][:3] == ["headway", "serve", "--host"]


def weighing(folder, gib):
    """A model's directory: its configuration, and an index that says how large its weights are."""
    shape = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 80, "hidden_size": 8192}
    shape |= {"num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256}
    shape |= {"intermediate_size": 28672, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(shape))
    index = {"metadata": {"total_size": gib * 2**30}, "weight_map": {}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return ONE.replace("org/model", str(folder))


def test_an_engine_asks_for_its_processes_and_the_weights_that_pass_through_memory(tmp_path):
    text = weighing(tmp_path, 130) + "tensor_parallel_size = 4\n"
    written, manifests = rendered(text)
    assert engine(manifests)["resources"] == {
        "requests": {"cpu": 2 + 4, "memory": f"{4 + 4 * 4 + 130}Gi"},
        "limits": {"nvidia.com/gpu": 4},
    }
    assert "isn't known here" not in written
    found = engine(rendered(text, cpus=16)[1])["resources"]["requests"]
    assert found == {"cpu": 16, "memory": f"{2 + 4 + 130}Gi"}


def test_pods_of_an_engine_on_two_nodes_share_its_weights(tmp_path):
    _, manifests = rendered(weighing(tmp_path, 130) + "tensor_parallel_size = 16\n")
    (found,) = of_kind(manifests, "LeaderWorkerSet")
    for template, _ in templates(found):
        assert container(template)["resources"] == {
            "requests": {"cpu": 2 + 8, "memory": f"{4 + 8 * 4 + 65}Gi"},
            "limits": {"nvidia.com/gpu": 8},
        }


def test_the_size_of_a_model_that_is_not_here_is_said_to_be_missing():
    written, manifests = rendered(ONE)
    assert engine(manifests)["resources"]["requests"] == {"cpu": 3, "memory": "8Gi"}
    assert (
        "# How large org/model is isn't known here: set memory_gib in [pool.kubernetes] of all, or "
        "its pods ask for 8 GiB, without weights." in written
    )


def test_the_file_says_what_pods_ask_for():
    written, manifests = rendered(ONE + "[pool.kubernetes]\ncpus = 1.5\nmemory_gib = 40.25\n")
    assert engine(manifests)["resources"]["requests"] == {"cpu": "1500m", "memory": "41216Mi"}
    assert "isn't known here" not in written
    for manifest in manifests:
        check(manifest)


def test_an_update_waits_until_the_router_uses_what_is_new():
    _, manifests = rendered("[router.health]\ninterval_s = 4\npasses = 3\n" + ONE)
    (found,) = of_kind(manifests, "StatefulSet")
    assert found["spec"]["minReadySeconds"] > 3 * 4


@pytest.mark.parametrize("keys", ["", f'[router.keys]\nhashes = ["prometheus:{"0" * 64}"]\n'])
def test_prometheus_has_a_key_for_the_router_where_clients_need_one(keys):
    """vLLM asks for none on /metrics, whatever its keys."""
    written, manifests = rendered(keys + ONE)
    by_name = {each["metadata"]["name"]: each for each in of_kind(manifests, "PodMonitor")}
    (router,) = by_name["headway-routers"]["spec"]["podMetricsEndpoints"]
    secret = {"name": "headway-metrics-key", "key": "key"}
    shown = {"type": "Bearer", "credentials": secret}
    assert router.get("authorization") == (shown if keys else None)
    made = "create secret generic headway-metrics-key --from-literal=key="
    assert (made in written) == bool(keys)
    (engines,) = by_name["headway-engines"]["spec"]["podMetricsEndpoints"]
    assert "authorization" not in engines
    for manifest in by_name.values():
        check(manifest)


def test_words_of_the_file_reach_the_engine_as_they_are():
    text = ONE + 'flags = ["--x=$(HOME)", "$$"]\n[pool.env]\nA = "$(B)$C"\n'
    _, manifests = rendered(text)
    found = engine(manifests)
    assert found["command"][-2:] == ["--x=$$(HOME)", "$$$$"]
    assert values(found)["A"] == "$$(B)$$C"


def test_keys_and_files_come_from_secrets_that_the_head_tells_to_make():
    text = """
[router.tls]
cert = "/tls/chain.pem"
key = "/tls/key.pem"
[router.keys]
file = "/my keys/clients.txt"
engine_key_env = "ENGINE_KEY"
"""
    elsewhere = """
[[pool]]
name = "elsewhere"
engines = ["https://10.0.0.1:8000"]
tls.ca = "/engines/ca.pem"
"""
    written, manifests = rendered(text + ONE + elsewhere)
    head = written.partition("---")[0]
    assert "create secret generic headway-router-files" in head
    assert "--from-file='/my keys/clients.txt'" in head
    assert 'secret generic headway-engine-key --from-literal=key="$ENGINE_KEY"' in head
    (deployment,) = of_kind(manifests, "Deployment")
    router = deployment["spec"]["template"]
    assert router["spec"]["volumes"][1]["secret"]["secretName"] == "headway-router-files"
    mounted = {each["name"]: each["mountPath"] for each in container(router)["volumeMounts"]}
    routed = config.parse(of_kind(manifests, "ConfigMap")[0]["data"]["headway.toml"])
    assert routed.router.tls.cert == Path(mounted["files"], "chain.pem")
    assert routed.router.keys.file == Path(mounted["files"], "clients.txt")
    assert routed.pools[1].tls.ca == Path(mounted["files"], "ca.pem")
    assert "--from-file=/engines/ca.pem" in head
    assert container(router)["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    (monitor,) = [m for m in of_kind(manifests, "PodMonitor") if "routers" in m["metadata"]["name"]]
    assert monitor["spec"]["podMetricsEndpoints"][0]["scheme"] == "https"
    for found, variable in ((container(router), "ENGINE_KEY"), (engine(manifests), "VLLM_API_KEY")):
        (key,) = [each for each in found["env"] if each["name"] == variable]
        assert key["valueFrom"]["secretKeyRef"]["name"] == "headway-engine-key"
    for manifest in manifests:
        check(manifest)


def test_what_is_secret_in_the_engines_environment_comes_from_a_secret():
    """Whoever may read a StatefulSet would read it."""
    variables = {
        "HF_TOKEN": "s3cret",
        "VLLM_API_KEY": "s3cret",
        "LMCACHE_URL": "redis://:s3cret@h:1",
        "HF_HOME": "/m",
    }
    env = "".join(f'{name} = "{value}"\n' for name, value in variables.items())
    key = '[router.keys]\nengine_key_env = "ENGINE_KEY"\n'
    written, manifests = rendered(f"{key}{ONE}[pool.env]\n{env}")
    assert "s3cret" not in written
    listed = engine(manifests)["env"]
    found = {each["name"]: each for each in listed}
    assert len(found) == len(listed), "each once"
    assert found["HF_HOME"]["value"] == "/m"
    head = written.partition("---")[0]
    for name in ("HF_TOKEN", "VLLM_API_KEY", "LMCACHE_URL"):
        reference = {"name": "headway-env", "key": f"all.{name}"}
        assert found[name]["valueFrom"] == {"secretKeyRef": reference}
        assert f'--from-literal=all.{name}="${name}"' in head
    for manifest in manifests:
        check(manifest)


def test_clients_connect_to_the_file_s_port_and_the_router_listens_on_one_it_may_have():
    _, manifests = rendered("[router]\nport = 80\nadmin_port = 8000\n" + ONE)
    service = one(manifests, "Service", "headway-router")
    assert service["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]
    routed = config.parse(of_kind(manifests, "ConfigMap")[0]["data"]["headway.toml"]).router
    assert (routed.host, routed.port) == ("0.0.0.0", 8000)  # noqa: S104 -- what the file says
    assert routed.admin_port == 9001


def test_a_named_fleet_s_objects_bear_its_name():
    _, manifests = rendered('[fleet]\nname = "Chat_1"\n' + ONE)
    assert all(each["metadata"]["name"].startswith("chat-1-") for each in manifests)


def test_a_model_in_a_directory_is_said_to_be_needed_in_the_image():
    written, _ = rendered(ONE.replace("org/model", "/models/m"))
    assert "# The image must have the model of pool all in /models/m." in written


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (ONE.replace('"all"', '"1st"'), {}, r"pool\[0\].name: '1st' is no name for Kubernetes"),
        (ONE.replace('"all"', '"a-"'), {}, r"pool\[0\].name: 'a-' is no name for Kubernetes"),
        (ONE.replace('"all"', f'"{"a" * 60}"'), {}, "is too long for Kubernetes; use 52"),
        (ONE.replace('"all"', '"Router"'), {}, r"pool\[0\].name: .* is another object's name"),
        (ONE + ONE.replace('"all"', '"ALL"'), {}, r"pool\[1\].name: .* is another object's name"),
        (ONE + "tensor_parallel_size = 9\n", {}, "9 GPUs an engine .* use a multiple of 2"),
        ('[[pool]]\nname = "a"\ntensor_parallel_size = 16\n', {}, r"pool\[0\].model: .*hub name"),
        (ONE, {"image": "a b"}, "--image: 'a b' is no image's name"),
        (ONE, {"image": ""}, "--image: '' is no image's name"),
        (ONE, {"namespace": "A"}, "--namespace: 'A' is no namespace"),
        (ONE, {"cpus": 0}, "--cpus: 0 is out of range"),
        (PAIR.replace("org/model", "org/other", 1), {}, "use one model for both"),
        (
            '[router.tls]\ncert = "a/pem"\nkey = "b/pem"\n' + ONE,
            {},
            "b/pem: has the same name as a/pem",
        ),
        ('[router.keys]\nfile = "a b"\n' + ONE, {}, "a b: 'a b' can't be in a Secret"),
    ],
)
def test_what_can_t_run_in_a_cluster_is_refused(text, options, said):
    with pytest.raises(SettingError, match=said):
        rendered(text, **options)
