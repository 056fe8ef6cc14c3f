"""A supervisor with fake engines: `fleet_process.py HOME SPEC`, as `headway up` would run it.

SPEC is JSON: pools (name to [role, count], or [role, count, size]), and what is to differ from
FleetSpec and Making; with `ray_address` engines run there. Each line it says goes to standard
output.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

from headway import config as settings
from headway.engine.start.command import EngineCommand
from headway.fleet.errors import FleetError
from headway.fleet.operate.failure import Cause
from headway.fleet.operate.state_dir import Home
from headway.fleet.plan.spec import EngineSpec, FleetSpec, Machine
from headway.fleet.supervise import supervisor
from headway.fleet.supervise.engines import Making

HERE = Path(sys.argv[1])
FAKE = Path(__file__).parents[1] / "testing" / "engine_process.py"


def described():
    return json.loads(Path(sys.argv[2]).read_text())


def engines_of(pool, role, count, size=1):
    return tuple(
        EngineSpec(
            name=f"{pool}-{n}",
            pool=pool,
            role=role,
            model="m",
            devices=devices_of(n),
            tensor_parallel_size=size,
        )
        for n in range(count)
    )


def devices_of(number):
    return () if described().get("ray_address") else (number,)


def fleet_spec():
    asked = described()
    router = asked.get("router", {})
    lines = ["[router]", *(f"{name} = {json.dumps(value)}" for name, value in router.items())]
    lines += ["[router.health]", "interval_s = 0.3", "fails = 2", "passes = 1"]
    ray_address = asked.get("ray_address")
    if ray_address:
        lines += ["[fleet]", f'ray_address = "{ray_address}"']
    text = "\n".join([*lines, '[[pool]]\nname = "x"\nengines = ["http://127.0.0.1:1"]'])
    return FleetSpec(
        name="test",
        placement="ray" if ray_address else "local",
        start_timeout_s=asked.get("start_timeout_s", 120.0),
        hang_s=asked.get("hang_s", 30.0),
        drain_s=asked.get("drain_s", 5.0),
        engines=tuple(e for name, has in asked["pools"].items() for e in engines_of(name, *has)),
        config=dataclasses.replace(settings.parse(text), pools=()),
    )


def router_text(config, addresses):
    router, health = config.router, config.router.health
    lines = [
        "[router]",
        f'host = "{router.host}"',
        f"port = {router.port}",
        f"admin_port = {router.admin_port}",
        f'strategy = "{router.strategy}"',
        "[router.health]",
        *(f"{field.name} = {getattr(health, field.name)}" for field in dataclasses.fields(health)),
    ]
    for pool, places in addresses.items():
        urls = json.dumps([address.url for address in places])
        lines += ["[[pool]]", f'name = "{pool}"', f"engines = {urls}"]
    return "\n".join(lines)


def command(engine, address):
    argv = (sys.executable, str(FAKE), str(HERE), engine.name, str(address.port))
    host = {"FAKE_HOST": address.host} if described().get("ray_address") else {}
    if address.spread:
        host["FAKE_SPREAD"] = "1"
    return EngineCommand(
        argv=argv,
        env={**os.environ, **host},
        url=address.url,
        served_name="m",
        settings=None,
        drain_s=1.0,
    )


def rescale(spec, pool, count):
    if count < 1:
        raise FleetError("a pool has at least one engine")
    role = next(e.role for e in spec.engines if e.pool == pool)
    others = tuple(e for e in spec.engines if e.pool != pool)
    return dataclasses.replace(spec, engines=others + engines_of(pool, role, count))


def cause(log, status):
    lines = log.read_text().splitlines()
    said = lines[-1] if lines else f"status {status}"
    return Cause(said, lasting="for good" in said)


def say(text):
    print(text, flush=True)  # noqa: T201  what the tests read


def main():
    machine = Machine(
        cores=(0, 1),
        gpus=(),
        memory_gib=described().get("memory_gib", 64.0),
        cpu=described().get("cpu", True),
    )
    making = Making(
        machine=machine, command=command, cause=cause, look_s=described().get("look_s", 0.3)
    )
    parts = supervisor.Parts(
        making=making, router_text=router_text, rescale=rescale, read=fleet_spec
    )
    spec = fleet_spec()
    try:
        return supervisor.run(spec, parts, Home(spec.name), say)
    except FleetError as error:
        say(f"error: {error}")
        return 1


sys.exit(main())
