"""Rules for pools whose engines `headway up` starts."""

from collections.abc import Sequence

from headway.config.fleet import STARTING
from headway.config.model import Pool
from headway.config.problems import Problems
from headway.core.batching.settings import FULL_CONTEXT_TOKENS, STOCK, STOCK_SETTINGS, parse
from headway.core.errors import SettingError

Pools = Sequence[tuple[int, Pool]]
"""Pools that could be read, each with its index."""


def check_places(pools: Pools, problems: Problems, *, starts: bool) -> None:
    """Add a problem for every pool that neither has engines nor may start them, or does both.

    starts: pools without engines are started.
    """
    for index, pool in pools:
        if not problems.clear_of(("pool", index, "engines")):
            continue
        _tls(index, pool, problems)
        if pool.engines:
            for name in STARTING:
                at = ("pool", index, name)
                if problems.source.given(at) and problems.clear_of(at):
                    problems.add(
                        at,
                        "says how to start engines, and the pool's `engines` run already; "
                        "leave one of them out",
                    )
        elif not starts:
            problems.add(
                ("pool", index, "engines"),
                "is missing; set it to the URLs where its engines listen, "
                "or let `headway up` start them",
            )


def _tls(index: int, pool: Pool, problems: Problems) -> None:
    """What is said of TLS to engines elsewhere can be meant."""
    tls, at = pool.tls, ("pool", index, "tls")
    if tls is None or not problems.clear_of(at):
        return
    if not any(engine.tls for engine in pool.engines):
        problems.add(at, "is for `engines` that run elsewhere with https; leave it out")
    for name, other in (("cert", "key"), ("key", "cert")):
        if other in tls.files() and name not in tls.files():
            problems.add((*at, name), f"is missing; {other} is of use with it only")


def check_starts(pools: Pools, problems: Problems) -> None:
    """Add a problem for every rule of starting that is broken."""
    owners: dict[int, int] = {}
    for index, pool in pools:
        if not pool.engines:
            _batching(index, pool, problems)
            _emulation(index, pool, problems)
            _devices(index, pool, owners, problems)


def _emulation(index: int, pool: Pool, problems: Problems) -> None:
    if pool.emulate is None:
        return
    at = ("pool", index)
    if pool.devices:
        problems.add((*at, "devices"), "are none of an emulated engine; leave them out")
    if pool.pipeline_parallel_size > 1:
        said = "isn't emulated; use tensor_parallel_size"
        problems.add((*at, "pipeline_parallel_size"), said)
    if pool.role != "both":
        said = f'"{pool.role}" moves KV, which isn\'t emulated yet; use "both"'
        problems.add((*at, "role"), said)


def _batching(index: int, pool: Pool, problems: Problems) -> None:
    at = ("pool", index, "batching")
    if not problems.clear_of(at):
        return
    given = pool.batching.given()
    if given.get("policy") == STOCK:
        for name in given:
            if name not in STOCK_SETTINGS:
                problems.add(
                    (*at, name),
                    f'is a setting of headway\'s scheduler; leave out policy = "{STOCK}" to use it',
                )
        return
    try:
        parse(given, FULL_CONTEXT_TOKENS, path="batching")
    except SettingError as error:
        problems.add((*at, error.key.removeprefix("batching.")), error.problem)


def _devices(index: int, pool: Pool, owners: dict[int, int], problems: Problems) -> None:
    """owners: the pool of each device named so far."""
    for place, device in enumerate(pool.devices):
        owner = owners.setdefault(device, index)
        if owner != index:
            said = f"{device} is also a device of pool[{owner}]; a device belongs to one pool"
        elif pool.devices.index(device) != place:
            said = f"{device} is there twice; name each device once"
        else:
            continue
        problems.add(("pool", index, "devices", place), said)
