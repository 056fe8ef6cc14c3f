"""From a file to a fleet: every engine named, placed and with all its settings."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headway import config as settings
from headway.config import Config, ConfigError, Pool, Problem
from headway.config.checks import shown
from headway.config.fleet import ROUTERS_LIMITS
from headway.config.model import MOST_REPLICAS, Router
from headway.config.problems import Problems
from headway.core.batching.settings import PRIORITY_LEVELS, STOCK
from headway.core.client_range import UNASKED
from headway.core.errors import SettingError
from headway.fleet.plan import template, vllm_flags
from headway.fleet.plan.devices import Shares, ShortError, Want, share
from headway.fleet.plan.spec import EngineSpec, FleetSpec, Machine
from headway.models import bundled, known

_CPU_KV_GIB: Final = 4.0
_CPU_BUNDLED_KV_GIB: Final = 2.0


def load(path: Path | None, machine: Machine) -> Config:
    """The configuration of a fleet: a file's, or without one the default for this machine.

    Raises ConfigError.
    """
    if path is not None:
        return settings.load(path, starts=True)
    return settings.parse(default_text(machine), "(no file)", starts=True)


def default_text(machine: Machine) -> str:
    """The file that is used when there is none: the bundled model on this machine."""
    return template.text(machine)


def plan(config: Config, machine: Machine) -> FleetSpec:
    """All engines to start, with the machine's devices shared out to them.

    config: read with `starts`.

    Raises ConfigError where the machine hasn't what the file asks for.
    """
    problems = Problems(config.source)
    for index, pool in started(config):
        _check_context(index, pool, problems)
        _check_devices(index, pool, config, machine, problems)
    problems.finish()
    shares = _shares(config, machine)
    engines = [
        _engine(config, pool, number, devices, machine)
        for _, pool in started(config)
        for number, devices in enumerate(shares[pool.name])
    ]
    fleet = config.fleet
    return FleetSpec(
        name=fleet.name,
        placement=fleet.placement,
        start_timeout_s=fleet.start_timeout_s,
        hang_s=fleet.hang_s,
        drain_s=fleet.drain_s,
        engines=tuple(engines),
        config=config,
    )


def _shares(config: Config, machine: Machine) -> Shares:
    if config.fleet.placement == "ray":
        return {pool.name: ((),) * pool.replicas for _, pool in started(config)}
    wants = {
        pool.name: Want(pool.replicas, size(pool), pool.devices)
        for _, pool in started(config)
        if not pool.emulate
    }
    none = {p.name: ((),) * p.replicas for _, p in started(config) if p.emulate}
    try:
        return {**share(wants, machine.usable, cpu=machine.cpu), **none}
    except ShortError as error:
        raise _short(error, config, machine) from None


def wrong_models(spec: FleetSpec, environ: Mapping[str, str]) -> list[Problem]:
    """What is wrong with the models of engines to start here, as far as it can be known.

    environ: the user's environment.
    """
    if spec.placement != "local":
        return []  # other machines may have what this one hasn't
    found = []
    for index, pool in started(spec.config):
        if pool.model is not None:
            said = known.problem(
                pool.model,
                {**environ, **pool.env},
                vllm_flags.given(pool.flags),
                emulated=pool.emulate is not None,
            )
            if said:
                found.append(spec.config.source.problem(("pool", index, "model"), said))
    return found


def rescale(
    spec: FleetSpec, config: Config, machine: Machine, pool: str, replicas: int
) -> FleetSpec:
    """The fleet with another number of engines in a pool; all that stay keep their devices.

    spec: the fleet as it runs.
    config: the file as it is now; new engines get its settings.

    The engines with the highest numbers go. New ones get devices that no engine uses and no other
    pool names: GPUs as many as they need, CPU cores evenly, up to what the pool's first has.

    Raises SettingError.
    """
    names = {each.name: each for _, each in started(config)}
    if pool not in names:
        known = ", ".join(names) or "none"
        raise SettingError(
            pool, f"is not a pool whose engines are started here; those are: {known}"
        )
    if not 1 <= replicas <= MOST_REPLICAS:
        raise SettingError(
            pool, f"{shown(replicas)} engines are out of range; use 1 to {MOST_REPLICAS}"
        )
    own = [engine for engine in spec.engines if engine.pool == pool]
    kept = own[:replicas]
    staying = [*kept, *(engine for engine in spec.engines if engine.pool != pool)]
    added = _added(names[pool], replicas - len(kept), own, staying, config, machine)
    order = {each.name: place for place, each in enumerate(config.pools)}
    engines = sorted([*staying, *added], key=lambda engine: order.get(engine.pool, len(order)))
    return dataclasses.replace(spec, engines=tuple(engines), config=config)


def started(config: Config) -> list[tuple[int, Pool]]:
    """The pools whose engines are started, each with its index in the file."""
    return [(index, pool) for index, pool in enumerate(config.pools) if not pool.engines]


def size(pool: Pool) -> int:
    """Devices that one engine of the pool needs."""
    return pool.tensor_parallel_size * pool.pipeline_parallel_size


def _added(
    pool: Pool,
    count: int,
    own: Sequence[EngineSpec],
    staying: Sequence[EngineSpec],
    config: Config,
    machine: Machine,
) -> list[EngineSpec]:
    """So many new engines of the pool. Raises SettingError for too few free devices."""
    if count <= 0:
        return []
    if config.fleet.placement == "ray":
        chunks: list[tuple[int, ...]] = [()] * count
    else:
        chunks = _free(pool, count, own, staying, config, machine)
    used = {engine.name for engine in staying}
    numbers = [n for n in range(len(staying) + count) if f"{pool.name}-{n}" not in used]
    return [
        _engine(config, pool, number, chunk, machine)
        for chunk, number in zip(chunks, numbers, strict=False)
    ]


def _free(
    pool: Pool,
    count: int,
    own: Sequence[EngineSpec],
    staying: Sequence[EngineSpec],
    config: Config,
    machine: Machine,
) -> list[tuple[int, ...]]:
    """Devices for so many new engines of the pool. Raises SettingError for too few."""
    if pool.emulate:
        return [()] * count
    taken = {device for engine in staying for device in engine.devices}
    taken |= {d for _, other in started(config) if other.name != pool.name for d in other.devices}
    allowed = [d for d in machine.usable if d in pool.devices or not pool.devices]
    free = [device for device in allowed if device not in taken]
    most = max(len(own[0].devices), size(pool)) if own and machine.cpu else size(pool)
    each = min(len(free) // count, most)
    if each < size(pool):
        kind = "CPU cores" if machine.cpu else "GPUs"
        fit = len(free) // size(pool)
        right = f"use {len(own) + fit} engines or fewer, or " if fit else ""
        raise SettingError(
            pool.name,
            f"{count} more would need {count * size(pool)} {kind} and {len(free)} are free; "
            f"{right}scale another pool down first{_or_end_others(machine)}",
        )
    return [tuple(free[start : start + each]) for start in range(0, count * each, each)]


def _engine(
    config: Config, pool: Pool, number: int, devices: tuple[int, ...], machine: Machine
) -> EngineSpec:
    kv_memory_gib, emulated = pool.kv_memory_gib, pool.emulate is not None
    if kv_memory_gib is None and machine.cpu and not emulated:
        # Left alone, each engine would take nearly all memory it sees.
        kv_memory_gib = _CPU_BUNDLED_KV_GIB if pool.model is None else _CPU_KV_GIB
    return EngineSpec(
        name=f"{pool.name}-{number}",
        pool=pool.name,
        role=pool.role,
        model=pool.model or (known.DEFAULT if emulated else None),
        devices=devices,
        tensor_parallel_size=pool.tensor_parallel_size,
        pipeline_parallel_size=pool.pipeline_parallel_size,
        emulation=pool.emulate,
        max_model_len=pool.max_model_len,
        kv_memory_gib=kv_memory_gib,
        kv_lease_s=pool.kv_lease_s,
        batching=_batching(config, pool),
        flags=pool.flags,
        env=pool.env,
    )


def _batching(config: Config, pool: Pool) -> dict[str, Any]:
    """The pool's settings; those it doesn't set follow the router, so that both aim at one and
    grant clients the same.
    """
    given = pool.batching.given()
    if given.get("policy") == STOCK:
        return given
    slo = config.router.slo
    limits = {name: getattr(slo, routers) for name, routers in ROUTERS_LIMITS.items()} | given
    return {**_client_range(config.router, limits), **limits}


def _client_range(router: Router, limits: Mapping[str, Any]) -> dict[str, Any]:
    """What an engine's clients may ask for at the most urgent, where that isn't its default.

    limits: the engine's own.
    """
    found: dict[str, Any] = {}
    clients = router.clients.values()
    priority = min([each.priority[0] for each in clients if each.priority], default=UNASKED)
    if priority < UNASKED:
        found["min_client_priority"] = max(priority, -PRIORITY_LEVELS)
    factors = [
        ends[0] / limits[name]
        for each in clients
        for name, ends in (("ttft_slo_s", each.ttft_slo_s), ("tpot_slo_s", each.tpot_slo_s))
        if ends
    ]
    if min(factors, default=1.0) < 1:
        found["min_client_slo_factor"] = min(factors)
    return found


def _check_devices(
    index: int, pool: Pool, config: Config, machine: Machine, problems: Problems
) -> None:
    if config.fleet.placement == "ray":
        if pool.devices:
            said = 'are chosen by Ray under placement = "ray"; leave them out'
            problems.add(("pool", index, "devices"), said)
        return
    known = machine.usable
    kind = "CPU cores" if machine.cpu else "GPUs"
    for place, device in enumerate(pool.devices):
        if device in machine.held:
            problems.add(
                ("pool", index, "devices", place),
                f"{device} is used by the fleet {machine.held[device]}; use others, or end it",
            )
        elif device not in known:
            listed = ", ".join(map(str, known)) or "none"
            problems.add(
                ("pool", index, "devices", place),
                f"{device} is not one of the {kind} usable here: {listed}",
            )


def _or_end_others(machine: Machine) -> str:
    """What else would help where other fleets have devices."""
    names = ", ".join(sorted(set(machine.held.values())))
    said = f", or end what has {len(machine.held)} of them: {names} (headway down --name)"
    return said if names else ""


def _check_context(index: int, pool: Pool, problems: Problems) -> None:
    context = pool.max_model_len
    own = pool.model is None and not pool.emulate
    if own and context is not None and context > bundled.CONTEXT_TOKENS:
        problems.add(
            ("pool", index, "max_model_len"),
            f"{context} is more than the bundled model has; use {bundled.CONTEXT_TOKENS} or less",
        )


def _short(error: ShortError, config: Config, machine: Machine) -> ConfigError:
    index, pool = next(each for each in started(config) if each[1].name == error.pool)
    kind = "CPU cores" if machine.cpu else "GPUs"
    each = f", {size(pool)} each" if size(pool) > 1 else ""
    engines = f"{pool.replicas} engine{'s' if pool.replicas > 1 else ''}{each}"
    left = (
        f"has {error.left}" if pool.devices else f"{error.left} of {len(machine.usable)} are left"
    )
    said = f"the pool needs {error.needed} {kind} ({engines}) and {left}"
    right = "name more" if pool.devices else "use fewer replicas"
    right += _or_end_others(machine)
    if not (machine.cpu or machine.gpus) and machine.gpu_problem:
        right = machine.gpu_problem
    at = ("pool", index, "devices" if pool.devices else "replicas")
    return ConfigError((config.source.problem(at, f"{said}; {right}"),))
