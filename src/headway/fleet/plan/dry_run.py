"""What `headway up` would run, as shell commands; secrets are masked."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence

from headway import masking
from headway.engine.start.command import EngineCommand
from headway.fleet.plan import router_file
from headway.fleet.plan.engine_command import core_list
from headway.fleet.plan.spec import Address, FleetSpec


def text(
    fleet: FleetSpec,
    addresses: Mapping[str, Address],
    commands: Mapping[str, EngineCommand],
    router: EngineCommand,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Every command with what it adds to the environment, and the router's file.

    addresses, commands: by engine. environ: what is there anyway.
    """
    blocks = [
        _block(
            f"{engine.name}: {addresses[engine.name].url}, KV side channel on port "
            f"{addresses[engine.name].side_port}",
            commands[engine.name],
            environ,
        )
        for engine in fleet.engines
    ]
    blocks.append(_block("router", router, environ))
    config = router_file.text(fleet.config, by_pool(fleet, addresses))
    blocks.append(f"# {router.argv[-1]}:\n{_commented(config)}")
    return "\n\n".join(blocks)


def by_pool(fleet: FleetSpec, addresses: Mapping[str, Address]) -> dict[str, Sequence[Address]]:
    """The addresses of each pool's engines, in the fleet's order."""
    pools: dict[str, list[Address]] = {}
    for engine in fleet.engines:
        pools.setdefault(engine.pool, []).append(addresses[engine.name])
    return dict(pools)


def _block(about: str, command: EngineCommand, environ: Mapping[str, str]) -> str:
    return f"# {about}\n" + " \\\n  ".join(_words(command, environ))


def _words(command: EngineCommand, environ: Mapping[str, str]) -> Iterator[str]:
    """The environment's changes, then the program, then a flag a line with its values."""
    unset = sorted(set(environ) - set(command.env))
    if unset:
        yield shlex.join(["env", *(f"--unset={name}" for name in unset)])
    for name, value in sorted(command.env.items()):
        if environ.get(name) != value:
            yield f"{name}={shlex.quote(masking.variable(name, value))}"
    if command.cores is not None:
        yield f"taskset --cpu-list {core_list(command.cores)}"
    line: list[str] = []
    for word in masking.words(command.argv):
        if word.startswith("--") and line:
            yield shlex.join(line)
            line = []
        line.append(word)
    yield shlex.join(line)


def _commented(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())
