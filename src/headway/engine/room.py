"""What vLLM's own limits leave of a step."""

from typing import Any, Final

from vllm.v1.request import RequestStatus

from headway.engine.kv import KVView

_STARTABLE: Final = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def starting_requests(scheduler: Any) -> int:
    """Requests that hold KV and wait: vLLM starts them by itself, before others.

    Their KV has just been received, or they are sessions with new input. They get what a
    start takes; what is left of them is planned from then on.
    """
    received = len(scheduler.finished_recving_kv_req_ids)
    return received + sum([r.status in _STARTABLE for r in scheduler.kv_holding_waiting])


def input_tokens(scheduler: Any, taken_tokens: int, draft_slots: int, seats: int) -> int:
    """Prefill tokens that fit the model's input beside the slots in which it is drafted.

    Each request takes `draft_slots`; there are slots for all that run and for one that starts.
    """
    requests = len(scheduler.running) + len(scheduler.kv_holding_waiting) + (seats > 0)
    batched_tokens: int = scheduler.scheduler_config.max_num_batched_tokens
    return max(0, batched_tokens - taken_tokens - draft_slots * requests)


def chunk_tokens(scheduler: Any, step_tokens: int) -> int:
    """The most tokens vLLM gives one prompt in a step (--long-prefill-token-threshold)."""
    config = scheduler.scheduler_config
    tokens: int = config.long_prefill_token_threshold
    requests = sum(scheduler.get_request_counts())
    if tokens <= 0 or requests <= 1:
        return step_tokens
    if getattr(config, "long_prefill_token_threshold_adaptive", False):
        tokens = max(tokens, config.max_num_batched_tokens // requests)
    return tokens


def beside_decodes(
    tokens: int, kv: KVView, free_blocks: int, *, prefills: int, decodes: int
) -> int | None:
    """Prefill tokens for which there are KV blocks besides those of growing decodes.

    None: there are for all `tokens`. Where blocks run short, decodes may preempt and prefill may
    not.
    """
    spare = free_blocks - decodes
    if spare * kv.block_tokens >= tokens + prefills * kv.block_tokens:
        return None
    return max(0, min(tokens, spare * kv.block_tokens))
