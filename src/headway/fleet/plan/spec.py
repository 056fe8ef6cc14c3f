"""What a fleet is made of: engines to start, where they listen, the machine they run on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway.config import Config
    from headway.core.hardware.emulation import Emulation
    from headway.fleet.plan.gpus import GpuDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine to start.

    Args:
        name: `<pool>-<index>`; never reused for another pool.
        pool: The pool it serves.
        role: `both`, `prefill` or `decode`.
        model: A local directory, a name on a model hub, or of a well-known model that is emulated;
            None is the bundled model.
        devices: GPUs' numbers, or CPU cores on the CPU build; none where Ray chooses, or where they
            are emulated.
        tensor_parallel_size: How many devices share each layer.
        pipeline_parallel_size: How many groups of devices share the layers.
        emulation: The GPUs that it has though they aren't there; None: it computes.
        max_model_len: The engine's limit on prompt and answer together; None is the model's.
        kv_memory_gib: Memory for the KV cache; None leaves it to vLLM.
        kv_lease_s: How long it keeps KV that nobody fetched.
        batching: Headway's batching settings, `policy` among them; what is absent has its default.
        flags: Further flags for vLLM, as on its command line.
        env: Further environment variables.
    """

    name: str
    pool: str
    role: str
    model: str | None
    devices: tuple[int, ...]
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    emulation: Emulation | None = None
    max_model_len: int | None = None
    kv_memory_gib: float | None = None
    kv_lease_s: float = 30.0
    batching: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def emulated(engine: EngineSpec) -> str:
    """What the figures of an engine are marked with; empty where it computes."""
    return engine.emulation.said(engine.tensor_parallel_size) if engine.emulation else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an engine listens.

    Args:
        host: Its host.
        port: Its HTTP server's port.
        side_port: The port of its KV connector's side channel.
        spread: Its GPUs are on several nodes: vLLM's own Ray executor finds and uses them.
    """

    host: str
    port: int
    side_port: int
    spread: bool = False

    @property
    def url(self) -> str:
        """The engine's URL, as a router's pool names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What engines can be started on.

    Args:
        cores: The CPU cores this process may use.
        gpus: The GPUs' numbers, those of MIG devices among them.
        memory_gib: Host memory available now.
        cpu: The installed vLLM is its CPU build: engines run on `cores`, not `gpus`.
        gpu_by_number: What is known of each; nothing is of one that isn't there.
        gpu_problem: Why GPUs can't be seen; empty if there is nothing to say.
        held: Devices that another fleet of this user has, and its name.
    """

    cores: tuple[int, ...]
    gpus: tuple[int, ...]
    memory_gib: float
    cpu: bool
    gpu_by_number: Mapping[int, GpuDevice] = field(default_factory=dict)
    gpu_problem: str = ""
    held: Mapping[int, str] = field(default_factory=dict)

    @property
    def usable(self) -> tuple[int, ...]:
        """The devices that engines may run on: those that no other fleet has."""
        devices = self.cores if self.cpu else self.gpus
        return tuple(device for device in devices if device not in self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """A fleet to run, every engine named and placed.

    Args:
        name: The fleet's name; one supervisor runs it at a time.
        placement: Where engines run: `local` or `ray`.
        start_timeout_s: How long an engine may take until it is ready.
        hang_s: How long an engine that has work may make no progress before it is restarted.
        drain_s: How long a stop waits for running requests.
        engines: The engines to start, pool by pool in the file's order.
        config: The file: the router's part, and the pools as written.
    """

    name: str
    placement: str
    start_timeout_s: float
    hang_s: float
    drain_s: float
    engines: tuple[EngineSpec, ...]
    config: Config
