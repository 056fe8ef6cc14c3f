"""`headway doctor`: checks an installation, a file and a running fleet.

Entry point for the command line:

    run(path: str | None, write: Callable[[str], None], *, name: str | None = None,
        json: bool = False) -> int

path: the file; None is what `headway up` without one would start: ./headway.toml, else what suits
this machine. name: of the fleet to look at if it runs; None: the file's. write: given lines for
standard output, as they are found; with json one text, a `core.reports.DoctorReport`. The exit
status: 0, or 1 if there is an error among the findings.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headway import config as settings
from headway.config import Config, ConfigError
from headway.core.errors import FAILED, HeadwayError, SettingError
from headway.core.reports import Finding, written
from headway.core.status import FleetStatus
from headway.fleet.doctor import engines as engine_checks
from headway.fleet.doctor import installation
from headway.fleet.doctor import machine as machine_checks
from headway.fleet.doctor import router as router_checks
from headway.fleet.doctor.engines import EngineTarget
from headway.fleet.doctor.finding import report, summary, tell
from headway.fleet.net.http_sync import HttpServer
from headway.fleet.operate import claims, control_socket
from headway.fleet.operate.state_dir import Home
from headway.fleet.plan import compatibility, memory
from headway.fleet.plan import machine as hardware
from headway.fleet.plan.plan import load, plan, wrong_models
from headway.fleet.plan.spec import FleetSpec, Machine, emulated

_FILE: Final = "file"
_USUAL: Final = "headway.toml"
_DEFAULT: Final = "default"
_STATUS_S: Final = 5.0
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- compared, not bound


def run(
    path: str | None,
    write: Callable[[str], None],
    *,
    name: str | None = None,
    json: bool = False,
) -> int:
    """Examine and tell; see above."""
    told: list[Finding] = []
    for part in findings(path, name):
        told += part
        for line in () if json else tell(part):
            write(line)
    all_of_it = report(told)
    write(written(all_of_it) if json else summary(all_of_it))
    return FAILED if all_of_it.errors else 0


def findings(path: str | None, name: str | None) -> Iterator[list[Finding]]:
    """What is found, part by part as it is examined; arguments as of `run`."""
    if path is None and Path(_USUAL).exists():
        path = _USUAL
    machine = hardware.detect()
    spec, found = of_file(path, machine, name)
    yield found
    name = name or (spec.name if spec else _DEFAULT)
    status, trouble = _running(name)
    yield trouble
    yield [*of_machine(spec, machine, running=status is not None)]
    splits = spec is not None and spec.config.router.routing.splits
    yield [*installation.examine(splits=splits)]
    policies = {pool.name: pool.batching.policy for pool in spec.config.pools} if spec else {}
    if status is not None:
        yield [*of_fleet(name, status, policies)]
    elif spec is not None and path is not None:
        yield [*of_elsewhere(spec.config, policies)]


def of_file(
    path: str | None, machine: Machine, fleet: str | None = None
) -> tuple[FleetSpec | None, list[Finding]]:
    """The fleet that a file describes, or None for one that can't be used; and findings.

    path: None is what `headway up` runs without a file. fleet: its name; None: the file's.
    """
    name = path or "no file: what headway up starts here"
    try:
        config = load(Path(path) if path else None, machine)
        machine = _beside_others(machine, fleet or config.fleet.name)
        spec = plan(config, machine)
    except ConfigError as error:
        return None, [Finding("error", _FILE, str(p), "change the file") for p in error.problems]
    except SettingError as error:
        return None, [Finding("error", _FILE, str(error), "change the file")]
    sizes = memory.of_pools(spec, machine, os.environ)
    problems = [*compatibility.problems(spec), *wrong_models(spec, os.environ)]
    problems += [each.problem for each in sizes if each.problem]
    wrong = [Finding("error", _FILE, str(p), "change the file") for p in problems]
    if config.router.routing.splits and spec.engines and not wrong:
        wrong.append(Finding("ok", _FILE, "prefill and decode pools fit one another"))
    warned = [
        Finding("warning", _FILE, said, "see docs/router-config.md")
        for said in settings.warnings(config)
    ]
    sized = [
        Finding("ok" if each.checked else "note", _FILE, each.said)
        for each in sizes
        if not each.problem
    ]
    started = len(spec.engines)
    elsewhere = sum(len(pool.engines) for pool in config.pools)
    counts = f"engines to start: {started}, running elsewhere: {elsewhere}"
    said = f"{name}: {config.router.strategy}; {counts}"
    marks = dict.fromkeys(filter(None, map(emulated, spec.engines)))
    notes = [Finding("note", _FILE, f"nothing is computed: {mark}") for mark in marks]
    return spec, [Finding("ok", _FILE, said), *notes, *wrong, *sized, *warned]


def _beside_others(machine: Machine, name: str) -> Machine:
    """With the devices marked that other fleets have, if that can be known."""
    with contextlib.suppress(HeadwayError):
        return dataclasses.replace(machine, held=claims.held(name, cpu=machine.cpu))
    return machine


def of_machine(spec: FleetSpec | None, machine: Machine, *, running: bool) -> Iterator[Finding]:
    """Whether this machine can carry it. running: its ports and memory are taken by itself."""
    free = machine_checks.free_shared_memory()
    if free is not None:
        yield machine_checks.shared_memory(free)
    if spec is None or spec.placement == "local":
        yield from machine_checks.gpus(spec.engines if spec else (), machine)
    if spec is None or running or not spec.engines:
        return
    if spec.placement == "local":
        yield from machine_checks.memory(spec.engines, machine)
        if not machine.cpu:
            yield from machine_checks.gpus_in_use(spec.engines, machine)
    router = spec.config.router
    for number, host, key in (
        (router.port, router.host, "router.port"),
        (router.admin_port, "127.0.0.1", "router.admin_port"),
    ):
        if number:
            yield machine_checks.port(host, number, key)


def of_fleet(
    name: str, status: FleetStatus, policies: Mapping[str, str | None]
) -> Iterator[Finding]:
    """A fleet whose supervisor says `status`."""
    home = Home(name)
    absent = set()
    for engine in status.engines:
        state, why = engine.state, engine.reason
        if state not in {"ready", "draining"}:
            absent.add(engine.router_id)
            said = f"{engine.name} is {state}{f': {why}' if why else ''}"
            then = f"headway logs {engine.name}"
            yield Finding(
                "error" if state == "failed" else "warning", engine_checks.ABOUT, said, then
            )
    try:
        config = settings.load(home.router_file)
    except ConfigError as error:
        said = f"its file for the router can't be read: {error}"
        yield Finding("error", engine_checks.ABOUT, said, "headway down, then headway up")
        return
    engines = engine_checks.targets(config, _engine_key(config), policies)
    asked = [engine for engine in engines if engine.name not in absent]
    yield from _routed(config, HttpServer(status.admin), status.endpoint, asked)


def of_elsewhere(config: Config, policies: Mapping[str, str | None]) -> Iterator[Finding]:
    """Engines that the file says run elsewhere, and a router with this file, if there is one."""
    engines = engine_checks.targets(config, _engine_key(config), policies)
    router = config.router
    admin = HttpServer(f"http://127.0.0.1:{router.admin_port}")
    if not engines:
        said = "the fleet doesn't run, so its engines weren't asked"
        yield Finding("note", engine_checks.ABOUT, said, "headway up, then run this again")
    elif router.admin_port and admin.get("/state", engine_checks.ASK_S) is not None:
        host = f"[{router.host}]" if ":" in router.host else router.host
        scheme = "https" if router.tls else "http"
        yield from _routed(config, admin, f"{scheme}://{host}:{router.port}", engines)
    else:
        yield from engine_checks.examine(engines)
        said = "no router with this file runs here, so no request was tried"
        yield Finding(
            "note", router_checks.ABOUT, said, "headway up, or headway route --config FILE"
        )


def _routed(
    config: Config, admin: HttpServer, endpoint: str, engines: Sequence[EngineTarget]
) -> Iterator[Finding]:
    """The engines that a router has, and the router."""
    yield from engine_checks.examine(engines)
    # No certificate names the address it is asked at.
    server = HttpServer(
        _reachable(endpoint), os.environ.get(router_checks.CLIENT_KEY), verify=False
    )
    yield from router_checks.examine(admin, server, engines, splits=config.router.routing.splits)


def _engine_key(config: Config) -> str | None:
    """What engines ask for; None too where the variable isn't set, and then they say so."""
    with contextlib.suppress(SettingError):
        return settings.engine_key(config.router.keys.engine_key_env, os.environ)
    return None


def _reachable(url: str) -> str:
    """The URL with an address to connect to where it has one to listen on."""
    parts = urlsplit(url)
    host = _EVERYWHERE.get(parts.hostname or "", parts.hostname or "")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port}"


def _running(name: str) -> tuple[FleetStatus | None, list[Finding]]:
    """What the fleet's supervisor says, None where none runs; and a finding if it says nothing."""
    try:
        if not Home(name).socket.exists():
            return None, []
        status = control_socket.fleet_status(name, _STATUS_S)
    except HeadwayError as error:
        then = "headway up; where one does run, headway down --force first"
        return None, [Finding("warning", engine_checks.ABOUT, str(error), then)]
    return status, []
