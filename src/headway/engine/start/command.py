"""What to run for one engine: vLLM's command line and environment, from what the user gave.

Whatever the user sets wins, flags and environment variables alike; defaults only fill gaps.
"""

import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headway import cgroup
from headway.core.batching import settings
from headway.core.batching.settings import STOCK, STOCK_SETTINGS
from headway.core.errors import SettingError
from headway.core.hardware import emulation as emulated
from headway.core.hardware.emulation import Emulation
from headway.engine import nixl

_SCHEDULER: Final = "headway.engine.Scheduler"
# The `vllm` command doesn't find its own version in the CPU build.
_SERVER: Final = (
    *(sys.executable, "-W", "ignore::DeprecationWarning"),
    *("-m", "vllm.entrypoints.openai.api_server"),
)
_DRAIN_S: Final = 10
_MOST_DRAIN_S: Final = 7 * 24 * 3600
_BUNDLED_KV_GIB: Final = 2
_BUNDLED_STEP_TOKENS: Final = 512
_TUNES_COMPILATION: Final = (
    "--enforce-eager",
    "--no-enforce-eager",
    "--compilation-config",
    "--optimization-level",
    "-cc",
    "-O",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWish:
    """What the user asked for.

    model: a directory or a hub name.
    bundled: the served name if `model` is the bundled one, else None.
    known: the served name if `model` is the directory of a well-known one, else None.
    emulation: the GPUs that it is to run on though they aren't there; None: it computes.
    batching: headway's settings as given, policy included.
    additional_config: vLLM's flag of that name, parsed.
    vllm_flags: the flags that go to vLLM as they are.
    """

    model: str
    bundled: str | None
    known: str | None = None
    emulation: Emulation | None = None
    batching: Mapping[str, Any] = field(default_factory=dict)
    additional_config: Mapping[str, Any] = field(default_factory=dict)
    vllm_flags: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """What to run, and where it will listen.

    argv, env: the process.
    url: the server's address, None where it can't be known (a Unix socket, TLS, a config file).
    served_name: the model's name in requests.
    settings: headway's settings in force, None under vLLM's own scheduler.
    drain_s: how long a stopping engine waits for running requests.
    cores: where all its processes run; None for wherever this process may.
    emulated: what its figures are marked with; empty where it computes.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    url: str | None
    served_name: str
    settings: settings.BatchingSettings | None
    drain_s: float
    cores: tuple[int, ...] | None = None
    emulated: str = ""


def build(
    wish: EngineWish,
    environ: Mapping[str, str],
    *,
    cpu: bool,
    cores: Sequence[int],
) -> EngineCommand:
    """The engine that `wish` describes.

    environ: the user's environment.
    cpu: whether vLLM is the CPU build.
    cores: the cores this process may use.

    Raises SettingError for settings that contradict one another or are out of range.
    """
    flags = _Flags(wish.vllm_flags)
    cpu = cpu and wish.emulation is None
    parsed, scheduler_flags = _scheduler(wish, flags)
    defaults: dict[str, str | None] = {
        "--host": "127.0.0.1",
        "--shutdown-timeout": str(_DRAIN_S),
        # The launcher asks for it every few seconds.
        "--disable-access-log-for-endpoints": "/health",
    }
    if wish.known:
        defaults["--served-model-name"] = wish.known
    if wish.emulation:
        defaults["--load-format"] = "dummy"
    if wish.bundled:
        defaults |= _bundled_flags(wish.bundled, flags, cpu=cpu)
    argv = [*_SERVER, "--model", wish.model]
    for name, value in defaults.items():
        if name not in flags:
            argv += [name] if value is None else [name, value]
    return EngineCommand(
        argv=(*argv, *scheduler_flags, *wish.vllm_flags),
        env={**_environment(wish, flags, cpu=cpu, cores=cores), **environ, **_emulation(wish)},
        url=_url(flags),
        served_name=(
            flags.value("--served-model-name") or wish.bundled or wish.known or wish.model
        ),
        settings=parsed,
        drain_s=flags.number("--shutdown-timeout", _DRAIN_S, _MOST_DRAIN_S),
        emulated=wish.emulation.said(_gpus(flags)) if wish.emulation else "",
    )


def flag_names(vllm_flags: Sequence[str]) -> tuple[str, ...]:
    """The names of vLLM's flags among these words, written `--a-b`."""
    return _Flags(vllm_flags).names


def compiles(command: EngineCommand) -> bool:
    """Whether vLLM will want a C++ compiler on a CPU."""
    return "--enforce-eager" not in command.argv


def _scheduler(
    wish: EngineWish, flags: "_Flags"
) -> tuple[settings.BatchingSettings | None, tuple[str, ...]]:
    for name in flags.names:
        if name.startswith("--additional-config."):
            raise SettingError(name, "give one JSON object: --additional-config '{\"key\": 1}'")
    given = wish.additional_config.get("headway", {})
    if not isinstance(given, Mapping):
        raise SettingError("--additional-config", '"headway" must be an object of settings')
    values = {**given, **wish.batching}
    if values.get("policy") == STOCK:
        rest = {k: v for k, v in wish.additional_config.items() if k != "headway"}
        return None, _stock(values, rest)
    if "--scheduler-cls" in flags:
        raise SettingError("--scheduler-cls", f"works only with --policy {STOCK}")
    parsed = settings.parse(values, settings.FULL_CONTEXT_TOKENS)
    config = {**wish.additional_config, "headway": values}
    return parsed, ("--scheduler-cls", _SCHEDULER, "--additional-config", json.dumps(config))


def _stock(values: Mapping[str, Any], rest: Mapping[str, Any]) -> tuple[str, ...]:
    flags: tuple[str, ...] = ("--additional-config", json.dumps(rest)) if rest else ()
    for key, value in values.items():
        if key not in STOCK_SETTINGS:
            problem = f"is a setting of headway's scheduler; leave out --policy {STOCK} to use it"
            raise SettingError(f"headway.{key}", problem)
        if key != "policy":
            flags += (f"--{key.replace('_', '-')}", str(value))
    return flags


def _bundled_flags(name: str, flags: "_Flags", *, cpu: bool) -> dict[str, str | None]:
    defaults: dict[str, str | None] = {"--served-model-name": name}
    if cpu:
        # In bfloat16 the best tokens of so small a model often tie: answers depend on the CPU and
        # on where they were computed. Where bfloat16 is emulated it is slower, too.
        defaults["--dtype"] = "float32"
        # A step of 512 tokens takes one to two seconds on one core; larger ones stall all.
        defaults["--max-num-batched-tokens"] = str(_BUNDLED_STEP_TOKENS)
        if not any(flag in flags for flag in _TUNES_COMPILATION):
            # Up in half the time and without a compiler, for about 10 ms a token.
            defaults["--enforce-eager"] = None
    return defaults


def _environment(
    wish: EngineWish, flags: "_Flags", *, cpu: bool, cores: Sequence[int]
) -> dict[str, str]:
    env = {"VLLM_NO_USAGE_STATS": "1"}
    if Path(wish.model).is_dir():
        env["HF_HUB_OFFLINE"] = "1"
    if cpu and wish.bundled:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(_BUNDLED_KV_GIB)
    if cpu and len(cores) == 1:
        # vLLM sets one core aside for its other processes, and fails where there is no other.
        env["VLLM_CPU_OMP_THREADS_BIND"] = str(cores[0])
        env["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    kv_flags = [name for name in flags.names if name.startswith("--kv-transfer-config")]
    if cpu and any("Nixl" in (flags.value(name) or "") for name in kv_flags):
        env[nixl.WAIT_VARIABLE] = str(nixl.WAIT_US)
    return env


def _emulation(wish: EngineWish) -> dict[str, str]:
    """What has vLLM emulate, and lets it see no GPU that is there."""
    if wish.emulation is None:
        return {}
    return {emulated.VARIABLE: str(wish.emulation), "CUDA_VISIBLE_DEVICES": ""}


def _gpus(flags: "_Flags") -> int:
    """Of a tensor parallel engine; 1 where that can't be read, which vLLM says itself."""
    size = flags.value("--tensor-parallel-size") or flags.value("-tp") or "1"
    return int(size) if size.isdecimal() else 1


def _url(flags: "_Flags") -> str | None:
    if any(name in flags for name in ("--uds", "--ssl-certfile", "--config")):
        return None
    host = flags.value("--host") or "127.0.0.1"
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- compared, not bound
    reachable = everywhere.get(host, host)
    if ":" in reachable:
        reachable = f"[{reachable}]"
    return f"http://{reachable}:{flags.number('--port', 8000, 65535)}"


class _Flags:
    """The names and values among vLLM's flags, which may be written `--a_b`, `--a-b=1`, `-O3`."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._values: dict[str, str | None] = {}
        for token, following in itertools.zip_longest(argv, argv[1:]):
            if not token.startswith("-"):
                continue
            name, has_value, value = token.partition("=")
            if name.startswith("--"):
                name = name.replace("_", "-")
            elif name.startswith("-O"):
                name = "-O"
            self._values[name] = value if has_value else following

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def value(self, name: str) -> str | None:
        """The value of flag `name`, None where it isn't given."""
        return self._values.get(name)

    def number(self, name: str, default: int, most: int) -> int:
        """The whole number, from 0 to `most`, given for flag `name`, or `default`."""
        value = self._values.get(name, str(default)) or ""
        # The digits are counted first: Python doesn't read thousands of them.
        digits = value.isascii() and value.isdecimal() and len(value.lstrip("0")) <= len(str(most))
        if not (digits and int(value) <= most):
            raise SettingError(name, f"{value[:40]!r} is not a whole number from 0 to {most}")
        return int(value)


def usable_cores() -> tuple[int, ...]:
    """The cores this process may use; of those it may run on, as many as its time is worth."""
    allowed = sorted(os.sched_getaffinity(0))
    worth = cgroup.cores()
    return tuple(allowed[: max(1, round(worth))] if worth < len(allowed) else allowed)
