"""Carries a policy's plan into vLLM's scheduler and measures what came of it.

vLLM's `schedule()` stays as it is. Before each step the conductor changes what
it reads, and puts it back afterwards:

- `waiting` is a `PlannedQueue`: vLLM sees only the prompts the plan admits.
- `max_num_scheduled_tokens` is the plan's tokens beside those of the decodes.
- A prompt mid-prefill that gets less than vLLM would give it has the rest
  *withheld*: vLLM takes `num_output_placeholders` into account when it counts a
  request's new tokens, and for a prompt mid-prefill that number is 0 otherwise
  (but for one whose KV was lost while its output is in flight).
  It is negative only between the start of `schedule()` and the moment the batch
  is written down. A paused prompt has all its tokens withheld; it stays in
  `running`, counted against the limits and visible as a preemption victim.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from vllm.v1.request import Request, RequestStatus

from headway.core.batching.policy import Policy
from headway.core.batching.settings import BatchingSettings
from headway.core.decisions import Chunk, StepPlan
from headway.core.errors import SettingError
from headway.core.latency import StepTimeModel
from headway.core.views import Probe, Prompt, Step
from headway.engine import adapters, room
from headway.engine.grammars import ReadyGrammars
from headway.engine.kv import GRAMMAR, KVView, PromptJudge, line_up_victims, remote_prefill
from headway.engine.queue import PlannedQueue
from headway.engine.report import StepReport
from headway.engine.steps import StepClock
from headway.engine.tracks import Tracks

WARM_PERIOD_S: Final = 1.0
"""How often the cached prefix of the long prompt held first is kept from eviction."""
Contain = Callable[..., Any]
"""`contain(part, *args, default=None)` calls `part(*args)` where vLLM is on the stack and must not
see it fail; `default` is the answer then."""


class Conductor:
    """One engine's policy, and its hold on one vLLM scheduler."""

    def __init__(
        self,
        scheduler: Any,
        settings: BatchingSettings,
        contain: Contain,
        learned: StepTimeModel | None = None,
    ) -> None:
        """Take over all requests that the scheduler holds, and its `waiting` queue.

        learned: step times that are known already.
        """
        self._vllm = scheduler
        self._step_tokens: int = scheduler.max_num_scheduled_tokens
        if not scheduler.scheduler_config.enable_chunked_prefill and settings.budget == "deadline":
            raise SettingError(
                "headway.budget",
                "deadline needs chunked prefill, which this engine has off; "
                "use budget fixed or --enable-chunked-prefill",
            )
        self.model = learned or StepTimeModel()
        in_flight = scheduler.vllm_config.max_concurrent_batches
        self.policy = Policy(settings, self.model, self._step_tokens, in_flight)
        self.tracks = Tracks(self.policy)
        self.clock = StepClock(self.model)
        self.report = StepReport(self.policy, self.tracks.clamped)
        self.kv = KVView(scheduler)
        self._judge = PromptJudge(scheduler, self.kv)
        self._grammars = ReadyGrammars()
        self.queue = self._planned_queue(contain)
        self._scheduled_s = time.monotonic()
        self._withheld: list[tuple[Request, int]] = []
        self._prefills: list[Request] = []
        self._admitting: dict[str, Chunk] = {}
        self._continuing: dict[str, int] = {}
        self._not_taken: list[Request] = []
        self._stalled = False
        speculation = scheduler.vllm_config.speculative_config
        self._draft_slots = speculation.max_num_new_slots_for_drafting if speculation else 0
        self._further_starts = self._starting = self._running_before = 0
        self._unpaused: set[str] = set()
        self._nothing_to_spare = False
        self._capacity_bound = True
        self._next_warm_s = 0.0
        self._take_over()

    def _planned_queue(self, contain: Contain) -> PlannedQueue:
        return PlannedQueue(
            partial(contain, self._waits),
            partial(contain, self._left),
            partial(contain, self._still_fits_caps, default=True),
            partial(contain, self._judge.lookups.skipped),
        )

    def _take_over(self) -> None:
        vllm, now_s = self._vllm, time.monotonic()
        for request in (*vllm.running, *vllm.kv_holding_waiting):
            self.tracks.resume(request, now_s)
        for request in vllm.waiting:
            self.queue.add_request(request)
        vllm.waiting = self.queue

    # What happens to requests

    def refuses(self, request: Request) -> str | None:
        """Why a new request can never run here, or None."""
        needed = self.kv.blocks_to_hold(request)
        if needed <= self.kv.total_blocks:
            return None
        return (
            f"its {request.num_tokens} tokens need {needed} KV blocks and the cache has "
            f"{self.kv.total_blocks}; use a shorter prompt or give the engine more KV memory"
        )

    def _waits(self, request: Request) -> None:
        now_s = time.monotonic()
        tokens, cached = self._judge.length(request)
        track = self.tracks.of(request, tokens, now_s)
        blocked = self._judge.waits_for(request)
        if blocked == GRAMMAR:
            self._grammars.watch(request)
        self.policy.add(
            Prompt(
                request.request_id,
                track.arrival_s,
                tokens,
                cached,
                track.total_tokens,
                track.priority,
                track.ttft_slo_s,
                resumed=request.status == RequestStatus.PREEMPTED,
                unsplit=self._unsplit(request),
                loads=remote_prefill(request),
                adapter=adapters.of(request),
            ),
            now_s,
            blocked,
        )

    def _left(self, request_id: str) -> None:
        self.policy.discard(request_id)
        self._judge.lookups.forget(request_id)

    def _unsplit(self, request: Request) -> bool:
        return bool(request.has_encoder_inputs or self._vllm.need_mamba_block_aligned_split)

    # One step

    def begin_step(self) -> bool:
        """Plan the step about to be scheduled and show vLLM what it admits.

        False where there is nothing to plan: decodes alone, or vLLM's turn.
        """
        vllm = self._vllm
        self._scheduled_s = time.monotonic()
        now_s = self.clock.start_s(self._scheduled_s)
        running: list[Request] = vllm.running
        self._running_before = len(running)
        self._prefills = prefills = [r for r in running if r.is_prefill_chunk]
        decodes = running
        if prefills:
            decodes = [r for r in running if not r.is_prefill_chunk]
        context_tokens = sum([r.num_computed_tokens for r in decodes])
        decode_tokens = len(decodes)
        if vllm.num_spec_tokens:
            decode_tokens += sum([len(r.spec_token_ids) for r in decodes])
        self.clock.decodes(decode_tokens, context_tokens)
        if self._stalled or not (prefills or self.queue):
            if self.kv.free_blocks < decode_tokens:
                line_up_victims(self._vllm)
            self._admitting, self._continuing = {}, {}
            self._capacity_bound = True
            self.queue.begin(())
            return False
        self._judge.lookups.new_step()
        for request_id in self._grammars.take():
            self.policy.wake(request_id, now_s)
        step = self._step(prefills, decodes, decode_tokens, context_tokens, now_s)
        plan = self.policy.plan(step, now_s, self._probe)
        if self._draft_slots:
            self._further_starts = (step.tokens - plan.tokens) // self._draft_slots
        self._express(plan, prefills, decode_tokens)
        self.report.planned(plan)
        if plan.held_long and now_s >= self._next_warm_s:
            self._keep_warm(now_s)
        return True

    def _step(
        self,
        prefills: list[Request],
        decodes: list[Request],
        decode_tokens: int,
        context_tokens: int,
        now_s: float,
    ) -> Step:
        vllm = self._vllm
        starting = self._starting = room.starting_requests(vllm) * self._judge.least_tokens
        seats = vllm.max_num_active_reqs - len(vllm.running) - vllm.num_waiting_for_streaming_input
        if vllm._pause_state.name != "UNPAUSED" or not self.queue:
            seats = 0
        self._unpaused = adapters.must_run(vllm, prefills) if starting else set()
        taken = decode_tokens + starting + len(self._unpaused)
        tokens = max(0, self._step_tokens - taken)
        if self._draft_slots:
            tokens = min(tokens, room.input_tokens(vllm, taken, self._draft_slots, seats))
        free_blocks = self.kv.free_blocks
        if decodes:
            tokens = self._beside_decodes(tokens, len(prefills), len(decodes), free_blocks)
        if seats > 0:
            free_blocks -= self.kv.watermark_blocks + self.kv.reserved_blocks()
        deadlines: list[float] = []
        if self.policy.budget.uses_deadlines and (prefills or seats > 0):
            least_pace_s = self.policy.least_pace_s(decode_tokens, context_tokens)
            deadlines = self.tracks.deadlines_s(decodes, now_s, least_pace_s)
        loaded, free_slots = adapters.slots(vllm)
        return Step(
            tokens=tokens,
            prefills=tuple([self._prompt(r, now_s) for r in prefills]),
            decodes=decode_tokens,
            decode_context_tokens=context_tokens,
            next_token_deadlines_s=deadlines,
            seats=seats,
            free_blocks=free_blocks,
            idle=not vllm.running and not vllm.kv_holding_waiting,
            chunk_tokens=room.chunk_tokens(vllm, self._step_tokens),
            adapters=loaded,
            adapter_slots=free_slots,
        )

    def _beside_decodes(self, tokens: int, prefills: int, decodes: int, free_blocks: int) -> int:
        fitting = room.beside_decodes(
            tokens, self.kv, free_blocks, prefills=prefills, decodes=decodes
        )
        if fitting is not None:
            line_up_victims(self._vllm)
        return tokens if fitting is None else fitting

    def _prompt(self, request: Request, now_s: float) -> Prompt:
        done = request.num_computed_tokens
        left = max(1, request.num_tokens - done)
        track = self.tracks.of(request, left, now_s)
        return Prompt(
            request.request_id,
            track.arrival_s,
            left,
            done,
            track.total_tokens,
            track.priority,
            track.ttft_slo_s,
            resumed=request.num_output_tokens > 0,
            unsplit=self._unsplit(request),
        )

    def _probe(self, request_id: str) -> Probe:
        request = self.queue.get(request_id)
        seen = self._judge.probe(request)
        if seen.blocked is not None:
            self._vllm.deferred_waiting.add(request)
        return seen

    def _express(self, plan: StepPlan, prefills: list[Request], decode_tokens: int) -> None:
        self._continuing = chunks = {chunk.id: chunk.tokens for chunk in plan.chunks}
        for request in prefills:
            left = request.num_tokens - request.num_computed_tokens
            least = int(request.request_id in self._unpaused)
            withheld = left - max(least, chunks.get(request.request_id, 0))
            taken = request.num_output_placeholders + withheld
            if taken:
                self._withheld.append((request, taken))
                request.num_output_placeholders -= taken
        if self.policy.budget.uses_deadlines:
            tokens = decode_tokens + self._starting + plan.tokens
            tokens += len(self._unpaused - chunks.keys())
            # A padded start is taken whole or not at all.
            least = self._judge.least_tokens
            tokens += sum([c.left for c in plan.admitted if c.tokens + c.left <= least])
            self._vllm.max_num_scheduled_tokens = min(self._step_tokens, tokens)
        self.queue.begin([chunk.id for chunk in plan.admitted])
        self._admitting = {chunk.id: chunk for chunk in plan.admitted}
        self._nothing_to_spare = plan.nothing_to_spare
        self._capacity_bound = plan.capacity_bound

    def _still_fits_caps(self, request: Request) -> bool:
        """Whether vLLM may look at this planned request, or must leave it to the next step.

        While the step was being scheduled, allocation may have evicted a prefix
        the plan counted on. Where no further prompt may be left unfinished, one
        that was to be finished starts only if it still will be.
        """
        chunk = self._admitting[request.request_id]
        if not self._nothing_to_spare or chunk.left:
            return True
        if self._judge.grown(request, chunk):
            return False
        started = self._vllm.running[self._running_before :]
        if self._draft_slots and len(started) > self._further_starts:
            return False
        return all(r.num_tokens - r.num_computed_tokens <= self._expected(r) for r in started)

    def _expected(self, started: Request) -> int:
        """Tokens that a request started in this step was to take."""
        chunk = self._admitting.get(started.request_id)
        return chunk.tokens if chunk is not None else self._judge.least_tokens

    def _keep_warm(self, now_s: float) -> None:
        head = self.policy.backlog.long_head(now_s)
        if head is not None:
            self.kv.keep_warm(self.queue.get(head.id))
        self._next_warm_s = now_s + WARM_PERIOD_S

    def return_withheld(self) -> None:
        """Give requests back what was withheld; vLLM has settled their chunks."""
        for request, taken in self._withheld:
            if request.status == RequestStatus.RUNNING:
                request.num_output_placeholders += taken
        self._withheld.clear()

    def put_back(self) -> None:
        """Undo all that a plan has changed in vLLM."""
        self.return_withheld()
        self._vllm.max_num_scheduled_tokens = self._step_tokens
        self._not_taken = self.queue.end()

    def end_step(self) -> None:
        """All has been put back: those that the step left out wait again."""
        for request in self._not_taken:
            self._waits(request)

    def scheduled(self, output: Any) -> None:
        """Remember what the step computes, to learn from it when it is done."""
        # vLLM throttles prefill for data parallel balance unless an engine can't keep up.
        self._vllm.prefill_capacity_bound &= self._capacity_bound
        admitted = self._vllm.running[self._running_before :]
        for request in admitted:
            chunk = self._admitting.get(request.request_id)
            track = self.tracks.get(request.request_id)
            if chunk is not None and track is not None and not request.num_output_tokens:
                track.total_tokens = chunk.tokens + chunk.left
        counts = output.num_scheduled_tokens
        self._note_full_encoder(counts)
        prefills = [
            (r, counts[r.request_id])
            for r in (*self._prefills, *admitted)
            if r.request_id in counts
        ]
        self.clock.started(output, prefills, self._scheduled_s)

    def _note_full_encoder(self, counts: dict[str, int]) -> None:
        """Prompts that got nothing of what was planned for them must not get it all again.

        vLLM's encoder, or the encoder's cache, has no room for their next image, and room may come
        only from those that the plan left out. In the next step none of those that wait with images
        is tried; where one mid-prefill got nothing, vLLM shares out the next step itself.
        """
        self._judge.encoder_full = any(map(self._waits_for_encoder, self._admitting))
        self._stalled = any(
            r.has_encoder_inputs
            and r.request_id in self._continuing
            and r.request_id not in counts
            and not r.is_finished()
            for r in self._prefills
        )

    def _waits_for_encoder(self, admitted_id: str) -> bool:
        """Whether a prompt with images was to start and still waits."""
        request = self.queue.find(admitted_id)
        return request is not None and bool(request.has_encoder_inputs)

    def finished(self, output: Any) -> None:
        """A step's results are here: measure it."""
        step = self.clock.finished(output, time.monotonic())
        if step is not None:
            self.report.measured(step)

    def tell_deferred(self, stats: Any) -> None:
        """Have vLLM's statistics count prompts that wait for their adapter's slot."""
        adapters.tell_deferred(stats, self.policy.backlog.without_slot())

    def kv_lost(self) -> None:
        """KV that a running request stood on could not be loaded: it is mid-prefill again.

        vLLM sees that only once it has scheduled the request.
        """
        for request in self._vllm.running:
            if request.num_computed_tokens < request.num_prompt_tokens:
                request.is_prefill_chunk = True

    def tokens_delivered(self) -> None:
        """Note first tokens of the step just measured."""
        now_s = time.monotonic()
        for request in self.clock.take_completed_prefills():
            self.tracks.got_first_token(request, now_s)
        self.report.tick(now_s, self.queue, self._vllm)
