"""`headway render kubernetes`: a fleet's file as Kubernetes manifests.

Entry point for the command line:

    render(config: headway.config.Config, options: RenderOptions) -> str

It takes the file as loaded (with `starts=True`), not a FleetSpec: what this machine has says
nothing of the cluster, so the engines are planned here, as if there were devices enough.
"""

import dataclasses
import importlib.metadata
import math
import os
import pathlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from headway import config as settings
from headway.core.errors import SettingError
from headway.fleet.kubernetes import block_yaml, pods, resources
from headway.fleet.kubernetes.manifests import Objects, PoolWorkload, metrics_secret
from headway.fleet.plan import compatibility, router_file
from headway.fleet.plan.plan import plan
from headway.fleet.plan.spec import Address, EngineSpec, FleetSpec, Machine

_LABEL: Final = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_NAME_LIMIT: Final = 52
"""A label's 63 characters, less what Kubernetes adds to a StatefulSet's name."""
_PLENTY: Final = Machine(
    cores=tuple(range(4096)),
    gpus=tuple(range(4096)),
    memory_gib=1e6,
    cpu=False,
)
_ADMIN_PORT: Final = 9001
_WRITTEN: Final = "# Written by headway render kubernetes.\n"


def _default_image() -> str:
    try:
        return f"headway:{importlib.metadata.version('headway')}"
    except importlib.metadata.PackageNotFoundError:
        return "headway:dev"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """What the file doesn't say.

    image: with vLLM and headway in it; docs/kubernetes.md has its three lines.
    namespace: None: that of whoever applies the manifests.
    cpus: cores of each engine, where they run on CPUs; None: on GPUs.
    gpus_per_node: an engine of more devices becomes a LeaderWorkerSet.
    """

    image: str = dataclasses.field(default_factory=_default_image)
    namespace: str | None = None
    cpus: int | None = None
    gpus_per_node: int = 8


def render(config: settings.Config, options: RenderOptions) -> str:
    """The manifests, as a stream of YAML documents for `kubectl apply -f -`.

    Raises SettingError for what can't run in a cluster, ConfigError for pairs of pools that can't
    work together.
    """
    _check(options)
    anywhere = tuple(dataclasses.replace(pool, devices=()) for pool in config.pools)
    machine = dataclasses.replace(_PLENTY, cpu=options.cpus is not None)
    spec = plan(dataclasses.replace(config, pools=anywhere), machine)
    problems = tuple(compatibility.problems(spec))
    if problems:
        raise settings.ConfigError(problems)
    fleet = "headway" if spec.name == "default" else _object_name(spec.name, "fleet.name")
    pools = tuple(_pools(spec, fleet, options))
    router = config.router
    shape = pods.Shape(
        fleet=fleet,
        image=options.image,
        cpus=options.cpus,
        start_timeout_s=spec.start_timeout_s,
        # Kubernetes doesn't know whether a request that an engine is silent over has time left.
        hang_s=max(spec.hang_s, router.timeouts.first_byte_s),
        drain_s=spec.drain_s,
        engine_key_env=router.keys.engine_key_env,
        files=bool(_files(config)),
        tls=router.tls is not None,
        keys=bool(config.keys),
        noticed_s=router.health.interval_s * (router.health.passes + 1),
    )
    text = router_file.text(_in_cluster(config), {p.engine.pool: _addresses(p) for p in pools})
    text = _WRITTEN + text.partition("\n")[2]
    objects = Objects(shape, options.namespace)
    made = objects.all(pools, text, router.port or pods.HTTP_PORT)
    return _head(spec, pools, config, fleet) + block_yaml.documents(made)


def _check(options: RenderOptions) -> None:
    if not options.image or any(map(str.isspace, options.image)):
        raise SettingError("--image", f"{options.image!r} is no image's name; use repository:tag")
    name = options.namespace
    if name is not None and not (len(name) <= 63 and _LABEL.fullmatch(name)):
        raise SettingError(
            "--namespace", f"{name!r} is no namespace: lower-case letters, digits and -, up to 63"
        )
    if options.cpus is not None and options.cpus < 1:
        raise SettingError("--cpus", f"{options.cpus} is out of range; use 1 or more")


def _pools(spec: FleetSpec, fleet: str, options: RenderOptions) -> Iterator[PoolWorkload]:
    taken = {f"{fleet}-router"}
    for index, pool in enumerate(spec.config.pools):
        engines = [engine for engine in spec.engines if engine.pool == pool.name]
        if not engines:
            continue
        key = f"pool[{index}]"
        if pool.emulate:
            said = "is for rehearsals on machines of your own; leave it out to render for a cluster"
            raise SettingError(f"{key}.emulate", said)
        name = f"{fleet}-{_object_name(pool.name, f'{key}.name')}"
        if len(name) > _NAME_LIMIT:
            said = f"{name!r} is too long for Kubernetes; use {_NAME_LIMIT} characters or fewer"
            raise SettingError(f"{key}.name", said)
        if name in taken:
            said = f"{name!r} is another object's name in Kubernetes; use another name"
            raise SettingError(f"{key}.name", said)
        taken.add(name)
        nodes = 1 if options.cpus else _nodes(engines[0], options.gpus_per_node, key)
        yield PoolWorkload(
            name=name,
            engine=engines[0],
            replicas=len(engines),
            nodes=nodes,
            resources=resources.of_pod(
                pool, engines[0], cpus=options.cpus, nodes=nodes, environ=os.environ
            ),
        )


def _nodes(engine: EngineSpec, gpus_per_node: int, key: str) -> int:
    devices = resources.devices(engine)
    nodes = math.ceil(devices / gpus_per_node)
    if devices % nodes:
        raise SettingError(
            f"{key}.tensor_parallel_size",
            f"{devices} GPUs an engine can't be shared out evenly to {nodes} nodes of "
            f"{gpus_per_node}; use a multiple of {nodes}",
        )
    if nodes > 1 and engine.model is None:
        raise SettingError(f"{key}.model", "an engine on several nodes needs one; set a hub name")
    return nodes


def _object_name(name: str, key: str) -> str:
    """The name in Kubernetes' form. Raises SettingError where it has none."""
    formed = re.sub(r"[._]", "-", name.lower())
    if not _LABEL.fullmatch(formed):
        raise SettingError(
            key, f"{name!r} is no name for Kubernetes; start with a letter, end with one or a digit"
        )
    return formed


def _addresses(pool: PoolWorkload) -> tuple[Address, ...]:
    return tuple(
        Address(host=host, port=pods.HTTP_PORT, side_port=pods.SIDE_PORT) for host in pool.hosts()
    )


def _in_cluster(config: settings.Config) -> settings.Config:
    """The configuration as the router's pod has it: its port, and where its files are."""
    router = dataclasses.replace(
        config.router,
        host="0.0.0.0",  # noqa: S104 -- inside its pod
        port=pods.HTTP_PORT,
        admin_port=_ADMIN_PORT if config.router.admin_port else 0,
    )
    files = _files(config)
    if router.tls:
        tls = dataclasses.replace(
            router.tls, cert=files[router.tls.cert], key=files[router.tls.key]
        )
        router = dataclasses.replace(router, tls=tls)
    if router.keys.file:
        keys = dataclasses.replace(router.keys, file=files[router.keys.file])
        router = dataclasses.replace(router, keys=keys)
    pools = tuple(_with_files(pool, files) for pool in config.pools)
    return dataclasses.replace(config, router=router, pools=pools)


def _with_files(pool: settings.Pool, files: Mapping[pathlib.Path, pathlib.Path]) -> settings.Pool:
    """The pool with its files for engines where the router's pod has them."""
    if pool.tls is None:
        return pool
    tls = settings.EngineTls(**{name: files[path] for name, path in pool.tls.files().items()})
    return dataclasses.replace(pool, tls=tls)


def _files(config: settings.Config) -> dict[pathlib.Path, pathlib.Path]:
    """Where the router's pod has the files that the settings name.

    Raises SettingError where two have the same name, or one that a Secret can't hold.
    """
    router = config.router
    keys = (router.keys.file,) if router.keys.file else ()
    tls = [router.tls.cert, router.tls.key] if router.tls else []
    tls += [path for pool in config.pools if pool.tls for path in pool.tls.files().values()]
    named: dict[str, pathlib.Path] = {}
    for path in (*keys, *tls):
        if not re.fullmatch(r"[A-Za-z0-9._-]+", path.name):
            said = f"{path.name!r} can't be in a Secret; use letters, digits, . _ and -"
            raise SettingError(str(path), said)
        if named.setdefault(path.name, path) != path:
            said = f"has the same name as {named[path.name]}; both go into one Secret"
            raise SettingError(str(path), said)
    return {path: pathlib.Path(pods.FILES, name) for name, path in named.items()}


def _head(
    spec: FleetSpec, pools: Sequence[PoolWorkload], config: settings.Config, fleet: str
) -> str:
    """What whoever applies the manifests has to know, as comments."""
    router = config.router
    lines = [
        f"Fleet {spec.name}, written by `headway render kubernetes`.",
        "Apply: kubectl apply -f FILE. PodMonitors need the Prometheus operator.",
    ]
    if any(pool.nodes > 1 for pool in pools):
        lines.append("LeaderWorkerSets need their controller: https://lws.sigs.k8s.io")
    files = " ".join(f"--from-file={shlex.quote(str(path))}" for path in _files(config))
    if files:
        lines.append(f"First: kubectl create secret generic {fleet}-router-files {files}")
    if router.keys.engine_key_env:
        value = f'--from-literal=key="${router.keys.engine_key_env}"'
        lines.append(f"First: kubectl create secret generic {fleet}-engine-key {value}")
    hidden = [
        f'--from-literal={pool.engine.pool}.{name}="${name}"'
        for pool in pools
        for name in pods.secret_variables(pool.engine)
    ]
    if hidden:
        made = f"kubectl create secret generic {pods.env_secret(fleet)} {' '.join(hidden)}"
        lines.append(f"First: {made}")
        lines.append("(what looks secret in [pool.env]; the values aren't written here)")
    if config.keys:
        value = '--from-literal=key="$METRICS_KEY"'
        lines.append(f"First: kubectl create secret generic {metrics_secret(fleet)} {value}")
        lines.append("(one of the router's keys, for Prometheus: /metrics asks for one too)")
    lines += [
        f"How large {pool.engine.model} is isn't known here: set memory_gib in [pool.kubernetes] "
        f"of {pool.engine.pool}, or its pods ask for {pool.resources.memory_gib:g} GiB, without "
        "weights."
        for pool in pools
        if not pool.resources.weighed
    ]
    lines += [
        f"The image must have the model of pool {pool.engine.pool} in {pool.engine.model}."
        for pool in pools
        if pool.engine.model and pool.engine.model.startswith("/")
    ]
    return "".join(f"# {line}\n" for line in lines)
