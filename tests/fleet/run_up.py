"""`headway up FILE` with engines that only talk: `run_up.py FILE SCRIPT`.

SCRIPT: `good`: they say what vLLM says while it starts, and load until `loaded`, beside the file,
is there. `fails`: the error of a start that does.
"""

import json
import os
import sys
from pathlib import Path

from headway.core.errors import HeadwayError
from headway.engine.start.command import EngineCommand
from headway.fleet import up

ENGINE = Path(__file__).parents[1] / "testing" / "engine_process.py"
SAID = """\
(EngineCore pid=1) INFO 11-29 22:54:48 [core.py:133] Initializing a V1 LLM engine (v0.32.0) \
with config: model='m', device_config=cpu, compilation_config={'mode': <CompilationMode.NONE: 0>, \
'cudagraph_mode': <CUDAGraphMode.NONE: 0>, 'max_cudagraph_capture_size': None}
(Worker pid=2) INFO 11-29 22:55:00 [cpu_model_runner.py:68] Starting to load model m...
Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  3.13it/s]
INFO:     Application startup complete.
"""
FAILED = """\
(Worker pid=2) ERROR 11-29 22:55:00 [multiproc_executor.py:900] Traceback (most recent call last):
(Worker pid=2) ERROR 11-29 22:55:00 [multiproc_executor.py:900]   File "x.py", line 1, in f
(Worker pid=2) ERROR 11-29 22:55:00 [multiproc_executor.py:900] ValueError: No available memory \
for the cache blocks. Try increasing
"""


def command(engine, address, machine, model, environ):
    home = Path(sys.argv[1]).parent / "engines"
    home.mkdir(exist_ok=True)
    said, over, rest = SAID.partition("INFO:   ")
    loads = not home.with_name("loaded").exists()
    wanted = {"says": [said.rstrip(), over + rest.rstrip()], "loads": loads}
    if sys.argv[2] == "fails":
        wanted = {"exit": 1, "say": FAILED.rstrip()}
    (home / f"{engine.name}.json").write_text(json.dumps(wanted))
    return EngineCommand(
        argv=(sys.executable, str(ENGINE), str(home), engine.name, str(address.port)),
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
