"""What a policy may see: plain, frozen descriptions that a host fills in.

Times are seconds on one monotonic clock of the host's choosing.
"""

from collections.abc import Callable
from typing import NamedTuple


class Prompt(NamedTuple):
    """A request that still has prompt tokens to compute.

    id: unique in the engine.
    arrival_s: when the request reached the engine.
    tokens: uncached tokens still to compute (prompt minus prefix hits minus
        earlier chunks); its *length* in every decision.
    context_tokens: tokens whose KV is there already; a chunk attends to them.
    total_tokens: uncached tokens it had when it was last judged as a whole (on arrival,
        while it waits, when it starts); its TTFT limit grows with them.
    priority: the client's; lower goes first, as in vLLM.
    ttft_slo_s: the client's own TTFT limit, or None for the engine's.
    resumed: it was preempted and must recompute what it had.
    loads: its KV is computed elsewhere and only has to be fetched; that costs no prefill,
        so it goes first and no cap concerns it.
    unsplit: its chunks can't be sized at will (multimodal input, aligned state), so
        only the token budget limits them.
    adapter: the LoRA adapter it is computed with, or None.
    """

    id: str
    arrival_s: float
    tokens: int
    context_tokens: int = 0
    total_tokens: int = 0
    priority: int = 0
    ttft_slo_s: float | None = None
    resumed: bool = False
    unsplit: bool = False
    loads: bool = False
    adapter: int | None = None


class Probe(NamedTuple):
    """A waiting prompt as it stands now, judged by the host.

    tokens: uncached tokens to compute if it were admitted in this step.
    context_tokens: prefix tokens it would reuse.
    blocks: KV blocks it needs to hold its whole prompt.
    blocked: why it can't start whatever the budget and the room, or None.
    loads: what starts is the fetching of its KV; nothing is computed in this step.
    exact: `tokens` can't grow before vLLM admits it and nothing but the token
        budget can cut its chunk.
    ask: judges it again with what somebody else may have of its KV, which costs something;
        None if that is known or there is nobody to ask. Without it `tokens` is an upper bound.
    """

    tokens: int
    context_tokens: int = 0
    blocks: int = 0
    blocked: str | None = None
    loads: bool = False
    exact: bool = True
    ask: Callable[[], "Probe"] | None = None


class Step(NamedTuple):
    """The engine's state when a step is planned.

    tokens: prefill tokens that fit in the step beside its decodes.
    chunk_tokens: the most that one prompt may get of them.
    prefills: admitted prompts with tokens left to compute.
    decodes: running decodes.
    decode_context_tokens: sum of their context lengths.
    next_token_deadlines_s: per running decode, first token + i * TPOT limit;
        empty if the policy doesn't use deadlines.
    seats: further requests that may start running.
    free_blocks: KV blocks that admitted requests don't need.
    idle: no request is running.
    adapters: LoRA adapters of running requests.
    adapter_slots: how many more can be computed with at once.
    """

    tokens: int
    prefills: tuple[Prompt, ...] = ()
    decodes: int = 0
    decode_context_tokens: int = 0
    next_token_deadlines_s: list[float] = []  # noqa: RUF012  shared only while empty
    seats: int = 1 << 30
    free_blocks: int = 1 << 30
    idle: bool = False
    chunk_tokens: int = 1 << 30
    adapters: frozenset[int] = frozenset()
    adapter_slots: int = 1 << 30
