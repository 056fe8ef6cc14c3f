"""What a request needs of the KV cache, in vLLM's own count."""

import inspect
from typing import Any, Final, NamedTuple

from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import Request

from headway.core.decisions import Chunk
from headway.core.views import Probe
from headway.engine.lookups import Held, Lookups

GRAMMAR: Final = "grammar"
KV_LOOKUP: Final = "kv lookup"


class PrefixHit(NamedTuple):
    """The part of a prompt whose KV is cached: blocks as vLLM hands them out, and tokens."""

    blocks: Any
    tokens: int


class KVView:
    """Read-only questions to vLLM's KV cache manager, and one harmless touch."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._manager = scheduler.kv_cache_manager
        self._pool = self._manager.block_pool
        self._coordinator = self._manager.coordinator
        self.block_tokens: int = scheduler.cache_config.block_size
        needs = inspect.signature(self._coordinator.get_num_blocks_to_allocate).parameters
        self._knows_prefill_end = "prefill_end" in needs

    @property
    def total_blocks(self) -> int:
        """Blocks of an empty cache; one is vLLM's null block."""
        return int(self._pool.num_gpu_blocks) - 1

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return int(self._pool.get_num_free_blocks())

    @property
    def watermark_blocks(self) -> int:
        """Blocks that vLLM keeps free when it admits a request beside running ones."""
        return int(getattr(self._manager, "watermark_blocks", 0))

    def reserved_blocks(self) -> int:
        """Blocks that admitted prompts still need to be whole."""
        return int(self._scheduler._inflight_prefill_reserved_blocks())

    def prefix_hit(self, request: Request) -> PrefixHit:
        """What is cached of a waiting request's tokens now. Costs O(blocks hit)."""
        blocks, tokens, *_ = self._manager.get_computed_blocks(request)
        return PrefixHit(blocks, int(tokens))

    def blocks_to_hold(self, request: Request, hit: PrefixHit | None = None) -> int:
        """Free blocks that it takes to hold all of a waiting request's tokens."""
        blocks = hit.blocks if hit is not None else self._manager.empty_kv_cache_blocks
        tokens = min(request.num_tokens, self._scheduler.max_model_len)
        cached = hit.tokens if hit is not None else 0
        arguments: dict[str, Any] = {
            "request_id": request.request_id,
            "num_tokens": tokens,
            "new_computed_blocks": blocks.blocks,
            "num_encoder_tokens": 0,
            "total_computed_tokens": cached,
            "num_local_computed_tokens": cached,
            "num_tokens_main_model": tokens,
            "apply_admission_cap": True,
        }
        if self._knows_prefill_end:
            arguments["prefill_end"] = max(request.num_prompt_tokens, request.num_tokens - 1)
        return int(self._coordinator.get_num_blocks_to_allocate(**arguments))

    def keep_warm(self, request: Request) -> None:
        """Make the cached prefix of a held request the last to be evicted.

        Touching a block and giving it back moves it to the far end of vLLM's
        eviction queue; reference counts end as they were.
        """
        for group in self.prefix_hit(request).blocks.blocks:
            self._pool.touch(group)
            self._pool.free_blocks(reversed(group))


class PromptJudge:
    """Judges waiting requests in the step being planned."""

    def __init__(self, scheduler: Any, kv: KVView) -> None:
        self._kv = kv
        self._exact = not getattr(scheduler, "need_mamba_block_aligned_split", False)
        self.least_tokens = 1 + int(scheduler.num_spec_tokens)
        """What a start may take: vLLM pads one token to a decode with all of its drafts."""
        self.lookups = Lookups(scheduler, kv.block_tokens)
        self.encoder_full = False
        """In the last step vLLM's encoder had no room for a prompt; text goes first in this one."""

    def length(self, request: Request) -> tuple[int, int]:
        """Uncached tokens to compute and cached tokens, as of now."""
        if remote_prefill(request):
            return 1, int(request.num_tokens) - 1
        if request.num_computed_tokens > 0:
            done = int(request.num_computed_tokens)
            return max(1, request.num_tokens - done), done
        hit = self._kv.prefix_hit(request)
        return max(1, request.num_tokens - hit.tokens), hit.tokens

    def probe(self, request: Request) -> Probe:
        """The request as it would be if it started in this step.

        What a KV connector has of it counts where that is known. Where it isn't, the probe can
        ask; a prompt that the connector knows nothing of yet can't start before it does.
        """
        blocked = self._blocked(request)
        if blocked is not None:
            return Probe(1, blocked=blocked)
        undecided = self.lookups.is_undecided(request)
        if remote_prefill(request) and not undecided:
            blocks = self._kv.blocks_to_hold(request)
            return Probe(1, int(request.num_tokens) - 1, blocks, loads=True)
        if request.num_computed_tokens > 0:
            tokens, done = self.length(request)
            return Probe(tokens, done, 0, exact=False)
        hit = self._kv.prefix_hit(request)
        if undecided:
            return self._ask(request, hit)
        held = self.lookups.known(request)
        if held is None:
            seen = self._seen(request, hit, Held(0, loads=False))
            return seen._replace(ask=lambda: self._ask(request, hit))
        return self._seen(request, hit, held)

    def _ask(self, request: Request, hit: PrefixHit) -> Probe:
        held = self.lookups.ask(request, hit.tokens)
        return Probe(1, blocked=KV_LOOKUP) if held is None else self._seen(request, hit, held)

    def _seen(self, request: Request, hit: PrefixHit, held: Held) -> Probe:
        cached = max(hit.tokens, held.tokens)
        tokens = request.num_tokens - cached
        certain = held.tokens <= hit.tokens or self.lookups.is_fresh(request)
        return Probe(
            tokens if tokens > 1 else self.least_tokens,
            cached,
            self._kv.blocks_to_hold(request, hit),
            loads=held.loads and held.tokens > hit.tokens,
            exact=certain and self._exact and not request.has_encoder_inputs,
        )

    def grown(self, request: Request, chunk: Chunk) -> bool:
        """Whether a chunk that was to finish the prompt no longer will."""
        tokens, cached = self.length(request)
        if tokens <= chunk.tokens:
            return False
        held = self.lookups.known(request) or self.lookups.ask(request, cached)
        if held is None or held.tokens <= cached:
            return True
        return not held.loads and request.num_tokens - held.tokens > chunk.tokens

    def waits_for(self, request: Request) -> str | None:
        """What is missing before a request can start, beside its turn and room; or None."""
        undecided = self.lookups.is_undecided(request)
        return KV_LOOKUP if undecided else self._blocked(request)

    def _blocked(self, request: Request) -> str | None:
        status = request.status.name
        if status == "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR":
            wanted = request.structured_output_request
            return GRAMMAR if wanted is None or wanted.grammar is None else None
        if status == "WAITING_FOR_STREAMING_REQ":
            return "streaming input"
        stale = getattr(request, "num_stale_output_tokens", 0)
        if stale and not getattr(request, "drop_stale_output", False):
            return "output in flight"
        full = self.encoder_full and request.has_encoder_inputs
        return "encoder" if full else None


def remote_prefill(request: Request) -> bool:
    """Its KV was computed by another engine and only has to be fetched."""
    parameters = request.kv_transfer_params
    # A client can put anything there (`vllm_xargs`).
    return isinstance(parameters, dict) and bool(parameters.get("do_remote_prefill"))


def line_up_victims(scheduler: Any) -> None:
    """Put the request whose loss wastes least last, where vLLM takes victims."""
    if scheduler.policy == SchedulingPolicy.FCFS:
        scheduler.running.sort(key=_worth, reverse=True)


def _worth(request: Request) -> tuple[int, float]:
    """What preempting a request would waste: tokens to recompute, more each time it happens."""
    wasted = int(request.num_computed_tokens) * (1 + int(request.num_preemptions))
    return wasted, -float(request.arrival_time)
