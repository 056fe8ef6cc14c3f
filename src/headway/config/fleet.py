"""The settings of `headway up`: the fleet, and how an engine of a pool is started.

The settings of a pool that say how to start it stand in `model.Pool`; `STARTING` names them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from headway.config.checks import (
    BadValueError,
    Check,
    Choice,
    Number,
    Text,
    Whole,
    bad,
    kind,
    shown,
)
from headway.core.batching.settings import SETTINGS, STOCK, Amount, Cardinal, Level, Words
from headway.core.errors import SettingError
from headway.core.hardware import emulation
from headway.core.hardware.emulation import Emulation
from headway.core.hardware.gpu import GPU_BY_NAME
from headway.masking import VARIABLE_BY_FLAG

if TYPE_CHECKING:
    from headway.config.lines import Path

T = TypeVar("T")
PLACEMENTS: Final = ("local", "ray")
STARTING: Final = (
    "replicas",
    "model",
    "devices",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "emulate",
    "kv_memory_gib",
    "flags",
    "batching",
    "env",
    "kubernetes",
)
"""A pool's settings that say how to start its engines, and nothing of those running elsewhere."""

DEVICE: Final = Whole(0, 4095)
MODEL: Final = Text(
    r"[^\s\x00-\x1f\x7f-][^\x00-\x1f\x7f]*",
    'a model; use a directory such as "/models/qwen3-8b" or a hub name such as "Qwen/Qwen3-8B"',
)
_SECONDS: Final = Number(most=7 * 24 * 3600)
_COUNT: Final = Whole(1)
_RAY_ADDRESS: Final = Text(
    r"auto|[^\s/:]+:[0-9]{1,5}|\[[0-9a-fA-F:.]+\]:[0-9]{1,5}",
    'the address of a Ray cluster; use "auto", or HOST:PORT of its head',
)
# It names a directory, and a Unix socket in it whose whole path has 107 characters at most.
_FLEET_NAME: Final = Text(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}",
    "a name of up to 32 letters, digits, . _ or - that starts with a letter or a digit",
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_ADDRESS: Final = "is the fleet's to choose; leave it out"
_FLAGS_OF_THE_FLEET: Final[Mapping[str, str]] = {
    "--model": "has a setting of its own; use `model`",
    "--tensor-parallel-size": "has a setting of its own; use `tensor_parallel_size`",
    "-tp": "has a setting of its own; use `tensor_parallel_size`",
    "--pipeline-parallel-size": "has a setting of its own; use `pipeline_parallel_size`",
    "-pp": "has a setting of its own; use `pipeline_parallel_size`",
    "--max-model-len": "has a setting of its own; use `max_model_len`",
    "--kv-cache-memory-bytes": "has a setting of its own; use `kv_memory_gib`",
    "--scheduler-cls": "is headway's; use `policy = \"vllm\"` in [pool.batching] for vLLM's own",
    "--additional-config": "is headway's; use [pool.batching] for its settings",
    "--config": "would hide settings from headway; write its flags here",
    **{
        flag: f"would be seen by everybody in `ps`; set {variable} in the environment of "
        "headway up, or in [pool.env] of a file that only you can read"
        for flag, variable in VARIABLE_BY_FLAG.items()
    },
    "--host": _ADDRESS,
    "--port": _ADDRESS,
    "--uds": _ADDRESS,
    "--ssl-certfile": "is for clients; use [router.tls], engines listen on this machine only",
    "--ssl-keyfile": "is for clients; use [router.tls], engines listen on this machine only",
}
_VARIABLES_OF_THE_FLEET: Final[Mapping[str, str]] = {
    "CUDA_VISIBLE_DEVICES": "follows from `devices`; set that",
    "VLLM_CPU_OMP_THREADS_BIND": "follows from `devices`; set that",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "follows from `devices`; set that",
    "VLLM_CPU_KVCACHE_SPACE": "has a setting of its own; use `kv_memory_gib`",
    emulation.VARIABLE: "has a setting of its own; use `emulate`",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": _ADDRESS,
    "VLLM_NIXL_SIDE_CHANNEL_PORT": _ADDRESS,
    "PROMETHEUS_MULTIPROC_DIR": _ADDRESS,
}


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """One word of vLLM's command line; not a flag that is the fleet's to set."""

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not value or "\0" in value:
            raise bad(f"{shown(value)} is not a word of a command line; use strings")
        whole = value.partition("=")[0]
        name = (whole.split() or [""])[0] if whole.startswith("-") else whole
        if name.startswith("--"):
            name = name.replace("_", "-")
        problem = _flag_problem(name.partition(".")[0])
        if problem:  # first of all: the value may be a key
            raise bad(f"{name} {problem}")
        if whole.startswith("-") and any(letter.isspace() for letter in whole):
            raise bad(f'{name} and what follows is more than one word; use "--flag", "value"')
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class Variables:
    """A table of environment variables; not those that are the fleet's to set."""

    def read(self, value: object) -> Mapping[str, str]:
        if not isinstance(value, dict):
            raise bad(f'{kind(value)} is not a table; use [pool.env] with lines such as A = "1"')
        found: list[tuple[Path, str]] = []
        for name, content in value.items():
            problem = _variable_problem(name, content)
            if problem:
                found.append(((name,), problem))
        if found:
            raise BadValueError(*found)
        return dict(value)

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "propertyNames": {"pattern": f"^(?:{_VARIABLE.pattern})$"},
            "additionalProperties": {"type": "string"},
        }


@dataclass(frozen=True, slots=True)
class EmulatedGpu:
    """A GPU that isn't there: its name, or a table with it."""

    def read(self, value: object) -> Emulation:
        if not isinstance(value, str | dict):
            raise bad(f'{kind(value)} is not a GPU; use one such as "h100-sxm"')
        table = {"gpu": value} if isinstance(value, str) else value
        try:
            return emulation.from_table(table)
        except SettingError as error:
            at: Path = (error.key,) if isinstance(value, dict) and error.key in value else ()
            raise BadValueError((at, error.problem)) from None

    def schema(self) -> dict[str, Any]:
        names = {"enum": sorted(GPU_BY_NAME)}
        table = {
            "type": "object",
            "additionalProperties": False,
            "required": ["gpu"],
            "properties": {
                "gpu": names,
                "slow": {"type": "number", "exclusiveMinimum": 0, "maximum": emulation.SLOWEST},
                "answer_tokens": {"type": "integer", "minimum": 1},
                "faults": {"type": "string"},
            },
        }
        return {"anyOf": [names, table]}


def _flag_problem(name: str) -> str | None:
    """Why a flag isn't a file's to set. vLLM takes what a flag begins with for the whole."""
    if name in _FLAGS_OF_THE_FLEET:
        return _FLAGS_OF_THE_FLEET[name]
    if name.startswith("--") and name != "--":
        for flag, problem in _FLAGS_OF_THE_FLEET.items():
            if flag.startswith(name):
                return f"may stand for {flag}, which {problem}"
    return None


def _variable_problem(name: str, content: object) -> str | None:
    if not _VARIABLE.fullmatch(name):
        return "is not the name of an environment variable; use letters, digits and _"
    if name in _VARIABLES_OF_THE_FLEET:
        return _VARIABLES_OF_THE_FLEET[name]
    if not isinstance(content, str) or "\0" in content:
        return f'{kind(content)} is not a string of an environment; write it in quotes, as in "1"'
    return None


ROUTERS_LIMITS: Final[Mapping[str, str]] = {
    "ttft_slo_s": "ttft_s",
    "ttft_slo_factor": "ttft_factor",
    "tpot_slo_s": "tpot_s",
}
"""Limits that are the router's where a pool sets none, and what they are called in [router.slo]."""
_TYPES: Final = {Words: str, Cardinal: int, Level: int, Amount: float}


def _check_of(name: str, kind_of: Words | Cardinal | Amount | Level) -> Check:
    """What a file may say; of amounts less than the scheduler takes, to find slips."""
    if isinstance(kind_of, Words):
        return Choice((*kind_of.words, STOCK) if name == "policy" else kind_of.words)
    if isinstance(kind_of, Cardinal):
        return _COUNT
    if isinstance(kind_of, Level):
        return Whole(-kind_of.most, kind_of.most)
    return _SECONDS if kind_of.unit == "seconds" else Number(most=1000)


def _with_all_settings(cls: type[T]) -> type[T]:
    """A class of settings that has all of `core.batching`, each None where it isn't set."""
    hints = {}
    for name, setting in SETTINGS.items():
        default = setting.said
        if name in ROUTERS_LIMITS:
            default = f"router.slo.{ROUTERS_LIMITS[name]}"
        optional = _TYPES[type(setting.kind)] | None
        meaning = f"{setting.meaning}; not set: {default}"
        hints[name] = Annotated[optional, _check_of(name, setting.kind), meaning]
        setattr(cls, name, None)
    cls.__annotations__ = hints
    return dataclass(frozen=True, kw_only=True)(cls)


@_with_all_settings
class Batching:
    """How an engine shares its steps among requests: docs/policies.md.

    What isn't set follows from the policy. With "vllm" only long_prefill_token_threshold counts.
    """

    if TYPE_CHECKING:
        policy: str | None

    def given(self) -> dict[str, Any]:
        """What is set, by name."""
        values = {name: getattr(self, name) for name in SETTINGS}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """What each pod of an engine asks its node for, with `headway render kubernetes`."""

    cpus: Annotated[
        float | None,
        Number(most=10_000),
        "cores beside GPUs; not set: two, and one for each GPU",
    ] = None
    memory_gib: Annotated[
        float | None,
        Number(most=2**20),
        "memory of the node, not of GPUs; not set: what processes and weights take, on CPUs also "
        "the KV cache",
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What `headway up` runs."""

    name: Annotated[
        str, _FLEET_NAME, "a name for `headway status` and the like; each name runs once"
    ] = "default"
    placement: Annotated[
        str, Choice(PLACEMENTS), "where engines run: on this machine, or on a Ray cluster's nodes"
    ] = "local"
    ray_address: Annotated[
        str, _RAY_ADDRESS, "ray: the cluster's; auto: RAY_ADDRESS, else the one that runs here"
    ] = "auto"
    start_timeout_s: Annotated[float, _SECONDS, "for an engine to get ready"] = 600.0
    hang_s: Annotated[
        float, _SECONDS, "an engine with work and without progress for so long is restarted"
    ] = 60.0
    drain_s: Annotated[
        float, Number(most=24 * 3600, zero=True), "how long a stop waits for running requests"
    ] = 30.0
