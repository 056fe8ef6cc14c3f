"""What an engine's /metrics tells: vLLM's figures, and those of headway's scheduler in it."""

import math
import re
from dataclasses import dataclass
from typing import Final

_SAMPLE: Final = re.compile(
    rb"^(vllm:(?:num_requests_(?:waiting|running)|(?:prompt|generation)_tokens_total"
    rb"|kv_cache_usage_perc|iteration_tokens_total_count|nixl_bytes_transferred_sum"
    rb"|cache_config_info)|headway:(?:steps_total|fallback_steps_total|stands_aside))"
    rb"(?:\{([^}]*)\})? ([0-9.eE+-]+)\s*$",
    re.MULTILINE,
)
_LABEL: Final = re.compile(rb'([a-z_]+)="([^"]*)"')
_CACHE: Final = b"vllm:cache_config_info"
_STEPS: Final = b"headway:steps_total"
_MOVES: Final = frozenset(
    {
        b"vllm:prompt_tokens_total",
        b"vllm:generation_tokens_total",
        b"vllm:kv_cache_usage_perc",
        b"vllm:iteration_tokens_total_count",
        _STEPS,
    }
)


@dataclass(frozen=True, slots=True)
class Fallback:
    """Faults in headway's scheduler.

    steps: those that vLLM scheduled by itself because headway's code failed, since its start.
    aside: whether headway leaves all of them to vLLM until a restart.
    """

    steps: int = 0
    aside: bool = False

    def __str__(self) -> str:
        """For people; empty where there was no fault."""
        if self.aside:
            return (
                "headway's scheduler stands aside until a restart: it failed too often, and vLLM "
                "schedules by itself; the engine's log says why"
            )
        if self.steps:
            return (
                f"headway's scheduler failed: {self.steps} steps were left to vLLM; "
                "the engine's log says why"
            )
        return ""


NO_FAULTS: Final = Fallback()


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Sums over an engine's ranks.

    waiting, running: its requests, whoever sent them. kv_capacity_tokens: size of its KV cache,
    None where unknown. kv_bytes: KV it has received. progress: tokens computed, grows with every
    prompt and every token of an answer. moves: figures of which some change with every step that
    computes something: vLLM counts a prompt's tokens when the whole of it is computed, and until
    then only the KV cache's use, and the steps that headway's scheduler counts, tell that a long
    one gets on. steered: headway's scheduler counts its steps.
    """

    waiting: int = 0
    running: int = 0
    kv_capacity_tokens: int | None = None
    kv_bytes: float = 0.0
    progress: float = 0.0
    moves: tuple[float, ...] = ()
    steered: bool = False
    fallback: Fallback = NO_FAULTS


def parse_metrics(text: bytes) -> EngineMetrics:
    """What the text of /metrics says. Lines that aren't known or can't be read are left out."""
    sums: dict[bytes, float] = {}
    moves: list[float] = []
    capacity: int | None = None
    for name, labels, number in _SAMPLE.findall(text):
        try:
            value = float(number)
        except ValueError:
            continue
        if not math.isfinite(value):
            continue
        if name == _CACHE:
            capacity = _capacity(dict(_LABEL.findall(labels)))
        else:
            sums[name] = sums.get(name, 0.0) + value
            if name in _MOVES:
                moves.append(value)

    def figure(name: bytes) -> float:
        return sums.get(name, 0.0)

    return EngineMetrics(
        waiting=int(figure(b"vllm:num_requests_waiting")),
        running=int(figure(b"vllm:num_requests_running")),
        kv_capacity_tokens=capacity,
        kv_bytes=figure(b"vllm:nixl_bytes_transferred_sum"),
        progress=figure(b"vllm:prompt_tokens_total") + figure(b"vllm:generation_tokens_total"),
        moves=tuple(moves),
        steered=_STEPS in sums,
        fallback=Fallback(
            int(figure(b"headway:fallback_steps_total")), bool(figure(b"headway:stands_aside"))
        ),
    )


def _capacity(labels: dict[bytes, bytes]) -> int | None:
    blocks, tokens = labels.get(b"num_gpu_blocks", b""), labels.get(b"block_size", b"")
    return int(blocks) * int(tokens) if blocks.isdigit() and tokens.isdigit() else None
