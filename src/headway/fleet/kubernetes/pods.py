"""The pods of a fleet on Kubernetes: what runs in them, and how they are probed and confined."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway import masking
from headway.fleet.kubernetes.resources import PodResources
from headway.fleet.plan import vllm_flags
from headway.fleet.plan.engine_command import engine_command, transfers
from headway.fleet.plan.spec import Address, EngineSpec, Machine

Manifest = dict[str, Any]

HTTP_PORT: Final = 8000
SIDE_PORT: Final = 5600
CONFIG: Final = "/etc/headway"
FILES: Final = "/etc/headway-files"
"""Where the Secret with the router's TLS and key files is mounted."""
_RENDEZVOUS_PORT: Final = 29501
"""vLLM's own default; where the nodes of one engine meet."""
_USER: Final = 1000
_CACHE: Final = "/cache"
_PROBE_S: Final = 10
_END_S: Final = 30
"""What an engine may take to end after its requests have: vLLM's processes, and their guard."""
_LEAVE_S: Final = 5
"""Until clients have heard that a router is about to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What all pods of a fleet share.

    fleet: prefix of the objects' names.
    cpus: cores of each engine on CPUs; None: engines on GPUs.
    start_timeout_s, hang_s, drain_s: as the fleet's settings.
    engine_key_env: the router's variable for the key that engines ask for; None: they ask for none.
    files: whether the router has files, from a Secret.
    tls: whether it speaks TLS.
    keys: whether it asks clients for keys.
    noticed_s: until it sends requests to an engine that has become ready.
    """

    fleet: str
    image: str
    cpus: int | None
    start_timeout_s: float
    hang_s: float
    drain_s: float
    engine_key_env: str | None
    files: bool
    tls: bool
    keys: bool
    noticed_s: float


def engine(shape: Shape, spec: EngineSpec, resources: PodResources) -> Manifest:
    """The pod of an engine that fits one node."""
    return _engine(shape, spec, _serve(shape, spec), resources)


def leader(shape: Shape, spec: EngineSpec, resources: PodResources, nodes: int) -> Manifest:
    """The first of an engine's pods on several nodes: API server, scheduler and first ranks."""
    command = [*_serve(shape, spec), *_meet(nodes, "0")]
    return _engine(shape, spec, command, resources)


def worker(shape: Shape, spec: EngineSpec, resources: PodResources, nodes: int) -> Manifest:
    """The others: `vllm serve --headless`, as without a scheduler headway has no part in them."""
    command = _literal("vllm", "serve", spec.model or "", "--headless", *_flags(shape, spec))
    command += [*_literal(*spec.flags), *_meet(nodes, "$(LWS_WORKER_INDEX)")]
    return _engine_pod(shape, _engine_container(shape, spec, command, resources))


def router(shape: Shape) -> Manifest:
    """The router's pod."""
    name = f"{shape.fleet}-router"
    volumes: list[Manifest] = [{"name": "config", "configMap": {"name": name}}]
    mounts: list[Manifest] = [{"name": "config", "mountPath": CONFIG, "readOnly": True}]
    if shape.files:
        volumes.append({"name": "files", "secret": {"secretName": f"{name}-files"}})
        mounts.append({"name": "files", "mountPath": FILES, "readOnly": True})
    key = shape.engine_key_env
    container: Manifest = {
        "name": "router",
        "image": shape.image,
        # The directory is mounted whole: the router takes a changed file without a restart.
        "command": ["headway", "route", "--config", f"{CONFIG}/headway.toml"],
        "env": [_secret(key, f"{shape.fleet}-engine-key", "key")] if key else [],
        "ports": [{"name": "http", "containerPort": HTTP_PORT}],
        "readinessProbe": _probe("/ready", every_s=5, times=2, tls=shape.tls),
        "livenessProbe": _probe("/health", every_s=_PROBE_S, times=6, tls=shape.tls),
        # A pod that ends is taken out of its Service meanwhile.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_LEAVE_S)]}}},
        "resources": {"requests": {"cpu": 1, "memory": "512Mi"}},
        "securityContext": {**_CONFINED, "readOnlyRootFilesystem": True},
        "volumeMounts": mounts,
    }
    return _pod(container, volumes, grace_s=shape.drain_s + 2 * _LEAVE_S)


def _engine(
    shape: Shape, spec: EngineSpec, command: Sequence[str], resources: PodResources
) -> Manifest:
    container = _engine_container(shape, spec, command, resources)
    ports = [{"name": "http", "containerPort": HTTP_PORT}]
    if transfers(spec):
        ports.append({"name": "kv", "containerPort": SIDE_PORT})
    hung = max(2, math.ceil(shape.hang_s / _PROBE_S))
    starting = max(1, math.ceil(shape.start_timeout_s / _PROBE_S))
    container |= {
        "ports": ports,
        # Until it has passed, the other two don't count.
        "startupProbe": _probe("/health", every_s=_PROBE_S, times=starting),
        "readinessProbe": _probe("/health", every_s=5, times=3),
        "livenessProbe": _probe("/health", every_s=_PROBE_S, times=hung),
    }
    return _engine_pod(shape, container)


def _engine_container(
    shape: Shape, spec: EngineSpec, command: Sequence[str], resources: PodResources
) -> Manifest:
    return {
        "name": "engine",
        "image": shape.image,
        "command": list(command),
        "env": _environment(shape, spec),
        "resources": resources.manifest(),
        "securityContext": dict(_CONFINED),
        "volumeMounts": [
            {"name": "cache", "mountPath": _CACHE},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 -- where the kernel has it
        ],
    }


def _engine_pod(shape: Shape, container: Manifest) -> Manifest:
    volumes: list[Manifest] = [
        {"name": "cache", "emptyDir": {}},
        # Kubernetes' own is 64 MB; vLLM's processes exchange tensors there.
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
    ]
    return _pod(container, volumes, grace_s=shape.drain_s + _END_S)


def _serve(shape: Shape, spec: EngineSpec) -> list[str]:
    command = ["headway", "serve", *([spec.model] if spec.model else [])]
    command += ["--host", "0.0.0.0", "--port", str(HTTP_PORT)]  # noqa: S104 -- inside its pod
    command += ["--shutdown-timeout", str(math.ceil(shape.drain_s))]
    for name, value in spec.batching.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return _literal(*command, *_flags(shape, spec), *spec.flags)


def _literal(*words: str) -> list[str]:
    """The words as Kubernetes passes them on unchanged: it would replace `$(NAME)`."""
    return [word.replace("$", "$$") for word in words]


def _flags(shape: Shape, spec: EngineSpec) -> list[str]:
    """Those of vLLM's flags that every process of an engine needs."""
    given: dict[str, object] = {}
    if spec.tensor_parallel_size > 1:
        given["--tensor-parallel-size"] = spec.tensor_parallel_size
    if spec.pipeline_parallel_size > 1:
        given["--pipeline-parallel-size"] = spec.pipeline_parallel_size
    if spec.max_model_len:
        given["--max-model-len"] = spec.max_model_len
    if spec.kv_memory_gib and not shape.cpus:
        given["--kv-cache-memory-bytes"] = int(spec.kv_memory_gib * 2**30)
    if transfers(spec) and vllm_flags.connector(spec.flags) is None:
        given[vllm_flags.KV_TRANSFER] = _connector(shape, spec)
    return [word for name, value in given.items() for word in (name, str(value))]


def _connector(shape: Shape, spec: EngineSpec) -> str:
    """The KV connector that `headway up` would give the engine, JSON."""
    address = Address(host="0.0.0.0", port=HTTP_PORT, side_port=SIDE_PORT)  # noqa: S104 -- as above
    cpu = shape.cpus is not None
    machine = Machine(cores=spec.devices, gpus=spec.devices, memory_gib=0.0, cpu=cpu)
    argv = engine_command(spec, address, machine, spec.model or "", {}).argv
    return argv[argv.index(vllm_flags.KV_TRANSFER) + 1]


def _meet(nodes: int, rank: str) -> list[str]:
    return [
        *("--nnodes", str(nodes), "--node-rank", rank),
        *("--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", str(_RENDEZVOUS_PORT)),
    ]


def _environment(shape: Shape, spec: EngineSpec) -> list[Manifest]:
    plain = {"HOME": _CACHE, "HF_HOME": f"{_CACHE}/huggingface", "USER": "headway"}
    if shape.cpus:
        # The node's cores are shared out by Kubernetes; vLLM's own binding would take them all.
        plain |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(shape.cpus)}
        if spec.kv_memory_gib:
            plain["VLLM_CPU_KVCACHE_SPACE"] = str(math.ceil(spec.kv_memory_gib))  # whole GiB
    pod_ip = ["VLLM_HOST_IP"]
    if transfers(spec):
        plain["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(SIDE_PORT)
        pod_ip.append("VLLM_NIXL_SIDE_CHANNEL_HOST")
    plain |= {name: _literal(value)[0] for name, value in spec.env.items()}
    hidden = secret_variables(spec)
    listed: list[Manifest] = [
        _secret(name, env_secret(shape.fleet), f"{spec.pool}.{name}")
        if name in hidden
        else {"name": name, "value": value}
        for name, value in plain.items()
    ]
    listed += [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        for name in pod_ip
        if name not in plain
    ]
    if shape.engine_key_env and "VLLM_API_KEY" not in plain:
        listed.append(_secret("VLLM_API_KEY", f"{shape.fleet}-engine-key", "key"))
    if "HF_TOKEN" not in plain:
        listed.append(_secret("HF_TOKEN", f"{shape.fleet}-hub", "token", optional=True))
    return listed


def env_secret(fleet: str) -> str:
    """The Secret with what is secret in the pools' [pool.env], as `POOL.VARIABLE`."""
    return f"{fleet}-env"


def secret_variables(spec: EngineSpec) -> tuple[str, ...]:
    """The names of the variables that aren't written into manifests, which many may read."""
    return tuple(name for name, value in spec.env.items() if masking.variable(name, value) != value)


def _secret(variable: str, secret: str, key: str, *, optional: bool = False) -> Manifest:
    reference: Manifest = {"name": secret, "key": key, **({"optional": True} if optional else {})}
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}


def _probe(path: str, *, every_s: int, times: int, tls: bool = False) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "http", **({"scheme": "HTTPS"} if tls else {})},
        "periodSeconds": every_s,
        "timeoutSeconds": 5,
        "failureThreshold": times,
    }


_CONFINED: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


def _pod(container: Manifest, volumes: Sequence[Manifest], *, grace_s: float) -> Manifest:
    return {
        "automountServiceAccountToken": False,
        # Services' variables would be taken for settings of vLLM: VLLM_PORT is one.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(grace_s),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": list(volumes),
    }
