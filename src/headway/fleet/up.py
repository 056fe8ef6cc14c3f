"""`headway up` and `headway init`: from a file to a fleet that runs."""

import asyncio
import dataclasses
import functools
import json
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headway import config as settings
from headway.core.errors import HeadwayError, SettingError
from headway.core.reports import DryRunReport, written
from headway.core.status import FleetStatus
from headway.engine.start import launch
from headway.engine.start.command import EngineCommand
from headway.fleet.operate import claims, failure, goodput
from headway.fleet.operate.display import Display, display
from headway.fleet.operate.start_rows import Starts, settled
from headway.fleet.operate.state_dir import Home
from headway.fleet.place import ports
from headway.fleet.place.placement import HOST
from headway.fleet.plan import dry_run as dryrun
from headway.fleet.plan import machine as hardware
from headway.fleet.plan import memory, router_file
from headway.fleet.plan import template as made
from headway.fleet.plan.compatibility import problems
from headway.fleet.plan.engine_command import engine_command
from headway.fleet.plan.machine import NO_GPU
from headway.fleet.plan.plan import load, plan, rescale, wrong_models
from headway.fleet.plan.sizing import size_for
from headway.fleet.plan.spec import Address, EngineSpec, FleetSpec, Machine, emulated
from headway.fleet.supervise import supervisor
from headway.fleet.supervise.engines import Making
from headway.fleet.supervise.router_link import command as router_command
from headway.models import bundled, known, named
from headway.models.files import ModelFiles, model_files
from headway.models.hub import asked_files

_NO_FILE: Final = "(no file)"
_DEFAULT: Final = "default"
_QUESTION: Final = "What is the capital of France?"

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class UpWish:
    """What is to be started. path: the file, None without one; model: then, instead of the
    bundled one. name: of the fleet, instead of the file's.
    """

    path: Path | None = None
    model: str | None = None
    name: str | None = None


def up(wish: UpWish, say: Say, *, dry_run: bool, json: bool = False) -> int:
    """Run a fleet until it is told to stop, or print what would be run; the exit status.

    json: print that as a `core.reports.DryRunReport`.

    Raises HeadwayError for what can't be started.
    """
    machine = hardware.detect()
    fleet = described(wish, machine, say)
    if fleet.engines:
        launch.cpu_build()  # raises where there is no vLLM
    say(f"{wish.path or 'no headway.toml; what suits this machine'}: {_summary(fleet)}")
    for told in memory.of_pools(fleet, machine, os.environ):
        say(told.said)
    for warning in settings.warnings(fleet.config):
        say(f"warning: {warning}")
    if dry_run:
        report = _dry(fleet, machine)
        print(written(report) if json else dryrun.text(report))  # noqa: T201  what was asked for
        return 0
    for engine in fleet.engines:  # a wrong setting shows before anything starts
        command = _command(machine, engine, _somewhere())
        launch.check(dataclasses.replace(command, url=None), cpu=machine.cpu)
    home = Home(fleet.name)
    shown = display(sys.stderr, say)
    watch = Watch(fleet, machine, home, shown)
    try:
        return supervisor.run(fleet, _parts(wish, machine, shown.say), home, shown.say, watch.show)
    finally:
        watch.close()


def init(path: Path, say: Say, *, strategy: str | None, model: str | None, force: bool) -> int:
    """Write a commented file for this machine; the exit status. Raises HeadwayError."""
    if model is not None:
        _check_model(model)
        if not path.parent.samefile(".") and Path(model).is_dir():
            model = str(Path(model).absolute())  # "./" in the file is the file's folder
    machine = hardware.detect()
    if not (machine.cpu or machine.gpus):
        raise HeadwayError(f"the installed vLLM needs a GPU: {machine.gpu_problem or NO_GPU}")
    files = _files(model, machine, say)
    text = made.text(machine, strategy=strategy, model=model, files=files)
    try:
        with path.open("w" if force else "x") as file:
            file.write(text)
    except FileExistsError:
        raise HeadwayError(f"{path} exists; use another name, or --force") from None
    except OSError as error:
        raise HeadwayError(f"{path} can't be written: {error.strerror}") from error
    if model is not None and not machine.cpu and (files is None or not size_for(files, machine)):
        say(f"how much memory {model} takes isn't known here: engines have one GPU each")
    say(f"wrote {path}; see what it does: headway up --dry-run {shlex.quote(str(path))}")
    return 0


def described(wish: UpWish, machine: Machine, say: Say) -> FleetSpec:
    """The fleet as the file, or its default, describes it now. Raises HeadwayError."""
    if wish.path is None:
        machine = beside_others(machine, wish.name or _DEFAULT)
    if wish.model is not None:
        if wish.path is not None:
            raise SettingError("--model", f"and {wish.path} are given; leave one out")
        _check_model(wish.model)
        text = made.text(machine, model=wish.model, files=_files(wish.model, machine, say))
        config = settings.parse(text, _NO_FILE, starts=True)
    else:
        config = load(wish.path, machine)
    machine = beside_others(machine, wish.name or config.fleet.name)
    fleet = plan(config, machine)
    found = [*problems(fleet), *wrong_models(fleet, os.environ)]
    found += memory.problems(fleet, machine, os.environ)
    if found:
        raise settings.ConfigError(tuple(found))
    return dataclasses.replace(fleet, name=wish.name) if wish.name else fleet


def _check_model(model: str) -> None:
    wrong = named.problem(model, os.environ)
    if wrong:
        raise SettingError("--model", wrong)


def beside_others(machine: Machine, name: str) -> Machine:
    """The machine with the devices marked that other fleets have. name: the fleet's."""
    return dataclasses.replace(machine, held=claims.held(name, cpu=machine.cpu))


def _files(model: str | None, machine: Machine, say: Say) -> ModelFiles | None:
    """What is known of a model of the user's own; on GPUs, where it counts, the hub is asked."""
    if model is None:
        return None
    return model_files(model, os.environ) if machine.cpu else asked_files(model, os.environ, say)


class Watch:
    """Shows a fleet's start, and what to try once it serves. Needs the supervisor's event loop."""

    def __init__(self, fleet: FleetSpec, machine: Machine, home: Home, shown: Display) -> None:
        self._fleet = fleet
        self._machine = machine
        self._samples = home.path / goodput.FILE
        self._display = shown
        self._starts = Starts()
        self._sampling: asyncio.Task[None] | None = None
        self._over = False
        """Whether the start is: what happens later is told in words."""

    def show(self, status: FleetStatus) -> None:
        """The supervisor's status has changed, or a second has passed."""
        if self._sampling is None:
            self._samples.unlink(missing_ok=True)  # of an earlier run
            work = goodput.sample(status.admin, self._samples)
            self._sampling = asyncio.get_running_loop().create_task(work)
        if self._over:
            return
        engines = status.engines
        self._display.show(self._starts.rows(engines))
        serves = status.serving or (not engines and status.router.state == "ready")
        ready = serves and settled(engines)
        if ready or status.stopping:
            self._over = True
            self._display.leave()
        if ready and not status.stopping:
            self._display.say(try_it(self._fleet, self._machine, status.endpoint))

    def close(self) -> None:
        """Let go of the logs."""
        self._starts.close()


def try_it(fleet: FleetSpec, machine: Machine, endpoint: str) -> str:
    """The endpoint, and three things to try."""
    first = next(iter(fleet.engines), None)
    model = _command(machine, first, _somewhere()).served_name if first else "MODEL"
    chat = {
        "model": model,
        "max_tokens": 100,
        "messages": [{"role": "user", "content": _QUESTION}],
    }
    marks = sorted({emulated(engine) for engine in fleet.engines} - {""})
    marked = f" ({'; '.join(marks)})" if marks else ""
    key = "-H 'Authorization: Bearer YOUR-KEY' " if fleet.config.keys else ""
    body = f"{key}-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(chat))}"
    name = "" if fleet.name == _DEFAULT else f" --name {fleet.name}"
    return "\n".join(
        [
            f"ready: {model} on {endpoint}{marked}; try",
            f"  curl {endpoint}/v1/chat/completions {body}",
            f"  {_program()} status --watch{name}",
            f"  {_program()} logs {first.name if first else 'router'} -f{name}",
        ]
    )


def _program() -> str:
    """What a shell knows this program by."""
    if shutil.which("headway"):
        return "headway"
    given = Path(sys.argv[0])
    if given.name == "headway":
        return shlex.quote(str(given))
    return f"{shlex.quote(sys.executable)} -m headway"


def _parts(wish: UpWish, machine: Machine, say: Say) -> supervisor.Parts:
    making = Making(
        machine=machine,
        command=functools.partial(_command, machine),
        cause=failure.cause_in,
    )
    return supervisor.Parts(
        making=making,
        router_text=router_file.text,
        rescale=lambda fleet, pool, count: rescale(
            fleet, fleet.config, beside_others(machine, fleet.name), pool, count
        ),
        read=(lambda: described(wish, machine, say)) if wish.path else None,
    )


def _command(machine: Machine, engine: EngineSpec, address: Address) -> EngineCommand:
    """What to run for an engine. A bundled or well-known model is prepared first where need be."""
    model = str(bundled.ensure()) if engine.model is None else engine.model
    if engine.emulation:
        model = known.directory(model)
    return engine_command(engine, address, machine, model, os.environ)


def _somewhere() -> Address:
    """For what doesn't depend on the address."""
    return Address(host=HOST, port=1, side_port=2)


def _dry(fleet: FleetSpec, machine: Machine) -> DryRunReport:
    addresses = _dry_addresses(fleet)
    commands = {
        engine.name: _command(machine, engine, addresses[engine.name]) for engine in fleet.engines
    }
    router = fleet.config.router
    host = f"[{router.host}]" if ":" in router.host else router.host
    url = f"http://{host}:{router.port}"
    file = Home(fleet.name).router_file
    return dryrun.report(
        fleet, addresses, commands, router_command(file, url, os.environ, fleet.drain_s)
    )


def _dry_addresses(fleet: FleetSpec) -> dict[str, Address]:
    """Where engines would listen; nobody knows the node that Ray would choose."""
    if fleet.placement == "ray":
        somewhere = Address(host="NODE", port=ports.FIRST, side_port=ports.FIRST + 1)
        return {engine.name: somewhere for engine in fleet.engines}
    held = [ports.reserve(HOST) for _ in range(2 * len(fleet.engines))]
    numbers = iter([port.number for port in held])
    for port in held:
        port.release()
    return {
        engine.name: Address(host=HOST, port=next(numbers), side_port=next(numbers))
        for engine in fleet.engines
    }


def _summary(fleet: FleetSpec) -> str:
    """The pools, in short."""
    pools = Counter((engine.pool, engine.role, emulated(engine)) for engine in fleet.engines)
    parts = [
        f"{count} engine{'s' if count > 1 else ''} in {pool} ({role}{of and f', {of}'})"
        for (pool, role, of), count in pools.items()
    ]
    parts += [f"{pool.name} running elsewhere" for pool in fleet.config.pools if pool.engines]
    return f"{fleet.config.router.strategy}; {', '.join(parts)}"
