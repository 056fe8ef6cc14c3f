"""What Kubernetes and the makers of custom resources take.

Kubernetes' own schemas come with the package kubernetes-validate. Of the two custom resources
only what headway writes is described here, from their projects' API references, with nothing else
allowed: PodMonitor (monitoring.coreos.com/v1, prometheus-operator) and LeaderWorkerSet
(leaderworkerset.x-k8s.io/v1). With HEADWAY_CRDS naming a folder that has their definitions
(https://github.com/prometheus-operator/prometheus-operator, example/prometheus-operator-crd;
https://github.com/kubernetes-sigs/lws, config/crd/bases), those are used too.
"""

import json
import os
from functools import cache
from importlib.resources import files
from pathlib import Path

import jsonschema
import yaml
from referencing import Registry, Resource

OLDEST, NEWEST = "1.30", "1.37"


def _closed(required, **properties):
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_META = _closed(
    "name", name={"type": "string"}, namespace={"type": "string"}, labels=_TEXTS
)  # fmt: skip
_TEMPLATE = _closed("spec", metadata=_closed("labels", labels=_TEXTS), spec={"type": "object"})
SCHEMAS = {
    "PodMonitor": _closed(
        "apiVersion kind metadata spec",
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind={"const": "PodMonitor"},
        metadata=_META,
        spec=_closed(
            "selector podMetricsEndpoints",
            selector=_closed("matchLabels", matchLabels=_TEXTS),
            podTargetLabels={"type": "array", "items": {"type": "string"}},
            podMetricsEndpoints={
                "type": "array",
                "minItems": 1,
                "items": _closed(
                    "port path",
                    port={"type": "string"},
                    path={"type": "string"},
                    interval={"type": "string", "pattern": "^[0-9]+s$"},
                    scheme={"enum": ["http", "https"]},
                    tlsConfig=_closed("", insecureSkipVerify={"type": "boolean"}),
                    authorization=_closed(
                        "credentials",
                        type={"type": "string"},
                        credentials=_closed("key", name={"type": "string"}, key={"type": "string"}),
                    ),
                ),
            },
        ),
    ),
    "LeaderWorkerSet": _closed(
        "apiVersion kind metadata spec",
        apiVersion={"const": "leaderworkerset.x-k8s.io/v1"},
        kind={"const": "LeaderWorkerSet"},
        metadata=_META,
        spec=_closed(
            "leaderWorkerTemplate",
            replicas={"type": "integer", "minimum": 0},
            networkConfig=_closed(
                "subdomainPolicy", subdomainPolicy={"enum": ["Shared", "UniquePerReplica"]}
            ),
            leaderWorkerTemplate=_closed(
                "workerTemplate",
                size={"type": "integer", "minimum": 1},
                restartPolicy={
                    "enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart"]
                },
                leaderTemplate=_TEMPLATE,
                workerTemplate=_TEMPLATE,
            ),
        ),
    ),
}


def check(manifest):
    """Raise unless the manifest is as its schema says, unknown keys refused."""
    schema = SCHEMAS.get(manifest["kind"])
    if schema is None:
        for version in (OLDEST, NEWEST):
            _validator(version, manifest["apiVersion"], manifest["kind"]).validate(manifest)
        return
    jsonschema.validate(manifest, schema)
    for definition in _definitions(manifest["kind"]):
        jsonschema.validate(manifest, definition)
    if manifest["kind"] == "LeaderWorkerSet":
        # Its templates are pods, of which Kubernetes has the schema.
        group = manifest["spec"]["leaderWorkerTemplate"]
        for name in ("leaderTemplate", "workerTemplate"):
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "a", **group[name]["metadata"]},
                "spec": group[name]["spec"],
            }
            check(pod)


@cache
def _validator(version, api, kind):
    """As kubernetes_validate.validate makes it at every call."""
    folder = _folder(version)
    name = f"{kind.lower()}-{api.replace('/', '-')}.json"
    schema = json.loads(folder.joinpath(name).read_text())
    return jsonschema.Draft202012Validator(schema, registry=_shared(version))


@cache
def _shared(version):
    text = _folder(version).joinpath("_definitions.json").read_text()
    return Resource.from_contents(json.loads(text)) @ Registry()


def _folder(version):
    schemas = files("kubernetes_validate").joinpath("kubernetes-json-schema")
    (found,) = [
        each
        for each in schemas.iterdir()
        if each.name.startswith(f"v{version}.") and each.name.endswith("-local-strict")
    ]
    return found


@cache
def _definitions(kind):
    """The published definitions of a custom resource, if they were given."""
    folder = os.environ.get("HEADWAY_CRDS")
    found = []
    for path in sorted(Path(folder).glob("*.yaml")) if folder else ():
        definition = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
        if definition["spec"]["names"]["kind"] == kind:
            found += [
                _strict(v["schema"]["openAPIV3Schema"]) for v in definition["spec"]["versions"]
            ]
    return found


def _strict(schema):
    """The schema, with keys it doesn't name refused, as the API server does on request."""
    if not isinstance(schema, dict):
        return schema
    strict = {
        key: {name: _strict(each) for name, each in value.items()}
        if key == "properties"
        else _strict(value)
        for key, value in schema.items()
    }
    named = isinstance(strict.get("properties"), dict) and schema.get("type") == "object"
    if named and "additionalProperties" not in strict and "apiVersion" not in strict["properties"]:
        strict["additionalProperties"] = False
    return strict
