"""Whether each engine's model fits its GPUs, and what would.

Told only where both are known: a model whose files are here or whose configuration the hub's cache
has, on GPUs whose memory the driver tells. All else is left to vLLM.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from headway.config import Pool, Problem
from headway.config.lines import Path
from headway.core.hardware.fit import (
    UTILIZATION,
    EngineMemory,
    MemoryUse,
    fit,
    smallest_tensor_parallel_size,
    splits,
)
from headway.core.hardware.footprint import ModelFootprint, footprint
from headway.core.hardware.gpu import GIB, gpu_named
from headway.fleet.plan import vllm_flags
from headway.fleet.plan.plan import started
from headway.fleet.plan.sizing import STEP_TOKENS, gib, smallest_bytes, widest
from headway.fleet.plan.spec import FleetSpec, Machine
from headway.models import known
from headway.models.files import ModelFiles, model_files

_OTHERWISE: Final = (
    "--hf-overrides",
    "--hf-config-path",
    "--cpu-offload-gb",
    "--decode-context-parallel-size",
    "--data-parallel-size",
    "--gguf-file",
)
"""Flags that change what a model takes in ways that aren't counted here."""

_NODE_GPUS: Final = 8
"""Of a node that is emulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """What is known of one pool. said: a line for people. problem: why it can't start, or None."""

    said: str
    checked: bool
    problem: Problem | None = None


def of_pools(
    fleet: FleetSpec, machine: Machine, environ: Mapping[str, str]
) -> tuple[PoolMemory, ...]:
    """Whether the engines of each pool that is started have memory enough, emulated ones too.

    Nothing is told of engines that run on CPUs, or where Ray chooses their GPUs.
    """
    return tuple(
        _of_pool(fleet, index, pool, machine, environ)
        for index, pool in started(fleet.config)
        if pool.emulate
        or (pool.model is not None and not machine.cpu and fleet.placement == "local")
    )


def problems(fleet: FleetSpec, machine: Machine, environ: Mapping[str, str]) -> list[Problem]:
    """What can't start for want of memory, or has too many parts."""
    return [each.problem for each in of_pools(fleet, machine, environ) if each.problem]


def _of_pool(
    fleet: FleetSpec, index: int, pool: Pool, machine: Machine, environ: Mapping[str, str]
) -> PoolMemory:
    about = f"memory of {pool.name}"
    numbers = [n for engine in fleet.engines if engine.pool == pool.name for n in engine.devices]
    gpu_bytes = smallest_bytes(machine, numbers)
    if pool.emulate:
        gpu_bytes = gpu_named(pool.emulate.gpu).memory_bytes
    parts = [n for n in numbers if (d := machine.gpu_by_number.get(n)) and d.parent is not None]
    if parts and pool.tensor_parallel_size * pool.pipeline_parallel_size > 1:
        said = "MIG devices can't work together in one engine; use 1"
        return _refused(fleet, about, ("pool", index, "tensor_parallel_size"), said)
    flags = vllm_flags.given(pool.flags)
    model, unknown = known_model(pool, flags, environ)
    if model is None or not gpu_bytes:
        unknown = unknown or "the GPUs' memory isn't known"
        return PoolMemory(said=f"{about}: not checked: {unknown}", checked=False)
    engine = _engine(pool, flags, gpu_bytes)
    most = _NODE_GPUS if pool.emulate else widest(machine)
    if model.heads % engine.tensor_parallel_size:
        right = [str(n) for n in range(1, most + 1) if splits(model, n)]
        said = f"doesn't divide the model's {model.heads} attention heads; use {' or '.join(right)}"
        return _refused(fleet, about, ("pool", index, "tensor_parallel_size"), said)
    if fit(model, engine, least=True).fits:
        return PoolMemory(said=f"{about}: {_shares(fit(model, engine))}", checked=True)
    key, said = _shortage(model, engine, pool, most)
    return _refused(fleet, about, ("pool", index, key), said)


def _refused(fleet: FleetSpec, about: str, at: Path, said: str) -> PoolMemory:
    problem = fleet.config.source.problem(at, said)
    return PoolMemory(said=f"{about}: {said}", checked=True, problem=problem)


def known_model(
    pool: Pool, flags: Mapping[str, vllm_flags.Given], environ: Mapping[str, str]
) -> tuple[ModelFootprint | None, str]:
    """The pool's model, or why it isn't known. flags: the pool's, by name."""
    other = next((flag for flag in flags if flag.partition(".")[0] in _OTHERWISE), None)
    if other:
        return None, f"{other} changes what the model takes"
    config = known.config(pool.model) if pool.emulate else None
    files = (
        ModelFiles(config, None)
        if config
        else model_files(
            pool.model or "",
            {**environ, **pool.env},
            revision=_value(flags, "--revision"),
            cache=_value(flags, "--download-dir"),
        )
    )
    if files is None:
        return None, f"the configuration of {pool.model} isn't on this machine"
    quantized = _value(flags, "--quantization")
    model = footprint(files.config, files_bytes=files.weights_bytes, quantized=quantized)
    return model, "" if model else f"the configuration of {pool.model} doesn't tell its sizes"


def _engine(pool: Pool, flags: Mapping[str, vllm_flags.Given], gpu_bytes: int) -> EngineMemory:
    kv_gib = pool.kv_memory_gib
    return EngineMemory(
        gpu_bytes=gpu_bytes,
        utilization=_number(flags, "--gpu-memory-utilization") or UTILIZATION,
        tensor_parallel_size=pool.tensor_parallel_size,
        pipeline_parallel_size=pool.pipeline_parallel_size,
        context_tokens=pool.max_model_len,
        kv_bytes=None if kv_gib is None else round(kv_gib * GIB),
        kv_element_bytes=1 if (_value(flags, "--kv-cache-dtype") or "").startswith("fp8") else None,
        step_tokens=int(_number(flags, "--max-num-batched-tokens")) or None,
        seats=int(_number(flags, "--max-num-seqs")) or None,
        graphs="--enforce-eager" not in flags,
    )


def _shortage(
    model: ModelFootprint, engine: EngineMemory, pool: Pool, most: int
) -> tuple[str, str]:
    """The setting that is too small or too large, and what to say of it. most: GPUs there are."""
    short = fit(model, engine, least=True)
    gpus = f"{engine.tensor_parallel_size} GPU{'s' if engine.tensor_parallel_size > 1 else ''}"
    right = list(_remedies(model, engine, most)) or ["use a smaller or quantised model"]
    then = f"; {', or '.join(right)}"
    if short.spare_bytes < 0:
        key = "tensor_parallel_size" if engine.kv_bytes is None else "kv_memory_gib"
        cache = f" and {gib(engine.kv_bytes)} of KV cache" if engine.kv_bytes else ""
        said = f"the model needs {gib(short.weights_bytes)} of each of {gpus} for its weights"
        return key, f"{said}{cache}, and an engine has {gib(short.usable_bytes)}{then}"
    key = "max_model_len" if pool.max_model_len else "tensor_parallel_size"
    said = f"KV of {short.context_tokens} tokens takes {gib(short.kv_bytes)} of each of {gpus}"
    return key, f"{said}, and weights leave {gib(short.room_bytes)}{then}"


def _remedies(model: ModelFootprint, engine: EngineMemory, most: int) -> Iterator[str]:
    """What would fit: more GPUs (of so many), a shorter context, smaller weights."""
    size = smallest_tensor_parallel_size(model, engine, most)
    if size is not None and size != engine.tensor_parallel_size:
        yield f"use tensor_parallel_size = {size}"
    now = fit(model, engine)
    tokens = now.largest_context_tokens // STEP_TOKENS * STEP_TOKENS
    if tokens and now.spare_bytes >= 0:
        yield f"use max_model_len = {tokens}"
    if engine.kv_bytes is not None and fit(model, replace(engine, kv_bytes=None)).fits:
        yield "leave kv_memory_gib to vLLM"
    half = replace(model, weights_bytes=model.weights_bytes // 2)
    if fit(half, engine).fits:
        yield "use a model quantised to half its size"


def _shares(used: MemoryUse) -> str:
    """How an engine's memory is used, in words."""
    return (
        f"weights {gib(used.weights_bytes)} of each GPU's {gib(used.usable_bytes)}, about "
        f"{gib(max(0, used.room_bytes))} for KV; one context of {used.context_tokens} tokens "
        f"takes {gib(used.kv_bytes)}"
    )


def _value(flags: Mapping[str, vllm_flags.Given], name: str) -> str | None:
    return flags[name].value if name in flags else None


def _number(flags: Mapping[str, vllm_flags.Given], name: str) -> float:
    """A flag's number; 0 where it isn't there or can't be, which vLLM says itself."""
    try:
        number = float(_value(flags, name) or 0)
    except ValueError:
        return 0.0
    return number if 0 < number < math.inf else 0.0
