"""Whether the machine can carry a fleet: shared memory, memory, ports, how GPUs are connected."""

import os
import re
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

from headway.core.hardware.fit import UTILIZATION
from headway.core.reports import Finding
from headway.fleet.plan.spec import EngineSpec, Machine

ABOUT: Final = "machine"
_GIB: Final = 2**30
_SHM_LEAST_BYTES: Final = _GIB
_PROCESS_GIB: Final = 2.0
"""What the processes of an engine on CPUs take beside model and KV cache."""
_COMMAND_S: Final = 20.0
_GPU: Final = re.compile(r"GPU(\d+)")
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_FAR: Final = {
    "SYS": "through both CPU sockets",
    "NODE": "through the CPU's PCIe bridges",
    "PHB": "through a CPU's PCIe bridge",
}
_RDMA: Final = re.compile(r"^#\s+Transport: (?:rc|dc|ud)\w*", re.MULTILINE)
_CUDA: Final = re.compile(r"^#\s+Transport: cuda\w*", re.MULTILINE)

Links = Mapping[tuple[int, int], str]
"""How two GPUs are connected, as nvidia-smi calls it; the lower index first."""


def shared_memory(free_bytes: int) -> Finding:
    """Whether /dev/shm is large enough."""
    size = f"/dev/shm has {free_bytes / _GIB:.1f} GiB free"  # noqa: S108 -- its name
    if free_bytes >= _SHM_LEAST_BYTES:
        return Finding("ok", ABOUT, size)
    then = "docker run --shm-size=8g (or --ipc=host); in Kubernetes an emptyDir in memory"
    return Finding("warning", ABOUT, f"{size}; vLLM's processes exchange tensors there", then)


def memory(engines: Sequence[EngineSpec], machine: Machine) -> Iterator[Finding]:
    """Whether engines that aren't running yet fit; on GPUs vLLM itself sizes what it takes."""
    if not machine.cpu or not engines:
        return
    needed = sum(_PROCESS_GIB + (e.kv_memory_gib or 0.0) + _weights_gib(e.model) for e in engines)
    count = f"{len(engines)} engine{'s' if len(engines) > 1 else ''}"
    said = f"{count} need about {needed:.0f} GiB of memory, {machine.memory_gib:.0f} are available"
    if needed <= machine.memory_gib:
        yield Finding("ok", ABOUT, said)
    else:
        yield Finding("warning", ABOUT, said, "lower kv_memory_gib or replicas, or free memory")


def _weights_gib(model: str | None) -> float:
    """Of a local model; those of another are in the estimate of its processes."""
    if not model or not Path(model).is_dir():
        return 0.0
    return sum(each.stat().st_size for each in Path(model).glob("*.safetensors")) / _GIB


def port(host: str, number: int, key: str) -> Finding:
    """Whether a port can be listened on. key: of its setting."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError as error:
            said = f"{key}: can't listen on {host} port {number}: {error.strerror}"
            return Finding("error", ABOUT, said, f"end what holds it (ss -ltnp), or set {key}")
    return Finding("ok", ABOUT, f"{key}: port {number} is free")


def gpus(engines: Sequence[EngineSpec], machine: Machine) -> Iterator[Finding]:
    """How GPUs are connected to one another and to other machines."""
    if machine.cpu or (engines and all(engine.emulation for engine in engines)):
        return
    if not machine.gpus:
        said = "no GPU is visible, and the installed vLLM needs one"
        then = "nvidia-smi; in a container --gpus all"
        why = f": {machine.gpu_problem}" if machine.gpu_problem else ""
        yield Finding("error", ABOUT, f"{said}{why}", then)
        return
    count = len(machine.gpus)
    yield Finding("ok", ABOUT, f"{count} GPU{'s' if count > 1 else ''}{_described(machine)}")
    if machine.gpu_problem:
        yield Finding("warning", ABOUT, machine.gpu_problem, "nvidia-smi -L")
    said_smi = output(["nvidia-smi", "topo", "-m"])
    if said_smi is not None:
        yield from links_within(engines, parse_topology(said_smi))
    if any(engine.role != "both" for engine in engines):
        yield from transports(output(["ucx_info", "-d"]))


def gpus_in_use(engines: Sequence[EngineSpec], machine: Machine) -> Iterator[Finding]:
    """GPUs that engines which aren't running yet would find too full."""
    for number in sorted({number for engine in engines for number in engine.devices}):
        device = machine.gpu_by_number.get(number)
        if device and device.free_bytes < UTILIZATION * device.memory_bytes:
            free, whole = device.free_bytes / _GIB, device.memory_bytes / _GIB
            said = f"of GPU {number}'s {whole:.1f} GiB {free:.1f} are free, and vLLM asks for"
            then = "end what uses it (nvidia-smi), or lower --gpu-memory-utilization in flags"
            yield Finding("warning", ABOUT, f"{said} {UTILIZATION:.0%}", then)


def _described(machine: Machine) -> str:
    """What they are: whole GPUs by their kind, MIG devices each with its number."""
    known = [machine.gpu_by_number[n] for n in machine.gpus if n in machine.gpu_by_number]
    kinds = Counter(f"{each.name}, {each.memory_bytes / _GIB:.0f} GiB" for each in known)
    said = [f"{count} x {kind}" for kind, count in kinds.items()]
    said += [f"device {d.number} is {d.uuid}" for d in known if d.parent is not None]
    return f": {'; '.join(said)}" if said else ""


def parse_topology(text: str) -> Links:
    """The links in the answer of `nvidia-smi topo -m`; empty if it isn't one."""
    rows = [line.split() for line in _ESCAPES.sub("", text).splitlines()]
    header = next((row for row in rows if row and row[0] == "GPU0" and "X" not in row), None)
    if header is None:
        return {}
    columns = [_GPU.fullmatch(name) for name in header]
    links: dict[tuple[int, int], str] = {}
    for row in rows:
        own = _GPU.fullmatch(row[0]) if row else None
        if own is None or row is header:
            continue
        for other, link in zip(columns, row[1:], strict=False):
            if other and link != "X":
                first, second = sorted((int(own[1]), int(other[1])))
                links[first, second] = link
    return links


def links_within(engines: Sequence[EngineSpec], links: Links) -> Iterator[Finding]:
    """Whether the GPUs of each engine are close to one another."""
    for engine in engines:
        pairs = list(combinations(sorted(engine.devices), 2))
        far = {pair: links[pair] for pair in pairs if links.get(pair) in _FAR}
        if far:
            (first, second), link = next(iter(far.items()))
            said = f"{engine.name}: GPUs {first} and {second} reach one another {_FAR[link]}"
            then = "set the pool's `devices` to GPUs with NVLink (nvidia-smi topo -m)"
            yield Finding("warning", ABOUT, f"{said} ({link}), which slows every step", then)
        elif pairs and all(links.get(pair, "").startswith("NV") for pair in pairs):
            yield Finding("ok", ABOUT, f"{engine.name}: its GPUs are connected by NVLink")


def transports(said: str | None) -> Iterator[Finding]:
    """What UCX, which moves KV, can use. said: the answer of `ucx_info -d`, None without one."""
    if said is None:
        what = "ucx_info isn't there: how KV will move can't be seen beforehand"
        then = "install UCX's tools to see it; run this on the running fleet to see whether it does"
        yield Finding("note", ABOUT, what, then)
        return
    if not _CUDA.search(said):
        what = "UCX doesn't see CUDA: KV would move through host memory"
        yield Finding("warning", ABOUT, what, "use a UCX with CUDA, as the nixl wheels have it")
    if _RDMA.search(said):
        yield Finding("ok", ABOUT, "UCX sees RDMA: KV moves to other machines without copies")
    else:
        what = "UCX sees no RDMA: KV moves to other machines over TCP"
        then = "nothing on one machine; else make the RDMA devices visible here"
        yield Finding("note", ABOUT, what, then)


def output(command: Sequence[str]) -> str | None:
    """What a command writes; None where it isn't there, fails or takes long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def free_shared_memory(path: str = "/dev/shm") -> int | None:  # noqa: S108 -- its name
    """Bytes free there; None where there is no such place."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
