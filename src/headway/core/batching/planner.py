"""Planning of one step."""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Final

from headway.core.batching.backlog import Backlog
from headway.core.batching.budget import Allowance
from headway.core.batching.caps import Caps, Occupancy
from headway.core.batching.order import Order, PrefillClock, Rank
from headway.core.decisions import Chunk, StepPlan
from headway.core.views import Probe, Prompt, Step

ProbeFn = Callable[[str], Probe]
"""How the host judges a waiting prompt, by id, in the step being planned."""

MAX_LOOKS: Final = 16
"""Waiting prompts that may be looked at in vain in one step."""
WORTH: Final = 5.0
"""A chunk gets this many times the time that reading its context takes, where that is possible."""


class StepPlanner:
    """The scratch pad of one step's plan: what is left to spend, who is mid-prefill."""

    def __init__(
        self,
        backlog: Backlog,
        order: Order,
        caps: Caps,
        clock: PrefillClock,
        step: Step,
        allowance: Allowance,
        now_s: float,
        max_wait_s: float,
        probe: ProbeFn,
        *,
        favour_yielding: bool,
    ) -> None:
        self._backlog = backlog
        self._order = order
        self._clock = clock
        self._model = clock.model
        self._step = step
        self._allowance = allowance
        self._now_s = now_s
        self._max_wait_s = max_wait_s
        self._probe = probe
        self._favour_yielding = favour_yielding
        self._tokens = allowance.tokens
        self._spent = 0
        self._seconds = allowance.seconds
        self._stretch_s = allowance.stretch_s
        self._floor = allowance.floor_tokens
        self._free_blocks = step.free_blocks
        self._looks = MAX_LOOKS
        self._aged: Prompt | None = None
        self._finished = False
        self._yielding_started = False
        self.waited = False
        """Whether a prompt was left out because a later step will give it a better chunk."""
        self._caps = caps
        self._occupancy = Occupancy(caps)
        for prompt in step.prefills:
            self._occupancy.enter(prompt.tokens)
        self._chunks: list[Chunk] = []
        self._admitted: list[Chunk] = []

    def run(self) -> StepPlan:
        """Spend the allowance on prompts in the order's rank."""
        step = self._step
        too_long_s = self._now_s - self._max_wait_s
        self._backlog.begin_step(step.adapters, step.adapter_slots, too_long_s)
        waits = bool(self._backlog) and step.seats > 0
        if waits:
            self._find_aged()
            self._backlog.unpark(self._probe, self._fits, self._now_s)
        running = sorted((self._rank(p), p) for p in step.prefills)
        waits = waits and not self._draining()
        self._merge(running, waits=waits)
        if waits and self._finished and self._tokens > 0:
            self._merge([], waits=waits)
        return StepPlan(
            chunks=tuple(self._chunks),
            admitted=tuple(self._admitted),
            tokens=self._spent,
            limit_s=self._allowance.limit_s,
            reason=self._allowance.reason,
            held_long=self._occupancy.long_full and self._backlog.has_long(),
            yielding_started=self._yielding_started,
            capacity_bound=self._is_capacity_bound(),
            nothing_to_spare=self._occupancy.long_full,
        )

    def _is_capacity_bound(self) -> bool:
        """What the engine has is used up, or late prompts show that it isn't enough."""
        if self._spent >= self._step.tokens or len(self._admitted) >= self._step.seats:
            return True
        return self._backlog.roomless_since_s() is not None or self._backlog.has_yielding()

    def _merge(self, running: list[tuple[Rank, Prompt]], *, waits: bool) -> None:
        """Serve prompts mid-prefill and waiting ones by rank until nothing is left to spend."""
        served = 0
        with closing(self._waiting() if waits else _nobody()) as waiting:
            head = next(waiting, None)
            while self._tokens > 0:
                if head is not None and (served == len(running) or head[0] < running[served][0]):
                    self._admit(head[1])
                    head = next(waiting, None)
                elif served < len(running):
                    self._continue(running[served][1])
                    served += 1
                else:
                    break

    def _waiting(self) -> Generator[tuple[Rank, Prompt]]:
        """Waiting prompts, ranked, while any may start; one that has waited too long first."""
        self._set_hold()
        aged, offered = self._aged, ""
        if aged is not None and aged.id in self._backlog and not self._backlog.holds(aged):
            offered = aged.id
            yield self._rank(aged), aged
        with closing(self._backlog.draw(self._now_s, self._rank)) as drawn:
            for rank, prompt in drawn:
                if self._looks == 0 or len(self._admitted) >= self._step.seats:
                    return
                if prompt.id != offered:
                    yield rank, prompt
                self._set_hold()

    def _continue(self, prompt: Prompt) -> None:
        """Give an admitted prompt its next chunk."""
        tokens = self._fit(prompt.tokens, prompt.context_tokens, unsplit=prompt.unsplit)
        self._spend(tokens, prompt.tokens, prompt.context_tokens)
        if tokens == prompt.tokens and not prompt.unsplit:  # vLLM may cut it at an image
            self._occupancy.leave(prompt.tokens)
            self._hurry(prompt)
            self._finished = True
        if tokens:
            self._chunks.append(Chunk(prompt.id, tokens, prompt.tokens - tokens))

    def _admit(self, prompt: Prompt) -> None:
        """Start a waiting prompt, set it aside, or pass it over in this step."""
        seen = self._probe(prompt.id)
        if seen.ask is not None and self._fits(seen) and not self._ends(prompt, seen):
            seen = seen.ask()
        if seen.blocked is not None or not self._fits(seen):
            self._backlog.park(prompt.id, seen, self._now_s)
            self._looks -= 1
            return
        if seen.loads:
            self._fetch(prompt, seen)
            return
        planned = self._chunk(prompt, seen)
        whole = planned == seen.tokens and seen.exact
        if not planned or not (whole or self._occupancy.admits_partial(seen.tokens)):
            self._looks -= 1
            if seen.tokens != prompt.tokens:
                self._backlog.add(_judged(prompt, seen), self._now_s)
            return
        self._spend(planned, seen.tokens, seen.context_tokens)
        self._backlog.start(prompt, self._now_s)
        self._yielding_started |= self._order.yielding(prompt, self._now_s)
        if planned < seen.tokens or not seen.exact:
            self._occupancy.enter(seen.tokens)
        else:
            self._hurry(prompt)
        self._free_blocks -= seen.blocks
        self._admitted.append(Chunk(prompt.id, planned, seen.tokens - planned))

    def _chunk(self, prompt: Prompt, seen: Probe) -> int:
        return self._fit(seen.tokens, seen.context_tokens, unsplit=prompt.unsplit)

    def _ends(self, prompt: Prompt, seen: Probe) -> bool:
        """What is left finishes the prompt, however little of it is cached elsewhere."""
        return self._chunk(prompt, seen) == seen.tokens

    def _fetch(self, prompt: Prompt, seen: Probe) -> None:
        """Let a prompt's KV be fetched. It takes one token so that the host looks at it."""
        self._tokens -= 1
        self._spent += 1
        self._free_blocks -= seen.blocks
        if not seen.exact:  # what was to be fetched may be gone, and the prompt be computed
            self._occupancy.enter(seen.tokens)
        self._backlog.start(prompt, self._now_s)
        self._admitted.append(Chunk(prompt.id, 1, 0))

    def _fit(self, tokens: int, context_tokens: int, *, unsplit: bool) -> int:
        """The chunk that what is left allows for a prompt of `tokens`."""
        at_most = min(tokens, self._tokens, self._step.chunk_tokens)
        if unsplit:
            return at_most
        by_time = self._model.largest_chunk(self._seconds, context_tokens, at_most)
        if by_time < at_most:
            worth_s = WORTH * self._model.read_s(context_tokens)
            if self._seconds < worth_s and worth_s > self._allowance.base_s:
                return self._fit_costly(worth_s, context_tokens, at_most)
        return max(by_time, min(at_most, self._floor))

    def _fit_costly(self, worth_s: float, context_tokens: int, at_most: int) -> int:
        """A chunk that spends most of its time on reading its context isn't worth its step.

        It gets more time if the decodes allow that, waits if they will later,
        and takes what there is otherwise.
        """
        if self._stretch_s < min(worth_s, self._allowance.later_s):
            self.waited = True
            return 0
        seconds = min(worth_s, self._stretch_s)
        by_time = self._model.largest_chunk(seconds, context_tokens, at_most)
        return max(by_time, min(at_most, self._floor))

    def _spend(self, chunk: int, tokens: int, context_tokens: int) -> None:
        """Take a chunk of a prompt of `tokens` from what is left."""
        self._spent += chunk
        uncut = chunk in {0, tokens, self._step.chunk_tokens}
        self._tokens = self._tokens - chunk if uncut else 0
        self._floor = max(0, self._floor - chunk)
        seconds = self._model.chunk_s(chunk, context_tokens)
        self._seconds -= seconds
        self._stretch_s -= seconds

    def _hurry(self, prompt: Prompt) -> None:
        """A prompt gets its first token from this step: end the step before that is due."""
        if self._allowance.limit_s is None:
            return
        spent_s = self._allowance.base_s + self._allowance.seconds - self._seconds
        left_s = self._clock.ttft_deadline_s(prompt) - self._now_s - spent_s
        if left_s > 0:
            self._seconds = min(self._seconds, left_s)
            self._stretch_s = min(self._stretch_s, left_s)

    def _fits(self, seen: Probe, beside_blocks: int = 0) -> bool:
        """KV blocks are there for the whole prompt; vLLM itself decides in an idle engine."""
        idle = self._step.idle and not self._admitted and not beside_blocks
        return idle or seen.blocks + beside_blocks <= self._free_blocks

    def _draining(self) -> bool:
        """One that never finds room has waited long enough: nobody else starts meanwhile."""
        since_s = self._backlog.roomless_since_s()
        return since_s is not None and self._now_s - since_s > self._max_wait_s

    def _find_aged(self) -> None:
        oldest = self._backlog.oldest()
        if oldest is not None and self._has_aged(oldest):
            self._aged = oldest

    def _has_aged(self, prompt: Prompt) -> bool:
        return self._now_s - prompt.arrival_s > self._max_wait_s

    def _set_hold(self) -> None:
        """Pass over long prompts while none may start, unless one would fit whole."""
        full = self._occupancy.long_full
        self._backlog.hold_long = full and self._tokens <= self._caps.long_tokens

    def _rank(self, prompt: Prompt) -> Rank:
        """Those that have waited too long, then the class whose turn it is, then the order.

        A long prompt that keeps an aged one from starting goes before it.
        """
        aged = self._aged
        if self._has_aged(prompt) and (aged is None or prompt.arrival_s <= aged.arrival_s):
            return (0, prompt.arrival_s, prompt.id)
        if self._favour_yielding and self._order.yielding(prompt, self._now_s):
            return (1, *self._backlog.rank(prompt, self._now_s))
        return (2, *self._backlog.rank(prompt, self._now_s))

    def rejudge_long(self) -> None:
        """Look again at the long prompt held first: its prefix may be cached by now."""
        head = self._backlog.long_head(self._now_s) if self._occupancy.long_full else None
        if head is not None:
            seen = self._probe(head.id)
            if seen.ask is not None:
                seen = seen.ask()
            if seen.blocked is not None:
                self._backlog.park(head.id, seen, self._now_s)
            elif seen.tokens != head.tokens:
                self._backlog.add(_judged(head, seen), self._now_s)


def _nobody() -> Generator[tuple[Rank, Prompt]]:
    yield from ()


def _judged(prompt: Prompt, seen: Probe) -> Prompt:
    return prompt._replace(
        tokens=seen.tokens, context_tokens=seen.context_tokens, total_tokens=seen.tokens
    )
