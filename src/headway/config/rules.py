"""Rules that more than one setting has a part in, and warnings about what is allowed but risky."""

import ipaddress
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headway import masking
from headway.config.checks import EngineAddress
from headway.config.clients import EVERYONE
from headway.config.model import Config, Router
from headway.config.problems import Problems, dotted
from headway.config.starting import Pools, check_places, check_starts
from headway.core.client_range import nearest, told
from headway.core.routing.strategies import LENGTH_STRATEGIES, SPLIT_STRATEGY

if TYPE_CHECKING:
    from headway.config.lines import Path


def check(router: Router, pools: Pools, problems: Problems, *, starts: bool) -> None:
    """Add a problem for every rule that is broken, as far as its settings could be read.

    starts: pools without engines are started; otherwise that is a problem.
    """
    if not pools and problems.clear_of(("pool",)):
        problems.add(
            ("pool",), "there is no engine; name at least one, such as http://127.0.0.1:8100"
        )
    check_places(pools, problems, starts=starts)
    if starts:
        check_starts(pools, problems)
    _distinct(pools, problems)
    _not_itself(router, pools, problems)
    if problems.clear_of(("router", "strategy"), ("pool",)):
        if router.routing.by_length:
            _by_length(router.strategy, pools, problems)
        elif router.routing.splits:
            _splits(router.strategy, pools, problems)
        elif not any(pool.role != "prefill" for _, pool in pools):
            problems.add(
                ("router", "strategy"),
                'no pool serves whole requests; use role = "both", '
                f'or strategy = "{SPLIT_STRATEGY}" with a decode pool',
            )
    for index, pool in pools:
        prompt, context = pool.max_prompt_tokens, pool.max_model_len
        if prompt is not None and context is not None and prompt > context:
            problems.add(
                ("pool", index, "max_prompt_tokens"),
                f"{prompt} is more than the pool's max_model_len; use at most {context}",
            )
    _consistent(router, problems)


def _consistent(router: Router, problems: Problems) -> None:
    """The router's limits suit one another."""
    sizes = ("router", "max_body_bytes"), ("router", "max_bodies_bytes")
    if problems.clear_of(*sizes) and router.bodies_bytes < router.max_body_bytes:
        problems.add(
            ("router", "max_bodies_bytes"),
            f"{router.bodies_bytes} is less than one body may have; use max_body_bytes, "
            f"{router.max_body_bytes}, or more",
        )
    times = router.timeouts
    if problems.clear_of(("router", "timeouts")) and times.total_s < times.first_byte_s:
        problems.add(
            ("router", "timeouts", "total_s"),
            f"{times.total_s:g} is less than first_byte_s; use {times.first_byte_s:g} or more",
        )
    for name, allowed in router.client_ranges.items():
        default, at = allowed.default_priority, ("router", "clients", name)
        if problems.clear_of(at) and nearest(default, allowed.priority) != default:
            problems.add(
                (*at, "default_priority"),
                f"{default} is outside the range; use a whole number {told(allowed.priority)}",
            )


def warnings(config: Config) -> tuple[str, ...]:
    """What is allowed and probably not meant."""
    router, found = config.router, []
    if not _loopback(router.host):
        where = f"{router.host} port {router.port}"
        if not config.keys:
            found.append(f"whoever reaches {where} may use it: set router.keys")
        elif router.tls is None:
            found.append(f"keys travel in the clear to {where}: set router.tls, or end TLS before")
    if not router.routing.splits:
        found += [
            f'pool "{pool.name}" is idle: "{router.strategy}" sends nothing to prefill pools'
            for pool in config.pools
            if pool.role == "prefill"
        ]
    if not router.routing.by_length:
        found += [
            f'max_prompt_tokens of pool "{pool.name}" has no effect without {LENGTH_STRATEGIES}'
            for pool in config.pools
            if pool.max_prompt_tokens is not None
        ]
    known = {EVERYONE, *config.keys.names}
    if len(known) > 1 or not router.keys.file:  # or the file hasn't been read
        found += [
            f"{dotted(('router', 'clients', name))} has no effect: no key has this name"
            for name in router.clients
            if name not in known
        ]
    found += [
        f'{flag} of pool "{pool.name}" holds what looks like a secret, which everybody sees in '
        "`ps` and in manifests; if what reads it takes a variable, set that in [pool.env]"
        for pool in config.pools
        for flag in _telling_flags(pool.flags)
    ]
    return tuple(found)


def _telling_flags(flags: Sequence[str]) -> Iterator[str]:
    """The names of those whose values aren't to be shown."""
    name = ""
    for word, shown in zip(flags, masking.words(flags), strict=True):
        if word.startswith("-"):
            name = word.partition("=")[0]
        if word != shown:
            yield name


def _distinct(pools: Pools, problems: Problems) -> None:
    names: dict[str, int] = {}
    engines: dict[tuple[str, int], Path] = {}
    for index, pool in pools:
        first = names.setdefault(pool.name, index)
        if first != index:
            problems.add(
                ("pool", index, "name"),
                f'"{pool.name}" is also the name of pool[{first}]; use another',
            )
        for place, engine in enumerate(pool.engines):
            at: Path = ("pool", index, "engines", place)
            if engines.setdefault((engine.host, engine.port), at) != at:
                problems.add(at, f"{engine} is there twice; an engine belongs to one pool, once")


def _not_itself(router: Router, pools: Pools, problems: Problems) -> None:
    if not problems.clear_of(("router", "port"), ("router", "admin_port"), ("router", "host")):
        return
    if router.port and router.port == router.admin_port:
        problems.add(
            ("router", "admin_port"),
            f"{router.port} is also the router's port; use another, or 0 for none",
        )
    for index, pool in pools:
        for place, engine in enumerate(pool.engines):
            at: Path = ("pool", index, "engines", place)
            if engine.port == router.port and _same_host(engine, router.host):
                problems.add(at, f"{engine} is the router itself; use another port for one of them")
            elif engine.port == router.admin_port and _loopback(engine.host):
                problems.add(
                    at,
                    f"{engine} is the router's admin_port; use another port for one of them, "
                    "or admin_port 0 for none",
                )


def _same_host(engine: EngineAddress, listening: str) -> bool:
    local = listening in {"0.0.0.0", "::"} or _loopback(listening)  # noqa: S104 - compared only
    return engine.host == listening.lower() or (local and _loopback(engine.host))


def _by_length(strategy: str, pools: Pools, problems: Problems) -> None:
    whole = [(index, pool) for index, pool in pools if pool.role != "prefill"]
    if len(whole) < 2:
        problems.add(
            ("router", "strategy"),
            f'"{strategy}" needs two or more pools that serve whole requests: '
            "one with max_prompt_tokens for short prompts, one without for the others",
        )
        return
    limits: dict[int | None, int] = {}
    for index, pool in whole:
        limit = pool.max_prompt_tokens
        first = limits.setdefault(limit, index)
        if first == index:
            continue
        said = "has no max_prompt_tokens either" if limit is None else "has the same"
        problems.add(
            ("pool", index, "max_prompt_tokens"),
            f'with "{strategy}" each pool needs its own and one pool has none; '
            f"pool[{first}] {said}",
        )
    if None not in limits:
        longest = max(whole, key=lambda each: each[1].max_prompt_tokens or 0)[0]
        problems.add(
            ("pool", longest, "max_prompt_tokens"),
            f'with "{strategy}" one pool takes prompts of any length; leave this one out',
        )


def _splits(strategy: str, pools: Pools, problems: Problems) -> None:
    roles = {pool.role for _, pool in pools}
    for role in ("prefill", "decode"):
        if role not in roles:
            problems.add(("router", "strategy"), f'"{strategy}" needs a pool with role = "{role}"')


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
