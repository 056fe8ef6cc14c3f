"""What a request needs of the KV cache, in vLLM's own count."""

import inspect
from typing import Any, NamedTuple

from vllm.v1.request import Request

from headway.core.decisions import Chunk
from headway.core.views import Probe


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


class Judge:
    """Judges waiting requests in the step being planned."""

    def __init__(self, scheduler: Any, kv: KVView) -> None:
        self._scheduler = scheduler
        self._kv = kv
        self._exact = not getattr(scheduler, "need_mamba_block_aligned_split", False)
        self.least_tokens = 1 + int(scheduler.num_spec_tokens)
        """What a start may take: vLLM pads one token to a decode with all of its drafts."""
        self._loras: set[int] | None = None
        self.encoder_full = False
        """In the last step vLLM's encoder had no room for a prompt; text goes first in this one."""

    def new_step(self) -> None:
        """Forget what was assumed about the previous step."""
        self._loras = None

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
        """The request as it would be if it started in this step."""
        blocked = self._blocked(request)
        if blocked is not None:
            return Probe(1, blocked=blocked, needs_room=blocked == "lora")
        if remote_prefill(request):
            blocks = self._kv.blocks_to_hold(request)
            return Probe(1, int(request.num_tokens) - 1, blocks, loads=True)
        if request.num_computed_tokens > 0:
            tokens, done = self.length(request)
            return Probe(tokens, done, 0, exact=False)
        hit = self._kv.prefix_hit(request)
        external, loads = self._external(request, hit.tokens)
        if external is None:
            return Probe(1, blocked="kv lookup", needs_room=False)
        cached = hit.tokens + external
        tokens = request.num_tokens - cached
        return Probe(
            tokens if tokens > 1 else self.least_tokens,
            cached,
            self._kv.blocks_to_hold(request, hit),
            loads=loads,
            exact=self._exact and not request.has_encoder_inputs,
        )

    def grown(self, request: Request, chunk: Chunk) -> bool:
        """Whether a chunk that was to finish the prompt no longer will."""
        tokens, cached = self.length(request)
        if tokens <= chunk.tokens:
            return False
        external, loads = self._external(request, cached)
        return not loads and tokens - (external or 0) > chunk.tokens

    def _external(self, request: Request, local_tokens: int) -> tuple[int | None, bool]:
        """Tokens a KV connector has beyond the local ones, and whether it loads them first.

        None while it doesn't know.
        """
        connector = self._scheduler.connector
        if connector is None:
            return 0, False
        aligned = local_tokens - local_tokens % self._kv.block_tokens
        tokens, loads = connector.get_num_new_matched_tokens(request, aligned)
        return (None if tokens is None else int(tokens)), bool(tokens and loads)

    def _blocked(self, request: Request) -> str | None:
        status = request.status.name
        if status == "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR":
            wanted = request.structured_output_request
            return "grammar" if wanted is None or wanted.grammar is None else None
        if status == "WAITING_FOR_STREAMING_REQ":
            return "streaming input"
        stale = getattr(request, "num_stale_output_tokens", 0)
        if stale and not getattr(request, "drop_stale_output", False):
            return "output in flight"
        if self.encoder_full and request.has_encoder_inputs:
            return "encoder"
        return self._lora_blocked(request)

    def _lora_blocked(self, request: Request) -> str | None:
        config, lora = self._scheduler.lora_config, request.lora_request
        if not config or not lora:
            return None
        if self._loras is None:
            running = (r.lora_request for r in self._scheduler.running)
            self._loras = {r.lora_int_id for r in running if r is not None}
        if lora.lora_int_id not in self._loras and len(self._loras) >= config.max_loras:
            return "lora"
        self._loras.add(lora.lora_int_id)
        return None


def remote_prefill(request: Request) -> bool:
    """Its KV was computed by another engine and only has to be fetched."""
    parameters = request.kv_transfer_params
    # A client can put anything there (`vllm_xargs`).
    return isinstance(parameters, dict) and bool(parameters.get("do_remote_prefill"))
