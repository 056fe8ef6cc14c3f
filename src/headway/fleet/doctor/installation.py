"""Whether what is installed here can run a fleet: vLLM, its connector, the router's parts.

vLLM is looked at in a process of its own: importing it takes seconds and a gigabyte.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headway.core.reports import Finding
from headway.engine.start import launch

ABOUT: Final = "installation"
_TIMEOUT_S: Final = 180.0
_ROUTER_PARTS: Final = ("httptools", "uvloop", "aiohappyeyeballs", "prometheus_client")

_LOOK: Final = """
import importlib, json
said = {}
try:
    import vllm
    said["version"] = vllm.__version__
    from headway.engine import compat
    said["supported"] = compat.SUPPORTED
    said["untested"] = compat.untested(vllm.__version__)
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request
    for scheduler in (Scheduler, AsyncScheduler):
        compat.check_class(scheduler, Request, vllm.__version__)
except Exception as error:
    said["problem"] = f"{type(error).__name__}: {error}"
try:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    KVConnectorFactory.get_connector_class_by_name("NixlConnector")
    importlib.import_module("nixl._api").nixl_agent
except Exception as error:
    said["connector"] = f"{type(error).__name__}: {error}"
print("\\n" + json.dumps(said))
"""


def examine(*, splits: bool) -> Iterator[Finding]:
    """What is installed. splits: whether the fleet moves KV, so that it needs the connector."""
    try:
        cpu = launch.cpu_build()
    except launch.LaunchError as error:
        yield Finding("error", ABOUT, "vLLM isn't installed", str(error).partition("; ")[2])
    else:
        yield from of_vllm(describe_vllm(), cpu=cpu, splits=splits)
        if cpu and not any(map(shutil.which, ("g++", "c++", "clang++"))):
            yield Finding(
                "note",
                ABOUT,
                "no C++ compiler: engines on CPUs run with --enforce-eager only",
                "install g++ to decode about a quarter faster",
            )
    missing = [part for part in _ROUTER_PARTS if importlib.util.find_spec(part) is None]
    if missing:
        said = f"the router's parts are missing: {', '.join(missing)}"
        yield Finding("error", ABOUT, said, "pip install 'headway[router]'")


def describe_vllm() -> Mapping[str, Any]:
    """What a process that imports vLLM says of it."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOOK],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"importing it took more than {_TIMEOUT_S:g} s"}
    try:
        said = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except ValueError:
        said = None
    if isinstance(said, dict):
        return said
    last = done.stderr.strip().rpartition("\n")[2]
    return {"problem": f"importing it ended with status {done.returncode}: {last}"}


def of_vllm(said: Mapping[str, Any], *, cpu: bool, splits: bool) -> Iterator[Finding]:
    """Findings from what `look` says."""
    version = str(said.get("version", "of unknown version"))
    supported = [str(release) for release in said.get("supported", ())]
    build = "CPU build" if cpu else "GPU build"
    if "problem" in said:
        then = f"install vLLM {' or '.join(supported) or '0.33'} in this environment"
        what = f"vLLM {version} can't be used: {said['problem']}"
        yield Finding("error", ABOUT, what, then)
    elif said.get("untested"):
        then = f'use vLLM {" or ".join(supported)}, or policy = "stock"'
        yield Finding("warning", ABOUT, str(said["untested"]), then)
    else:
        yield Finding("ok", ABOUT, f"vLLM {version} ({build}), with the interface headway needs")
    if "connector" not in said:
        yield Finding("ok", ABOUT, "NIXL connector: can be imported")
    else:
        why = f"NIXL connector: can't be imported ({said['connector']})"
        then = "pip install --no-deps nixl nixl-cu12 (with vLLM's CUDA version in the name)"
        yield Finding("error" if splits else "note", ABOUT, why, then)
