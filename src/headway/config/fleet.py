"""The settings of `headway up`: the fleet, and how an engine of a pool is started.

The settings of a pool that say how to start it stand in `model.Pool`; `STARTING` names them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Final

from headway.config.checks import BadValueError, Choice, Number, Text, Whole, bad, kind, shown
from headway.core.batching.settings import BUDGETS, ORDERS, PRESETS, PRIORITY_LEVELS

if TYPE_CHECKING:
    from headway.config.lines import Path

PLACEMENTS: Final = ("local", "ray")
STOCK: Final = "vllm"
"""The policy name that stands for vLLM's own scheduler."""
STARTING: Final = (
    "replicas",
    "model",
    "devices",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "kv_memory_gib",
    "flags",
    "batching",
    "env",
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
        name = value.partition("=")[0]
        if name.startswith("-") and any(letter.isspace() for letter in name):
            raise bad(f'{shown(value)} is more than one word; use "--flag", "value"')
        if name.startswith("--"):
            name = name.replace("_", "-")
        owned = _FLAGS_OF_THE_FLEET.get(name.partition(".")[0])
        if owned:
            raise bad(f"{name} {owned}")
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


def _variable_problem(name: str, content: object) -> str | None:
    if not _VARIABLE.fullmatch(name):
        return "is not the name of an environment variable; use letters, digits and _"
    if name in _VARIABLES_OF_THE_FLEET:
        return _VARIABLES_OF_THE_FLEET[name]
    if not isinstance(content, str) or "\0" in content:
        return f'{kind(content)} is not a string of an environment; write it in quotes, as in "1"'
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How an engine shares its steps among requests: docs/policies.md.

    What isn't set follows from the policy. With "vllm" only long_prefill_token_threshold counts.
    """

    policy: Annotated[
        str | None,
        Choice((*PRESETS, STOCK)),
        'the preset the others start from, or "vllm" for its own scheduler; not set: slo',
    ] = None
    order: Annotated[
        str | None, Choice(ORDERS), "who gets prefill tokens first; not set: the policy's"
    ] = None
    budget: Annotated[
        str | None,
        Choice(BUDGETS),
        "prefill tokens a step carries: the engine's own number, or what deadlines allow; "
        "not set: the policy's",
    ] = None
    max_num_partial_prefills: Annotated[
        int | None, _COUNT, "prompts that may be mid-prefill at once; not set: the policy's"
    ] = None
    max_long_partial_prefills: Annotated[
        int | None, _COUNT, "of these, how many may be long; not set: 1"
    ] = None
    long_prefill_token_threshold: Annotated[
        int | None,
        _COUNT,
        "a prompt with more uncached tokens is long; not set: 10000, or in proportion to a "
        "context below 131072",
    ] = None
    ttft_slo_s: Annotated[
        float | None, _SECONDS, "time to first token, at most; not set: router.slo.ttft_s"
    ] = None
    ttft_slo_factor: Annotated[
        float | None,
        Number(most=1000),
        "a long prompt's limit is this many times its prefill alone; not set: "
        "router.slo.ttft_factor",
    ] = None
    tpot_slo_s: Annotated[
        float | None, _SECONDS, "time per output token, at most; not set: router.slo.tpot_s"
    ] = None
    max_wait_s: Annotated[
        float | None,
        _SECONDS,
        "a prompt that has waited longer is guaranteed a share of prefill; not set: 120",
    ] = None
    min_client_slo_factor: Annotated[
        float | None,
        Number(most=1000),
        "the tightest limits clients may ask for, as a multiple of the engine's; not set: 1",
    ] = None
    max_client_slo_factor: Annotated[
        float | None, Number(most=1000), "the widest limits clients may ask for; not set: 10"
    ] = None
    min_client_priority: Annotated[
        int | None,
        Whole(-PRIORITY_LEVELS, PRIORITY_LEVELS),
        "the most urgent priority clients may ask for (lower goes first); not set: 0",
    ] = None

    def given(self) -> dict[str, Any]:
        """What is set, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


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
