"""What a step computes and for whom a token comes of it, from vLLM's scheduler output."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headway.core.hardware.step import Prefill
from headway.emulate.answers import Writing


@dataclass(slots=True)
class Batch:
    """A step. ids: of its requests, in order. positions: of the token that comes of each; None
    where its prompt isn't finished. writings: how each is answered. chunks, decodes,
    decode_context_tokens: as `StepTimes.seconds` takes them.
    """

    ids: list[str] = field(default_factory=list)
    positions: list[int | None] = field(default_factory=list)
    writings: list[Writing] = field(default_factory=list)
    chunks: list[Prefill] = field(default_factory=list)
    decodes: int = 0
    decode_context_tokens: int = 0


class Requests:
    """What a model runner remembers of the requests that are on it."""

    def __init__(self, writing: Callable[[Any], Writing]) -> None:
        """writing: of vLLM's NewRequestData."""
        self._writing = writing
        self._of: dict[str, Writing] = {}

    def __len__(self) -> int:
        return len(self._of)

    def batch(self, output: Any) -> Batch:
        """What a step that vLLM has scheduled computes. output: its SchedulerOutput."""
        for request_id in output.finished_req_ids:
            self._of.pop(request_id, None)
        scheduled = output.num_scheduled_tokens
        batch = Batch()
        cached = output.scheduled_cached_reqs
        for request_id, computed, written in zip(
            cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
            writing = self._of[request_id]
            known = writing.prompt_tokens + written
            _add(batch, request_id, writing, computed, scheduled[request_id], known)
        for new in output.scheduled_new_reqs:
            writing = self._of[new.req_id] = self._writing(new)
            # One that was preempted comes as a new one too, with all that it has written.
            known = len(new.prefill_token_ids or new.prompt_token_ids)
            computed = new.num_computed_tokens
            _add(batch, new.req_id, writing, computed, scheduled[new.req_id], known)
        return batch


def _add(
    batch: Batch, request_id: str, writing: Writing, computed: int, tokens: int, known: int
) -> None:
    """known: tokens of the request that are there, or will be when the steps in flight are done."""
    end = computed + tokens
    batch.ids.append(request_id)
    batch.writings.append(writing)
    batch.positions.append(end if end >= known else None)
    if tokens == 1 and computed and end >= known:
        batch.decodes += 1
        batch.decode_context_tokens += end
    else:
        batch.chunks.append(Prefill(tokens, computed))
