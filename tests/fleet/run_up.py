"""`headway up FILE` with engines that only talk: `run_up.py FILE SCRIPT`."""

import os
import sys
from pathlib import Path

from headway.core.errors import HeadwayError
from headway.engine.start.command import EngineCommand
from headway.fleet import up

ENGINE = Path(__file__).with_name("talking_engine.py")


def command(engine, address, machine, model, environ):
    return EngineCommand(
        argv=(sys.executable, str(ENGINE), str(address.port), sys.argv[2]),
        env=environ,
        url=address.url,
        served_name="m",
        settings=None,
        drain_s=1,
    )


def say(text):
    os.write(2, f"headway: {text}\n".encode())


if __name__ == "__main__":
    up.engine_command = command
    up.launch.check = lambda *_, **__: None
    up.launch.cpu_build = lambda: True
    up.bundled.ensure = lambda: "/nowhere"
    try:
        sys.exit(up.up(up.UpWish(Path(sys.argv[1])), say, dry_run=False))
    except HeadwayError as error:
        say(f"error: {error}")
        sys.exit(1)
