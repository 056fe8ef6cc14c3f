"""LoRA adapters and their slots, as vLLM counts them."""

from collections.abc import Iterable
from typing import Any, Final

from vllm.v1.request import Request

UNLIMITED: Final = 1 << 30


def of(request: Request) -> int | None:
    """The adapter that a request is computed with, or None."""
    lora = request.lora_request
    return int(lora.lora_int_id) if lora is not None else None


def slots(scheduler: Any) -> tuple[frozenset[int], int]:
    """Adapters of running requests, and how many others can be computed with beside them."""
    config = scheduler.lora_config
    if not config:
        return frozenset(), UNLIMITED
    loaded = frozenset([a for r in scheduler.running if (a := of(r)) is not None])
    return loaded, config.max_loras - len(loaded)


def must_run(scheduler: Any, prefills: Iterable[Request]) -> set[str]:
    """Prompts mid-prefill that mustn't be paused where vLLM starts requests by itself.

    It counts the adapters of requests that get a token in the step. It would give away the
    slot of a paused one, and fail when both are to be computed.
    """
    if not scheduler.lora_config:
        return set()
    return {request.request_id for request in prefills if of(request) is not None}


def tell_deferred(stats: Any, without_slot: int) -> None:
    """Count prompts that wait for a slot among those deferred, in statistics (or None).

    vLLM counts those that it passes over in its queue, of which it sees only what is planned.
    """
    if stats is not None:
        count = min(without_slot, stats.num_waiting_reqs)
        stats.num_waiting_reqs -= count
        stats.num_skipped_waiting_reqs += count
