"""What `headway up` would run, for programs and as shell commands; secrets are masked."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence

from headway import masking
from headway.core.reports import DryRunReport, PlannedEngine, PlannedProcess
from headway.engine.start.command import EngineCommand
from headway.fleet.plan import router_file
from headway.fleet.plan.engine_command import core_list
from headway.fleet.plan.spec import Address, FleetSpec, emulated


def report(
    fleet: FleetSpec,
    addresses: Mapping[str, Address],
    commands: Mapping[str, EngineCommand],
    router: EngineCommand,
    environ: Mapping[str, str] = os.environ,
) -> DryRunReport:
    """Every process with what it changes of the environment, and the router's file.

    addresses, commands: by engine. environ: what is there anyway.
    """
    return DryRunReport(
        fleet=fleet.name,
        strategy=fleet.config.router.strategy,
        engines=tuple(
            PlannedEngine(
                name=engine.name,
                pool=engine.pool,
                role=engine.role,
                model=engine.model,
                url=addresses[engine.name].url,
                side_port=addresses[engine.name].side_port,
                devices=engine.devices,
                process=_process(commands[engine.name], environ),
                emulated=emulated(engine),
            )
            for engine in fleet.engines
        ),
        router=_process(router, environ),
        router_file=router.argv[-1],
        router_settings=router_file.text(fleet.config, by_pool(fleet, addresses)),
    )


def text(report: DryRunReport) -> str:
    """The same for people and for a shell."""
    blocks = [
        _block(
            f"{engine.name}: {engine.url}, KV side channel on port {engine.side_port}",
            engine.process,
        )
        for engine in report.engines
    ]
    blocks.append(_block("router", report.router))
    blocks.append(f"# {report.router_file}:\n{_commented(report.router_settings)}")
    return "\n\n".join(blocks)


def by_pool(fleet: FleetSpec, addresses: Mapping[str, Address]) -> dict[str, Sequence[Address]]:
    """The addresses of each pool's engines, in the fleet's order."""
    pools: dict[str, list[Address]] = {}
    for engine in fleet.engines:
        pools.setdefault(engine.pool, []).append(addresses[engine.name])
    return dict(pools)


def _process(command: EngineCommand, environ: Mapping[str, str]) -> PlannedProcess:
    changed = {
        name: masking.variable(name, value)
        for name, value in sorted(command.env.items())
        if environ.get(name) != value
    }
    return PlannedProcess(
        set=changed,
        unset=tuple(sorted(set(environ) - set(command.env))),
        cores=command.cores,
        argv=tuple(masking.words(command.argv)),
    )


def _block(about: str, process: PlannedProcess) -> str:
    return f"# {about}\n" + " \\\n  ".join(_words(process))


def _words(process: PlannedProcess) -> Iterator[str]:
    """The environment's changes, then the program, then a flag a line with its values."""
    if process.unset:
        yield shlex.join(["env", *(f"--unset={name}" for name in process.unset)])
    for name, value in process.set.items():
        yield f"{name}={shlex.quote(value)}"
    if process.cores is not None:
        yield f"taskset --cpu-list {core_list(process.cores)}"
    line: list[str] = []
    for word in process.argv:
        if word.startswith("--") and line:
            yield shlex.join(line)
            line = []
        line.append(word)
    yield shlex.join(line)


def _commented(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())
