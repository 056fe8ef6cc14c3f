"""The Kubernetes objects of a fleet around its pods: what starts, finds and scrapes them.

Pool `p` of fleet `f` is the StatefulSet (or LeaderWorkerSet) `f-p` and its engine `i` the pod
`f-p-i`, which whoever is in the namespace reaches as `f-p-i.f-p`. That name exists before the pod
does and stays when the pod is replaced, so the router's file can hold it. A Deployment's pods have
random names, and one address for all of them is not enough for a router that keeps account of
each engine's work and takes engines out one by one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headway.fleet.kubernetes import pods
from headway.fleet.kubernetes.pods import HTTP_PORT, SIDE_PORT, Manifest, Shape
from headway.fleet.kubernetes.resources import PodResources
from headway.fleet.plan.spec import EngineSpec

_COMPONENT: Final = "app.kubernetes.io/component"
_POOL: Final = "headway/pool"
_ROLE: Final = "headway/role"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorkload:
    """Engines that differ in their number only.

    name: of its objects. nodes: that each engine spans. resources: of each of its pods.
    """

    name: str
    engine: EngineSpec
    replicas: int
    nodes: int
    resources: PodResources

    def hosts(self) -> list[str]:
        """The engines' host names, within the namespace."""
        return [f"{self.name}-{index}.{self.name}" for index in range(self.replicas)]


class Objects:
    """Makes a fleet's objects, all in one namespace; None: the one of whoever applies them."""

    def __init__(self, shape: Shape, namespace: str | None) -> None:
        self._shape = shape
        self._router = f"{shape.fleet}-router"
        self._where = {"namespace": namespace} if namespace else {}

    def all(
        self, pools: Sequence[PoolWorkload], router_file: str, router_port: int
    ) -> list[tuple[str, Manifest]]:
        """Every object, with a line about it.

        router_file: the text of the router's file. router_port: where clients connect.
        """
        made: list[tuple[str, Manifest]] = []
        for pool in pools:
            engines = f"pool {pool.engine.pool}: {pool.replicas} x {pool.engine.role}"
            if pool.nodes > 1:
                made.append((f"{engines}, {pool.nodes} nodes each", self._leader_workers(pool)))
            else:
                made += [
                    (f"names for the engines of pool {pool.engine.pool}", self._headless(pool)),
                    (engines, self._stateful_set(pool)),
                ]
            selected = _members(self._labels("engine", pool))
            made.append(
                (f"draining nodes of pool {pool.engine.pool}", self._budget(pool.name, selected))
            )
        return [
            *made,
            ("the router's settings; it takes changes without a restart", self._file(router_file)),
            ("where clients connect", self._service(router_port)),
            ("the router", self._deployment()),
            ("draining the router's node", self._budget(self._router, self._labels("router"))),
            ("scraping the engines", self._monitor("engine")),
            ("scraping the router", self._monitor("router")),
        ]

    def _headless(self, pool: PoolWorkload) -> Manifest:
        labels = self._labels("engine", pool)
        return self._object(
            *("v1", "Service", pool.name, labels),
            {
                "clusterIP": "None",
                # Pods that aren't ready too: the router has health checks of its own.
                "publishNotReadyAddresses": True,
                "selector": labels,
                "ports": [
                    {"name": "http", "port": HTTP_PORT},
                    {"name": "kv", "port": SIDE_PORT},
                ],
            },
        )

    def _stateful_set(self, pool: PoolWorkload) -> Manifest:
        labels = self._labels("engine", pool)
        pod = pods.engine(self._shape, pool.engine, pool.resources)
        return self._object(
            *("apps/v1", "StatefulSet", pool.name, labels),
            {
                "serviceName": pool.name,
                "replicas": pool.replicas,
                # All start at once; updates go one by one all the same.
                "podManagementPolicy": "Parallel",
                # Until the router has noticed too, the next one stays.
                "minReadySeconds": math.ceil(self._shape.noticed_s),
                "selector": {"matchLabels": labels},
                "template": _template(labels | _role(pool), pod),
            },
        )

    def _leader_workers(self, pool: PoolWorkload) -> Manifest:
        """Its controller makes the headless Service."""
        several = (self._shape, pool.engine, pool.resources, pool.nodes)
        labels = self._labels("engine", pool)
        workers = self._labels("worker", pool)
        return self._object(
            *("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", pool.name, labels),
            {
                "replicas": pool.replicas,
                "networkConfig": {"subdomainPolicy": "Shared"},
                "leaderWorkerTemplate": {
                    "size": pool.nodes,
                    "restartPolicy": "RecreateGroupOnPodRestart",
                    "leaderTemplate": _template(labels | _role(pool), pods.leader(*several)),
                    "workerTemplate": _template(workers, pods.worker(*several)),
                },
            },
        )

    def _file(self, text: str) -> Manifest:
        made = self._object("v1", "ConfigMap", self._router, self._labels("router"), {})
        del made["spec"]
        return made | {"data": {"headway.toml": text}}

    def _service(self, port: int) -> Manifest:
        labels = self._labels("router")
        ports = [{"name": "http", "port": port, "targetPort": "http"}]
        spec: Manifest = {"selector": labels, "ports": ports}
        return self._object("v1", "Service", self._router, labels, spec)

    def _deployment(self) -> Manifest:
        """One router: each keeps account of its own requests, so two would know half each."""
        labels = self._labels("router")
        return self._object(
            *("apps/v1", "Deployment", self._router, labels),
            {
                "replicas": 1,
                "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
                "selector": {"matchLabels": labels},
                "template": _template(labels, pods.router(self._shape)),
            },
        )

    def _budget(self, name: str, selected: dict[str, str]) -> Manifest:
        """One at a time. That many may go even of one that is alone: what may never go keeps its
        node from being drained for ever; and so would one that doesn't get ready.
        """
        return self._object(
            *("policy/v1", "PodDisruptionBudget", name, selected),
            {
                "maxUnavailable": 1,
                "selector": {"matchLabels": selected},
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        )

    def _monitor(self, component: str) -> Manifest:
        labels = self._labels(component)
        endpoint: Manifest = {"port": "http", "path": "/metrics", "interval": "15s"}
        if component == "router" and self._shape.keys:
            secret: Manifest = {"name": metrics_secret(self._shape.fleet), "key": "key"}
            endpoint["authorization"] = {"type": "Bearer", "credentials": secret}
        if component == "router" and self._shape.tls:
            # Scraped by the pod's address, which no certificate names.
            endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
        return self._object(
            *("monitoring.coreos.com/v1", "PodMonitor", f"{self._shape.fleet}-{component}s"),
            labels,
            {
                "selector": {"matchLabels": labels},
                "podTargetLabels": [_POOL, _ROLE],
                "podMetricsEndpoints": [endpoint],
            },
        )

    def _object(
        self, api: str, kind: str, name: str, labels: dict[str, str], spec: Manifest
    ) -> Manifest:
        metadata: Manifest = {"name": name, **self._where, "labels": labels}
        return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}

    def _labels(self, component: str, pool: PoolWorkload | None = None) -> dict[str, str]:
        labels = {
            "app.kubernetes.io/name": "headway",
            "app.kubernetes.io/instance": self._shape.fleet,
            _COMPONENT: component,
        }
        return labels | ({_POOL: pool.engine.pool} if pool else {})


def metrics_secret(fleet: str) -> str:
    """The Secret with the key that Prometheus shows the router."""
    return f"{fleet}-metrics-key"


def _members(labels: dict[str, str]) -> dict[str, str]:
    """What selects all pods of a pool, workers too: an engine of several pods ends with any."""
    return {name: value for name, value in labels.items() if name != _COMPONENT}


def _role(pool: PoolWorkload) -> dict[str, str]:
    """Not among what selects pods, which can't be changed afterwards."""
    return {_ROLE: pool.engine.role}


def _template(labels: dict[str, str], spec: Manifest) -> Manifest:
    return {"metadata": {"labels": labels}, "spec": spec}
