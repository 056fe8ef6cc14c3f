"""The command of one engine: its settings, devices and addresses as vLLM wants them."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from headway.engine.start.command import EngineCommand, EngineWish, build
from headway.fleet.plan import vllm_flags
from headway.fleet.plan.devices import split
from headway.fleet.plan.spec import Address, EngineSpec, Machine
from headway.models import bundled, known

_KV_SPACE: Final = "VLLM_CPU_KVCACHE_SPACE"
_THREADS: Final = "OMP_NUM_THREADS"
_LEASE_S: Final = 30.0
"""What vLLM keeps KV for unless told otherwise."""


def engine_command(
    engine: EngineSpec,
    address: Address,
    machine: Machine,
    model_path: str,
    environ: Mapping[str, str],
) -> EngineCommand:
    """What to run for an engine.

    model_path: where its model is: `engine.model`, or the directory of the bundled model or of a
        well-known one.
    environ: the user's environment. The engine's own wins over it, and devices and addresses
        over both.

    Raises SettingError for batching settings that contradict one another.
    """
    wish = EngineWish(
        model=model_path,
        bundled=bundled.NAME if engine.model is None else None,
        known=known.well_known(engine.model or "") if engine.emulation else None,
        emulation=engine.emulation,
        batching=engine.batching,
        vllm_flags=(*_flags(engine, address, machine), *engine.flags),
    )
    environ = {**environ, **engine.env, **_environment(engine, address, machine)}
    cores = engine.devices if machine.cpu else machine.cores
    command = build(wish, environ, cpu=machine.cpu, cores=cores)
    if machine.cpu and engine.devices:
        # vLLM's engine core waits for its worker by yielding the CPU in a loop: beside another
        # engine's worker it slows that one down, and is itself kept waiting for up to a second.
        command = dataclasses.replace(command, cores=engine.devices)
    if engine.kv_memory_gib is None:
        return command
    # It would win over the flag, and takes whole GiB only.
    env = {name: value for name, value in command.env.items() if name != _KV_SPACE}
    return dataclasses.replace(command, env=env)


def transfers(engine: EngineSpec) -> bool:
    """Whether the engine has a KV connector."""
    return engine.role != "both" or vllm_flags.connector(engine.flags) is not None


def threads(engine: EngineSpec) -> int:
    """Of each rank on CPU cores that aren't named: OMP_NUM_THREADS, where the engine has it."""
    given = engine.env.get(_THREADS, "")
    return int(given) if given.isdecimal() and int(given) else 1


def _anywhere(engine: EngineSpec, machine: Machine) -> dict[str, str]:
    """Ray tells an engine which GPUs are its own, and of cores how many."""
    if not machine.cpu:
        return {}
    return {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        _THREADS: str(threads(engine)),
    }


def core_list(cores: Sequence[int]) -> str:
    """The cores as vLLM's VLLM_CPU_OMP_THREADS_BIND has them: "0-3", "0,2"."""
    return ",".join(_ranges(sorted(cores)))


def _ranges(cores: Sequence[int]) -> Iterator[str]:
    start = 0
    for place in range(1, len(cores) + 1):
        if place == len(cores) or cores[place] != cores[place - 1] + 1:
            first, last = cores[start], cores[place - 1]
            yield str(first) if first == last else f"{first}-{last}"
            start = place


def _flags(engine: EngineSpec, address: Address, machine: Machine) -> tuple[str, ...]:
    chosen: dict[str, object] = {"--host": address.host, "--port": address.port}
    if engine.tensor_parallel_size > 1:
        chosen["--tensor-parallel-size"] = engine.tensor_parallel_size
    if engine.pipeline_parallel_size > 1:
        chosen["--pipeline-parallel-size"] = engine.pipeline_parallel_size
    if address.spread:
        chosen[vllm_flags.EXECUTOR] = "ray"
    if engine.max_model_len is not None:
        chosen["--max-model-len"] = engine.max_model_len
    if engine.kv_memory_gib is not None:
        chosen["--kv-cache-memory-bytes"] = int(engine.kv_memory_gib * 2**30)
    if transfers(engine) and vllm_flags.connector(engine.flags) is None:
        chosen[vllm_flags.KV_TRANSFER] = json.dumps(_connector(engine, machine))
    return tuple(str(word) for pair in chosen.items() for word in pair)


def _connector(engine: EngineSpec, machine: Machine) -> dict[str, Any]:
    connector: dict[str, Any] = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        # KV that can't be fetched fails the request here, and the router tries it elsewhere: to
        # compute a long prompt again would stall all that decode beside it.
        "kv_load_failure_policy": "fail",
    }
    if machine.cpu:
        connector["kv_buffer_device"] = "cpu"
    if engine.kv_lease_s != _LEASE_S:
        lease_s = math.ceil(engine.kv_lease_s)
        connector["kv_connector_extra_config"] = {"kv_lease_duration": lease_s}
    return connector


def _visible_as(engine: EngineSpec, machine: Machine) -> Iterator[str]:
    """An engine's GPUs as CUDA knows them."""
    for number in engine.devices:
        device = machine.gpu_by_number.get(number)
        yield device.visible_as if device else str(number)


def _environment(engine: EngineSpec, address: Address, machine: Machine) -> dict[str, str]:
    if engine.emulation:
        chosen = {}
    elif not engine.devices:
        chosen = _anywhere(engine, machine)
    elif machine.cpu:
        ranks = engine.tensor_parallel_size * engine.pipeline_parallel_size
        chosen = {
            "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(core_list, split(engine.devices, ranks))),
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        }
    else:
        chosen = {
            # Numbers as nvidia-smi has them, not by speed.
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(_visible_as(engine, machine)),
        }
    if address.spread:
        chosen["VLLM_HOST_IP"] = address.host  # as Ray knows the node
    if transfers(engine):
        chosen["VLLM_NIXL_SIDE_CHANNEL_HOST"] = address.host
        chosen["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(address.side_port)
    return chosen
