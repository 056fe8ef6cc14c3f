"""`headway init`: a commented file for this machine, a model and a strategy."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headway.core.batching.settings import LONG_PREFILL_TOKENS, long_threshold_for
from headway.core.errors import SettingError
from headway.core.hardware.dimensions import context_tokens
from headway.core.routing.strategies import DEFAULT_STRATEGY, SPLIT_STRATEGY, STRATEGY_BY_NAME
from headway.fleet.plan import sizing
from headway.fleet.plan.sizing import EngineSize
from headway.fleet.plan.spec import Machine
from headway.models import bundled
from headway.models.files import ModelFiles

_ENGINE_GIB: Final = 2.0
"""What an engine of the bundled model takes on a CPU, beside its KV cache."""
_KV_GIB: Final = 2.0
_SMALL_KV_GIB: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """A pool to write. settings: further lines."""

    name: str
    role: str
    replicas: int
    comment: str
    settings: Sequence[str] = ()


def text(
    machine: Machine,
    *,
    strategy: str | None = None,
    model: str | None = None,
    files: ModelFiles | None = None,
) -> str:
    """The file.

    strategy: of the router; None: what suits the machine.
    model: a directory or a hub name; None: the bundled model.
    files: what is known of the model; with it engines get as many GPUs as it needs.

    Raises SettingError for a strategy that isn't known or needs more devices, and for a model that
    all GPUs together can't hold.
    """
    size = _size(machine, files)
    context = _context(model, files, size)
    strategy = strategy or _suitable(machine, model, size)
    pools = _pools(strategy, machine, model, context, size)
    lines = [
        "# What `headway up` runs. How to use it: docs/fleet.md; settings: docs/router-config.md.",
        f"# Made for {_kind(machine)} and {machine.memory_gib:.0f} GiB of memory.",
        "",
        "[fleet]",
        _line('name = "default"', "for headway status and the like; each name runs once"),
        "",
        "[router]",
        _line("port = 8000", "where clients connect, from this machine only unless host is set"),
        _line(f'strategy = "{strategy}"', STRATEGY_BY_NAME[strategy].meaning),
        _line(f"long_prompt_tokens = {_long(context)}", "what counts as long in metrics"),
        "",
        _line("[router.slo]", "the engines aim at these too"),
        _line("ttft_s = 1.0", "to the first token of a short prompt"),
        _line("ttft_factor = 4.0", "of a long prompt: so many times its prefill alone"),
        _line("tpot_s = 0.15", "between two tokens"),
    ]
    for pool in pools:
        lines += _pool_lines(pool, machine, model, context, size)
    return "\n".join(lines) + "\n"


def _size(machine: Machine, files: ModelFiles | None) -> EngineSize | None:
    """GPUs of an engine; None on CPUs, and where model or GPUs aren't known well enough."""
    if machine.cpu or files is None:
        return None
    wrong = sizing.too_large(files, machine)
    if wrong:
        raise SettingError("--model", wrong)
    return sizing.size_for(files, machine)


def _context(model: str | None, files: ModelFiles | None, size: EngineSize | None) -> int | None:
    """Of the engines, in tokens; None if it isn't known."""
    if model is None:
        return bundled.CONTEXT_TOKENS
    whole = context_tokens(files.config) if files else None
    return (size.max_model_len if size else None) or whole


def _places(machine: Machine, size: EngineSize | None) -> int:
    """How many engines the machine has room for."""
    return size.engines if size else len(machine.usable)


def _kind(machine: Machine) -> str:
    count, one = len(machine.usable), "CPU core" if machine.cpu else "GPU"
    return f"{count} {one}{'' if count == 1 else 's'}"


def _suitable(machine: Machine, model: str | None, size: EngineSize | None) -> str:
    if _places(machine, size) < 2:
        return DEFAULT_STRATEGY
    room = 2 * (_ENGINE_GIB + _SMALL_KV_GIB)
    if machine.cpu and model is None and machine.memory_gib < room:
        return DEFAULT_STRATEGY
    return SPLIT_STRATEGY


def _pools(
    strategy: str,
    machine: Machine,
    model: str | None,
    context: int | None,
    size: EngineSize | None,
) -> tuple[_Pool, ...]:
    row = STRATEGY_BY_NAME.get(strategy)
    if row is None:
        known = ", ".join(STRATEGY_BY_NAME)
        raise SettingError("--strategy", f'"{strategy}" is not one of: {known}')
    pools = row.splits or row.by_length
    places = _places(machine, size)
    if pools and places < 2:
        each = f" of {size.tensor_parallel_size} GPUs, as the model needs," if size else ""
        raise SettingError(
            "--strategy",
            f'"{strategy}" needs two engines{each} and this machine has {_kind(machine)}; '
            f"use {DEFAULT_STRATEGY}",
        )
    # An engine takes all cores it is given, of GPUs only so many. The bundled model needs one.
    many = 2 if machine.cpu or model is None else places
    first, second = many // 2, many - many // 2
    if not pools:
        alone = 1 if machine.cpu or model is None else max(1, places)
        return (_Pool(name="all", role="both", replicas=alone, comment="serves everything"),)
    if row.by_length:
        setting = f"max_prompt_tokens = {_long(context)}"
        limit = _line(setting, "not cached; longer ones go to the other pool")
        short = "prompts up to max_prompt_tokens"
        return (
            _Pool(name="short", role="both", replicas=first, comment=short, settings=(limit,)),
            _Pool(name="long", role="both", replicas=second, comment="all longer prompts"),
        )
    return (
        _Pool(name="prefill", role="prefill", replicas=first, comment="computes prompts"),
        _Pool(name="decode", role="decode", replicas=second, comment="writes the answers"),
    )


def _pool_lines(
    pool: _Pool,
    machine: Machine,
    model: str | None,
    context: int | None,
    size: EngineSize | None,
) -> list[str]:
    kind = "CPU cores, shared out evenly" if machine.cpu else "GPUs"
    kv_gib = _kv_gib(machine, model)
    shorter = size is not None and size.max_model_len is not None
    lines = [
        "",
        _line("[[pool]]", pool.comment),
        f'name = "{pool.name}"',
        f'role = "{pool.role}"',
        _line(f"replicas = {pool.replicas}", "engines"),
        *pool.settings,
        _line('# model = "./my-model"', "a directory or a hub name; not set: the bundled model")
        if model is None
        else f"model = {json.dumps(model, ensure_ascii=False)}",
        _line("# devices = [0]", f"{kind}; not set: a share of all"),
        _line(f"max_model_len = {context}", "prompt and answer; the model's is longer than fits")
        if shorter
        else _line(
            f"# max_model_len = {context or 32768}", "prompt and answer; not set: the model's"
        ),
        _line("# kv_memory_gib = 20.0", "of each engine's KV cache; not set: what is free")
        if kv_gib is None
        else _line(f"kv_memory_gib = {kv_gib}", "of each engine's KV cache"),
        _line('# flags = ["--max-num-seqs", "64"]', "further flags of vLLM"),
        _line('# env = { HF_HOME = "/models" }', "further environment variables"),
        "",
        _line("[pool.batching]", "docs/policies.md"),
        _line('policy = "slo"', 'or sequential, parallel, priority, "vllm" for its own scheduler'),
    ]
    if not machine.cpu:
        lines.insert(lines.index("", 1), _width(size))
    return lines


def _width(size: EngineSize | None) -> str:
    """GPUs of an engine."""
    if size is None or size.tensor_parallel_size == 1:
        return _line("# tensor_parallel_size = 2", "GPUs of one engine, where one is too small")
    return _line(
        f"tensor_parallel_size = {size.tensor_parallel_size}", "GPUs of one engine; fewer can't"
    )


def _line(setting: str, comment: str) -> str:
    return f"{setting:<31} # {comment}"


def _kv_gib(machine: Machine, model: str | None) -> float | None:
    """KV memory of each engine on a CPU; None on GPUs, where vLLM measures."""
    if not machine.cpu:
        return None
    if model is not None:
        return 2 * _KV_GIB
    roomy = machine.memory_gib >= 2 * (_ENGINE_GIB + _KV_GIB)
    return _KV_GIB if roomy else _SMALL_KV_GIB


def _long(context: int | None) -> int:
    return long_threshold_for(context) if context else LONG_PREFILL_TOKENS
